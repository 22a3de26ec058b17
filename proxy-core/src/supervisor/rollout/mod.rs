//! The change from one active generation to the next: a pure state machine.
//!
//! It owns nothing but numbers. Events and the time come in, effects go out; `run` carries them
//! out. What must always hold is asserted by the random schedules in `tests`:
//! at most one active and one candidate; a failed candidate never touches the active; every
//! rollout ends with exactly one verdict; nothing is kept that did not say `activated`.

mod active;
mod candidate;
mod leaving;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::time::Duration;

use control::types::{By, Outcome};

pub use vocabulary::{
    Answer, Conclusion, Effect, Event, Failure, Generation, Mark, Refusal, Request, RolloutId,
    Settings, Target,
};

use crate::clock::Moment;

use candidate::{Candidate, Errand};
use leaving::Leaving;

/// A worker process as the machine knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// Its number.
    pub generation: Generation,
    /// What it runs.
    pub target: Target,
    /// Its process, once it runs.
    pub pid: Option<u32>,
    /// When it got its present place.
    pub since: Moment,
}

/// The state of all generations.
#[derive(Debug)]
pub struct Machine {
    settings: Settings,
    active: Option<Worker>,
    candidate: Option<Candidate>,
    leaving: Vec<Leaving>,
    desired: Target,
    /// What a supervisor starts with: where it goes back to while nothing was kept yet.
    first: Target,
    last_kept: Option<Target>,
    recovery_due: Option<Moment>,
    failed_recoveries: u32,
    next_generation: Generation,
    next_rollout: RolloutId,
    stopping: bool,
}

impl Machine {
    /// Starts with the first worker of `target`. Its failure is a case for recovery like any other.
    pub fn start(
        now: Moment,
        settings: Settings,
        target: Target,
        effects: &mut Vec<Effect>,
    ) -> Self {
        let mut machine = Self {
            settings,
            active: None,
            candidate: None,
            leaving: Vec::new(),
            desired: target.clone(),
            first: target.clone(),
            last_kept: None,
            recovery_due: None,
            failed_recoveries: 0,
            next_generation: 1,
            next_rollout: 1,
            stopping: false,
        };
        machine.spawn(now, target, Errand::Recovery, effects);
        machine
    }

    /// Asks for a rollout. A person ends what is under way; a job waits its turn.
    pub fn replace(&mut self, now: Moment, request: Request, effects: &mut Vec<Effect>) -> Answer {
        if self.stopping {
            return Answer::Refused(Refusal::Stopping);
        }
        let under_way = self
            .candidate
            .as_ref()
            .map(|c| (c.errand, c.worker.target == request.target));
        match under_way {
            Some((Errand::Rollout(id), true)) => return Answer::Joined(id),
            Some((Errand::Rollout(id), false)) if !ends_others(request.by) => {
                return Answer::Refused(Refusal::Busy(id));
            }
            _ => {}
        }
        let drain = self.leaving.iter().filter(|leaving| leaving.drains).count();
        if self.active.is_some() && drain >= self.settings.drain_cap {
            return Answer::Refused(Refusal::TooManyDraining(drain));
        }

        let rollout = self.number_rollout();
        self.desired = request.target.clone();
        self.recovery_due = None;
        if let (Some((Errand::Recovery, true)), Some(candidate)) = (under_way, &mut self.candidate)
        {
            // The recovery already starts exactly what is asked for: it becomes the rollout.
            candidate.errand = Errand::Rollout(rollout);
            effects.push(step(rollout, "candidate", &candidate.worker));
            return Answer::Started(rollout);
        }
        if let Some(candidate) = self.candidate.take() {
            if let Errand::Rollout(ended) = candidate.errand {
                effects.push(Effect::Conclude(Conclusion {
                    rollout: ended,
                    target: candidate.worker.target.clone(),
                    generation: candidate.worker.generation,
                    verdict: Outcome::Superseded,
                    why: None,
                    note: Some(format!(
                        "rollout {rollout} to {} was asked for",
                        request.target.version
                    )),
                }));
            }
            self.end(now, candidate.worker, effects);
        }
        self.spawn(now, request.target, Errand::Rollout(rollout), effects);
        Answer::Started(rollout)
    }

    /// A number for a rollout that changes no generation.
    pub fn number_rollout(&mut self) -> RolloutId {
        let id = self.next_rollout;
        self.next_rollout += 1;
        id
    }

    /// Something happened to the worker `generation`.
    pub fn handle(
        &mut self,
        now: Moment,
        generation: Generation,
        event: Event,
        effects: &mut Vec<Effect>,
    ) {
        if self
            .candidate
            .as_ref()
            .is_some_and(|c| c.worker.generation == generation)
        {
            self.candidate_event(now, event, effects);
        } else if self
            .active
            .as_ref()
            .is_some_and(|a| a.generation == generation)
        {
            self.active_event(now, event, effects);
        } else {
            self.leaving_event(now, generation, event, effects);
        }
    }

