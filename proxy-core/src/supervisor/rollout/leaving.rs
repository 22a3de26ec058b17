//! Generations on their way out: draining, or just ending.

use crate::clock::Moment;

use super::{Effect, Event, Generation, Machine, Worker};

/// A worker on its way out.
#[derive(Debug, Clone)]
pub(super) struct Leaving {
    pub(super) worker: Worker,
    /// When it is told to shut down.
    pub(super) shutdown_at: Option<Moment>,
    /// When it is killed.
    pub(super) kill_at: Option<Moment>,
    /// Finishes streams (a draining generation) rather than just ending (a failed candidate).
    pub(super) drains: bool,
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
            | Event::ChannelClosed
            | Event::TransferUnanswered => {}
        }
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
