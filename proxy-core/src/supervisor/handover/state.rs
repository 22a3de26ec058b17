//! Everything that one image of a supervisor leaves to the next: numbers, words, and the numbers of descriptors.
//!
//! It is JSON with a `schema`, like every document of a home: unknown fields are ignored, a newer schema is refused by
//! name. Deadlines are on the machine's own clock, which an exec does not touch.

use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use staging::ownership::ProcessIdentity;
use staging::protocol::STATE_PROTOCOL;
use staging::version::PackageVersion;

use crate::clock::Moment;
use crate::config::{Config, ConfigError, ListenAddress};

use super::super::client::Progress;
use super::super::link::CarriedLink;
use super::super::listener::Named;
use super::super::on_event;
use super::super::rollout::Machine;
use super::super::rollouts::Rollouts;
use super::super::state::LastFailure;
use super::super::switchboard::Carried;
use super::book::Book;

/// The state of a supervisor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Always written as [`STATE_PROTOCOL`].
    pub schema: u32,
    /// Who wrote it.
    pub origin: CarriedOrigin,
    /// Since when nothing is accepted and nobody heard.
    pub frozen_at: Moment,
    /// The home.
    pub home: PathBuf,
    /// The instance goes on: it is the same process, holds the same lock and all that was promised.
    pub identity: ProcessIdentity,
    /// When the instance began.
    pub since: Timestamp,
    /// The same moment on the other clock.
    pub started: Moment,
    /// The digest of the configuration that holds.
    pub config: String,
    /// The configurations that some generation, or a recovery, may still need.
    pub snapshots: Vec<CarriedSnapshot>,
    /// The generations.
    pub machine: Machine,
    /// The sockets.
    pub board: Carried<CarriedClient>,
    /// The workers.
    pub links: Vec<CarriedLink>,
    /// What the kept configuration asks to listen on.
    pub listen: Vec<ListenAddress>,
    /// The listeners.
    pub listeners: Vec<CarriedListener>,
    /// The control socket.
    pub control: i32,
    /// The supervisor lock.
    pub lock: i32,
    /// The book of rollouts.
    pub rollouts: Rollouts,
    /// The book of handovers.
    pub handovers: Book,
    /// Dropped channel messages.
    #[serde(default)]
    pub dropped_messages: u64,
    /// What last failed.
    #[serde(default)]
    pub last_failure: Option<LastFailure>,
    /// What is still to be told.
    #[serde(default)]
    pub on_event: on_event::Carried,
    /// Whether the pending version was looked at.
    #[serde(default)]
    pub pending_was_looked_at: bool,
}

/// Where an image came from.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CarriedOrigin {
    /// Its version.
    pub version: PackageVersion,
    /// Its executable's path; the file may be gone.
    pub executable: PathBuf,
}

/// A configuration.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CarriedSnapshot {
    /// Its digest, as the image that sealed it reckoned.
    pub digest: String,
    /// Its text.
    pub text: String,
}

/// A client's connection.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CarriedClient {
    /// Its descriptor.
    pub socket: i32,
    /// How far it was when it came.
    pub came: Option<Progress>,
}

/// A listening socket.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CarriedListener {
    /// Its descriptor.
    pub socket: i32,
    /// Where it listens, and for which entry of the configuration.
    pub named: Named,
}

/// Why a state cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The memory it lies in cannot be read.
    #[error("the state cannot be read: {0}")]
    Memory(std::io::Error),
    /// It is no state.
    #[error("the state cannot be read: {0}")]
    Read(#[from] serde_json::Error),
    /// It is of a kind that this program does not know.
    #[error("the state is of schema {found}, this program knows {STATE_PROTOCOL}")]
    Schema {
        /// What it says.
        found: u32,
    },
    /// A configuration in it cannot be used.
    #[error("configuration {digest} in the state cannot be read: {source}")]
    Config {
        /// Which.
        digest: String,
        /// Why.
        source: ConfigError,
    },
    /// It names something that is not in it.
    #[error("the state speaks of configuration {0}, which is not in it")]
    NoConfig(String),
}

impl State {
    /// Reads a state, and every configuration in it.
    ///
    /// # Errors
    /// [`StateError`]; `Schema` for one that another version can read.
    pub fn parse(bytes: &[u8]) -> Result<(Self, Vec<(String, Config)>), StateError> {
        #[derive(Deserialize)]
        struct Head {
            schema: u32,
        }
        let head: Head = serde_json::from_slice(bytes)?;
        if head.schema != STATE_PROTOCOL {
            return Err(StateError::Schema { found: head.schema });
        }
        let state: Self = serde_json::from_slice(bytes)?;
        let configs = state
            .snapshots
            .iter()
            .map(|snapshot| {
                let config = Config::from_snapshot(snapshot.text.as_bytes()).map_err(|source| {
                    StateError::Config {
                        digest: snapshot.digest.clone(),
                        source,
                    }
                })?;
                Ok((snapshot.digest.clone(), config))
            })
            .collect::<Result<Vec<_>, StateError>>()?;
        if !configs.iter().any(|(digest, _)| *digest == state.config) {
            return Err(StateError::NoConfig(state.config));
        }
        Ok((state, configs))
    }

    /// Every descriptor in it, each once; sockets are told from the lock, which is a file.
    pub fn sockets(&self) -> Vec<i32> {
        let channels = self.links.iter().filter_map(|link| link.channel);
        let listeners = self.listeners.iter().map(|listener| listener.socket);
        let clients = self.board.sockets().map(|client| client.socket);
        channels
            .chain(listeners)
            .chain(clients)
            .chain([self.control])
            .collect()
    }
}
