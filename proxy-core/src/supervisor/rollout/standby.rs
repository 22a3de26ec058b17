//! The standby: the last kept generation, ready to serve again while its successor is on probation,
//! and the way back to it.

use serde::{Deserialize, Serialize};

use crate::clock::Moment;

use super::active::{Active, Standing, lost};
use super::leaving::Departure;
use super::{Effect, Event, Failure, Machine, Worker, backoff};

/// A standby that was told to serve again and has not said `activated` yet: nobody gets new sockets, they
/// wait for it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TakeOver {
    pub(super) worker: Worker,
    pub(super) deadline: Moment,
}

impl Machine {
    /// A standby that is lost is a loss of safety only: the probation goes on without it.
    pub(super) fn standby_event(&mut self, now: Moment, event: Event, effects: &mut Vec<Effect>) {
        let Some((failure, departure)) = Departure::of(event) else {
            return;
        };
        if let Some(worker) = self.standby.take() {
            effects.push(lost(worker.generation, worker.target.clone(), failure));
            self.depart(now, worker, departure, effects);
        }
    }

    pub(super) fn take_over_event(&mut self, now: Moment, event: Event, effects: &mut Vec<Effect>) {
        if event == Event::Activated {
            let Some(TakeOver { mut worker, .. }) = self.taking_over.take() else {
                return;
            };
            worker.since = now;
            let (generation, target) = (worker.generation, worker.target.clone());
            self.active = Some(Active {
                worker,
                standing: Standing::Kept,
            });
            effects.push(Effect::Recovered { generation, target });
        } else if let Some((failure, departure)) = Departure::of(event) {
            self.fail_take_over(now, failure, departure, effects);
        }
    }

    /// It cannot serve again. Its streams are its own: they are not cut for that.
    pub(super) fn fail_take_over(
        &mut self,
        now: Moment,
        failure: Failure,
        departure: Departure,
        effects: &mut Vec<Effect>,
    ) {
        let Some(TakeOver { worker, .. }) = self.taking_over.take() else {
            return;
        };
        effects.push(lost(worker.generation, worker.target.clone(), failure));
        self.depart(now, worker, departure, effects);
        self.restore(now, effects);
    }

    /// Somebody has left a place: if nobody who is proven serves and none is on its way, the standby takes
    /// over, or a recovery is due.
    pub(super) fn restore(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let on_its_way = self.candidate.is_some();
        let goes_on = match &self.active {
            None => false,
            Some(active) => match active.standing {
                Standing::Kept | Standing::Probation(_) => true,
                Standing::Unproven => on_its_way,
            },
        };
        if self.stopping || goes_on || self.taking_over.is_some() {
            return;
        }
        if let Some(mut worker) = self.standby.take() {
            if let Some(unproven) = self.active.take() {
                self.drain(now, unproven.worker, effects);
            }
            effects.push(Effect::Activate(worker.generation));
            worker.since = now;
            self.recovery_due = None;
            self.taking_over = Some(TakeOver {
                worker,
                deadline: now + self.settings.ready_timeout,
            });
        } else if !on_its_way && self.recovery_due.is_none() {
            self.recovery_due = Some(now + backoff(&self.settings, self.failed_recoveries));
        }
    }
}
