//! Accepted sockets on their way to a worker, and back when it fails.

use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::channel::{Id, ToWorker};
use crate::clock::Moment;

use super::link::{Link, Offered};
use super::listener::reset;
use super::queue::Waiting;
use super::rollout::{Event, Generation};
use super::state::Supervisor;

/// How soon a full channel, or a system without descriptors, is tried again.
const RETRY: Duration = Duration::from_millis(2);

/// How long after the end of a channel the end of its process is waited for.
pub(super) const DEATH_FOLLOWS: Duration = Duration::from_millis(200);

impl Supervisor {
    /// How many connections may be taken out of the kernel's backlog now. While somebody serves, a full
    /// queue is back-pressure; only when nobody does is a client refused for it, and that is counted.
    ///
    /// What the backlog holds costs no descriptor. The ones kept back are what a recovery, the control
    /// socket and the clerk need.
    pub(super) fn accept_room(&self) -> usize {
        if self.machine.is_stopping() || self.accept_again_at.is_some() {
            return 0;
        }
        let budget = self.socket_budget.saturating_sub(self.sockets_held());
        match self.machine.active() {
            Some(_) => budget.min(self.queue.room()),
            None => budget,
        }
    }

    /// Descriptors of clients that are open in this process.
    fn sockets_held(&self) -> usize {
        let under_way: usize = self.links.values().map(|link| link.transfers.len()).sum();
        self.queue.len() + under_way
    }

    /// A client connected.
    pub(super) fn receive(&mut self, socket: OwnedFd) {
        if let Err(socket) = self.queue.push(Moment::now(), socket) {
            self.reject(socket);
        }
    }

    /// Offers what waits to the active worker, in accept order.
    pub(super) fn offer_waiting(&mut self, now: Moment) {
        let Some(generation) = self.machine.active().map(|active| active.generation) else {
            return;
        };
        let Some(link) = self.links.get_mut(&generation) else {
            return;
        };
        while !self.queue.is_empty() && link.takes_offers() {
            let Some(waiting) = self.queue.pop() else {
                break;
            };
            if let Offered::NotNow(waiting) = link.offer(now, waiting) {
                self.queue.push_back_in_front(waiting);
                self.retry_at = Some(now + RETRY);
                break;
            }
        }
    }

    /// The worker holds the socket: it is told to serve it.
    pub(super) fn socket_accepted(&mut self, generation: Generation, id: Id) {
        let Some(link) = self.links.get_mut(&generation) else {
            return;
        };
        match link.transfers.accepted(Moment::now(), id) {
            Ok(()) => link.say(&ToWorker::SocketCommit { id }),
            // Withdrawn meanwhile, and the worker was told so.
            Err(out_of_turn) => tracing::debug!(generation, id, ?out_of_turn, "socket-accepted"),
        }
    }

    /// The worker serves the socket: our copy is closed.
    pub(super) fn socket_owned(&mut self, generation: Generation, id: Id) {
        let Some(link) = self.links.get_mut(&generation) else {
            return;
        };
        match link.transfers.owned(id) {
            Ok(socket) => {
                drop(socket);
                link.took();
            }
            Err(out_of_turn) => {
                self.counters.dropped_messages += 1;
                tracing::debug!(generation, id, ?out_of_turn, "socket-owned");
            }
        }
    }

    /// The worker does not take it: somebody else shall, or the same one a little later.
    pub(super) fn socket_refused(&mut self, generation: Generation, id: Id, reason: &str) {
        let Some(link) = self.links.get_mut(&generation) else {
            return;
        };
        if let Ok(waiting) = link.transfers.refused(id) {
            let now = Moment::now();
            link.refused(now);
            tracing::debug!(generation, id, reason, "socket-refused");
            if waiting.until <= now {
                return self.reject(waiting.socket);
            }
            self.queue.push_back_in_front(waiting);
        }
    }

