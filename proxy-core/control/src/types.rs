//! What crosses the control socket. JSON keys are camelCase, times RFC 3339 UTC.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use staging::report::{Exit, Failure};
use staging::version::PackageVersion;

/// The number in `schema` of every status this version writes.
pub const SCHEMA: u32 = 1;

/// `GET /status`: everything the supervisor knows about itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Always [`SCHEMA`] in what this version writes.
    pub schema: u32,
    /// The version of the package the supervisor itself stands in.
    pub supervisor_version: PackageVersion,
    /// The supervisor's process number.
    pub supervisor_pid: u32,
    /// The supervisor's instance nonce. A request that carries another one is refused.
    pub nonce: String,
    /// The addresses that are listened on, ports as they really are.
    #[serde(default)]
    pub listeners: Vec<String>,
    /// The home this supervisor owns.
    #[serde(default)]
    pub home: String,
    /// When this supervisor started.
    pub since: Timestamp,
    /// The version of the active worker.
    pub worker_version: Option<PackageVersion>,
    /// The highest version among the published packages.
    pub disk_package_version: Option<PackageVersion>,
    /// The version the launcher starts.
    pub selected_package_version: Option<PackageVersion>,
    /// The selection's serial. A request that carries another one is refused.
    pub selected_serial: Option<u64>,
    /// Whether a person pinned the selection.
    #[serde(default)]
    pub pinned: bool,
    /// The version that was last validated.
    pub validated_version: Option<PackageVersion>,
    /// The version that waits for its rollout.
    pub pending_version: Option<PackageVersion>,
    /// The version of the candidate, if a rollout is under way.
    pub candidate_version: Option<PackageVersion>,
    /// The generations and the counters of the hand-off.
    #[serde(default)]
    pub rolling: Rolling,
    /// What the updater last did.
    #[serde(default)]
    pub update: serde_json::Value,
    /// How far the supervisor's own move to another program is, or how the last one ended.
    #[serde(default)]
    pub handover: Option<crate::supervisor::Handover>,
    /// Budgets.
    #[serde(default)]
    pub budget: serde_json::Value,
    /// Telemetry.
    #[serde(default)]
    pub telemetry: serde_json::Value,
}

/// The four places of a generation, and the counters since the supervisor started.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rolling {
    /// The active generation's number.
    pub generation: Option<u64>,
    /// Who gets new connections.
    pub active: Option<Place>,
    /// Who is being tried.
    pub candidate: Option<Place>,
    /// Who takes over again if the active one turns bad.
    pub standby: Option<Place>,
    /// Who only finishes what it serves, oldest first.
    #[serde(default)]
    pub draining: Vec<Place>,
    /// Sockets waiting for a worker.
    #[serde(default)]
    pub queued_sockets: u64,
    /// Sockets on their way to a worker.
    #[serde(default)]
    pub pending_transfers: u64,
    /// Sockets closed because the queue was full or their time in it was over.
    #[serde(default)]
    pub rejected_sockets: u64,
    /// Transfers that were not answered.
    #[serde(default)]
    pub failed_transfers: u64,
    /// Sockets that a worker died with and that cannot be proven untouched: closed.
    #[serde(default)]
    pub closed_sockets: u64,
    /// Idle connections that came back from a worker.
    #[serde(default)]
    pub returned_sockets: u64,
    /// Channel messages dropped: malformed, unknown type, stale generation, wrong process.
    #[serde(default)]
    pub dropped_messages: u64,
    /// The rollout whose new generation is active and not kept yet.
    #[serde(default)]
    pub probation: Option<Probation>,
    /// Why the last generation or rollout failed; at most 1,000 characters.
    pub last_failure: Option<String>,
    /// When that was.
    #[serde(default)]
    pub last_failure_at: Option<Timestamp>,
    /// The rollout that is under way, or the last one.
    pub last_rollout: Option<RolloutRecord>,
}

/// One generation in one of the four places.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    /// The generation's number.
    pub generation: u64,
    /// The version it reported.
    pub version: PackageVersion,
    /// Its process number.
    pub pid: u32,
    /// When it came to this place.
    pub since: Timestamp,
    /// Exchanges in flight.
    #[serde(default)]
    pub streams: u64,
    /// Open client connections.
    #[serde(default)]
    pub connections: u64,
    /// When what it still serves is cut (the drain deadline); none = never, or it does not drain.
    #[serde(default)]
    pub deadline: Option<Timestamp>,
}

