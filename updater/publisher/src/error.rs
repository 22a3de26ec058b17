//! What can go wrong when a release is made.

use std::error::Error as StdError;
use std::path::PathBuf;

use staging::archive::ArchiveError;
use staging::delta::DeltaError;
use staging::pack::PackError;
use staging::report::{Exit, Report};
use staging::validate::ValidationError;

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
    #[error("another rollproxy-publish is working with {folder}; wait until it has ended")]
    Busy {
        /// The keys folder, or the feed's folder of metadata.
        folder: PathBuf,
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
    /// A keys folder that is not there.
    #[error(
        "there is no keys folder {path}; attach its medium, or for new keys make it with `mkdir -m 700 {path}`"
    )]
    KeysFolderMissing {
        /// The keys folder.
        path: PathBuf,
    },
    /// A file that is no usable ed25519 key.
    #[error("{path} is not an ed25519 private key in PKCS#8 DER; restore it from its backup")]
    KeyUnusable {
        /// The key file.
        path: PathBuf,
    },
    /// A new key could not be made.
    #[error("cannot generate the key {role}")]
    KeyGeneration {
        /// The name of the key.
        role: String,
    },
    /// Too few of a role's keys are in the keys folders.
    #[error(
        "signing for the role {role} takes {needed} of its keys, and {found} of them is in {keys}; put them there ({}){}", key_file(.role), more_folders(.role)
    )]
    KeyMissing {
        /// The role to be signed for.
        role: String,
        /// The keys folders.
        keys: String,
        /// How many of the role's keys are there.
        found: u64,
        /// How many must sign.
        needed: u64,
    },
    /// A threshold that no number of these keys can reach, or that needs none.
    #[error("{threshold} of {keys} keys cannot be the threshold of the root: choose 1 to {keys}")]
    Threshold {
        /// The keys.
        keys: u8,
        /// The threshold asked for.
        threshold: u8,
    },
    /// A lost key that is none of the root's.
    #[error(
        "{file} is no key of the root, which has {count}: name the file that was lost, root-1.pk8 to root-{count}.pk8"
    )]
    KeyUnknown {
        /// What was named.
        file: PathBuf,
        /// How many keys the root has.
        count: usize,
    },
    /// A lost key, or numbers of keys, for roles with one key only.
    #[error(
        "--lost, --root-keys and --root-threshold are about the keys of the root; for other roles name the role alone, or add --role root"
    )]
    NotTheRoot,
    /// A role with several keys, which another program has given to it.
    #[error(
        "the role {role} has a threshold above 1, which rollproxy-publish does not make; rotate it with the program that did"
    )]
    SeveralKeys {
        /// The role.
        role: String,
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
    /// A metadata file that must be there is not.
    #[error("{path} is missing; restore the feed folder from a copy")]
    MetadataMissing {
        /// The metadata file.
        path: PathBuf,
    },
    /// The feed's own metadata are not signed as its root asks for.
    #[error(
        "{path} has {found} of the {threshold} signatures that it needs, by the keys that its root names; restore the feed folder from a copy"
    )]
    Signature {
        /// The metadata file.
        path: PathBuf,
        /// Good signatures.
        found: usize,
        /// Signatures needed.
        threshold: usize,
    },
    /// Metadata that are not those that other metadata refer to.
    #[error(
        "{path} is not the file that the metadata above it refer to; restore the feed folder from a copy"
    )]
    Inconsistent {
        /// The metadata file.
        path: PathBuf,
    },
    /// Metadata past their date.
    #[error(
        "{path} expired {expires}; sign the feed anew with `rollproxy-publish refresh --all`, or a root with `rotate --role root`"
    )]
    Expired {
        /// The metadata file.
        path: PathBuf,
        /// When.
        expires: jiff::Timestamp,
    },
    /// Metadata past their date, whose key is elsewhere.
    #[error(
        "the metadata of {role} expired {expires}, and {keys} has no key to sign them anew: hosts take no update before `rollproxy-publish refresh --all` runs where the keys are"
    )]
    ExpiredElsewhere {
        /// The role.
        role: String,
        /// When.
        expires: jiff::Timestamp,
        /// The keys folders.
        keys: String,
    },
    /// The first root is not the one that was expected.
    #[error("{path} has SHA-256 {found}, not {expected}: this is another feed")]
    OtherRoot {
        /// The root's file.
        path: PathBuf,
        /// The digest expected.
        expected: String,
        /// The digest found.
        found: String,
    },
    /// A target's file is not what the feed says it is.
    #[error("{path} is damaged: {reason}; restore it from a copy")]
    TargetDamaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Words in the metadata that hosts would not understand.
    #[error("what the feed says about {name} cannot be used: {reason}")]
    Custom {
        /// The target.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// Metadata larger than hosts read.
    #[error(
        "the metadata of {role} would have {length} bytes, and hosts read {limit} at most; withdraw old versions"
    )]
    TooLarge {
        /// The role.
        role: String,
        /// Bytes there would be.
        length: u64,
        /// Bytes that hosts read.
        limit: u64,
    },
    /// The signing library refused.
    #[error("cannot sign the role {role}: {source}")]
    Sign {
        /// The role.
        role: String,
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
    /// A package that hosts would refuse.
    #[error("version {version} would be refused by every host: {source}; nothing was added")]
    Trial {
        /// The version.
        version: String,
        /// Why.
        source: Box<ValidationError>,
    },
    /// Nowhere to try a package.
    #[error(
        "no program can be started from {folder}: its file system is mounted noexec; name another folder in TMPDIR, or add the version untried with --no-trial"
    )]
    TrialPlace {
        /// The folder of temporary files.
        folder: PathBuf,
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
        "version {version} for {target} is not in the feed; nothing is to be withdrawn then, and to be offered it must be added with `rollproxy-publish add`"
    )]
    VersionUnknown {
        /// The version.
        version: String,
        /// The target triple.
        target: String,
    },
    /// A channel that was never promoted.
    #[error(
        "the feed has no channel {channel}; a first `rollproxy-publish promote --channel {channel}` makes it"
    )]
    ChannelUnknown {
        /// The channel.
        channel: String,
    },
    /// A barrier that nobody could be led to.
    #[error(
        "{version} is above the {offered} that {channel} offers; promote it first, then make it a barrier"
    )]
    BarrierAhead {
        /// The version.
        version: String,
        /// The channel.
        channel: String,
        /// What the channel offers.
        offered: String,
    },
    /// A withdrawn version in its own place.
    #[error("{version} cannot be offered instead of itself; name another version")]
    InsteadOfItself {
        /// The version.
        version: String,
    },
    /// A patch from a version to itself.
    #[error("a patch from {version} to {version} makes no sense; name earlier versions")]
    DeltaFromItself {
        /// The version.
        version: String,
    },
    /// The patch could not be made.
    #[error("cannot make the patch from {from} to {version}: {source}")]
    Delta {
        /// The version it would start from.
        from: String,
        /// The version it would make.
        version: String,
        /// Why.
        source: Box<DeltaError>,
    },
    /// A share that is no percentage.
    #[error("{share} percent is no share: choose 0 to 100")]
    Share {
        /// What was given.
        share: u8,
    },
    /// A text that hosts would cut.
    #[error("the {what} have {length} characters, and hosts keep {limit}; shorten the {what}")]
    TooLong {
        /// `notes` or `reason`.
        what: &'static str,
        /// Characters given.
        length: usize,
        /// Characters kept.
        limit: usize,
    },
    /// A name that cannot stand in a feed.
    #[error("the {what} {value:?} cannot be used: allowed are {allowed}")]
    Name {
        /// `channel`, `target` or `role`.
        what: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
}

