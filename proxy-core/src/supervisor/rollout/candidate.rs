//! The candidate: started, proven, then active, or ended without anybody else noticing.

use control::types::Outcome;
use serde::{Deserialize, Serialize};

use crate::clock::Moment;

use super::active::{Active, Standing, lost};
use super::probation::{Answers, Probation};
use super::{Conclusion, Effect, Event, Failure, Machine, RolloutId, Worker, step};

/// Why a candidate was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Errand {
    /// Nobody serves, or nobody who is proven.
    Recovery,
    /// Somebody asked.
    Rollout(RolloutId),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Candidate {
    pub(super) worker: Worker,
    pub(super) errand: Errand,
    pub(super) activating: bool,
    pub(super) deadline: Moment,
    /// What it answered before it serves anybody: its own self-test.
    #[serde(default)]
    pub(super) before: Answers,
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
            Event::Load {
                answered,
                local_5xx,
            } => {
                candidate.before = Answers {
                    answered,
                    local_5xx,
                };
            }
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

    /// The candidate said `activated`: it is the active one.
    fn promote(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let Some(Candidate {
            mut worker,
            errand,
            before,
            ..
        }) = self.candidate.take()
        else {
            return;
        };
        worker.since = now;
        self.recovery_due = None;
        let Errand::Rollout(rollout) = errand else {
            return self.promote_recovery(now, worker, effects);
        };
        effects.push(step(rollout, "activated", &worker));
        // On a host that never served there is no traffic to prove anything by.
        let on_probation = !self.settings.probation.is_zero() && self.last_kept.is_some();
        let standing = match on_probation {
            true => Standing::Probation(Probation::new(
                rollout,
                now + self.settings.probation,
                before,
            )),
            false => Standing::Kept,
        };
        let previous = self.active.replace(Active {
            worker: worker.clone(),
            standing,
        });
        let (proven, unproven) = match previous {
            Some(Active {
                worker,
                standing: Standing::Kept,
            }) => (Some(worker), None),
            Some(Active { worker, .. }) => (None, Some(worker)),
            // Too late to take over: somebody serves.
            None => (self.taking_over.take().map(|late| late.worker), None),
        };
        if on_probation {
            effects.push(step(rollout, "probation", &worker));
            if let Some(mut proven) = proven {
                proven.since = now;
                effects.push(Effect::Standby(proven.generation));
                self.standby = Some(proven);
            }
            if let Some(unproven) = unproven {
                self.drain(now, unproven, effects);
            }
            return;
        }
        for previous in [proven, unproven, self.standby.take()]
            .into_iter()
            .flatten()
        {
            effects.push(step(rollout, "draining", &previous));
            self.drain(now, previous, effects);
        }
        self.keep(rollout, &worker, effects);
    }
    /// What was last kept serves again: whoever served without being proven is let go.
    fn promote_recovery(&mut self, now: Moment, worker: Worker, effects: &mut Vec<Effect>) {
        let (generation, target) = (worker.generation, worker.target.clone());
        self.last_kept = Some(target.clone());
        let standing = Standing::Kept;
        if let Some(unproven) = self.active.replace(Active { worker, standing }) {
            self.drain(now, unproven.worker, effects);
        }
        effects.push(Effect::Recovered { generation, target });
    }

    /// The candidate failed: whoever is active is not touched, unless it only served until this candidate would.
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
                let mark = self.mark_of(&failure, target, Outcome::Failed);
                effects.push(Effect::Conclude(Conclusion {
                    rollout,
                    target: target.clone(),
                    generation,
                    verdict: Outcome::Failed,
                    why: Some(failure),
                    note: None,
                    mark,
                }));
                self.desired = self.fallback().clone();
            }
            Errand::Recovery => {
                self.failed_recoveries += 1;
                effects.push(lost(generation, target.clone(), failure));
            }
        }
        if alive {
            self.end(now, candidate.worker, effects);
        }
        self.restore(now, effects);
    }
}
