//! Probation: the time in which a new generation serves and its predecessor is ready to take over again.

use control::types::Outcome;
use serde::{Deserialize, Serialize};

use crate::channel::Blame;
use crate::clock::Moment;

use super::active::{Active, Standing};
use super::{Conclusion, Effect, Failure, Machine, Mark, RolloutId, Target, Worker, step};

/// The active generation's probation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Probation {
    /// The rollout that waits for its verdict.
    pub rollout: RolloutId,
    /// When it is kept.
    pub until: Moment,
    /// Requests that were answered since `activated`.
    #[serde(default)]
    pub answered: u64,
    /// How many of these answers were errors of its own.
    #[serde(default)]
    pub local_5xx: u64,
    /// What it had answered before `activated`.
    #[serde(default)]
    pub before: Answers,
}

/// What a worker has answered since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Answers {
    /// All.
    pub answered: u64,
    /// Errors of its own.
    pub local_5xx: u64,
}

impl Probation {
    pub(super) fn new(rollout: RolloutId, until: Moment, before: Answers) -> Self {
        Self {
            rollout,
            until,
            answered: 0,
            local_5xx: 0,
            before,
        }
    }
}

impl Machine {
    /// The active one said what it has answered; on probation that may be reason enough to end it.
    pub(super) fn count_answers(&mut self, answered: u64, local_5xx: u64) -> Option<Failure> {
        let settings = &self.settings;
        let Some(Active {
            standing: Standing::Probation(probation),
            ..
        }) = &mut self.active
        else {
            return None;
        };
        let before = probation.before;
        probation.answered = answered.saturating_sub(before.answered);
        probation.local_5xx = local_5xx.saturating_sub(before.local_5xx);
        // It cannot have answered less than it refused.
        let of = probation.answered.max(probation.local_5xx);
        let percent = probation.local_5xx.saturating_mul(100) / of.max(1);
        let above = probation.local_5xx.saturating_mul(100)
            > settings.probation_error_percent.saturating_mul(of);
        (of > 0 && of >= settings.probation_min_requests && above)
            .then_some(Failure::ErrorShare { percent, of })
    }

    /// The probation's time is over, and nothing happened: the rollout is kept.
    pub(super) fn end_probation(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let Some(active) = &mut self.active else {
            return;
        };
        let Standing::Probation(probation) = &active.standing else {
            return;
        };
        let rollout = probation.rollout;
        active.standing = Standing::Kept;
        let worker = active.worker.clone();
        if let Some(standby) = self.standby.take() {
            effects.push(step(rollout, "draining", &standby));
            self.drain(now, standby, effects);
        }
        self.keep(rollout, &worker, effects);
    }

    /// The verdict `kept`.
    pub(super) fn keep(&mut self, rollout: RolloutId, worker: &Worker, effects: &mut Vec<Effect>) {
        self.last_kept = Some(worker.target.clone());
        effects.push(Effect::Conclude(Conclusion {
            rollout,
            target: worker.target.clone(),
            generation: worker.generation,
            verdict: Outcome::Kept,
            why: None,
            note: None,
            mark: Mark::None,
        }));
    }

    /// What a failure says about the package it happened to.
    ///
    /// One that failed under traffic is bad, however it did. But a version that was kept before is not to
    /// blame for what another configuration, or the host, does to it.
    pub(super) fn mark_of(&self, failure: &Failure, target: &Target, verdict: Outcome) -> Mark {
        let proven = self.last_kept.as_ref();
        if proven.is_some_and(|kept| kept.version == target.version) {
            return Mark::None;
        }
        let same_configuration = proven.is_some_and(|kept| kept.config == target.config);
        match (verdict, failure) {
            // Its errors can be the fault of a configuration that came with it, too.
            (Outcome::RolledBack, Failure::ErrorShare { .. }) if !same_configuration => {
                Mark::Strike
            }
            (
                Outcome::RolledBack,
                Failure::Fatal {
                    blame: Blame::Configuration | Blame::Host | Blame::Unknown,
                    ..
                },
            ) => Mark::None,
            (Outcome::RolledBack, _) => Mark::KnownBad,
            _ => failure.mark(),
        }
    }
}