/// A rollout's probation: its generation is active, the former one stands by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Probation {
    /// The rollout.
    pub rollout: u64,
    /// When it is kept, if nothing goes wrong until then.
    pub until: Timestamp,
    /// What the new generation has answered in it.
    #[serde(default)]
    pub requests: u64,
    /// How many of these were our own 5xx, no upstream's.
    #[serde(default)]
    pub local_5xx: u64,
}

/// One thing in flight that holds a generation: a request whose answer is not finished, or a tunnel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldStream {
    /// The client's address; `unix` for a client of a Unix socket.
    pub client: String,
    /// The path that was asked for, without its query.
    pub route: String,
    /// What it is.
    #[serde(default)]
    pub kind: StreamKind,
    /// For how long it has been in flight, in milliseconds.
    pub age_ms: u64,
    /// Bytes that the client sent, heads included.
    pub bytes_in: u64,
    /// Bytes that the client was sent, heads included.
    pub bytes_out: u64,
}

/// What a [`HeldStream`] is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StreamKind {
    /// A request and its answer.
    #[default]
    Exchange,
    /// A WebSocket.
    WebSocket,
    /// Another tunnel: another protocol, or `CONNECT`.
    Tunnel,
    /// A kind that this version does not know.
    #[serde(other)]
    Unknown,
}

/// Which of the four places a generation has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PlaceName {
    /// Gets new connections.
    Active,
    /// Is being tried.
    Candidate,
    /// Takes over again if the active one turns bad.
    Standby,
    /// Only finishes what it serves.
    Draining,
    /// A place that this version does not know.
    #[serde(other)]
    Unknown,
}

impl PlaceName {
    /// The word on the wire and for people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Candidate => "candidate",
            Self::Standby => "standby",
            Self::Draining => "draining",
            Self::Unknown => "unknown",
        }
    }
}

impl Rolling {
    /// Every generation with the name of its place, the active one first, then as `status` shows them.
    pub fn places(&self) -> impl Iterator<Item = (PlaceName, &Place)> {
        let one = |name| move |place| (name, place);
        (self.active.iter().map(one(PlaceName::Active)))
            .chain(self.candidate.iter().map(one(PlaceName::Candidate)))
            .chain(self.standby.iter().map(one(PlaceName::Standby)))
            .chain(self.draining.iter().map(one(PlaceName::Draining)))
    }
}

/// `GET /streams`, or `GET /streams?generation=N`: what is in flight.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Streams {
    /// One for each generation that was asked about.
    pub generations: Vec<Held>,
}

/// What holds one generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// The generation's number.
    pub generation: u64,
    /// What it runs.
    pub version: PackageVersion,
    /// Where it stands.
    pub place: PlaceName,
    /// How many streams there are in all.
    pub total: u64,
    /// The oldest of them, oldest first: as many as a message holds.
    #[serde(default)]
    pub streams: Vec<HeldStream>,
    /// Why nothing is known of them: then `total` is what the worker last counted.
    pub unknown: Option<String>,
}

/// The body of `POST /drains`: end a draining generation now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainRequest {
    /// The generation's number.
    pub generation: u64,
    /// The token that the first answer carried; none = what would be cut?
    #[serde(default)]
    pub confirm: Option<String>,
}

/// The answer to `POST /drains`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainAnswer {
    /// What is cut, or would be.
    pub held: Held,
    /// It was told to shut down. Without this nothing has happened yet.
    pub ending: bool,
    /// What a second request must carry as `confirm`, within a minute of the first.
    pub confirm: Option<String>,
    /// The same was asked before, within that minute, and has not been confirmed.
    #[serde(default)]
    pub asked_before: bool,
}

/// Who asks for a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum By {
    /// A person, by `restart` or `select`.
    Person,
    /// The updater's job.
    Job,
    /// SIGHUP or SIGUSR2.
    Signal,
    /// The supervisor, because a worker was lost.
    Recovery,
    /// The supervisor at its start, because a version was pending.
    Pending,
    /// The supervisor, because another version was selected.
    Selection,
}

/// The body of `POST /rollouts`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutRequest {
    /// The version to roll to; none = the version that runs, with the configuration as it now is.
    pub version: Option<String>,
    /// Who asks.
    pub by: By,
    /// The supervisor's nonce as the caller saw it; a mismatch is refused (`OWNERSHIP_CHANGED`).
    pub nonce: Option<String>,
    /// The selection's serial as the caller saw it; a mismatch is refused (`SERIAL_CHANGED`).
    pub serial: Option<u64>,
    /// The job that asks, for the record.
    pub job: Option<String>,
    /// What the selection's pin becomes when the rollout is kept; none = stays as it is.
    pub pin: Option<bool>,
    /// A person names a known-bad version on purpose: the mark is cleared.
    #[serde(default)]
    pub clear_known_bad: bool,
    /// Names this request: made again with the same key it is the same request, and gets the same
    /// rollout. [`crate::Client::roll`] chooses one.
    #[serde(default)]
    pub key: Option<String>,
}

