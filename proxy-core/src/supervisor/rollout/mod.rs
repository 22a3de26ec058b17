//! The change from one active generation to the next: a pure state machine.
//!
//! It owns nothing but numbers. Events and the time come in, effects go out; `act` carries them out.
//!
//! ```text
//!                  ready, activated                  probation over: kept
//!   candidate ─────────────────────▶ active ──────────────────────────────▶ active
//!       │ fails: failed                │ fails on probation: rolled back
//!       ▼                              ▼
//!     ended                     drains, or ended
//!
//!                  its successor is activated        its successor is kept
//!   active ────────────────────────▶ standby ─────────────────────────────▶ draining
//!                                      │ its successor fails: `activate`
//!                                      ▼
//!                                  taking over ── activated ──▶ active
//! ```
//!
//! What must always hold is asserted by the random schedules in `tests`: at most one active, candidate and
//! standby; a failed candidate never touches the active; every rollout ends with exactly one verdict;
//! nothing is kept that did not say `activated` and outlive its probation; whatever happens, in the end
//! what was last kept serves.

mod active;
mod candidate;
#[cfg(test)]
pub(super) mod dice;
mod leaving;
mod probation;
mod request;
mod standby;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::time::Duration;

use control::types::Outcome;
use serde::{Deserialize, Serialize};

pub use probation::{Answers, Probation};
pub use vocabulary::{
    Answer, Conclusion, Effect, Event, Failure, Generation, Mark, Refusal, Request, RolloutId,
    Settings, Target,
};

use crate::clock::Moment;

use active::{Active, Standing};
use candidate::{Candidate, Errand};
use leaving::{Departure, Leaving};
use standby::TakeOver;

/// A worker process as the machine knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Worker {
    /// Its number.
    pub generation: Generation,
    /// What it runs.
    pub target: Target,
    /// Its process, once it runs.
    #[serde(default)]
    pub pid: Option<u32>,
    /// When it got its present place.
    pub since: Moment,
}

