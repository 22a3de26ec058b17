//! What a check says in the end: one object for programs, short lines for people.

use std::time::Duration;

use control::Verdict;
use jiff::Timestamp;
use serde::Serialize;
use staging::journal::JobRecord;
use staging::report::{self, Exit, Failure, Format};
use staging::version::PackageVersion;

use crate::gc::Collected;

/// The outcome of one check.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// Always 1.
    pub schema: u32,
    /// In a word: what [`Answer::end`] was given, or what the exit code of a failure stands for.
    pub outcome: String,
    /// The version that this check is about: what the feed offers, or the step on the way to it.
    pub version: Option<PackageVersion>,
    /// What is known about it before it is brought.
    pub offer: Option<Offered>,
    /// The version that was selected when the check began.
    pub previous: Option<PackageVersion>,
    /// The verdict of the rollout, if there was one.
    pub verdict: Option<Verdict>,
    /// The job, if one was begun.
    pub job: Option<String>,
    /// Bytes that came over the network for the archive.
    pub bytes: u64,
    /// Bytes of the archive that a patch made unnecessary to fetch.
    pub saved_bytes: u64,
    /// Bytes on disk that are shared with an installed version.
    pub shared_bytes: u64,
    /// The version from which a patch made it.
    pub delta_from: Option<PackageVersion>,
    /// How long downloading took.
    pub download_ms: u64,
    /// Download, unpacking and validation together.
    pub staging_ms: u64,
    /// The whole check.
    pub total_ms: u64,
    /// Jobs whose process ended before they did, seen by this check first.
    pub interrupted: Vec<Interrupted>,
    /// Until when a person holds updates.
    pub hold_until: Option<Timestamp>,
    /// What was removed after the update was kept.
    pub collected: Option<Collected>,
    /// What failed.
    pub error: Option<Failure>,
    /// The exit code.
    #[serde(skip)]
    pub exit: Exit,
}

/// A version before it is brought.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Offered {
    /// What the channel offers; another version than this one, if a step lies on the way.
    pub channel_version: Option<PackageVersion>,
    /// Bytes of its archive.
    pub size: u64,
    /// What people should know about it.
    pub notes: String,
    /// The patch that would be taken in place of the archive. Only looked for by a dry run.
    pub patch: Option<Patch>,
    /// When a check can take it; none = no check takes it as things are.
    pub at: Option<Timestamp>,
}

/// A patch that is smaller than the archive.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Patch {
    /// The installed version that it starts from.
    pub from: PackageVersion,
    /// Its bytes.
    pub size: u64,
}

/// A job that was cut short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Interrupted {
    /// The job.
    pub job: String,
    /// The step it was at.
    pub step: String,
    /// The version it was about.
    pub version: Option<PackageVersion>,
    /// When it was last heard of.
    pub at: Timestamp,
}

impl From<JobRecord> for Interrupted {
    fn from(record: JobRecord) -> Self {
        Self {
            job: record.job,
            step: record.step,
            version: record.version,
            at: record.updated_at,
        }
    }
}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "job {} was interrupted at its step {:?}",
            self.job, self.step
        )?;
        if let Some(version) = &self.version {
            write!(formatter, " ({version})")?;
        }
        write!(
            formatter,
            ", last heard of at {}; this check decides anew",
            self.at
        )
    }
}

impl Default for Answer {
    fn default() -> Self {
        Self {
            schema: 1,
            outcome: "failed".to_owned(),
            version: None,
            offer: None,
            previous: None,
            verdict: None,
            job: None,
            bytes: 0,
            saved_bytes: 0,
            shared_bytes: 0,
            delta_from: None,
            download_ms: 0,
            staging_ms: 0,
            total_ms: 0,
            interrupted: Vec::new(),
            hold_until: None,
            collected: None,
            error: None,
            exit: Exit::Failed,
        }
    }
}

impl Answer {
    /// It ended well, in this word: `upToDate`, `available`, `updated`, `installed`, `pending`, `repaired`, or why nothing was done.
    pub fn end(&mut self, word: &str, exit: Exit) {
        word.clone_into(&mut self.outcome);
        self.exit = exit;
    }

    /// It failed; the word follows from the exit code.
    pub fn fail(&mut self, failure: Failure) {
        self.exit = failure.exit;
        Self::word(failure.exit).clone_into(&mut self.outcome);
        self.error = Some(failure);
    }

    /// The word for a failure.
    fn word(exit: Exit) -> &'static str {
        match exit {
            Exit::Unverified => "unverified",
            Exit::RolledBack => "rolledBack",
            Exit::Deferred => "deferred",
            _ => "failed",
        }
    }

    /// Prints the last of it and gives the exit code.
    pub fn finish(self, format: Format) -> std::process::ExitCode {
        match format {
            Format::Json => {
                // Serialising plain fields cannot fail; if it ever does, the exit code still tells.
                report::line(&serde_json::to_string(&self).unwrap_or_default());
                self.exit.into()
            }
            Format::Text => report::finish(self.error.map_or(Ok(self.exit), Err), format),
        }
    }
}

/// Milliseconds as they stand in JSON.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_and_the_error_follow_the_failure() {
        for (exit, word) in [
            (Exit::Failed, "failed"),
            (Exit::Unverified, "unverified"),
            (Exit::RolledBack, "rolledBack"),
            (Exit::Deferred, "deferred"),
            (Exit::Configuration, "failed"),
        ] {
            let mut answer = Answer::default();
            answer.fail(Failure::new("X", "y", exit, true));
            let json = serde_json::to_value(&answer).unwrap();
            assert_eq!(json["outcome"], word);
            assert_eq!(json["error"]["code"], "X");
            assert_eq!(answer.exit, exit);
        }
    }

    #[test]
    fn the_json_has_every_field_in_camel_case() {
        let mut answer = Answer::default();
        answer.end("updated", Exit::Done);
        let json = serde_json::to_value(&answer).unwrap();
        let keys: Vec<&str> = json
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let expected = [
            "schema",
            "outcome",
            "version",
            "offer",
            "previous",
            "verdict",
            "job",
            "bytes",
            "savedBytes",
            "sharedBytes",
            "deltaFrom",
            "downloadMs",
            "stagingMs",
            "totalMs",
            "interrupted",
            "holdUntil",
            "collected",
            "error",
        ];
        assert_eq!(keys.len(), expected.len());
        for key in expected {
            assert!(keys.contains(&key), "{key}");
        }
    }
}
