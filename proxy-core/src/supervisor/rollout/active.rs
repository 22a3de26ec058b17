//! The active generation, and how it can leave its place other than by a rollout.

use control::types::Outcome;
use serde::{Deserialize, Serialize};

use crate::clock::Moment;

use super::leaving::Departure;
use super::probation::Probation;
use super::{Effect, Event, Failure, Machine, Worker};

/// Who gets new sockets.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Active {
    pub(super) worker: Worker,
    pub(super) standing: Standing,
}

/// What is known of the active generation.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Standing {
    /// Its rollout was kept, or it brought back what was.
    Kept,
    /// Its rollout has no verdict yet.
    Probation(Probation),
    /// A later request ended its probation. It serves until that request's candidate is active, or
    /// until what was last kept does again.
    Unproven,
}

impl Machine {
    pub(super) fn active_event(&mut self, now: Moment, event: Event, effects: &mut Vec<Effect>) {
        let (failure, departure) = match event {
            Event::Load {
                answered,
                local_5xx,
            } => match self.count_answers(answered, local_5xx) {
                Some(failure) => (failure, Departure::Finishes),
                None => return,
            },
            // Only a candidate's place is gained by saying these.
            Event::Spawned { .. }
            | Event::SpawnFailed { .. }
            | Event::Ready { .. }
            | Event::Activated => return,
            Event::Exited { .. }
            | Event::Fatal { .. }
            | Event::ChannelClosed
            | Event::Drained
            | Event::TransferUnanswered
            | Event::PingUnanswered => match Departure::of(event) {
                Some(departs) => departs,
                None => return,
            },
        };
        let Some(Active { worker, standing }) = self.active.take() else {
            return;
        };
        let was_stable = now.since(worker.since) >= self.settings.recovery_max;
        if was_stable {
            self.failed_recoveries = 0;
        }
        let (generation, target) = (worker.generation, worker.target.clone());
        let stalled = matches!(departure, Departure::Finishes);
        self.depart(now, worker, departure, effects);
        match standing {
            Standing::Probation(probation) => {
                self.desired = self.fallback().clone();
                let mark = self.mark_of(&failure, &target, Outcome::RolledBack);
                effects.push(Effect::Conclude(super::Conclusion {
                    rollout: probation.rollout,
                    target,
                    generation,
                    verdict: Outcome::RolledBack,
                    why: Some(failure),
                    note: None,
                    mark,
                }));
                self.restore(now, effects);
            }
            Standing::Unproven => {
                effects.push(lost(generation, target, failure));
                self.restore(now, effects);
            }
            Standing::Kept => {
                effects.push(lost(generation, target, failure));
                self.restore(now, effects);
                if !was_stable {
                    // One that dies again and again right after `activated` must not be started for
                    // ever at the shortest wait.
                    self.failed_recoveries += 1;
                }
            }
        }
        if stalled && self.recovery_due.is_some() {
            // Nothing crashed: there is nothing to wait for.
            self.recovery_due = Some(now);
        }
    }
}

/// A worker outside any rollout failed.
pub(super) fn lost(generation: u64, target: super::Target, failure: Failure) -> Effect {
    Effect::Lost {
        generation,
        target,
        failure,
    }
}
