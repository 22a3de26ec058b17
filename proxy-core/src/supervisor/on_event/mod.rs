//! `[rollout] on_event`: a command is told what became of rollouts, as JSON on its standard input.
//!
//! It can neither delay nor fail anything: it is run by a thread of its own (`runner`), one at a time, from
//! a bounded backlog, and nobody waits for it. Here is what it is told, and when.

mod runner;

use std::collections::VecDeque;
use std::time::Duration;

use control::types::{By, Outcome, Verdict};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use staging::report::Failure;
use staging::version::PackageVersion;

pub use runner::{Carried, Runner};

/// How many events wait at most; the oldest gives way.
const BACKLOG: usize = 16;

/// How long before its end a feed's metadata are said to expire soon.
const SOON: Duration = Duration::from_secs(7 * 24 * 3600);

/// How often that is said again.
const AGAIN: Duration = Duration::from_secs(24 * 3600);

/// What happened, in the word that the command reads in `event`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// A rollout was kept.
    Kept,
    /// A rollout was rolled back.
    RolledBack,
    /// A rollout failed.
    Failed,
    /// A request was refused, or its rollout ended undecided: deferred or superseded.
    Refused,
    /// The feed's metadata expire soon, or have expired.
    FeedExpiry,
}

/// What the command is told. Fields that say nothing are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    schema: u32,
    event: Kind,
    at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rollout: Option<u64>,
    /// The verdict's own word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    verdict: Option<Outcome>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<PackageVersion>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    generation: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<By>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    feed_expires: Option<Timestamp>,
    /// How many events before this one could not be told.
    #[serde(default)]
    missed: u64,
}

impl Notice {
    fn new(event: Kind, at: Timestamp) -> Self {
        Self {
            schema: 1,
            event,
            at,
            rollout: None,
            verdict: None,
            version: None,
            generation: None,
            by: None,
            code: None,
            reason: None,
            feed_expires: None,
            missed: 0,
        }
    }

    /// A rollout has its verdict.
    pub fn of_verdict(verdict: &Verdict, by: Option<By>, at: Timestamp) -> Self {
        let kind = match verdict.verdict {
            Outcome::Kept => Kind::Kept,
            Outcome::RolledBack => Kind::RolledBack,
            Outcome::Failed => Kind::Failed,
            Outcome::Deferred | Outcome::Superseded => Kind::Refused,
        };
        Self {
            rollout: Some(verdict.rollout),
            verdict: Some(verdict.verdict),
            version: Some(verdict.version.clone()),
            generation: verdict.generation,
            by,
            code: verdict.code.clone(),
            reason: verdict.reason.clone(),
            ..Self::new(kind, at)
        }
    }

    /// A rollout was asked for and did not begin.
    pub fn of_refusal(failure: &Failure, wanted: Option<&str>, by: By, at: Timestamp) -> Self {
        Self {
            version: wanted.and_then(|version| version.parse().ok()),
            by: Some(by),
            code: Some(failure.code.clone()),
            reason: Some(super::record::shortened(&failure.message)),
            ..Self::new(Kind::Refused, at)
        }
    }

    fn of_feed(expires: Timestamp, at: Timestamp) -> Self {
        let reason = if expires <= at {
            "the feed's metadata have expired: nothing is updated until the publisher signs anew (`rollproxy-publish refresh`)"
        } else {
            "the feed's metadata expire within seven days; the publisher signs anew with `rollproxy-publish refresh`"
        };
        Self {
            feed_expires: Some(expires),
            reason: Some(reason.to_owned()),
            ..Self::new(Kind::FeedExpiry, at)
        }
    }
}

/// The events that wait for their turn.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Backlog {
    waiting: VecDeque<Notice>,
    missed: u64,
}

impl Backlog {
    /// One more; at the bound the oldest gives way and is counted.
    pub fn push(&mut self, notice: Notice) {
        if self.waiting.len() >= BACKLOG {
            self.waiting.pop_front();
            self.missed += 1;
        }
        self.waiting.push_back(notice);
    }

    /// The next one, with the number of those that gave way before it.
    pub fn pop(&mut self) -> Option<Notice> {
        let mut notice = self.waiting.pop_front()?;
        notice.missed = std::mem::take(&mut self.missed);
        Some(notice)
    }

    /// Everything that waits is dropped: nobody is to be told any more.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// What was last said of the feed's end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FeedTold {
    at: Option<Timestamp>,
    expired: bool,
}

impl FeedTold {
    /// What is to be said of a feed whose metadata expire then: soon and again a day later, and at once when
    /// it has happened.
    pub fn look(&mut self, expires: Timestamp, now: Timestamp) -> Option<Notice> {
        let left = expires.duration_since(now);
        if left > jiff::SignedDuration::try_from(SOON).unwrap_or_default() {
            *self = Self::default();
            return None;
        }
        let expired = expires <= now;
        let again = jiff::SignedDuration::try_from(AGAIN).unwrap_or_default();
        if expired == self.expired && self.at.is_some_and(|at| now.duration_since(at) < again) {
            return None;
        }
        *self = Self {
            at: Some(now),
            expired,
        };
        Some(Notice::of_feed(expires, now))
    }
}

/// When the metadata of this `timestamp.json` expire: the updater verified them before it stored them.
pub fn expiry(timestamp: &[u8]) -> Option<Timestamp> {
    let document: serde_json::Value = serde_json::from_slice(timestamp).ok()?;
    document["signed"]["expires"].as_str()?.parse().ok()
}

#[cfg(test)]
mod tests;
