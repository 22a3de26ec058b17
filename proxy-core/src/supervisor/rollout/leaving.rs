//! Generations on their way out: draining, or just ending.

use serde::{Deserialize, Serialize};

use crate::clock::Moment;

use super::{Effect, Event, Failure, Generation, Machine, Worker};

/// A worker on its way out.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Leaving {
    pub(super) worker: Worker,
    /// When it is told to shut down.
    #[serde(default)]
    pub(super) shutdown_at: Option<Moment>,
    /// When it is killed.
    #[serde(default)]
    pub(super) kill_at: Option<Moment>,
    /// Finishes streams (a draining generation) rather than just ending (a failed candidate).
    pub(super) drains: bool,
}

/// How a generation that served leaves its place other than by a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Departure {
    /// The process has ended.
    Gone,
    /// It said that it ends.
    Ends,
    /// It cannot hear us any more: like a worker whose supervisor is gone it finishes and exits.
    Deaf,
    /// No new sockets for it, but its streams are not cut: it left a transfer unanswered, or its own answers
    /// were bad.
    Finishes,
    /// It does not answer a ping either.
    Hangs,
}

impl Departure {
    /// How whoever this happened to departs, and why; nothing for what is no reason to.
    pub(super) fn of(event: Event) -> Option<(Failure, Self)> {
        match event {
            Event::Exited { how } => Some((Failure::Exited(how), Self::Gone)),
            Event::Fatal { reason, blame } => Some((Failure::Fatal { reason, blame }, Self::Ends)),
            Event::ChannelClosed | Event::Drained => Some((Failure::ChannelClosed, Self::Deaf)),
            Event::TransferUnanswered => Some((Failure::Unresponsive, Self::Finishes)),
            Event::PingUnanswered => Some((Failure::Unresponsive, Self::Hangs)),
            Event::Spawned { .. }
            | Event::SpawnFailed { .. }
            | Event::Ready { .. }
            | Event::Activated
            | Event::Load { .. } => None,
        }
    }
}

impl Machine {
    pub(super) fn leaving_event(
        &mut self,
        now: Moment,
        generation: Generation,
        event: Event,
        effects: &mut Vec<Effect>,
    ) {
        let Some(at) = self
            .leaving
            .iter()
            .position(|l| l.worker.generation == generation)
        else {
            return;
        };
        match event {
            Event::Spawned { pid } => {
                // Superseded between the order to spawn and its execution.
                self.leaving[at].worker.pid = Some(pid);
                effects.push(Effect::Kill(generation));
            }
            Event::SpawnFailed { .. } | Event::Exited { .. } => {
                self.leaving.remove(at);
            }
            Event::PingUnanswered => effects.push(Effect::Kill(generation)),
            // Nothing left to serve: it exits by itself, or is helped.
            Event::Drained | Event::Fatal { .. } => {
                let by = now + self.settings.kill_grace;
                let leaving = &mut self.leaving[at];
                leaving.kill_at = Some(leaving.kill_at.map_or(by, |at| at.min(by)));
            }
            Event::Ready { .. }
            | Event::Activated
            | Event::Load { .. }
            | Event::ChannelClosed
            | Event::TransferUnanswered => {}
        }
    }

    /// A worker that served leaves as it deserves.
    pub(super) fn depart(
        &mut self,
        now: Moment,
        worker: Worker,
        departure: Departure,
        effects: &mut Vec<Effect>,
    ) {
        let kill_at = match departure {
            Departure::Gone => return,
            Departure::Finishes => return self.drain(now, worker, effects),
            Departure::Ends => Some(now + self.settings.kill_grace),
            Departure::Deaf => self.settings.drain_deadline.map(|after| now + after),
            Departure::Hangs => {
                effects.push(Effect::Kill(worker.generation));
                None
            }
        };
        self.leaving.push(Leaving {
            worker,
            shutdown_at: None,
            kill_at,
            drains: departure != Departure::Hangs,
        });
    }

    /// Lets a worker finish what it serves.
    pub(super) fn drain(&mut self, now: Moment, mut worker: Worker, effects: &mut Vec<Effect>) {
        worker.since = now;
        effects.push(Effect::Drain(worker.generation));
        let shutdown_at = self.settings.drain_deadline.map(|after| now + after);
        self.leaving.push(Leaving {
            worker,
            shutdown_at,
            kill_at: None,
            drains: true,
        });
    }

    /// Ends a draining generation before its deadline: what it still serves is cut. Says whether it drains.
    pub fn end_drain(
        &mut self,
        now: Moment,
        generation: Generation,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let kill_at = now + self.settings.kill_grace;
        let Some(leaving) = self
            .leaving
            .iter_mut()
            .find(|leaving| leaving.drains && leaving.worker.generation == generation)
        else {
            return false;
        };
        leaving.shutdown_at = None;
        leaving.kill_at = Some(leaving.kill_at.map_or(kill_at, |at| at.min(kill_at)));
        effects.push(Effect::Shutdown(generation));
        true
    }

    /// Ends a worker that serves nobody.
    pub(super) fn end(&mut self, now: Moment, mut worker: Worker, effects: &mut Vec<Effect>) {
        worker.since = now;
        if worker.pid.is_some() {
            effects.push(Effect::Kill(worker.generation));
        }
        self.leaving.push(Leaving {
            worker,
            shutdown_at: None,
            kill_at: None,
            drains: false,
        });
    }
}
