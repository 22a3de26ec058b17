//! What crosses the control socket about the supervisor itself: its move to another program, and admission.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use staging::report::Exit;
use staging::version::PackageVersion;

use crate::types::By;

/// The body of `POST /supervisor`: the supervisor shall go on as another program, in place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HandoverRequest {
    /// The version to go on as; none = the selected one.
    #[serde(default)]
    pub version: Option<String>,
    /// Who asks.
    pub by: By,
    /// The supervisor's nonce as the caller saw it; a mismatch is refused (`OWNERSHIP_CHANGED`).
    #[serde(default)]
    pub nonce: Option<String>,
}

/// How far the supervisor's move to another program is, or how the last one ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Handover {
    /// Its number; never reused in the life of a supervisor.
    pub id: u64,
    /// The version that supervised when it began.
    pub from: PackageVersion,
    /// The version to go on as.
    pub to: PackageVersion,
    /// Who asked.
    pub by: By,
    /// When it came to this phase.
    pub at: Timestamp,
    /// How far it is.
    pub phase: HandoverPhase,
    /// The stable code of what went wrong.
    #[serde(default)]
    pub code: Option<String>,
    /// What went wrong, or what is waited for, for people.
    #[serde(default)]
    pub reason: Option<String>,
    /// How long nothing was accepted and nobody was heard, in microseconds.
    #[serde(default)]
    pub frozen_micros: Option<u64>,
}

/// A phase of a [`Handover`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HandoverPhase {
    /// Until no rollout is under way.
    Waiting,
    /// The new program reads a copy of the state.
    Checking,
    /// The new program cannot take the state over: until nothing is in flight, no request is begun.
    Pausing,
    /// The new program supervises.
    Moved,
    /// It was tried, or could not be: the old program supervises.
    Failed,
    /// Not now: the old program supervises.
    Deferred,
    /// A phase that this version does not know.
    #[serde(other)]
    Unknown,
}

impl HandoverPhase {
    /// The exit code of a command whose handover ended so; nothing while it has not.
    pub fn exit(self) -> Option<Exit> {
        match self {
            Self::Waiting | Self::Checking | Self::Pausing | Self::Unknown => None,
            Self::Moved => Some(Exit::Done),
            Self::Failed => Some(Exit::Failed),
            Self::Deferred => Some(Exit::Deferred),
        }
    }
}

/// `GET /preflight`: whether the supervisor could go on as another program now. Asking changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Preflight {
    /// The version it would go on as.
    pub to: PackageVersion,
    /// Each condition.
    pub conditions: Vec<Condition>,
    /// Whether all of them hold; what is not known does not.
    pub settled: bool,
}

/// One condition of a [`Preflight`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which, in a word.
    pub name: String,
    /// Whether it holds; none = not known, which counts as no.
    pub holds: Option<bool>,
    /// What was seen, for people.
    pub detail: String,
}

/// The body of `POST /admission`: no new request is begun for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionRequest {
    /// Paused, or as usual again.
    pub paused: bool,
    /// For how long at most, in milliseconds; asked again it counts anew. At most 90,000.
    #[serde(default)]
    pub lease_ms: Option<u64>,
}

/// The answer to `POST /admission`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Admission {
    /// Whether no new request is begun now.
    pub paused: bool,
    /// When it is as usual again by itself.
    #[serde(default)]
    pub until: Option<Timestamp>,
}
