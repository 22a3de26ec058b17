//! Asking for a rollout and following it to its verdict, through cuts, silence and a supervisor that
//! replaces itself meanwhile.

use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use staging::report::Failure;

use crate::client::{Client, written};
use crate::error::ControlError;
use crate::types::{Line, RolloutRecord, RolloutRequest, Step, Verdict};

/// The longest line of a rollout's stream, in bytes.
const LINE_LIMIT: u64 = 256 * 1024;

/// Questions for a verdict become rarer up to this many times the first pause.
const SLOWEST: u32 = 10;

impl Client {
    /// `POST /rollouts`: asks for a rollout, reports its steps, and waits for its verdict.
    ///
    /// If the stream is cut or falls silent, the rollout is asked for again by its number. If it is
    /// cut before it named the rollout, the same request is made again: its key makes it the same
    /// rollout. Both only of the supervisor whose nonce the request carries, if it carries one; without
    /// one a request is never made twice.
    ///
    /// # Errors
    /// [`ControlError`]: `Refused` when it was not begun, `VerdictUnknown` or `CutStream` when
    /// nobody can say how it ended.
    pub fn roll(
        &self,
        request: &RolloutRequest,
        on_step: &mut dyn FnMut(&Step),
    ) -> Result<Verdict, ControlError> {
        let request = RolloutRequest {
            key: request.key.clone().or_else(|| Some(fresh_key())),
            ..request.clone()
        };
        let mut follow = Follow {
            nonce: request.nonce.clone(),
            ..Follow::default()
        };
        let body = written("POST /rollouts", &request)?;
        let begun = Instant::now();
        let mut cut_at = None;
        loop {
            match self.ask(&body, begun, &mut follow, on_step) {
                Ok(Ended::Verdict(verdict)) => return Ok(verdict),
                Ok(Ended::Refused(failure)) => return Err(ControlError::Refused { failure }),
                Ok(Ended::Cut) if follow.rollout.is_some() => {
                    return self.await_verdict(follow, begun, on_step);
                }
                // The request was sent: whether it was heard is unknown.
                Ok(Ended::Cut) | Err(ControlError::Exchange { .. }) => {}
                Err(ControlError::Silent { .. }) => return Err(ControlError::CutStream),
                Err(ControlError::NotRunning { .. }) if cut_at.is_some() => {}
                // Another supervisor: it knows nothing of what the former one may have heard.
                Err(ControlError::Refused { failure })
                    if cut_at.is_some() && failure.code == "OWNERSHIP_CHANGED" =>
                {
                    return Err(ControlError::CutStream);
                }
                Err(other) => return Err(other),
            }
            let since = *cut_at.get_or_insert_with(Instant::now);
            if request.nonce.is_none() || since.elapsed() >= self.deadlines.away {
                return Err(ControlError::CutStream);
            }
            std::thread::sleep(self.deadlines.poll);
        }
    }

    /// One `POST /rollouts`, followed as far as its stream goes.
    fn ask(
        &self,
        body: &[u8],
        begun: Instant,
        follow: &mut Follow,
        on_step: &mut dyn FnMut(&Step),
    ) -> Result<Ended, ControlError> {
        let silence = self.deadlines.silence.min(self.deadlines.verdict);
        let answer = self.exchange("POST", "/rollouts", body, silence)?;
        let answer = self.success("POST /rollouts", answer)?;
        Ok(follow.stream(answer, begun + self.deadlines.verdict, on_step))
    }

