//! A program that knows no state of ours can only be started anew. That is done while nothing is in flight: no request
//! is begun for a while, idle connections come back here, and every worker must say that it holds nothing.
//!
//! The pause is a lease, here and in every worker: without its owner everything goes on as usual.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use control::supervisor::{Admission, AdmissionRequest};
use staging::report::Failure;

use crate::channel::{Id, ToWorker};
use crate::clock::Moment;

use super::super::rollout::Generation;
use super::super::state::Supervisor;
use super::exec;

/// How long at most it is waited until nothing is in flight.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long admission stays paused without anybody asking again.
pub const LEASE: Duration = Duration::from_secs(90);

/// How often the workers are asked.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// Waiting until nothing is in flight.
#[derive(Debug)]
pub struct Pause {
    until: Moment,
    ask_at: Moment,
    round: Id,
    /// What each worker said in this round: connections and requests.
    said: BTreeMap<Generation, (u64, u64)>,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Not yet.
    Wait,
    /// Nothing is in flight.
    Idle,
    /// It took too long; why.
    Late(String),
}

impl Pause {
    fn begin(now: Moment) -> Self {
        Self {
            until: now + PATIENCE,
            ask_at: now,
            round: 0,
            said: BTreeMap::new(),
        }
    }

    /// When something is due.
    pub fn next_deadline(&self, now: Moment) -> Moment {
        self.until.min(self.ask_at).max(now)
    }

    /// What follows from what was said. What is not known is not idle.
    fn judge(&self, now: Moment, workers: &[Generation], on_their_way: usize) -> Step {
        let unknown = workers
            .iter()
            .filter(|generation| !self.said.contains_key(generation))
            .count();
        let held: u64 = self
            .said
            .values()
            .map(|(connections, exchanges)| connections.max(exchanges))
            .sum();
        if self.round > 0 && unknown == 0 && held == 0 && on_their_way == 0 {
            return Step::Idle;
        }
        if self.until <= now {
            return Step::Late(match unknown {
                0 => format!(
                    "{held} connections were still in use after {PATIENCE:?}, and the new program cannot take them over"
                ),
                _ => format!(
                    "{unknown} workers did not say what they hold within {PATIENCE:?}, and the new program cannot take it over"
                ),
            });
        }
        Step::Wait
    }
}

impl Supervisor {
    pub(super) fn begin_pause(&mut self, now: Moment) -> Pause {
        self.set_admission(Some(now + LEASE));
        Pause::begin(now)
    }

    pub(super) fn advance_pause(&mut self, pause: &mut Pause, now: Moment) -> Step {
        pause.said = std::mem::take(&mut self.admission.said)
            .into_iter()
            .filter(|(_, (round, ..))| *round == pause.round)
            .map(|(generation, (_, connections, exchanges))| (generation, (connections, exchanges)))
            .chain(std::mem::take(&mut pause.said))
            .collect();
        let workers: Vec<Generation> = self.links.keys().copied().collect();
        let step = pause.judge(now, &workers, self.board.on_their_way());
        if step == Step::Wait && pause.ask_at <= now {
            pause.round += 1;
            pause.said.clear();
            pause.ask_at = now + ASK_EVERY;
            self.ask_admission(pause.round, Some(LEASE));
        }
        step
    }

    /// Pauses admission until that moment, or ends the pause.
    pub(in super::super) fn set_admission(&mut self, until: Option<Moment>) {
        if self.admission.until.is_some() != until.is_some() {
            tracing::info!(paused = until.is_some(), "admission");
        }
        self.admission.until = until;
        let lease = until.map(|until| until.until(Moment::now()));
        self.ask_admission(0, lease);
    }

    /// `POST /admission`.
    ///
    /// # Errors
    /// While a handover has paused it for itself.
    pub(in super::super) fn admit(
        &mut self,
        request: AdmissionRequest,
    ) -> Result<Admission, Failure> {
        if self.is_pausing() {
            return Err(super::deferred("a handover has paused admission"));
        }
        let now = Moment::now();
        let lease = request
            .lease_ms
            .map_or(LEASE, Duration::from_millis)
            .min(LEASE);
        self.set_admission(request.paused.then_some(now + lease));
        Ok(Admission {
            paused: request.paused,
            until: request.paused.then(|| {
                let lease = jiff::SignedDuration::try_from(lease).unwrap_or_default();
                let now = staging::clock::now();
                now.checked_add(lease).unwrap_or(now)
            }),
        })
    }

