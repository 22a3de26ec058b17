//! How every command tells its outcome: one last line, one exit code.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;

use crate::space;

/// What every error tells the person: a stable code, the exit code, and whether trying again can help.
pub trait Report: std::error::Error {
    /// Stable, upper case, never reused for another meaning.
    fn code(&self) -> &'static str;
    /// The exit code of a command that ends with this error.
    fn exit(&self) -> Exit;
    /// Whether the same command, run again, may succeed without anybody changing anything.
    fn retry(&self) -> bool;
    /// How long whoever was asked wants to be left alone before the next try, if it said so.
    fn retry_after(&self) -> Option<Duration> {
        None
    }
}

/// The exit codes of all commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Exit {
    /// Done, or nothing to do.
    Done = 0,
    /// Failed, nothing changed.
    Failed = 1,
    /// Activated, but the final verification failed.
    Unverified = 2,
    /// Rolled back.
    RolledBack = 3,
    /// The command line was not understood.
    Usage = 64,
    /// No usable package.
    NoPackage = 69,
    /// Deferred or superseded.
    Deferred = 75,
    /// The configuration or the environment is wrong.
    Configuration = 78,
    /// `check --dry-run`: an update is available.
    Available = 100,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// How a command prints its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object, for programs.
    Json,
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "text" => Ok(Format::Text),
            "json" => Ok(Format::Json),
            other => Err(format!("`{other}` is not a format: use `text` or `json`")),
        }
    }
}

/// An error on its way out of the program: owned, serialisable as `{"code","message","retry"}`.
///
/// Every [`Report`] turns into one with `?`. It is no `Report` itself, so that this conversion can exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, serde::Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The stable code, such as `OWNERSHIP_CHANGED`.
    pub code: String,
    /// What failed, on what, and what to do next.
    pub message: String,
    /// Whether trying again can help.
    pub retry: bool,
    /// The exit code; it travels as the process's own, not in the JSON.
    #[serde(skip, default = "failed")]
    pub exit: Exit,
    /// How long not to try again, where somebody said so; for who plans the next try, not for the JSON.
    #[serde(skip)]
    pub retry_after: Option<Duration>,
}

fn failed() -> Exit {
    Exit::Failed
}

impl Failure {
    /// A failure that has no error type of its own.
    pub fn new(code: &str, message: impl Into<String>, exit: Exit, retry: bool) -> Self {
        Failure {
            code: code.to_owned(),
            message: message.into(),
            retry,
            exit,
            retry_after: None,
        }
    }
}

impl From<&dyn Report> for Failure {
    fn from(error: &dyn Report) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        // Whatever was to be written: a full disk is one thing to a person, with one code, and passes.
        let ran_out = source.is_some_and(space::ran_out);
        while let Some(cause) = source {
            let text = cause.to_string();
            // Wrappers often repeat what they wrap; a person needs each cause once.
            if !message.contains(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            source = cause.source();
        }
        if ran_out {
            message.push_str("; free some space and run again");
        }
        let code = if ran_out { space::CODE } else { error.code() };
        Failure {
            code: code.to_owned(),
            message,
            retry: ran_out || error.retry(),
            exit: error.exit(),
            retry_after: error.retry_after(),
        }
    }
}

impl<E: Report> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::from(&error as &dyn Report)
    }
}

/// Prints a failure as the last line and gives the exit code: text goes to stderr as
/// `error[CODE]: message (…)`, JSON to stdout as `{"error":{…}}`. A reader that went away is no failure.
pub fn finish(result: Result<Exit, Failure>, format: Format) -> ExitCode {
    match result {
        Ok(exit) => exit.into(),
        Err(failure) => {
            match format {
                Format::Text => {
                    let _ = writeln!(std::io::stderr(), "{}", text_line(&failure));
                }
                Format::Json => line(&json_line(&failure)),
            }
            failure.exit.into()
        }
    }
}

/// A failure as its line of text.
pub fn text_line(failure: &Failure) -> String {
    let hope = if failure.retry {
        "trying again can help"
    } else {
        "trying again will not help"
    };
    format!("error[{}]: {} ({hope})", failure.code, failure.message)
}

/// A failure as its line of JSON.
pub fn json_line(failure: &Failure) -> String {
    serde_json::json!({ "error": failure }).to_string()
}

/// `println!` for output that somebody may stop reading: errors of writing are ignored.
pub fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}");
    let _ = out.flush();
}

/// `eprintln!` in the same manner.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("reading the stone tablet failed")]
    struct Tablet {
        source: std::io::Error,
    }

    impl Report for Tablet {
        fn code(&self) -> &'static str {
            "TABLET"
        }
        fn exit(&self) -> Exit {
            Exit::Deferred
        }
        fn retry(&self) -> bool {
            true
        }
    }

    fn through_question_mark() -> Result<Exit, Failure> {
        Err(Tablet {
            source: std::io::Error::other("moss"),
        })?;
        Ok(Exit::Done)
    }

    #[test]
    fn a_report_becomes_a_failure_with_its_causes() {
        let failure = through_question_mark().unwrap_err();
        assert_eq!(failure.message, "reading the stone tablet failed: moss");
        assert_eq!(failure.exit, Exit::Deferred);
        assert_eq!(
            text_line(&failure),
            "error[TABLET]: reading the stone tablet failed: moss (trying again can help)"
        );
    }

    #[test]
    fn a_full_disk_has_one_code_wherever_it_was_met() {
        let failure = Failure::from(Tablet {
            source: std::io::Error::from_raw_os_error(28),
        });
        assert_eq!((failure.code.as_str(), failure.retry), ("NO_SPACE", true));
        assert!(failure.message.contains("tablet") && failure.message.contains("free some space"));
    }

    #[test]
    fn json_carries_code_message_retry_and_nothing_else() {
        let failure = Failure::new("X", "y", Exit::Usage, false);
        assert_eq!(
            json_line(&failure),
            r#"{"error":{"code":"X","message":"y","retry":false}}"#
        );
        let back: Failure =
            serde_json::from_str(r#"{"code":"X","message":"y","retry":false}"#).unwrap();
        assert_eq!(back.code, "X");
        assert_eq!(back.exit, Exit::Failed);
    }

    #[test]
    fn exit_codes_are_the_documented_numbers() {
        let all = [
            (Exit::Done, 0),
            (Exit::Failed, 1),
            (Exit::Unverified, 2),
            (Exit::RolledBack, 3),
            (Exit::Usage, 64),
            (Exit::NoPackage, 69),
            (Exit::Deferred, 75),
            (Exit::Configuration, 78),
            (Exit::Available, 100),
        ];
        for (exit, number) in all {
            assert_eq!(exit as u8, number);
        }
    }
}