    /// Lets every deadline that has passed take effect.
    pub fn tick(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        if let Some(candidate) = &self.candidate
            && candidate.deadline <= now
        {
            let within = self.settings.ready_timeout;
            let failure = if candidate.activating {
                Failure::NotActivated(within)
            } else {
                Failure::NotReady(within)
            };
            self.fail_candidate(now, failure, true, effects);
        }
        for leaving in &mut self.leaving {
            if leaving.shutdown_at.is_some_and(|at| at <= now) {
                leaving.shutdown_at = None;
                leaving.kill_at = Some(now + self.settings.kill_grace);
                effects.push(Effect::Shutdown(leaving.worker.generation));
            }
            if leaving.kill_at.is_some_and(|at| at <= now) {
                leaving.kill_at = None;
                effects.push(Effect::Kill(leaving.worker.generation));
            }
        }
        if self.recovery_due.is_some_and(|at| at <= now) {
            self.recovery_due = None;
            // Re-read before acting: a request may have started or finished something meanwhile.
            if self.active.is_none() && self.candidate.is_none() && !self.stopping {
                self.spawn(now, self.desired.clone(), Errand::Recovery, effects);
            }
        }
    }

    /// When [`Self::tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<Moment> {
        let leaving = self.leaving.iter().flat_map(|l| [l.shutdown_at, l.kill_at]);
        leaving
            .chain([
                self.candidate.as_ref().map(|c| c.deadline),
                self.recovery_due,
            ])
            .flatten()
            .min()
    }

    /// Ends everything: streams may finish for `timeout`. Asked again, nothing may.
    pub fn stop(&mut self, now: Moment, timeout: Duration, effects: &mut Vec<Effect>) {
        let again = std::mem::replace(&mut self.stopping, true);
        self.recovery_due = None;
        if let Some(candidate) = self.candidate.take() {
            if let Errand::Rollout(rollout) = candidate.errand {
                effects.push(Effect::Conclude(Conclusion {
                    rollout,
                    target: candidate.worker.target.clone(),
                    generation: candidate.worker.generation,
                    verdict: Outcome::Deferred,
                    why: None,
                    note: Some(Refusal::Stopping.to_string()),
                }));
            }
            self.end(now, candidate.worker, effects);
        }
        if let Some(active) = self.active.take() {
            self.drain(now, active, effects);
        }
        let last = now + timeout;
        for leaving in &mut self.leaving {
            if again {
                leaving.shutdown_at = None;
                leaving.kill_at = None;
                effects.push(Effect::Kill(leaving.worker.generation));
            } else if leaving.kill_at.is_none() {
                leaving.shutdown_at = Some(leaving.shutdown_at.map_or(last, |at| at.min(last)));
            }
        }
    }

    /// The generation that takes new sockets.
    pub fn active(&self) -> Option<&Worker> {
        self.active.as_ref()
    }

    /// The generation that is being proven.
    pub fn candidate(&self) -> Option<&Worker> {
        self.candidate.as_ref().map(|candidate| &candidate.worker)
    }

    /// The generations that finish what they serve.
    pub fn draining(&self) -> impl Iterator<Item = &Worker> {
        self.leaving
            .iter()
            .filter(|leaving| leaving.drains)
            .map(|leaving| &leaving.worker)
    }

    /// What is gone back to after a failure: what was last kept, at first what we started with.
    pub fn fallback(&self) -> &Target {
        self.last_kept.as_ref().unwrap_or(&self.first)
    }

    /// Other numbers from now on; deadlines that were set already stay as they are.
    pub fn configure(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// What a recovery would start, and what `restart` without a version starts again.
    pub fn desired(&self) -> &Target {
        &self.desired
    }

    /// Stopped, and no worker is left.
    pub fn is_finished(&self) -> bool {
        self.stopping
            && self.active.is_none()
            && self.candidate.is_none()
            && self.leaving.is_empty()
    }

    /// SIGTERM was heard.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    fn spawn(&mut self, now: Moment, target: Target, errand: Errand, effects: &mut Vec<Effect>) {
        let generation = self.next_generation;
        self.next_generation += 1;
        let worker = Worker {
            generation,
            target: target.clone(),
            pid: None,
            since: now,
        };
        if let Errand::Rollout(rollout) = errand {
            effects.push(step(rollout, "candidate", &worker));
        }
        effects.push(Effect::Spawn { generation, target });
        self.candidate = Some(Candidate {
            worker,
            errand,
            activating: false,
            deadline: now + self.settings.ready_timeout,
        });
    }

    fn recover_if_needed(&mut self, now: Moment) {
        if self.active.is_some()
            || self.candidate.is_some()
            || self.stopping
            || self.recovery_due.is_some()
        {
            return;
        }
        self.recovery_due = Some(now + backoff(&self.settings, self.failed_recoveries));
    }
}

/// What whoever waits for a rollout is told about a generation.
fn step(rollout: RolloutId, step: &'static str, worker: &Worker) -> Effect {
    Effect::Step {
        rollout,
        step,
        generation: worker.generation,
        version: worker.target.version.clone(),
    }
}

/// Whether a request of this origin ends a rollout that is under way.
fn ends_others(by: By) -> bool {
    matches!(by, By::Person | By::Signal)
}

/// 250 ms · 2^min(n, 8), at most 10 s (DESIGN, section 10; both ends are settings).
fn backoff(settings: &Settings, failures: u32) -> Duration {
    (settings.recovery_min * 2_u32.pow(failures.min(8))).min(settings.recovery_max)
}
