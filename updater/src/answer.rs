//! What a check says in the end: one object for programs, short lines for people.

use std::time::Duration;

use control::Verdict;
use serde::Serialize;
use staging::report::{self, Exit, Failure, Format};
use staging::version::PackageVersion;

/// The outcome of one check.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// Always 1.
    pub schema: u32,
    /// In a word: what [`Answer::end`] was given, or what the exit code of a failure stands for.
    pub outcome: String,
    /// The version that the feed offers.
    pub version: Option<PackageVersion>,
    /// The version that was selected when the check began.
    pub previous: Option<PackageVersion>,
    /// The verdict of the rollout, if there was one.
    pub verdict: Option<Verdict>,
    /// The job, if one was begun.
    pub job: Option<String>,
    /// Bytes that came over the network for the archive.
    pub bytes: u64,
    /// How long that took.
    pub download_ms: u64,
    /// Download, unpacking and validation together.
    pub staging_ms: u64,
    /// The whole check.
    pub total_ms: u64,
    /// What failed.
    pub error: Option<Failure>,
    /// The exit code.
    #[serde(skip)]
    pub exit: Exit,
}

impl Default for Answer {
    fn default() -> Self {
        Self {
            schema: 1,
            outcome: "failed".to_owned(),
            version: None,
            previous: None,
            verdict: None,
            job: None,
            bytes: 0,
            download_ms: 0,
            staging_ms: 0,
            total_ms: 0,
            error: None,
            exit: Exit::Failed,
        }
    }
}

impl Answer {
    /// It ended well, in this word: `upToDate`, `available`, `updated`, `installed`, `pending`, or why nothing was done.
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
            "previous",
            "verdict",
            "job",
            "bytes",
            "downloadMs",
            "stagingMs",
            "totalMs",
            "error",
        ];
        assert_eq!(keys.len(), expected.len());
        for key in expected {
            assert!(keys.contains(&key), "{key}");
        }
    }
}
