//! The main loop: waits for everything at once, then lets it take effect in a fixed order.
//!
//! Channels are read before deadlines are believed, so that a supervisor that was stopped for a
//! while, anywhere in its turn, blames nobody for answers that lie there already.

use std::os::fd::OwnedFd;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::clock::Moment;
use crate::config;

use super::api::Command;
use super::clerk::Filed;
use super::handoff::DEATH_FOLLOWS;
use super::link::Heard;
use super::rollout::{Generation, Settings};
use super::signals::Said;
use super::state::Supervisor;

/// Connections taken from one listener before anything else gets a turn.
const ACCEPTS_A_TURN: usize = 64;

/// How long whoever asked something may take to read the last answers before a supervisor ends.
const LAST_ANSWERS: Duration = Duration::from_millis(250);

/// How often it is looked whether they have.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// How soon the listeners are looked at again when the system had no descriptor for a connection.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// What ended a wait. The order of the fields is the order in which they take effect.
#[derive(Default)]
struct Woken {
    heard: Vec<(Generation, Heard)>,
    exited: Vec<(Generation, String)>,
    filed: Vec<Filed>,
    accepted: Vec<OwnedFd>,
    accept_failed: bool,
    said: Vec<Said>,
    commands: Vec<Command>,
    handover: bool,
    timer: bool,
}

impl Woken {
    fn is_empty(&self) -> bool {
        self.heard.is_empty()
            && self.exited.is_empty()
            && self.filed.is_empty()
            && self.said.is_empty()
            && self.commands.is_empty()
            && self.accepted.is_empty()
            && !self.accept_failed
            && !self.handover
            && !self.timer
    }
}

impl Supervisor {
    /// One turn after the other, until everything has ended.
    pub(super) async fn run_to_the_end(&mut self) {
        loop {
            self.settle_turn();
            if self.machine.is_finished() {
                break;
            }
            let woken = self.wait().await;
            for (generation, heard) in woken.heard {
                self.hear(generation, heard);
            }
            for (generation, how) in woken.exited {
                self.bury(generation, how);
            }
            for filed in woken.filed {
                self.note_filed(filed);
            }
            // Before the signals: who connected before SIGTERM is still served.
            for socket in woken.accepted {
                self.receive(socket);
            }
            if woken.accept_failed {
                self.accept_again_at = Some(Moment::now() + ACCEPT_RETRY);
            }
            for said in woken.said {
                self.obey_signal(said);
            }
            for command in woken.commands {
                self.answer(command);
            }
        }
        self.publish();
        tracing::info!("the supervisor ends");
        self.clerk.finish();
        // Whoever waits for a verdict hears it, and has a moment to read it.
        while let Ok(filed) = self.filed.try_recv() {
            self.note_filed(filed);
        }
        let late = Moment::now() + LAST_ANSWERS;
        while self.answering.count() > 0 && Moment::now() < late {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        self.on_event.end();
    }

    /// What every turn ends with: deadlines, effects, offers, and the news to whoever watches.
    fn settle_turn(&mut self) {
        let now = Moment::now();
        self.check_deadlines(now);
        self.tick(now);
        self.carry_out();
        self.offer_waiting(now);
        self.advance_stop(now);
        self.credit_returns();
        self.turn_away(now);
        self.carry_out();
        self.advance_handover(now);
        self.publish();
        self.tell_service_manager(now);
    }

    /// Lets the machine's deadlines take effect, once everything that was said before they passed is heard.
    fn tick(&mut self, now: Moment) {
        if self.machine.next_deadline().is_some_and(|at| at <= now) {
            let generations: Vec<Generation> = self.links.keys().copied().collect();
            for generation in generations {
                self.hear_rest(generation);
            }
        }
        self.machine.tick(now, &mut self.effects);
    }

    /// Waits until at least one thing is to be done, and takes all of them.
    async fn wait(&mut self) -> Woken {
        let now = Moment::now();
        let deadline = self.next_deadline(now);
        // Without any deadline one look an hour costs nothing and needs no second way to sleep.
        let wait = deadline.map_or(Duration::from_secs(3600), |at| at.until(now));
        self.timer
            .as_mut()
            .reset(tokio::time::Instant::now() + wait);
        std::future::poll_fn(|context| {
            let woken = self.poll_woken(context);
            if woken.is_empty() {
                Poll::Pending
            } else {
                Poll::Ready(woken)
            }
        })
        .await
    }

    fn poll_woken(&mut self, context: &mut Context<'_>) -> Woken {
        let mut woken = Woken::default();
        for (generation, link) in &mut self.links {
            if let Poll::Ready(heard) = link.poll_hear(context) {
                woken.heard.push((*generation, heard));
            }
            if let Poll::Ready(how) = link.process.poll_exit(context) {
                woken.exited.push((*generation, how));
            }
        }
        while let Poll::Ready(Some(filed)) = self.filed.poll_recv(context) {
            woken.filed.push(filed);
        }
        while let Poll::Ready(said) = self.signals.poll_next(context) {
            woken.said.push(said);
        }
        while let Poll::Ready(Some(command)) = self.commands.poll_recv(context) {
            woken.commands.push(command);
        }
        let mut room = self.accept_room();
        for listener in self.listeners.accepting() {
            for _ in 0..room.min(ACCEPTS_A_TURN) {
                match listener.poll_accept(context) {
                    Poll::Ready(Ok(socket)) => {
                        woken.accepted.push(socket);
                        room -= 1;
                    }
                    Poll::Ready(Err(error)) => {
                        tracing::warn!(%error, "cannot accept; trying again soon");
                        woken.accept_failed = true;
                        break;
                    }
                    Poll::Pending => break,
                }
            }
        }
        woken.handover = self.handover.poll(context);
        woken.timer = std::future::Future::poll(self.timer.as_mut(), context).is_ready();
        woken
    }

    fn next_deadline(&self, now: Moment) -> Option<Moment> {
        let links = self.links.values().flat_map(|link| {
            let closed = link.closed_at.map(|at| at + DEATH_FOLLOWS);
            [closed, link.liveness.next_deadline()]
        });
        let turn_away = match self.machine.active() {
            Some(_) => None,
            None => self.board.next_expiry(),
        };
        links
            .chain([
                self.machine.next_deadline(),
                self.board.next_deadline(),
                self.handover.next_deadline(now),
                self.admission.until(),
                turn_away,
                self.retry_at,
                self.accept_again_at,
                self.service_manager.next_deadline(),
                self.stopping.next_deadline(),
            ])
            .flatten()
            .min()
    }
}

pub(super) fn settings(rollout: &config::Rollout) -> Settings {
    Settings {
        ready_timeout: rollout.ready_timeout,
        drain_deadline: (!rollout.drain_deadline.is_zero()).then_some(rollout.drain_deadline),
        drain_cap: rollout.drain_cap,
        recovery_min: rollout.recovery_min,
        recovery_max: rollout.recovery_max,
        kill_grace: Duration::from_secs(5),
        probation: rollout.probation,
        probation_error_percent: rollout.probation_error_percent as u64,
        probation_min_requests: rollout.probation_min_requests as u64,
    }
}
