//! The configuration: `config.toml` and the environment, read once, into one value that a generation keeps for life.
//!
//! The file is snake_case with durations as strings ("30s"); the snapshot that a worker is given is this value as JSON
//! (camelCase, durations as `...Ms` integers). A worker ignores fields that it does not know, so that an older worker can
//! live under a newer supervisor.

mod duration;
mod error;
mod listen;
mod load;
mod section;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use duration::{format_duration, parse_duration};
pub use error::ConfigError;
pub use listen::ListenAddress;
pub use load::{LISTEN_VARIABLE, Loaded, load, parse};

/// Everything a generation needs to know; built by [`load()`], carried by [`Config::to_snapshot`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Config {
    /// The snapshot's schema; always [`Config::SCHEMA`].
    pub schema: u32,
    /// Where the supervisor listens and how it stops.
    pub server: Server,
    /// Where requests can go, by name.
    pub upstreams: BTreeMap<String, Upstream>,
    /// Which request goes where; the first that matches wins.
    pub routes: Vec<Route>,
    /// How generations replace each other.
    pub rollout: Rollout,
    /// The updater's table as it stands in the file; the updater checks it.
    pub update: serde_json::Value,
    /// The budgets' table as it stands in the file.
    pub budget: serde_json::Value,
    /// The telemetry table as it stands in the file.
    pub telemetry: serde_json::Value,
}

/// `[server]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Server {
    /// The addresses to listen on.
    pub listen: Vec<ListenAddress>,
    /// The permissions of the Unix sockets among them.
    pub unix_mode: u32,
    /// How long SIGTERM waits for requests in flight; zero stops at once.
    #[serde(rename = "stopTimeoutMs", with = "duration::millis")]
    pub stop_timeout: Duration,
    /// How long `/ready` says 503 after SIGTERM before the port closes; zero closes it at once.
    #[serde(rename = "unreadyWindowMs", with = "duration::millis")]
    pub unready_window: Duration,
    /// From the first byte of a request until its head is whole; never zero.
    #[serde(rename = "headerTimeoutMs", with = "duration::millis")]
    pub header_timeout: Duration,
    /// Between two pieces of a request's body; zero never expires.
    #[serde(rename = "bodyTimeoutMs", with = "duration::millis")]
    pub body_timeout: Duration,
    /// How long a client may take nothing of an answer that waits for it; zero never expires.
    #[serde(rename = "sendTimeoutMs", with = "duration::millis")]
    pub send_timeout: Duration,
    /// How long a connection may wait for its next request; zero never expires.
    #[serde(rename = "idleTimeoutMs", with = "duration::millis")]
    pub idle_timeout: Duration,
    /// How many connections a worker serves at once; zero is as many as its descriptors allow.
    pub max_connections: usize,
    /// The pseudonym under which `Via` is added to requests and answers; empty adds none.
    pub via: String,
    /// Whether requests get `X-Forwarded-For`, `-Proto` and `-Host`.
    pub forwarded: bool,
}

/// `[upstreams.<name>]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Upstream {
    /// `http://` or `https://`, a host, perhaps a port and a path that goes before the request's own; no trailing slash.
    pub url: String,
    /// Until the connection stands, TLS included.
    #[serde(
        rename = "connectTimeoutMs",
        with = "duration::millis",
        default = "Upstream::default_connect_timeout"
    )]
    pub connect_timeout: Duration,
    /// From the request being handed over until the answer's head; zero never expires.
    #[serde(
        rename = "firstByteTimeoutMs",
        with = "duration::millis",
        default = "Upstream::default_first_byte_timeout"
    )]
    pub first_byte_timeout: Duration,
    /// Between two pieces of the answer's body; zero never expires.
    #[serde(
        rename = "idleTimeoutMs",
        with = "duration::millis",
        default = "Upstream::default_idle_timeout"
    )]
    pub idle_timeout: Duration,
    /// Whether it is spoken to in HTTP/2: by ALPN with `https://`, by prior knowledge with `http://`.
    #[serde(default)]
    pub http2: bool,
}

