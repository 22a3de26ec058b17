//! The book of rollouts: who asked, what happened, who waits for the verdict.

use std::collections::BTreeMap;

use control::types::{By, Line, RolloutRecord, RolloutRequest, Step, Verdict};
use serde::{Deserialize, Serialize};
use staging::version::PackageVersion;
use tokio::sync::mpsc;

use super::rollout::{Generation, RolloutId};

/// How many ended rollouts can still be asked for by number.
const REMEMBERED: usize = 64;

/// What somebody who waits for a rollout reads.
pub type Lines = mpsc::UnboundedReceiver<Line>;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    record: RolloutRecord,
    request: RolloutRequest,
    /// The keys of the requests that joined.
    joined: Vec<String>,
    /// What whoever asked should know about a verdict of `kept`.
    note: Option<String>,
    /// Whoever waits when the supervisor goes on as another program asks again.
    #[serde(skip)]
    waiting: Vec<mpsc::UnboundedSender<Line>>,
}

/// All rollouts of this supervisor that are still remembered.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Rollouts {
    entries: BTreeMap<RolloutId, Entry>,
}

impl Rollouts {
    /// A rollout begins. Steps may have been recorded for it already by nobody else: ids are new.
    pub fn begin(&mut self, id: RolloutId, version: PackageVersion, request: RolloutRequest) {
        let record = RolloutRecord {
            id,
            version,
            by: request.by,
            started_at: staging::clock::now(),
            ended_at: None,
            verdict: None,
            steps: Vec::new(),
            reason: None,
        };
        self.entries.insert(
            id,
            Entry {
                record,
                request,
                joined: Vec::new(),
                note: None,
                waiting: Vec::new(),
            },
        );
        while self.entries.len() > REMEMBERED {
            let Some(oldest) = self
                .entries
                .iter()
                .find(|(_, e)| e.record.verdict.is_some())
                .map(|(id, _)| *id)
            else {
                break;
            };
            self.entries.remove(&oldest);
        }
    }

    /// Everything about a rollout so far, and then its future up to the verdict.
    pub fn watch(&mut self, id: RolloutId) -> Option<Lines> {
        let entry = self.entries.get_mut(&id)?;
        let (sender, receiver) = mpsc::unbounded_channel();
        for step in &entry.record.steps {
            // The receiver is held here: this cannot fail.
            let _ = sender.send(Line::Step(step.clone()));
        }
        match &entry.record.verdict {
            Some(verdict) => drop(sender.send(Line::Verdict(verdict.clone()))),
            None => entry.waiting.push(sender),
        }
        Some(receiver)
    }

    /// Something happened on the way.
    pub fn step(
        &mut self,
        id: RolloutId,
        step: &str,
        generation: Generation,
        version: PackageVersion,
        detail: Option<String>,
    ) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let step = Step {
            rollout: id,
            step: step.to_owned(),
            generation: Some(generation),
            version,
            at: staging::clock::now(),
            detail,
        };
        // A watcher that went away is no reason to stop.
        entry
            .waiting
            .retain(|waiting| waiting.send(Line::Step(step.clone())).is_ok());
        entry.record.steps.push(step);
    }

    /// The end.
    pub fn conclude(&mut self, verdict: Verdict) {
        let Some(entry) = self.entries.get_mut(&verdict.rollout) else {
            return;
        };
        entry.record.ended_at = Some(staging::clock::now());
        entry.record.reason.clone_from(&verdict.reason);
        entry.record.verdict = Some(verdict.clone());
        for waiting in entry.waiting.drain(..) {
            let _ = waiting.send(Line::Verdict(verdict.clone()));
        }
    }

    /// Something that whoever asked should know once it is kept.
    pub fn set_note(&mut self, id: RolloutId, note: String) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.note = Some(note);
        }
    }

    /// What [`Self::set_note`] said.
    pub fn note(&self, id: RolloutId) -> Option<String> {
        self.entries.get(&id)?.note.clone()
    }

    /// What was asked for.
    pub fn request(&self, id: RolloutId) -> Option<&RolloutRequest> {
        self.entries.get(&id).map(|entry| &entry.request)
    }

    /// A later request joined: what only it asked for holds for the rollout, too.
    pub fn join(&mut self, id: RolloutId, request: &RolloutRequest) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        // Who names a version wants it selected; who only restarts what runs does not care.
        if entry.request.version.is_none() && request.version.is_some() {
            entry.request.version.clone_from(&request.version);
            entry.request.serial = request.serial;
        }
        entry.request.pin = request.pin.or(entry.request.pin);
        entry.request.clear_known_bad |= request.clear_known_bad;
        entry.joined.extend(request.key.clone());
        if request.by == By::Person {
            entry.request.by = By::Person;
        }
    }

    /// The rollout that this very request began or joined.
    pub fn with_key(&self, key: &str) -> Option<RolloutId> {
        let has = |entry: &Entry| {
            entry.request.key.as_deref() == Some(key)
                || entry.joined.iter().any(|joined| joined == key)
        };
        let found = self.entries.iter().find(|(_, entry)| has(entry));
        found.map(|(id, _)| *id)
    }

    /// By number.
    pub fn record(&self, id: RolloutId) -> Option<&RolloutRecord> {
        self.entries.get(&id).map(|entry| &entry.record)
    }

    /// The latest one.
    pub fn latest(&self) -> Option<&RolloutRecord> {
        self.entries.values().next_back().map(|entry| &entry.record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_joins_by_naming_the_version_gets_it_selected_as_it_was_asked_for() {
        let mut rollouts = Rollouts::default();
        let version: PackageVersion = "1.2.0".parse().unwrap();
        rollouts.begin(1, version.clone(), RolloutRequest::new(By::Signal));
        let mut named = RolloutRequest::new(By::Person);
        named.version = Some(version.to_string());
        named.pin = Some(true);
        named.serial = Some(7);
        rollouts.join(1, &named);
        let asked = rollouts.request(1).unwrap();
        assert_eq!(asked.version.as_deref(), Some("1.2.0"));
        assert_eq!(
            (asked.pin, asked.serial, asked.by),
            (Some(true), Some(7), By::Person)
        );
        // One that only restarts takes nothing of that away.
        rollouts.join(1, &RolloutRequest::new(By::Person));
        let asked = rollouts.request(1).unwrap();
        assert_eq!(asked.version.as_deref(), Some("1.2.0"));
        assert_eq!((asked.pin, asked.serial), (Some(true), Some(7)));
    }
}
