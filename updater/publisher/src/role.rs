//! The roles of a feed by the names that people write.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::PublishError;
use crate::names::{self, role_of_channel};

/// A role whose keys can be replaced.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(into = "String")]
pub enum KeyRole {
    /// The root of trust.
    Root,
    /// What signs archives and channels.
    Targets,
    /// What ties all metadata together.
    Snapshot,
    /// What says which state is the newest.
    Timestamp,
    /// What signs the offers of the channel of this name.
    Channel(String),
}

impl fmt::Display for KeyRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => f.write_str("root"),
            Self::Targets => f.write_str("targets"),
            Self::Snapshot => f.write_str("snapshot"),
            Self::Timestamp => f.write_str("timestamp"),
            Self::Channel(name) => f.write_str(&role_of_channel(name)),
        }
    }
}

impl From<KeyRole> for String {
    fn from(role: KeyRole) -> Self {
        role.to_string()
    }
}

impl FromStr for KeyRole {
    type Err = PublishError;

    fn from_str(text: &str) -> Result<Self, PublishError> {
        match text {
            "root" => Ok(Self::Root),
            "targets" => Ok(Self::Targets),
            "snapshot" => Ok(Self::Snapshot),
            "timestamp" => Ok(Self::Timestamp),
            _ => match text.strip_prefix(&role_of_channel("")) {
                Some(name) => names::check("channel", name).map(|()| Self::Channel(name.into())),
                None => Err(PublishError::Name {
                    what: "role",
                    value: text.chars().take(64).collect(),
                    allowed: "root, targets, snapshot, timestamp and channel-<name>",
                }),
            },
        }
    }
}
