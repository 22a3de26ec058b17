//! What holds a generation, asked of its worker; and the end of one that drains, asked for twice.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use control::types::{DrainAnswer, DrainRequest, Held, HeldStream, Place, PlaceName};
use staging::report::{Exit, Failure};
use tokio::sync::oneshot;

use crate::channel::ToWorker;
use crate::clock::Moment;

use super::rollout::Generation;
use super::state::Supervisor;

/// How long a worker may take to say what it holds. Nobody's streams depend on it.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// How long what was asked the first time can be confirmed.
const CONFIRM_TIME: Duration = Duration::from_secs(60);

/// What a worker said it has in flight: how many, and the oldest of them.
type Told = (u64, Vec<HeldStream>);

/// A question that was put to a worker.
pub struct Question {
    /// What is known without its answer.
    held: Held,
    /// None when it could not be asked.
    answer: Option<oneshot::Receiver<Told>>,
}

impl Question {
    /// Waits for the answer; without one in time, says why nothing is known.
    pub async fn answered(self) -> Held {
        let Self { mut held, answer } = self;
        let Some(answer) = answer else {
            held.unknown = Some("its worker does not run yet".to_owned());
            return held;
        };
        match tokio::time::timeout(ANSWER_TIME, answer).await {
            Ok(Ok((total, streams))) => (held.total, held.streams) = (total, streams),
            Ok(Err(_)) => held.unknown = Some("its worker ended meanwhile".to_owned()),
            Err(_) => {
                held.unknown = Some(format!(
                    "its worker did not answer within {ANSWER_TIME:?}; one of an older version never does"
                ));
            }
        }
        held
    }
}

/// The answer to a drain request, once the worker has said what it holds.
pub struct DrainReply {
    question: Question,
    ending: bool,
    confirm: Option<String>,
    asked_before: bool,
}

impl DrainReply {
    /// Waits for what the worker says, unless it was told to end.
    pub async fn answered(self) -> DrainAnswer {
        let held = match self.ending {
            true => self.question.held,
            false => self.question.answered().await,
        };
        DrainAnswer {
            held,
            ending: self.ending,
            confirm: self.confirm,
            asked_before: self.asked_before,
        }
    }
}

/// The questions that wait for a worker's answer.
#[derive(Debug, Default)]
pub struct Inquiries {
    last: u64,
    waiting: BTreeMap<(Generation, u64), oneshot::Sender<Told>>,
}

impl Inquiries {
    fn open(&mut self, generation: Generation) -> (u64, oneshot::Receiver<Told>) {
        // Whoever gave up waiting is forgotten at the next question.
        self.waiting.retain(|_, asker| !asker.is_closed());
        self.last += 1;
        let (sender, receiver) = oneshot::channel();
        self.waiting.insert((generation, self.last), sender);
        (self.last, receiver)
    }

    /// A worker answered.
    pub fn answered(
        &mut self,
        generation: Generation,
        id: u64,
        total: u64,
        streams: Vec<HeldStream>,
    ) {
        if let Some(asker) = self.waiting.remove(&(generation, id)) {
            // An asker that went away reads nothing.
            let _ = asker.send((total, streams));
        }
    }

    /// A worker ended: it answers nothing any more.
    pub fn forget(&mut self, generation: Generation) {
        self.waiting.retain(|(asked, _), _| *asked != generation);
    }
}

/// What was asked once and can be confirmed.
#[derive(Debug, Default)]
pub struct Confirmations {
    asked: BTreeMap<Generation, (String, Moment)>,
    count: u64,
}

impl Confirmations {
    /// Somebody asks what ending `generation` would cut: the token that confirms it, and whether the
    /// same was asked before and not confirmed.
    fn ask(&mut self, now: Moment, generation: Generation) -> (String, bool) {
        self.expire(now);
        if let Some((token, _)) = self.asked.get(&generation) {
            return (token.clone(), true);
        }
        self.count += 1;
        let mut hasher = DefaultHasher::new();
        (generation, self.count, now).hash(&mut hasher);
        let token = format!("{:016x}", hasher.finish());
        self.asked.insert(generation, (token.clone(), now));
        (token, false)
    }

    /// Whether `token` confirms what was asked; each does once.
    fn confirm(&mut self, now: Moment, generation: Generation, token: &str) -> bool {
        self.expire(now);
        let known = self
            .asked
            .get(&generation)
            .is_some_and(|(asked, _)| asked == token);
        if known {
            self.asked.remove(&generation);
        }
        known
    }

    fn expire(&mut self, now: Moment) {
        self.asked
            .retain(|_, (_, at)| now.since(*at) < CONFIRM_TIME);
    }
}

impl Supervisor {
    /// Asks one generation, or every one, what it has in flight.
    pub(super) fn ask_streams(
        &mut self,
        generation: Option<Generation>,
    ) -> Result<Vec<Question>, Failure> {
        let rolling = self.rolling();
        let asked: Vec<(PlaceName, &Place)> = rolling
            .places()
            .filter(|(_, place)| generation.is_none_or(|number| number == place.generation))
            .collect();
        if let (Some(generation), true) = (generation, asked.is_empty()) {
            return Err(no_such_generation(generation));
        }
        Ok(asked
            .into_iter()
            .map(|(name, place)| self.question(name, place))
            .collect())
    }

