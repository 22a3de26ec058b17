//! What the rollout machine hears and what it asks for. A person should be able to read a log of these.

use std::time::Duration;

use control::types::{By, Outcome};
use serde::{Deserialize, Serialize};
use staging::version::PackageVersion;

use crate::channel::Blame;

/// Numbers one worker process; never reused in the life of a supervisor.
pub type Generation = u64;

/// Numbers one rollout; never reused in the life of a supervisor.
pub type RolloutId = u64;

/// What a generation runs: which package, with which configuration.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// The package.
    pub version: PackageVersion,
    /// Digest of the configuration snapshot.
    pub config: String,
}

/// The numbers of DESIGN, sections 6 and 10.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Settings {
    /// From spawn to `ready`, and again from `activate` to `activated`.
    pub ready_timeout: Duration,
    /// How long a generation may drain; `None` is for ever.
    pub drain_deadline: Option<Duration>,
    /// How many generations may drain at once.
    pub drain_cap: usize,
    /// The first wait before a recovery.
    pub recovery_min: Duration,
    /// The longest wait before a recovery.
    pub recovery_max: Duration,
    /// How long a worker that was told to end may take before it is killed.
    pub kill_grace: Duration,
    /// How long a new generation must serve well before its rollout is kept; zero keeps it at once.
    pub probation: Duration,
    /// A share of our own 5xx above this, in percent of all answers, ends the probation.
    pub probation_error_percent: u64,
    /// How many answers there must be before that share is looked at.
    pub probation_min_requests: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ready_timeout: Duration::from_secs(30),
            drain_deadline: Some(Duration::from_secs(4 * 3600)),
            drain_cap: 8,
            recovery_min: Duration::from_millis(250),
            recovery_max: Duration::from_secs(10),
            kill_grace: Duration::from_secs(5),
            probation: Duration::from_secs(30),
            probation_error_percent: 5,
            probation_min_requests: 20,
        }
    }
}

/// Somebody's wish to run `target` from now on.
#[derive(Debug, Clone)]
pub struct Request {
    /// What to run.
    pub target: Target,
    /// Who wishes it: decides what it may end.
    pub by: By,
}

/// The answer to a [`Request`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A new rollout began.
    Started(RolloutId),
    /// The very same change is under way: its verdict is yours.
    Joined(RolloutId),
    /// Not now; nothing was changed.
    Refused(Refusal),
}

/// Why a rollout did not begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// SIGTERM was received.
    #[error("the supervisor is stopping; ask again when it runs")]
    Stopping,
    /// A job must not end another rollout.
    #[error("rollout {0} is still under way; ask again when it has its verdict")]
    Busy(RolloutId),
    /// Nothing is killed to make room.
    #[error(
        "{0} generations still drain, which is the cap ([rollout] drain_cap); ask again when one has finished"
    )]
    TooManyDraining(usize),
}

impl Refusal {
    /// The stable code of this refusal.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Stopping => "SUPERVISOR_STOPPING",
            Self::Busy(_) => "ROLLOUT_IN_PROGRESS",
            Self::TooManyDraining(_) => "TOO_MANY_DRAINING",
        }
    }
}

/// Why a worker failed. The code is stable; the text is for a person.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Its executable could not be started.
    #[error("it could not be started: {0}")]
    Spawn(String),
    /// It ended by itself.
    #[error("its worker ended ({0})")]
    Exited(String),
    /// It said that it cannot go on.
    #[error("its worker reported a fatal error: {reason}")]
    Fatal {
        /// Its own words.
        reason: String,
        /// Whose fault it says that is.
        blame: Blame,
    },
    /// It closed its channel without ending.
    #[error("its worker closed the channel to the supervisor")]
    ChannelClosed,
    /// It is not what was asked for.
    #[error("version mismatch: its worker says that it is {0}")]
    WrongVersion(String),
    /// It speaks another channel protocol than this supervisor.
    #[error("its worker speaks channel protocol {0}, this supervisor speaks {ours}", ours = staging::protocol::CHANNEL_PROTOCOL)]
    WrongProtocol(u32),
    /// It did not say `ready` in time.
    #[error("its worker was not ready within {0:?}")]
    NotReady(Duration),
    /// It said `ready`, then did not answer `activate` in time.
    #[error("its worker did not answer `activate` within {0:?}")]
    NotActivated(Duration),
    /// It did not answer a ping in time.
    #[error("its worker did not answer a ping in time")]
    Unresponsive,
    /// In its probation, too many of its answers were errors of its own.
    #[error("in its probation {percent} % of its {of} answers were errors of its own (5xx)")]
    ErrorShare {
        /// The share, rounded down.
        percent: u64,
        /// Of how many answers.
        of: u64,
    },
}

