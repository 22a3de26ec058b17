//! What can be wrong with a configuration.

use std::path::PathBuf;

use staging::report::{Exit, Report};

/// A configuration that cannot be used; each message names the file, the key, the value and what is allowed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is there but cannot be read.
    #[error("cannot read {}: {source}; make it readable for the user that runs rollproxy", path.display())]
    ReadFile {
        /// The configuration file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no TOML.
    #[error("{origin} is not valid TOML: {cause}")]
    ParseFile {
        /// The file.
        origin: String,
        /// The parser's words, with line and column.
        cause: String,
    },
    /// A value that is not allowed.
    #[error("{origin}: {key} = {value} is not allowed; use {allowed}")]
    CheckValue {
        /// The file, or the environment variable.
        origin: String,
        /// The key with its tables, as in `upstreams.anthropic.url`.
        key: String,
        /// The value as written.
        value: String,
        /// What would be accepted.
        allowed: String,
    },
    /// A key that must be there is not.
    #[error("{origin}: {key} is missing; give {allowed}")]
    FindKey {
        /// The file.
        origin: String,
        /// The key with its tables.
        key: String,
        /// What would be accepted.
        allowed: String,
    },
    /// Keys that this version does not know.
    #[error("{origin}: {}; remove them or update rollproxy", keys.join("; "))]
    KnowKeys {
        /// The file.
        origin: String,
        /// Each unknown key, with what is known in its table.
        keys: Vec<String>,
    },
    /// The configuration cannot be written as a snapshot.
    #[error("cannot write the configuration snapshot: {source}")]
    WriteSnapshot {
        /// Why.
        source: serde_json::Error,
    },
    /// What should be a snapshot is none.
    #[error(
        "cannot read the configuration snapshot: {source}; only the supervisor writes it, so restart rollproxy"
    )]
    ReadSnapshot {
        /// Why.
        source: serde_json::Error,
    },
    /// The snapshot comes from a newer version.
    #[error(
        "the configuration snapshot has schema {schema}, this version knows {known}; update this package"
    )]
    NewerSnapshot {
        /// The snapshot's schema.
        schema: u32,
        /// Ours.
        known: u32,
    },
}

impl Report for ConfigError {
    fn code(&self) -> &'static str {
        match self {
            Self::ReadFile { .. } => "CONFIG_UNREADABLE",
            Self::ParseFile { .. } => "CONFIG_SYNTAX",
            Self::CheckValue { .. } => "CONFIG_VALUE",
            Self::FindKey { .. } => "CONFIG_MISSING_KEY",
            Self::KnowKeys { .. } => "CONFIG_UNKNOWN_KEY",
            Self::WriteSnapshot { .. } | Self::ReadSnapshot { .. } => "CONFIG_SNAPSHOT",
            Self::NewerSnapshot { .. } => "CONFIG_SNAPSHOT_NEWER",
        }
    }

    fn exit(&self) -> Exit {
        Exit::Configuration
    }

    fn retry(&self) -> bool {
        false
    }
}