impl RolloutRequest {
    /// A request without conditions; set the fields that matter.
    pub fn new(by: By) -> Self {
        Self {
            version: None,
            by,
            nonce: None,
            serial: None,
            job: None,
            pin: None,
            clear_known_bad: false,
            key: None,
        }
    }

    /// Binds the request to the supervisor and the selection that `status` showed.
    #[must_use]
    pub fn seen(mut self, status: &Status) -> Self {
        self.nonce = Some(status.nonce.clone());
        self.serial = status.selected_serial;
        self
    }
}

/// One step of a rollout: a line of the answer to `POST /rollouts`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// The rollout's number; ask `GET /rollouts/<id>` for its verdict.
    pub rollout: u64,
    /// What happened, in a word: `candidate`, `ready`, `activated`, …
    pub step: String,
    /// The generation it happened to.
    pub generation: Option<u64>,
    /// The version of that generation.
    pub version: PackageVersion,
    /// When.
    pub at: Timestamp,
    /// More about it, for people.
    pub detail: Option<String>,
}

/// How a rollout ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// The new generation is active and selected.
    Kept,
    /// The new generation was active and gave its traffic back.
    RolledBack,
    /// The candidate never became active; nothing changed.
    Failed,
    /// Not begun: trying later can help.
    Deferred,
    /// A later request took its place.
    Superseded,
}

impl Outcome {
    /// The exit code of a command whose rollout ended so.
    pub fn exit(self) -> Exit {
        match self {
            Self::Kept => Exit::Done,
            Self::RolledBack => Exit::RolledBack,
            Self::Failed => Exit::Failed,
            Self::Deferred | Self::Superseded => Exit::Deferred,
        }
    }

    /// The word on the wire.
    pub fn word(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::RolledBack => "rolledBack",
            Self::Failed => "failed",
            Self::Deferred => "deferred",
            Self::Superseded => "superseded",
        }
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::RolledBack => "rolled back",
            other => other.word(),
        })
    }
}

/// The last line of the answer to `POST /rollouts`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// The rollout's number.
    pub rollout: u64,
    /// How it ended.
    pub verdict: Outcome,
    /// The version that was rolled to.
    pub version: PackageVersion,
    /// The generation that was tried.
    pub generation: Option<u64>,
    /// The stable code of what went wrong.
    pub code: Option<String>,
    /// What went wrong, for people.
    pub reason: Option<String>,
    /// The selection's serial after the verdict was written.
    pub serial: Option<u64>,
}

impl Verdict {
    /// The exit code of a command whose rollout ended so. `kept` with a code serves, but could not
    /// be written down as it should.
    pub fn exit(&self) -> Exit {
        match (self.verdict, &self.code) {
            (Outcome::Kept, Some(_)) => Exit::Unverified,
            (verdict, _) => verdict.exit(),
        }
    }
}

/// `GET /rollouts/<id>`: a rollout as far as it came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutRecord {
    /// Its number.
    pub id: u64,
    /// The version that is rolled to.
    pub version: PackageVersion,
    /// Who asked.
    pub by: By,
    /// When it began.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// How it ended; none = still under way.
    pub verdict: Option<Verdict>,
    /// Its steps so far.
    #[serde(default)]
    pub steps: Vec<Step>,
    /// What went wrong, for people.
    pub reason: Option<String>,
}

/// The body of every answer that is not a success.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What failed.
    pub error: Failure,
}

impl ErrorBody {
    /// The HTTP status that carries a failure, so that the client learns its exit code too.
    pub fn http_status(exit: Exit) -> u16 {
        match exit {
            Exit::Deferred => 409,
            Exit::Usage => 400,
            Exit::NoPackage => 424,
            Exit::Configuration => 422,
            _ => 500,
        }
    }

    /// The exit code that an HTTP status stands for; the inverse of [`ErrorBody::http_status`].
    pub fn exit(http_status: u16) -> Exit {
        match http_status {
            409 => Exit::Deferred,
            400 => Exit::Usage,
            424 => Exit::NoPackage,
            422 => Exit::Configuration,
            _ => Exit::Failed,
        }
    }
}

/// One line of the answer to `POST /rollouts`: steps, and as the last line a verdict or an error.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// The end.
    Verdict(Verdict),
    /// One step.
    Step(Step),
    /// The end, without a verdict.
    Error(ErrorBody),
}
