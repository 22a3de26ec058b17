//! What can go wrong when a release is made.

use std::error::Error as StdError;
use std::path::PathBuf;

use staging::archive::ArchiveError;
use staging::pack::PackError;
use staging::report::{Exit, Report};

/// Why a release was not made, added or promoted. The feed is as it was, except for files that nothing refers to.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The keys would be served to everyone.
    #[error(
        "the keys folder {keys} lies inside the feed folder {feed}, which is served to everyone; choose a keys folder outside of it"
    )]
    KeysInsideFeed {
        /// The keys folder.
        keys: PathBuf,
        /// The feed folder.
        feed: PathBuf,
    },
    /// `init` of a feed that is already there.
    #[error(
        "{feed} already holds a feed; add releases to it with `rollproxy-publish add`, or choose an empty folder"
    )]
    FeedExists {
        /// The feed folder.
        feed: PathBuf,
    },
    /// A change to a feed that is not there.
    #[error(
        "{feed} holds no feed; make one with `rollproxy-publish init --feed {feed} --keys DIR`"
    )]
    FeedMissing {
        /// The feed folder.
        feed: PathBuf,
    },
    /// Another publisher works with these keys.
    #[error(
        "another rollproxy-publish is working with the keys in {keys}; wait until it has ended"
    )]
    Busy {
        /// The keys folder.
        keys: PathBuf,
    },
    /// A private key that others can read.
    #[error(
        "the key {path} can be read by others (mode {mode:04o}); run `chmod 600 {path}`, and consider it stolen if the machine is shared"
    )]
    KeyExposed {
        /// The key file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A keys folder in which others can replace keys.
    #[error(
        "the keys folder {path} can be changed by others (mode {mode:04o}); run `chmod go-w {path}`, and look whether every key in it is still yours"
    )]
    KeysExposed {
        /// The keys folder.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A file that is no usable ed25519 key.
    #[error("{path} is not an ed25519 private key in PKCS#8 DER; restore it from its backup")]
    KeyUnusable {
        /// The key file.
        path: PathBuf,
    },
    /// A new key could not be made.
    #[error("cannot generate a key for the role {role}")]
    KeyGeneration {
        /// The role the key was for.
        role: &'static str,
    },
    /// Too few of a role's keys are in the keys folder.
    #[error(
        "the keys in {keys} cannot sign for the role {role}; put that role's key there (its file is named {role}.pk8)"
    )]
    KeyMissing {
        /// The role to be signed for.
        role: &'static str,
        /// The keys folder.
        keys: PathBuf,
    },
    /// A file or folder that could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// What was read.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A file or folder that could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// What was written.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The feed's own metadata do not parse.
    #[error(
        "{path} is not the TUF metadata it should be: {reason}; restore the feed folder from a copy"
    )]
    Metadata {
        /// The metadata file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The feed's own metadata are not signed as its root asks for.
    #[error("{path} is not signed by the keys its root names; restore the feed folder from a copy")]
    Signature {
        /// The metadata file.
        path: PathBuf,
    },
    /// The signing library refused.
    #[error("cannot sign the role {role}: {source}")]
    Sign {
        /// The role.
        role: &'static str,
        /// The library's answer.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// An expiry no calendar holds.
    #[error("{days} days from now is no date; choose fewer days")]
    Expiry {
        /// The days asked for.
        days: u32,
    },
    /// A binary the package needs is not there.
    #[error(
        "{path} is missing; build it first (`cargo build --release`) or name another --bin-dir"
    )]
    BinaryMissing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The package could not be packed.
    #[error("cannot pack version {version}: {source}")]
    Pack {
        /// The version.
        version: String,
        /// Why.
        source: Box<PackError>,
    },
    /// An archive hosts would refuse.
    #[error("{path} would be refused by every host: {source}; pack it again")]
    Archive {
        /// The archive.
        path: PathBuf,
        /// Why.
        source: Box<ArchiveError>,
    },
    /// An archive of something else.
    #[error(
        "{path} holds {what} {found}, not {expected}; name the right archive or the right {what}"
    )]
    ArchiveMismatch {
        /// The archive.
        path: PathBuf,
        /// `version` or `target`.
        what: &'static str,
        /// What was asked for.
        expected: String,
        /// What its manifest says.
        found: String,
    },
    /// The version is there with other content. Published versions never change.
    #[error(
        "version {version} for {target} is already in the feed with other content; a published version never changes, choose a new one"
    )]
    VersionExists {
        /// The version.
        version: String,
        /// The target triple.
        target: String,
    },
    /// The version to promote is not there.
    #[error(
        "version {version} for {target} is not in the feed; add it first with `rollproxy-publish add`"
    )]
    VersionUnknown {
        /// The version.
        version: String,
        /// The target triple.
        target: String,
    },
    /// A name that cannot stand in a feed.
    #[error("the {what} {value:?} cannot be used: allowed are {allowed}")]
    Name {
        /// `channel` or `target`.
        what: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
}

impl PublishError {
    pub(crate) fn read(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Read {
            path: path.into(),
            source,
        }
    }

    pub(crate) fn write(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Write {
            path: path.into(),
            source,
        }
    }
}

impl Report for PublishError {
    fn code(&self) -> &'static str {
        match self {
            Self::KeysInsideFeed { .. } => "KEYS_INSIDE_FEED",
            Self::FeedExists { .. } => "FEED_EXISTS",
            Self::FeedMissing { .. } => "FEED_MISSING",
            Self::Busy { .. } => "PUBLISHER_BUSY",
            Self::KeyExposed { .. } => "KEY_EXPOSED",
            Self::KeysExposed { .. } => "KEYS_EXPOSED",
            Self::KeyUnusable { .. } => "KEY_UNUSABLE",
            Self::KeyGeneration { .. } => "KEY_GENERATION",
            Self::KeyMissing { .. } => "KEY_MISSING",
            Self::Read { .. } => "FEED_READ",
            Self::Write { .. } => "FEED_WRITE",
            Self::Metadata { .. } => "FEED_MALFORMED",
            Self::Signature { .. } => "FEED_SIGNATURE",
            Self::Sign { .. } => "SIGNING_FAILED",
            Self::Expiry { .. } => "EXPIRY_OUT_OF_RANGE",
            Self::BinaryMissing { .. } => "BINARY_MISSING",
            Self::Pack { source, .. } => source.code(),
            Self::Archive { source, .. } => source.code(),
            Self::ArchiveMismatch { .. } => "ARCHIVE_MISMATCH",
            Self::VersionExists { .. } => "VERSION_EXISTS",
            Self::VersionUnknown { .. } => "VERSION_UNKNOWN",
            Self::Name { .. } => "NAME_NOT_ALLOWED",
        }
    }

    fn exit(&self) -> Exit {
        match self {
            Self::KeysInsideFeed { .. }
            | Self::KeyExposed { .. }
            | Self::KeysExposed { .. }
            | Self::KeyUnusable { .. }
            | Self::KeyMissing { .. } => Exit::Configuration,
            Self::Name { .. } | Self::Expiry { .. } => Exit::Usage,
            Self::Busy { .. } => Exit::Deferred,
            _ => Exit::Failed,
        }
    }

    fn retry(&self) -> bool {
        match self {
            Self::Busy { .. } => true,
            Self::Pack { source, .. } => source.retry(),
            _ => false,
        }
    }
}