    /// Asks for a rollout by its number until it has a verdict.
    fn await_verdict(
        &self,
        mut follow: Follow,
        begun: Instant,
        on_step: &mut dyn FnMut(&Step),
    ) -> Result<Verdict, ControlError> {
        let id = follow.rollout.ok_or(ControlError::CutStream)?;
        let mut heard = Instant::now();
        let mut last = begun + self.deadlines.verdict;
        let mut pause = self.deadlines.poll;
        loop {
            let why = match self.rollout_of(id, follow.nonce.as_deref()) {
                Ok(record) => {
                    heard = Instant::now();
                    follow.catch_up(&record, on_step);
                    if let Some(verdict) = record.verdict {
                        return Ok(verdict);
                    }
                    if heard >= last {
                        last = self.after_probation(id).unwrap_or(last);
                    }
                    "it is still under way".to_owned()
                }
                Err(error @ (ControlError::Refused { .. } | ControlError::Protocol { .. })) => {
                    // Another supervisor, that knows nothing of it.
                    return Err(unknown(id, begun, &error.to_string()));
                }
                Err(error) => error.to_string(),
            };
            if heard.elapsed() >= self.deadlines.away || Instant::now() >= last {
                return Err(unknown(id, begun, &why));
            }
            std::thread::sleep(pause);
            pause = (pause + self.deadlines.poll).min(self.deadlines.poll * SLOWEST);
        }
    }

    /// The record of a rollout, from the supervisor with this nonce.
    fn rollout_of(&self, id: u64, nonce: Option<&str>) -> Result<RolloutRecord, ControlError> {
        match nonce {
            Some(nonce) if is_plain(nonce) => self.get(&format!("/rollouts/{id}?nonce={nonce}")),
            _ => self.rollout(id),
        }
    }

    /// Until when a verdict may take that waits for the end of a probation.
    fn after_probation(&self, id: u64) -> Option<Instant> {
        let probation = self.status().ok()?.rolling.probation?;
        if probation.rollout != id {
            return None;
        }
        let left = probation.until.duration_since(staging::clock::now());
        let left = Duration::try_from(left).unwrap_or_default();
        // Over for long enough already: nobody waits for ever.
        (!left.is_zero()).then(|| Instant::now() + left + self.deadlines.verdict)
    }
}

fn unknown(rollout: u64, begun: Instant, why: &str) -> ControlError {
    ControlError::VerdictUnknown {
        rollout,
        after: begun.elapsed(),
        why: why.to_owned(),
    }
}

/// Names one request among all that a supervisor hears: the process and the moment.
fn fresh_key() -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let thread = rustix::thread::gettid().as_raw_nonzero();
    format!("{thread}-{}", now.as_nanos())
}

/// A nonce that needs no escaping in a query.
fn is_plain(nonce: &str) -> bool {
    nonce
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// What was already told of a rollout.
#[derive(Debug, Default)]
struct Follow {
    /// The supervisor that the request was for.
    nonce: Option<String>,
    rollout: Option<u64>,
    told: usize,
}

/// How a stream of steps ended.
enum Ended {
    Verdict(Verdict),
    Refused(Failure),
    Cut,
}

impl Follow {
    fn stream(
        &mut self,
        answer: impl Read,
        deadline: Instant,
        on_step: &mut dyn FnMut(&Step),
    ) -> Ended {
        let mut lines = BufReader::new(answer);
        let mut line = Vec::new();
        while Instant::now() < deadline {
            line.clear();
            let got = (&mut lines).take(LINE_LIMIT).read_until(b'\n', &mut line);
            // Half a line says nothing.
            if got.is_err() || line.last() != Some(&b'\n') {
                return Ended::Cut;
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            match serde_json::from_slice(&line) {
                Ok(Line::Verdict(verdict)) => return Ended::Verdict(verdict),
                Ok(Line::Error(body)) => return Ended::Refused(body.error),
                Ok(Line::Step(step)) => {
                    self.rollout = Some(step.rollout);
                    self.told += 1;
                    on_step(&step);
                }
                // A newer supervisor may say things that we do not know.
                Err(_) => {}
            }
        }
        Ended::Cut
    }

    fn catch_up(&mut self, record: &RolloutRecord, on_step: &mut dyn FnMut(&Step)) {
        for step in record.steps.iter().skip(self.told) {
            on_step(step);
        }
        self.told = self.told.max(record.steps.len());
    }
}