/// One of `[[routes]]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Route {
    /// A whole path, or a prefix when it ends in `*`.
    pub path: String,
    /// A header field that the request must have, whatever its value; lower case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// The name of the upstream.
    pub upstream: String,
    /// The protocols that a request may switch its connection to, as `Upgrade` names them; lower case.
    #[serde(default = "Route::default_upgrade")]
    pub upgrade: Vec<String>,
    /// Whether `CONNECT` to exactly this upstream's host and port opens a tunnel to it.
    #[serde(default)]
    pub connect: bool,
}

/// `[rollout]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rollout {
    /// How long a candidate may take from its start to `ready`, and from `activate` to `activated`.
    #[serde(rename = "readyTimeoutMs", with = "duration::millis")]
    pub ready_timeout: Duration,
    /// How long a worker may take to answer one step of a transfer.
    #[serde(rename = "transferTimeoutMs", with = "duration::millis")]
    pub transfer_timeout: Duration,
    /// How often a worker is pinged.
    #[serde(rename = "pingIntervalMs", with = "duration::millis")]
    pub ping_interval: Duration,
    /// How long a worker may take to answer a ping.
    #[serde(rename = "pingTimeoutMs", with = "duration::millis")]
    pub ping_timeout: Duration,
    /// How many sockets may wait for a worker.
    pub queue_limit: usize,
    /// How long a socket may wait for a worker.
    #[serde(rename = "queueTimeoutMs", with = "duration::millis")]
    pub queue_timeout: Duration,
    /// The pause before the first recovery; doubled for each next one.
    #[serde(rename = "recoveryMinMs", with = "duration::millis")]
    pub recovery_min: Duration,
    /// The longest pause before a recovery.
    #[serde(rename = "recoveryMaxMs", with = "duration::millis")]
    pub recovery_max: Duration,
    /// How long the previous generation stays standby; zero drains it at once.
    #[serde(rename = "probationMs", with = "duration::millis")]
    pub probation: Duration,
    /// The share of our own 5xx among a new generation's answers that ends its probation, in percent.
    pub probation_error_percent: usize,
    /// How many answers a new generation must have given before that share is looked at.
    pub probation_min_requests: usize,
    /// How long a draining generation may take; zero is for ever.
    #[serde(rename = "drainDeadlineMs", with = "duration::millis")]
    pub drain_deadline: Duration,
    /// How many generations may drain at once.
    pub drain_cap: usize,
    /// Whether the supervisor itself moves to the selected version after a rollout was kept.
    pub refresh_supervisor: bool,
    /// The command that is told what happened, as JSON on its standard input; empty tells nobody.
    pub on_event: Vec<String>,
}

impl Config {
    /// The snapshot's schema number.
    pub const SCHEMA: u32 = 1;

    /// The snapshot as a worker reads it: JSON, the same bytes for the same configuration.
    ///
    /// # Errors
    /// [`ConfigError::WriteSnapshot`] when the value cannot be written as JSON.
    pub fn to_snapshot(&self) -> Result<Vec<u8>, ConfigError> {
        serde_json::to_vec(self).map_err(|source| ConfigError::WriteSnapshot { source })
    }

    /// Reads a snapshot; fields that this version does not know are ignored, missing ones take their defaults.
    ///
    /// # Errors
    /// [`ConfigError::ReadSnapshot`] when it is no snapshot, [`ConfigError::NewerSnapshot`] when its schema is newer than ours.
    pub fn from_snapshot(bytes: &[u8]) -> Result<Self, ConfigError> {
        #[derive(Deserialize)]
        struct Head {
            schema: u32,
        }
        let head: Head =
            serde_json::from_slice(bytes).map_err(|source| ConfigError::ReadSnapshot { source })?;
        if head.schema > Self::SCHEMA {
            return Err(ConfigError::NewerSnapshot {
                schema: head.schema,
                known: Self::SCHEMA,
            });
        }
        serde_json::from_slice(bytes).map_err(|source| ConfigError::ReadSnapshot { source })
    }