    fn question(&mut self, name: PlaceName, place: &Place) -> Question {
        let generation = place.generation;
        let answer = self.links.get_mut(&generation).map(|link| {
            let (id, answer) = self.inquiries.open(generation);
            link.say(&ToWorker::Streams { id });
            answer
        });
        Question {
            held: Held {
                generation,
                version: place.version.clone(),
                place: name,
                total: place.streams,
                streams: Vec::new(),
                unknown: None,
            },
            answer,
        }
    }

    /// Says what ending a draining generation would cut; with the token of that answer, ends it.
    pub(super) fn drain_now(&mut self, request: DrainRequest) -> Result<DrainReply, Failure> {
        let generation = request.generation;
        let rolling = self.rolling();
        let (name, place) = rolling
            .places()
            .find(|(_, place)| place.generation == generation)
            .ok_or_else(|| no_such_generation(generation))?;
        if name != PlaceName::Draining {
            return Err(not_draining(name, generation));
        }
        let now = Moment::now();
        let question = self.question(name, place);
        let Some(token) = request.confirm else {
            let (token, asked_before) = self.confirmations.ask(now, generation);
            return Ok(DrainReply {
                question,
                ending: false,
                confirm: Some(token),
                asked_before,
            });
        };
        if !self.confirmations.confirm(now, generation, &token) {
            return Err(Failure::new(
                "CONFIRMATION_EXPIRED",
                format!(
                    "what was shown of generation {generation} is older than {CONFIRM_TIME:?} or was confirmed already; nothing was done, ask again"
                ),
                Exit::Deferred,
                true,
            ));
        }
        tracing::info!(
            generation,
            streams = place.streams,
            "is ended by a person's word"
        );
        self.machine.end_drain(now, generation, &mut self.effects);
        Ok(DrainReply {
            question,
            ending: true,
            confirm: None,
            asked_before: true,
        })
    }
}

fn no_such_generation(generation: Generation) -> Failure {
    Failure::new(
        "NO_SUCH_GENERATION",
        format!("there is no generation {generation} (any more); `rollproxy status` shows them"),
        Exit::Failed,
        false,
    )
}

/// Only what nobody gets new connections from, and nobody falls back to, may be ended by hand.
fn not_draining(name: PlaceName, generation: Generation) -> Failure {
    let (instead, retry) = match name {
        PlaceName::Active => (
            "it serves every new connection: `rollproxy restart` replaces it, and then it drains",
            false,
        ),
        PlaceName::Standby => (
            "it takes over again if the new one turns bad: wait for the end of the probation, then it drains",
            true,
        ),
        _ => (
            "it is still being tried: wait for the rollout's verdict, or ask for another rollout, which ends it",
            true,
        ),
    };
    Failure::new(
        "NOT_DRAINING",
        format!(
            "generation {generation} is {}, and only a draining one can be ended; {instead}",
            name.word()
        ),
        Exit::Failed,
        retry,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_is_confirmed_once_and_within_a_minute() {
        let mut confirmations = Confirmations::default();
        let at = Moment::from_millis;
        let (token, before) = confirmations.ask(at(0), 7);
        assert!(!before);
        assert_eq!(confirmations.ask(at(59_999), 7), (token.clone(), true));
        assert!(!confirmations.confirm(at(59_999), 7, "guess"));
        assert!(!confirmations.confirm(at(59_999), 8, &token));
        assert!(confirmations.confirm(at(59_999), 7, &token));
        assert!(!confirmations.confirm(at(59_999), 7, &token), "once");

        let (second, before) = confirmations.ask(at(60_000), 7);
        assert!(!before && second != token);
        assert!(!confirmations.confirm(at(120_000), 7, &second), "too late");
        assert!(!confirmations.ask(at(120_000), 7).1);
    }

    #[tokio::test]
    async fn a_question_ends_with_its_answer_or_with_its_worker() {
        let mut inquiries = Inquiries::default();
        let held = || Held {
            generation: 3,
            version: "1.0.0".parse().unwrap(),
            place: PlaceName::Draining,
            total: 9,
            streams: Vec::new(),
            unknown: None,
        };
        let ask = |inquiries: &mut Inquiries| {
            let (id, answer) = inquiries.open(3);
            let question = Question {
                held: held(),
                answer: Some(answer),
            };
            (id, question)
        };
        let (first, question) = ask(&mut inquiries);
        let (second, dying) = ask(&mut inquiries);
        inquiries.answered(4, first, 1, Vec::new());
        inquiries.answered(3, second + 1, 1, Vec::new());
        inquiries.answered(3, first, 2, Vec::new());
        let answer = question.answered().await;
        assert_eq!((answer.total, answer.unknown), (2, None));
        inquiries.forget(3);
        let answer = dying.answered().await;
        assert_eq!(answer.total, 9, "what it last counted");
        assert!(answer.unknown.unwrap().contains("ended"));
        // Whoever gave up waiting leaves nothing behind.
        drop(ask(&mut inquiries));
        let _kept = ask(&mut inquiries);
        assert_eq!(inquiries.waiting.len(), 1);
    }
}
