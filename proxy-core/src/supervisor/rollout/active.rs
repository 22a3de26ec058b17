//! The active generation, and how it can leave its place other than by a rollout.

use crate::clock::Moment;

use super::leaving::Leaving;
use super::{Effect, Event, Failure, Machine};

/// How an active generation leaves its place other than by a rollout.
enum Departure {
    /// The process has ended.
    Gone,
    /// It said that it ends.
    Ends,
    /// It cannot hear us any more: like a worker whose supervisor is gone it finishes and exits.
    Deaf,
    /// It left a transfer unanswered: no new sockets for it, but a stall must not cut its streams.
    Stalled,
    /// It does not answer a ping either.
    Hangs,
}

impl Machine {
    pub(super) fn active_event(&mut self, now: Moment, event: Event, effects: &mut Vec<Effect>) {
        let (failure, exit) = match event {
            Event::Exited { how } => (Failure::Exited(how), Departure::Gone),
            Event::Fatal { reason, blame } => (Failure::Fatal { reason, blame }, Departure::Ends),
            Event::ChannelClosed | Event::Drained => (Failure::ChannelClosed, Departure::Deaf),
            Event::TransferUnanswered => (Failure::Unresponsive, Departure::Stalled),
            Event::PingUnanswered => (Failure::Unresponsive, Departure::Hangs),
            Event::Spawned { .. }
            | Event::SpawnFailed { .. }
            | Event::Ready { .. }
            | Event::Activated => return,
        };
        let Some(active) = self.active.take() else {
            return;
        };
        let was_stable = now.since(active.since) >= self.settings.recovery_max;
        if was_stable {
            self.failed_recoveries = 0;
        }
        let (generation, target) = (active.generation, active.target.clone());
        let leaving = |shutdown_at, kill_at, drains| Leaving {
            worker: active.clone(),
            shutdown_at,
            kill_at,
            drains,
        };
        match exit {
            Departure::Gone => {}
            Departure::Ends => {
                let kill_at = Some(now + self.settings.kill_grace);
                self.leaving.push(leaving(None, kill_at, true));
            }
            Departure::Deaf => {
                let kill_at = self.settings.drain_deadline.map(|after| now + after);
                self.leaving.push(leaving(None, kill_at, true));
            }
            Departure::Stalled => {
                self.drain(now, active, effects);
                self.recovery_due = Some(now);
            }
            Departure::Hangs => {
                effects.push(Effect::Kill(generation));
                self.leaving.push(leaving(None, None, false));
            }
        }
        effects.push(Effect::Lost {
            generation,
            target,
            failure,
        });
        self.recover_if_needed(now);
        if !was_stable {
            // One that dies again and again right after `activated` must not be started for ever
            // at the shortest wait.
            self.failed_recoveries += 1;
        }
    }
}