    /// SHA-256 of the snapshot, in hex: two configurations are the same exactly when their digests are.
    ///
    /// # Errors
    /// As [`Config::to_snapshot`].
    pub fn digest(&self) -> Result<String, ConfigError> {
        let digest = Sha256::digest(self.to_snapshot()?);
        Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

impl Default for Config {
    fn default() -> Self {
        let table = || serde_json::Value::Object(serde_json::Map::new());
        Self {
            schema: Self::SCHEMA,
            server: Server::default(),
            upstreams: default_upstreams(),
            routes: default_routes(),
            rollout: Rollout::default(),
            update: table(),
            budget: table(),
            telemetry: table(),
        }
    }
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: vec![
                ListenAddress::from(([127, 0, 0, 1], 8787)),
                ListenAddress::from(([0, 0, 0, 0, 0, 0, 0, 1], 8787)),
            ],
            unix_mode: 0o600,
            stop_timeout: Duration::from_secs(90),
            unready_window: Duration::ZERO,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(60),
            send_timeout: Duration::from_secs(300),
            idle_timeout: Duration::from_secs(3600),
            max_connections: 0,
            via: String::new(),
            forwarded: false,
        }
    }
}

impl Default for Rollout {
    fn default() -> Self {
        Self {
            ready_timeout: Duration::from_secs(30),
            transfer_timeout: Duration::from_secs(5),
            ping_interval: Duration::from_secs(10),
            ping_timeout: Duration::from_secs(10),
            queue_limit: 1024,
            queue_timeout: Duration::from_secs(30),
            recovery_min: Duration::from_millis(250),
            recovery_max: Duration::from_secs(10),
            probation: Duration::from_secs(30),
            probation_error_percent: 5,
            probation_min_requests: 20,
            drain_deadline: Duration::from_secs(4 * 3600),
            drain_cap: 8,
            refresh_supervisor: true,
            on_event: Vec::new(),
        }
    }
}

impl Upstream {
    /// An upstream with the default time-outs; `url` as described at [`Upstream::url`].
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            connect_timeout: Self::default_connect_timeout(),
            first_byte_timeout: Self::default_first_byte_timeout(),
            idle_timeout: Self::default_idle_timeout(),
            http2: false,
        }
    }

    const fn default_connect_timeout() -> Duration {
        Duration::from_secs(10)
    }

    const fn default_first_byte_timeout() -> Duration {
        Duration::from_secs(600)
    }

    const fn default_idle_timeout() -> Duration {
        Duration::from_secs(300)
    }
}

impl Route {
    /// Every request to this path goes to this upstream, with the default for everything else.
    #[must_use]
    pub fn new(path: impl Into<String>, upstream: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            header: None,
            upstream: upstream.into(),
            upgrade: Self::default_upgrade(),
            connect: false,
        }
    }

    fn default_upgrade() -> Vec<String> {
        vec!["websocket".to_owned()]
    }
}

/// The two providers that a home without a file serves.
fn default_upstreams() -> BTreeMap<String, Upstream> {
    BTreeMap::from([
        (
            "anthropic".to_owned(),
            Upstream::new("https://api.anthropic.com"),
        ),
        ("openai".to_owned(), Upstream::new("https://api.openai.com")),
    ])
}

/// Both providers have a `/v1/models`: the header that Anthropic's clients must send tells them apart.
fn default_routes() -> Vec<Route> {
    const TABLE: [(&str, Option<&str>, &str); 8] = [
        ("/v1/messages*", None, "anthropic"),
        ("/v1/models", Some("anthropic-version"), "anthropic"),
        ("/v1/models/*", Some("anthropic-version"), "anthropic"),
        ("/v1/chat/completions", None, "openai"),
        ("/v1/responses", None, "openai"),
        ("/v1/embeddings", None, "openai"),
        ("/v1/models", None, "openai"),
        ("/v1/models/*", None, "openai"),
    ];
    TABLE
        .iter()
        .map(|(path, header, upstream)| Route {
            header: header.map(str::to_owned),
            ..Route::new(*path, *upstream)
        })
        .collect()
}

#[cfg(test)]
mod tests;