    /// Whether no request may be begun now. A lease that ran out ends by this.
    pub(in super::super) fn is_paused(&mut self, now: Moment) -> bool {
        if self.admission.until.is_some_and(|until| until <= now) {
            self.set_admission(None);
        }
        self.admission.until.is_some()
    }

    /// A worker said what it holds.
    pub(in super::super) fn heard_admission(
        &mut self,
        generation: Generation,
        round: Id,
        connections: u64,
        exchanges: u64,
    ) {
        self.admission
            .said
            .insert(generation, (round, connections, exchanges));
    }

    /// Executes a program that knows no state of ours: it finds listeners and waiting clients by name, and nothing
    /// else. Returns only when that did not work; why.
    pub(super) fn start_anew(&mut self, program: &Path) -> String {
        let (_, listeners) = self.listeners.carried();
        let keep: Vec<_> = listeners
            .into_iter()
            .map(|(socket, named)| (named.given_name(), socket))
            .chain(
                self.board
                    .waiting()
                    .map(|client| ("connection", client.as_fd())),
            )
            .collect();
        // What it still has to tell is lost: the new program knows nothing of it.
        tracing::info!(program = %program.display(), sockets = keep.len(), "starts anew");
        let error = exec::start_anew(program, &keep);
        format!("{}: {error}", program.display())
    }

    fn ask_admission(&mut self, id: Id, lease: Option<Duration>) {
        let lease_ms = lease.map_or(0, |lease| u64::try_from(lease.as_millis()).unwrap_or(0));
        for link in self.links.values_mut() {
            link.say(&ToWorker::Admission {
                id,
                paused: lease.is_some(),
                lease_ms,
            });
        }
    }
}

/// Whether requests may be begun, and what the workers last said they hold: the question's id, connections, requests.
#[derive(Debug, Default)]
pub struct AdmissionState {
    until: Option<Moment>,
    said: BTreeMap<Generation, (Id, u64, u64)>,
}

impl AdmissionState {
    /// When the lease ends.
    pub fn until(&self) -> Option<Moment> {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    fn asked(said: &[(Generation, (u64, u64))]) -> Pause {
        Pause {
            round: 1,
            said: said.iter().copied().collect(),
            ..Pause::begin(at(0))
        }
    }

    #[test]
    fn only_what_every_worker_says_is_idle() {
        for (said, on_their_way, idle) in [
            (&[(1, (0, 0)), (2, (0, 0))][..], 0, true),
            (&[(1, (0, 0))], 0, false),
            (&[], 0, false),
            (&[(1, (0, 0)), (2, (1, 0))], 0, false),
            (&[(1, (0, 1)), (2, (0, 0))], 0, false),
            (&[(1, (0, 0)), (2, (0, 0))], 1, false),
        ] {
            let step = asked(said).judge(at(10), &[1, 2], on_their_way);
            assert_eq!(step == Step::Idle, idle, "{said:?}");
        }
    }

    #[test]
    fn nobody_is_asked_for_ever() {
        let pause = asked(&[(1, (3, 1))]);
        assert_eq!(pause.judge(at(29_999), &[1], 0), Step::Wait);
        let Step::Late(why) = pause.judge(at(30_000), &[1], 0) else {
            panic!("it still waits");
        };
        assert!(why.starts_with("3 connections"), "{why}");
        let Step::Late(why) = pause.judge(at(30_000), &[1, 2], 0) else {
            panic!("it still waits");
        };
        assert!(why.starts_with("1 workers did not say"), "{why}");
    }

    #[test]
    fn before_anybody_was_asked_nothing_is_known() {
        assert_eq!(Pause::begin(at(0)).judge(at(0), &[], 0), Step::Wait);
    }
}
