//! SIGTERM: carries out the order of [`super::stopping`].

use staging::report::{Exit, Failure};

use crate::channel::ToWorker;
use crate::clock::Moment;

use super::rollout::Refusal;
use super::state::Supervisor;
use super::stopping::{Order, Times};

impl Supervisor {
    /// SIGTERM was heard: from then on nothing new begins, though those who come may still be served for a while.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.is_asked()
    }

    /// SIGTERM.
    pub(super) fn stop(&mut self, now: Moment) {
        tracing::info!(again = self.is_stopping(), "stops");
        let serves = self.machine.active().is_some();
        let orders = self.stopping.asked(now, self.times(), serves);
        self.follow(now, orders);
    }

    /// What is due of a stop.
    pub(super) fn advance_stop(&mut self, now: Moment) {
        // One step may make the next one due at once.
        loop {
            let active = self.machine.active().map(|active| active.generation);
            let waiting = self.board.queued() + self.board.on_their_way();
            let orders = self.stopping.tick(now, self.times(), active, waiting);
            if orders.is_empty() {
                return;
            }
            self.follow(now, orders);
        }
    }

    pub(super) fn refuse_while_stopping(&self) -> Result<(), Failure> {
        if !self.is_stopping() {
            return Ok(());
        }
        let refusal = Refusal::Stopping;
        Err(Failure::new(
            refusal.code(),
            refusal.to_string(),
            Exit::Deferred,
            true,
        ))
    }

    fn times(&self) -> Times {
        let server = &self.config.config.server;
        Times {
            window: server.unready_window,
            timeout: server.stop_timeout,
        }
    }

    fn follow(&mut self, now: Moment, orders: Vec<Order>) {
        for order in orders {
            match order {
                Order::SayUnready(generation) => {
                    if let Some(link) = self.links.get_mut(&generation) {
                        link.say(&ToWorker::Unready);
                    }
                }
                Order::ClosePorts => {
                    let closing = self.listeners.take_all();
                    self.close_listeners(closing);
                    self.offer_waiting(now);
                }
                Order::Drain(timeout) => self.machine.stop(now, timeout, &mut self.effects),
                Order::EndNow => {
                    // The machine, too, takes the second word for "now".
                    if !self.machine.is_stopping() {
                        self.machine
                            .stop(now, std::time::Duration::ZERO, &mut self.effects);
                    }
                    self.machine
                        .stop(now, std::time::Duration::ZERO, &mut self.effects);
                }
            }
        }
    }
}
