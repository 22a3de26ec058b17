//! Why the supervisor could not be asked, or what it answered.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use staging::report::{Exit, Failure, Report};

/// Why the supervisor could not be asked, or what it answered.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody listens on the control socket.
    #[error("no supervisor runs for {} (nobody answers on its control socket); start one with `rollproxy serve`", home.display())]
    NotRunning {
        /// The home.
        home: PathBuf,
    },
    /// The socket cannot be reached.
    #[error("connecting to {}: {source}; check who owns the home", socket.display())]
    Connect {
        /// The control socket.
        socket: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The request could not be sent, or the answer not be read.
    #[error("{request}: {source}; see `rollproxy status`, then try again")]
    Exchange {
        /// Method and path.
        request: String,
        /// What the system said.
        source: io::Error,
    },
    /// The supervisor did not answer in time.
    #[error("{request}: the supervisor has not answered for {}; see `rollproxy status`, then try again", seconds(*after))]
    Silent {
        /// Method and path.
        request: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// The answer makes no sense.
    #[error("{request}: {what}; are both sides Rollproxy?")]
    Protocol {
        /// Method and path.
        request: String,
        /// What is wrong with it.
        what: String,
    },
    /// The supervisor refused, and said why.
    #[error("{}", failure.message)]
    Refused {
        /// Its own words.
        failure: Failure,
    },
    /// The stream of a rollout was cut before it named the rollout.
    #[error(
        "the supervisor's answer was cut before it named a rollout; see `rollproxy status` for what became of it"
    )]
    CutStream,
    /// A rollout began, and its verdict could not be learnt.
    #[error("rollout {rollout} began, but its verdict could not be learnt within {}: {why}; see `rollproxy status`", seconds(*after))]
    VerdictUnknown {
        /// The rollout's number.
        rollout: u64,
        /// How long it was waited for.
        after: Duration,
        /// What stood in the way last.
        why: String,
    },
}

impl Report for ControlError {
    fn code(&self) -> &'static str {
        match self {
            Self::NotRunning { .. } => "NOT_RUNNING",
            Self::Connect { .. } => "CONTROL_UNREACHABLE",
            Self::Exchange { .. } => "CONTROL_FAILED",
            Self::Silent { .. } => "CONTROL_SILENT",
            Self::Protocol { .. } => "CONTROL_PROTOCOL",
            Self::Refused { .. } => "CONTROL_REFUSED",
            Self::CutStream | Self::VerdictUnknown { .. } => "VERDICT_UNKNOWN",
        }
    }

    fn exit(&self) -> Exit {
        match self {
            Self::Refused { failure } => failure.exit,
            // Something may have changed: "nothing changed" would be a guess.
            Self::CutStream | Self::VerdictUnknown { .. } => Exit::Unverified,
            _ => Exit::Failed,
        }
    }

    fn retry(&self) -> bool {
        match self {
            Self::Refused { failure } => failure.retry,
            Self::Protocol { .. } | Self::Connect { .. } => false,
            _ => true,
        }
    }
}

impl ControlError {
    /// As the last line of a command; a refusal keeps the code that the supervisor gave it.
    pub fn into_failure(self) -> Failure {
        match self {
            Self::Refused { failure } => failure,
            other => Failure::from(&other as &dyn Report),
        }
    }
}

fn seconds(duration: Duration) -> String {
    if duration < Duration::from_secs(10) {
        format!("{} ms", duration.as_millis())
    } else {
        format!("{} s", duration.as_secs())
    }
}