/// What the files of a role's keys are called.
fn key_file(role: &str) -> String {
    match role {
        "root" => "the files are named root-1.pk8, root-2.pk8 and so on".to_owned(),
        role => format!(
            "the file is named {role}.pk8; one from before a rotation of {role} does not count"
        ),
    }
}

fn more_folders(role: &str) -> &'static str {
    match role {
        "root" => ", or name their folders with --root-keys-dir",
        _ => "",
    }
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
            Self::KeysFolderMissing { .. } => "KEYS_FOLDER_MISSING",
            Self::KeyUnusable { .. } => "KEY_UNUSABLE",
            Self::KeyGeneration { .. } => "KEY_GENERATION",
            Self::KeyMissing { .. } => "KEY_MISSING",
            Self::Read { .. } => "FEED_READ",
            Self::Write { .. } => "FEED_WRITE",
            Self::Metadata { .. } => "FEED_MALFORMED",
            Self::MetadataMissing { .. } => "FEED_INCOMPLETE",
            Self::Signature { .. } => "FEED_SIGNATURE",
            Self::Inconsistent { .. } => "FEED_INCONSISTENT",
            Self::Expired { .. } | Self::ExpiredElsewhere { .. } => "FEED_EXPIRED",
            Self::OtherRoot { .. } => "ROOT_MISMATCH",
            Self::TargetDamaged { .. } => "TARGET_DAMAGED",
            Self::Custom { .. } => "TARGET_WORDS",
            Self::TooLarge { .. } => "METADATA_TOO_LARGE",
            Self::Threshold { .. } => "THRESHOLD_IMPOSSIBLE",
            Self::KeyUnknown { .. } => "KEY_UNKNOWN",
            Self::NotTheRoot => "USAGE",
            Self::SeveralKeys { .. } => "SEVERAL_KEYS",
            Self::Sign { .. } => "SIGNING_FAILED",
            Self::Expiry { .. } => "EXPIRY_OUT_OF_RANGE",
            Self::BinaryMissing { .. } => "BINARY_MISSING",
            Self::Pack { source, .. } => source.code(),
            Self::Archive { source, .. } => source.code(),
            Self::Trial { source, .. } => source.code(),
            Self::TrialPlace { .. } => "TRIAL_NOEXEC",
            Self::ArchiveMismatch { .. } => "ARCHIVE_MISMATCH",
            Self::VersionExists { .. } => "VERSION_EXISTS",
            Self::VersionUnknown { .. } => "VERSION_UNKNOWN",
            Self::ChannelUnknown { .. } => "CHANNEL_UNKNOWN",
            Self::BarrierAhead { .. } => "BARRIER_AHEAD",
            Self::InsteadOfItself { .. } => "INSTEAD_OF_ITSELF",
            Self::DeltaFromItself { .. } => "DELTA_FROM_ITSELF",
            Self::Delta { source, .. } => source.code(),
            Self::Share { .. } => "SHARE_OUT_OF_RANGE",
            Self::TooLong { .. } => "TEXT_TOO_LONG",
            Self::Name { .. } => "NAME_NOT_ALLOWED",
        }
    }

    fn exit(&self) -> Exit {
        match self {
            Self::KeysInsideFeed { .. }
            | Self::KeyExposed { .. }
            | Self::KeysExposed { .. }
            | Self::KeysFolderMissing { .. }
            | Self::KeyUnusable { .. }
            | Self::KeyMissing { .. }
            | Self::TrialPlace { .. } => Exit::Configuration,
            Self::Name { .. }
            | Self::Expiry { .. }
            | Self::Threshold { .. }
            | Self::KeyUnknown { .. }
            | Self::NotTheRoot
            | Self::InsteadOfItself { .. }
            | Self::DeltaFromItself { .. }
            | Self::Share { .. }
            | Self::TooLong { .. } => Exit::Usage,
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
