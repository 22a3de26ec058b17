//! The candidate: started, proven, then active, or ended without anybody else noticing.

use control::types::Outcome;

use crate::clock::Moment;

use super::{Conclusion, Effect, Event, Failure, Machine, RolloutId, Worker, step};

/// Why a candidate was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Errand {
    /// Nobody serves.
    Recovery,
    /// Somebody asked.
    Rollout(RolloutId),
}

#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) worker: Worker,
    pub(super) errand: Errand,
    pub(super) activating: bool,
    pub(super) deadline: Moment,
}

impl Machine {
    pub(super) fn candidate_event(&mut self, now: Moment, event: Event, effects: &mut Vec<Effect>) {
        let ready_timeout = self.settings.ready_timeout;
        let Some(candidate) = &mut self.candidate else {
            return;
        };
        match event {
            Event::Spawned { pid } => candidate.worker.pid = Some(pid),
            Event::Ready { version, protocol } if !candidate.activating => {
                if version != candidate.worker.target.version.to_string() {
                    self.fail_candidate(
                        now,
                        Failure::WrongVersion(version.chars().take(64).collect()),
                        true,
                        effects,
                    );
                } else if protocol != staging::protocol::CHANNEL_PROTOCOL {
                    self.fail_candidate(now, Failure::WrongProtocol(protocol), true, effects);
                } else {
                    candidate.activating = true;
                    candidate.deadline = now + ready_timeout;
                    let generation = candidate.worker.generation;
                    if let Errand::Rollout(rollout) = candidate.errand {
                        effects.push(step(rollout, "ready", &candidate.worker));
                    }
                    effects.push(Effect::Activate(generation));
                }
            }
            Event::Activated if candidate.activating => self.promote(now, effects),
            // Said out of turn: a worker that breaks the contract proves nothing about itself.
            Event::Ready { .. } | Event::Activated => {}
            Event::SpawnFailed { reason } => {
                self.fail_candidate(now, Failure::Spawn(reason), false, effects)
            }
            Event::Exited { how } => self.fail_candidate(now, Failure::Exited(how), false, effects),
            Event::Fatal { reason, blame } => {
                self.fail_candidate(now, Failure::Fatal { reason, blame }, true, effects)
            }
            Event::ChannelClosed | Event::Drained => {
                self.fail_candidate(now, Failure::ChannelClosed, true, effects)
            }
            Event::PingUnanswered | Event::TransferUnanswered => {
                self.fail_candidate(now, Failure::Unresponsive, true, effects);
            }
        }
    }

    /// The candidate said `activated`: it is the active one, and the previous drains.
    fn promote(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let Some(Candidate {
            mut worker, errand, ..
        }) = self.candidate.take()
        else {
            return;
        };
        worker.since = now;
        let (generation, target) = (worker.generation, worker.target.clone());
        if let Errand::Rollout(rollout) = errand {
            effects.push(step(rollout, "activated", &worker));
        }
        let previous = self.active.replace(worker);
        self.last_kept = Some(target.clone());
        self.recovery_due = None;
        match errand {
            Errand::Rollout(rollout) => {
                if let Some(previous) = previous {
                    effects.push(step(rollout, "draining", &previous));
                    self.drain(now, previous, effects);
                }
                effects.push(Effect::Conclude(Conclusion {
                    rollout,
                    target,
                    generation,
                    verdict: Outcome::Kept,
                    why: None,
                    note: None,
                }));
            }
            Errand::Recovery => {
                if let Some(previous) = previous {
                    self.drain(now, previous, effects);
                }
                effects.push(Effect::Recovered { generation, target });
            }
        }
    }

    /// The candidate failed: whoever is active is not touched.
    pub(super) fn fail_candidate(
        &mut self,
        now: Moment,
        failure: Failure,
        alive: bool,
        effects: &mut Vec<Effect>,
    ) {
        let Some(candidate) = self.candidate.take() else {
            return;
        };
        let Worker {
            generation,
            ref target,
            ..
        } = candidate.worker;
        match candidate.errand {
            Errand::Rollout(rollout) => {
                effects.push(Effect::Conclude(Conclusion {
                    rollout,
                    target: target.clone(),
                    generation,
                    verdict: Outcome::Failed,
                    why: Some(failure),
                    note: None,
                }));
                self.desired = self.fallback().clone();
            }
            Errand::Recovery => {
                self.failed_recoveries += 1;
                effects.push(Effect::Lost {
                    generation,
                    target: target.clone(),
                    failure,
                });
            }
        }
        if alive {
            self.end(now, candidate.worker, effects);
        }
        self.recover_if_needed(now);
    }
}