/// The state of all generations.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    #[serde(default)]
    settings: Settings,
    #[serde(default)]
    active: Option<Active>,
    #[serde(default)]
    standby: Option<Worker>,
    #[serde(default)]
    taking_over: Option<TakeOver>,
    #[serde(default)]
    candidate: Option<Candidate>,
    #[serde(default)]
    leaving: Vec<Leaving>,
    desired: Target,
    /// What a supervisor starts with: where it goes back to while nothing was kept yet.
    first: Target,
    #[serde(default)]
    last_kept: Option<Target>,
    #[serde(default)]
    recovery_due: Option<Moment>,
    #[serde(default)]
    failed_recoveries: u32,
    next_generation: Generation,
    next_rollout: RolloutId,
    #[serde(default)]
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
            standby: None,
            taking_over: None,
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
        let is = |worker: Option<&Worker>| worker.is_some_and(|w| w.generation == generation);
        if is(self.candidate()) {
            self.candidate_event(now, event, effects);
        } else if is(self.active()) {
            self.active_event(now, event, effects);
        } else if is(self.standby()) {
            self.standby_event(now, event, effects);
        } else if is(self.taking_over()) {
            self.take_over_event(now, event, effects);
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
        if self.taking_over.as_ref().is_some_and(|t| t.deadline <= now) {
            let failure = Failure::NotActivated(self.settings.ready_timeout);
            self.fail_take_over(now, failure, Departure::Finishes, effects);
        }
        if self.probation().is_some_and(|p| p.until <= now) {
            self.end_probation(now, effects);
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
            if !self.is_provided() {
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
                self.taking_over.as_ref().map(|t| t.deadline),
                self.probation().map(|p| p.until),
                self.recovery_due,
            ])
            .flatten()
            .min()
    }

    /// Ends everything: streams may finish for `timeout`. Asked again, nothing may.
    pub fn stop(&mut self, now: Moment, timeout: Duration, effects: &mut Vec<Effect>) {
        let again = std::mem::replace(&mut self.stopping, true);
        self.recovery_due = None;
        if !again {
            // Nobody will take over what those that drain already would give back.
            let drain = self
                .draining()
                .map(|worker| Effect::Drain(worker.generation));
            effects.extend(drain);
        }
        if let Some(candidate) = self.candidate.take() {
            if let Errand::Rollout(rollout) = candidate.errand {
                effects.push(deferred(rollout, &candidate.worker));
            }
            self.end(now, candidate.worker, effects);
        }
        let serving = self.active.take().map(|active| {
            if let Standing::Probation(probation) = active.standing {
                effects.push(deferred(probation.rollout, &active.worker));
            }
            active.worker
        });
        let late = self.taking_over.take().map(|late| late.worker);
        for worker in [serving, self.standby.take(), late].into_iter().flatten() {
            self.drain(now, worker, effects);
        }
        let last = now + timeout;
        for leaving in &mut self.leaving {
            if again {
                leaving.shutdown_at = None;
                leaving.kill_at = None;
                effects.push(Effect::Kill(leaving.worker.generation));
            } else if let Some(at) = leaving.kill_at {
                // One that cannot hear us any more is told nothing.
                leaving.kill_at = Some(at.min(last));
            } else {
                leaving.shutdown_at = Some(leaving.shutdown_at.map_or(last, |at| at.min(last)));
            }
        }
    }

    /// The generation that takes new sockets.
    pub fn active(&self) -> Option<&Worker> {
        self.active.as_ref().map(|active| &active.worker)
    }

    /// The generation that takes over if the active one turns bad in its probation.
    pub fn standby(&self) -> Option<&Worker> {
        self.standby.as_ref()
    }

    /// The standby that was told to serve again and has not said yet that it does.
    pub fn taking_over(&self) -> Option<&Worker> {
        self.taking_over.as_ref().map(|late| &late.worker)
    }

    /// The probation of the active generation.
    pub fn probation(&self) -> Option<&Probation> {
        match &self.active.as_ref()?.standing {
            Standing::Probation(probation) => Some(probation),
            Standing::Kept | Standing::Unproven => None,
        }
    }

    /// The rollout that has no verdict yet.
    pub fn under_way(&self) -> Option<RolloutId> {
        match self.candidate.as_ref().map(|candidate| candidate.errand) {
            Some(Errand::Rollout(rollout)) => Some(rollout),
            Some(Errand::Recovery) | None => self.probation().map(|probation| probation.rollout),
        }
    }

    /// A proven generation serves, and nothing is under way that could change that.
    pub fn is_settled(&self) -> bool {
        let kept = self
            .active
            .as_ref()
            .is_some_and(|active| matches!(active.standing, Standing::Kept));
        kept && self.candidate.is_none()
            && self.standby.is_none()
            && self.taking_over.is_none()
            && self.recovery_due.is_none()
            && !self.stopping
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

    /// When a draining generation is cut; nothing for one that may take for ever.
    pub fn cut_at(&self, generation: Generation) -> Option<Moment> {
        let mut leaving = self.leaving.iter();
        let leaving = leaving.find(|l| l.drains && l.worker.generation == generation)?;
        leaving.shutdown_at.or(leaving.kill_at)
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
            && self.standby.is_none()
            && self.taking_over.is_none()
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
            before: Answers::default(),
        });
    }

    /// Somebody proven serves, or is on its way, or nobody shall any more: no recovery is needed.
    fn is_provided(&self) -> bool {
        let serves = self
            .active
            .as_ref()
            .is_some_and(|active| !matches!(active.standing, Standing::Unproven));
        serves || self.taking_over.is_some() || self.candidate.is_some() || self.stopping
    }
}

/// The verdict of a rollout that SIGTERM ends.
fn deferred(rollout: RolloutId, worker: &Worker) -> Effect {
    Effect::Conclude(Conclusion {
        rollout,
        target: worker.target.clone(),
        generation: worker.generation,
        verdict: Outcome::Deferred,
        why: None,
        note: Some(Refusal::Stopping.to_string()),
        mark: Mark::None,
    })
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

/// 250 ms · 2^min(n, 8), at most 10 s (DESIGN, section 10; both ends are settings).
fn backoff(settings: &Settings, failures: u32) -> Duration {
    (settings.recovery_min * 2_u32.pow(failures.min(8))).min(settings.recovery_max)
}
