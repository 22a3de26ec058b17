//! Accepted sockets on their way to a worker, and back when it fails.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use crate::channel::{Id, ToWorker};
use crate::clock::Moment;

use super::client::Client;
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
        if self.machine.is_stopping()
            || self.accept_again_at.is_some()
            || self.admission.until().is_some()
        {
            return 0;
        }
        let held = self.board.queued() + self.board.on_their_way();
        let budget = self.socket_budget.saturating_sub(held);
        match self.machine.active() {
            Some(_) => budget.min(self.board.room()),
            None => budget,
        }
    }

    /// A client connected.
    pub(super) fn receive(&mut self, socket: OwnedFd) {
        let client = Client::accepted(socket);
        if let Err(client) = self.board.arrived(Moment::now(), client) {
            client.reset();
        }
    }

    /// Offers what waits to the active worker, in accept order.
    pub(super) fn offer_waiting(&mut self, now: Moment) {
        if self.is_paused(now) {
            return;
        }
        let Some(generation) = self.machine.active().map(|active| active.generation) else {
            return;
        };
        let Some(link) = self.links.get(&generation) else {
            return;
        };
        if !link.is_open() {
            return;
        }
        while let Some((id, client)) = self.board.next_offer(generation) {
            if link.offer(id, client.as_fd()).is_err() {
                self.retry_at = Some(now + RETRY);
                break;
            }
            self.board.offered(now, generation);
        }
    }

    /// The worker holds the socket: it is told to serve it.
    pub(super) fn socket_accepted(&mut self, generation: Generation, id: Id) {
        let is_due = self.board.accepted(Moment::now(), generation, id);
        match self.links.get_mut(&generation) {
            Some(link) if is_due => link.say(&ToWorker::SocketCommit { id }),
            // Withdrawn meanwhile, and the worker was told so.
            _ => tracing::debug!(generation, id, "socket-accepted out of turn"),
        }
    }

    /// The worker serves the socket: our copy is closed.
    pub(super) fn socket_owned(&mut self, generation: Generation, id: Id) {
        if self.board.owned(generation, id).is_none() {
            self.dropped_messages += 1;
            tracing::debug!(generation, id, "socket-owned out of turn");
        }
    }

    /// The worker does not take it: somebody else shall, or the same one a little later.
    pub(super) fn socket_refused(&mut self, generation: Generation, id: Id, reason: &str) {
        tracing::debug!(generation, id, reason, "socket-refused");
        if let Some(client) = self.board.refused(Moment::now(), generation, id) {
            client.reset();
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
            self.dropped_messages += 1;
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
        self.board
            .returned(Moment::now(), generation, Client::returned(socket));
    }

    /// Tells every worker that gave connections back how many more it may.
    pub(super) fn credit_returns(&mut self) {
        for (generation, link) in &mut self.links {
            let count = self.board.credit(*generation);
            if count > 0 {
                link.say(&ToWorker::ReturnCredit { count });
            }
        }
    }

    /// What a worker never said it owns it can never own now: untouched, it is another's; else it is closed.
    pub(super) fn settle_lost(&mut self, generation: Generation) {
        for client in self.board.lost(generation, Client::touched) {
            tracing::warn!(
                generation,
                "a connection that its worker had begun is closed"
            );
            client.reset();
        }
    }

    /// Lets the deadlines of transfers and pings take effect.
    pub(super) fn check_deadlines(&mut self, now: Moment) {
        for at in [&mut self.retry_at, &mut self.accept_again_at] {
            if at.is_some_and(|at| at <= now) {
                *at = None;
            }
        }
        self.board.tick(now);
        for link in self.links.values_mut() {
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
                // It hears no ping any more, and finishes what it serves: silence is no sign of anything.
                link.liveness.give_up();
                link.generation
            })
            .collect();
        for generation in deaf {
            self.settle_lost(generation);
            self.happened(generation, Event::ChannelClosed);
        }
        let late: Vec<Generation> = self
            .links
            .values()
            .filter(|link| {
                link.liveness.is_missed(now) || self.board.is_overdue(now, link.generation)
            })
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
        let over = if self.machine.is_stopping() {
            self.board.turn_all_away()
        } else if self.machine.active().is_none() {
            self.board.expired(now)
        } else {
            return;
        };
        over.into_iter().for_each(Client::reset);
    }

    /// A deadline of this worker has passed. Its channel is read once more before it is blamed.
    fn judge_late(&mut self, generation: Generation, now: Moment) {
        self.hear_rest(generation);
        if self.board.is_overdue(now, generation) {
            let cancelled = self.board.stall(generation);
            if let Some(link) = self.links.get_mut(&generation) {
                for id in cancelled {
                    link.say(&ToWorker::SocketCancel { id });
                }
            }
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