impl Failure {
    /// The stable code of this failure.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Spawn(_) => "WORKER_NOT_STARTED",
            Self::Exited(_) => "WORKER_EXITED",
            Self::Fatal { .. } => "WORKER_FATAL",
            Self::ChannelClosed => "WORKER_CHANNEL_CLOSED",
            Self::WrongVersion(_) => "VERSION_MISMATCH",
            Self::WrongProtocol(_) => "PROTOCOL_MISMATCH",
            Self::NotReady(_) | Self::NotActivated(_) => "WORKER_NOT_READY",
            Self::Unresponsive => "WORKER_UNRESPONSIVE",
            Self::ErrorShare { .. } => "LOCAL_ERRORS",
        }
    }

    /// What this says about the package: nothing, a strike, or that it is bad.
    ///
    /// A host without memory or a wrong configuration never marks a version (DESIGN, section 5).
    pub fn mark(&self) -> Mark {
        match self {
            Self::Exited(_)
            | Self::WrongVersion(_)
            | Self::ChannelClosed
            | Self::ErrorShare { .. }
            | Self::Fatal {
                blame: Blame::Package,
                ..
            } => Mark::KnownBad,
            Self::NotReady(_) | Self::NotActivated(_) | Self::Unresponsive => Mark::Strike,
            Self::Spawn(_) | Self::WrongProtocol(_) | Self::Fatal { .. } => Mark::None,
        }
    }
}

/// What a failure says about a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Nothing.
    None,
    /// Bad when it happens for the third time.
    Strike,
    /// Bad.
    KnownBad,
}

/// What happened to a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It runs.
    Spawned {
        /// Its process.
        pid: u32,
    },
    /// It never ran.
    SpawnFailed {
        /// The system's words.
        reason: String,
    },
    /// It answered its own self-test request.
    Ready {
        /// The version it says it is.
        version: String,
        /// The channel protocol it speaks.
        protocol: u32,
    },
    /// It takes sockets.
    Activated,
    /// What it has answered since it started.
    Load {
        /// Requests that have been answered.
        answered: u64,
        /// How many of these answers were errors of its own (5xx).
        local_5xx: u64,
    },
    /// It has nothing left to serve.
    Drained,
    /// It cannot go on.
    Fatal {
        /// Its own words.
        reason: String,
        /// Whose fault.
        blame: Blame,
    },
    /// Its channel ended while the process lives.
    ChannelClosed,
    /// The process ended and was reaped, and its channel was read to the end.
    Exited {
        /// Exit code or signal, for a person.
        how: String,
    },
    /// It left a transfer unanswered for too long.
    TransferUnanswered,
    /// It left a ping unanswered for too long.
    PingUnanswered,
}

/// What the machine asks the shell to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Start a worker; answered by `Spawned` or `SpawnFailed`.
    Spawn {
        /// Its number.
        generation: Generation,
        /// What it runs.
        target: Target,
    },
    /// Say `activate`: to a candidate that is ready, or to a standby that takes over.
    Activate(Generation),
    /// Say `standby`.
    Standby(Generation),
    /// Say `drain`.
    Drain(Generation),
    /// Say `shutdown`.
    Shutdown(Generation),
    /// SIGKILL.
    Kill(Generation),
    /// Something that whoever waits for the rollout wants to see.
    Step {
        /// The rollout.
        rollout: RolloutId,
        /// `candidate`, `ready`, `activated`, `probation`, `draining`.
        step: &'static str,
        /// The generation it is about.
        generation: Generation,
        /// What that generation runs.
        version: PackageVersion,
    },
    /// The one verdict of a rollout: write down what it means, then tell everyone.
    Conclude(Conclusion),
    /// A generation outside any rollout became active: the first one, a recovery, or a standby that took over.
    Recovered {
        /// Its number.
        generation: Generation,
        /// What it runs.
        target: Target,
    },
    /// A worker outside any rollout failed.
    Lost {
        /// Its number.
        generation: Generation,
        /// What it ran.
        target: Target,
        /// Why.
        failure: Failure,
    },
}

/// The end of one rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conclusion {
    /// The rollout.
    pub rollout: RolloutId,
    /// What was to be run.
    pub target: Target,
    /// The generation that tried.
    pub generation: Generation,
    /// How it ended.
    pub verdict: Outcome,
    /// Why, where the verdict is not `kept`.
    pub why: Option<Failure>,
    /// The words for a person where no worker failed.
    pub note: Option<String>,
    /// What this says about the package.
    pub mark: Mark,
}