    /// A connection between two requests came back: the active worker gets it like a new one.
    pub(super) fn socket_returned(
        &mut self,
        generation: Generation,
        id: Id,
        socket: Option<OwnedFd>,
    ) {
        let Some(socket) = socket else {
            self.counters.dropped_messages += 1;
            tracing::warn!(
                generation,
                id,
                "a returned connection was lost: no descriptors left"
            );
            return;
        };
        if self.machine.is_stopping() {
            // Nobody will serve it again. Between two requests an end is no loss.
            return drop(socket);
        }
        self.counters.returned_sockets += 1;
        // The bound is for new clients; these are as many as were served, and are handed on at once.
        self.queue.push_returned(Moment::now(), socket);
    }

    /// Puts sockets that nobody owns back in front, in their order.
    pub(super) fn take_back(&mut self, sockets: Vec<Waiting<OwnedFd>>) {
        self.counters.failed_transfers += sockets.len() as u64;
        for waiting in sockets.into_iter().rev() {
            self.queue.push_back_in_front(waiting);
        }
    }

    /// Lets the deadlines of transfers and pings take effect.
    pub(super) fn check_deadlines(&mut self, now: Moment) {
        for at in [&mut self.retry_at, &mut self.accept_again_at] {
            if at.is_some_and(|at| at <= now) {
                *at = None;
            }
        }
        for link in self.links.values_mut() {
            if link.pause.is_some_and(|at| at <= now) {
                link.pause = None;
            }
            if link.flush() {
                self.retry_at.get_or_insert(now + RETRY);
            }
            if let Some(id) = link.liveness.ping_due(now) {
                link.say(&ToWorker::Ping { id });
            }
        }
        let deaf: Vec<Generation> = self
            .links
            .values_mut()
            .filter(|link| link.closed_at.is_some_and(|at| at + DEATH_FOLLOWS <= now))
            .map(|link| {
                link.closed_at = None;
                link.generation
            })
            .collect();
        for generation in deaf {
            // What it did not say it owns it can never own now, and nobody waits for its answer.
            if let Some(link) = self.links.get_mut(&generation) {
                let unowned = link.transfers.settle();
                self.take_back(unowned);
            }
            self.happened(generation, Event::ChannelClosed);
        }
        let late: Vec<Generation> = self
            .links
            .values()
            .filter(|link| is_late(link, now))
            .map(|link| link.generation)
            .collect();
        for generation in late {
            self.judge_late(generation, now);
        }
    }

    /// Ends the waiting of those whose time is over while nobody serves, and of all when nobody will.
    ///
    /// While somebody serves, they only wait for their turn: that is bounded by the answers to transfers.
    pub(super) fn turn_away(&mut self, now: Moment) {
        let over: Vec<OwnedFd> = if self.machine.is_stopping() {
            self.queue.drain().collect()
        } else if self.machine.active().is_none() {
            self.queue.expired(now)
        } else {
            return;
        };
        over.into_iter().for_each(|socket| self.reject(socket));
    }

    fn reject(&mut self, socket: OwnedFd) {
        self.counters.rejected_sockets += 1;
        reset(socket);
    }

    /// A deadline of this worker has passed. Its channel is read once more before it is blamed.
    fn judge_late(&mut self, generation: Generation, now: Moment) {
        self.hear_rest(generation);
        let Some(link) = self.links.get_mut(&generation) else {
            return;
        };
        if !link.stalled && link.transfers.is_overdue(now) {
            link.stalled = true;
            let withdrawn = link.transfers.withdraw();
            for (id, _) in &withdrawn {
                link.say(&ToWorker::SocketCancel { id: *id });
            }
            self.take_back(withdrawn.into_iter().map(|(_, waiting)| waiting).collect());
            self.happened(generation, Event::TransferUnanswered);
        }
        let Some(link) = self.links.get_mut(&generation) else {
            return;
        };
        if link.liveness.is_missed(now) {
            link.liveness.give_up();
            self.happened(generation, Event::PingUnanswered);
        }
    }
}

fn is_late(link: &Link, now: Moment) -> bool {
    link.liveness.is_missed(now) || (!link.stalled && link.transfers.is_overdue(now))
}
