//! A request for a rollout, and what it does to the one that is under way.

use control::types::{By, Outcome};

use crate::clock::Moment;

use super::active::{Active, Standing};
use super::candidate::Errand;
use super::{
    Answer, Conclusion, Effect, Machine, Mark, Refusal, Request, RolloutId, Target, Worker, step,
};

impl Machine {
    /// Asks for a rollout. A person ends what is under way; a job waits its turn.
    pub fn replace(&mut self, now: Moment, request: Request, effects: &mut Vec<Effect>) -> Answer {
        if self.stopping {
            return Answer::Refused(Refusal::Stopping);
        }
        if let Some((rollout, target)) = self.open_rollout() {
            if *target == request.target {
                return Answer::Joined(rollout);
            }
            if !ends_others(request.by) {
                return Answer::Refused(Refusal::Busy(rollout));
            }
        }
        if let Some(full) = self.drain_cap_reached() {
            return Answer::Refused(full);
        }
        let rollout = self.number_rollout();
        self.desired = request.target.clone();
        self.recovery_due = None;
        if let Some(candidate) = &mut self.candidate
            && candidate.errand == Errand::Recovery
            && candidate.worker.target == request.target
        {
            // The recovery already starts exactly what is asked for: it becomes the rollout.
            candidate.errand = Errand::Rollout(rollout);
            effects.push(step(rollout, "candidate", &candidate.worker));
            return Answer::Started(rollout);
        }
        self.supersede(now, rollout, &request.target, effects);
        self.spawn(now, request.target, Errand::Rollout(rollout), effects);
        Answer::Started(rollout)
    }

    /// The rollout that has no verdict yet, and what it is to.
    fn open_rollout(&self) -> Option<(RolloutId, &Target)> {
        if let Some(candidate) = &self.candidate
            && let Errand::Rollout(rollout) = candidate.errand
        {
            return Some((rollout, &candidate.worker.target));
        }
        let probation = self.probation()?;
        Some((probation.rollout, &self.active()?.target))
    }

    /// Another rollout would let more generations drain than may: nothing is killed to make room.
    fn drain_cap_reached(&self) -> Option<Refusal> {
        let leaving = self.leaving.iter().filter(|leaving| leaving.drains).count();
        let drain = leaving + usize::from(self.standby.is_some());
        let one_more = self.active.is_some() || self.taking_over.is_some();
        (one_more && drain >= self.settings.drain_cap).then_some(Refusal::TooManyDraining(drain))
    }

    /// Ends what is under way for the new `rollout`. Who serves goes on, and so does the standby.
    fn supersede(
        &mut self,
        now: Moment,
        rollout: RolloutId,
        target: &Target,
        effects: &mut Vec<Effect>,
    ) {
        let superseded = |ended, worker: &Worker| {
            Effect::Conclude(Conclusion {
                rollout: ended,
                target: worker.target.clone(),
                generation: worker.generation,
                verdict: Outcome::Superseded,
                why: None,
                note: Some(format!(
                    "rollout {rollout} to {} was asked for",
                    target.version
                )),
                mark: Mark::None,
            })
        };
        if let Some(candidate) = self.candidate.take() {
            if let Errand::Rollout(ended) = candidate.errand {
                effects.push(superseded(ended, &candidate.worker));
            }
            self.end(now, candidate.worker, effects);
        }
        if let Some(Active { worker, standing }) = &mut self.active
            && let Standing::Probation(probation) = standing
        {
            effects.push(superseded(probation.rollout, worker));
            *standing = Standing::Unproven;
        }
    }
}

/// Whether a request of this origin ends a rollout that is under way.
fn ends_others(by: By) -> bool {
    matches!(by, By::Person | By::Signal)
}
