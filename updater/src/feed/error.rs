//! Why the feed could not be read, or an archive not be brought.
//!
//! Messages never hold bytes that came from the network unverified, nor credentials.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use sigstore_tuf::Error as Tuf;
use staging::document::DocumentError;
use staging::report::{Exit, Report};

use super::location::Location;
use super::transport::{Trace, TransportError};

/// What went wrong with the feed. The host serves on with what it has.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// A text that cannot be a feed's URL.
    #[error(
        "the feed's URL {url} cannot be used: {reason}; write it as https://HOST/PATH, http://HOST/PATH or file:///PATH"
    )]
    Url {
        /// The URL without credentials.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The client could not be set up.
    #[error("cannot set up the client for {url}: {reason}")]
    Client {
        /// The feed, without credentials.
        url: String,
        /// Why.
        reason: String,
    },
    /// Certificates that cannot be used.
    #[error("cannot use the certificates in {path}: {reason}; mend update.ca_file")]
    Certificates {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// No root of trust was pinned.
    #[error(
        "no root of trust is pinned in {path}; run `rollproxy-updater init --feed URL --root FILE --sha256 DIGEST`"
    )]
    RootMissing {
        /// Where it should be.
        path: PathBuf,
    },
    /// The root of trust could not be read.
    #[error("cannot read the root of trust {path}: {reason}")]
    RootUnreadable {
        /// The file, or the URL without credentials.
        path: String,
        /// Why.
        reason: String,
    },
    /// The root is not the one whose digest was given.
    #[error(
        "the root of trust {path} has SHA-256 {actual}, not {expected}; compare the digest with the publisher's before anything else"
    )]
    RootMismatch {
        /// The file, or the URL without credentials.
        path: String,
        /// The digest given.
        expected: String,
        /// The digest found.
        actual: String,
    },
    /// The bytes are no root of trust.
    #[error("{path} is not a root of trust: {reason}; use the root.json that the publisher made")]
    RootInvalid {
        /// The file, or the URL without credentials.
        path: String,
        /// Why.
        reason: &'static str,
    },
    /// Another root is pinned already.
    #[error(
        "another root of trust is pinned in {path} (SHA-256 {pinned}); if you mean to trust another publisher, remove that file first"
    )]
    RootAlreadyPinned {
        /// The pinned file.
        path: PathBuf,
        /// Its digest.
        pinned: String,
    },
    /// Asked for a release before a refresh succeeded.
    #[error("the feed was not read yet; refresh it first")]
    NotRefreshed,
    /// No answer, or one that broke off.
    #[error("the feed at {url} cannot be reached: {reason}")]
    Unreachable {
        /// What was asked for, without credentials.
        url: String,
        /// In a few words of ours.
        reason: String,
    },
    /// It answers, but so slowly that it could hold a check for ever.
    #[error(
        "{url} was not read to the end within {limit:?}; see what slows the feed down, or allow more in update.inactivity_timeout"
    )]
    Slow {
        /// The feed, or the file that was asked for, without credentials.
        url: String,
        /// The time it had in all.
        limit: Duration,
    },
    /// An HTTP status that is no answer.
    #[error("the feed answered {status} for {url}; {advice}")]
    Status {
        /// What was asked for, without credentials.
        url: String,
        /// The status.
        status: u16,
        /// What to do.
        advice: &'static str,
        /// How long the server asked to wait.
        retry_after: Option<Duration>,
    },
    /// A file that must be there is not.
    #[error(
        "the feed at {url} has no {name}; check the feed's URL, or wait if it is being copied right now"
    )]
    Missing {
        /// The feed, without credentials.
        url: String,
        /// The metadata file.
        name: String,
    },
    /// A web page where metadata should be.
    #[error(
        "{url} answered with a web page, not TUF metadata; a captive portal, or not the feed's URL?"
    )]
    WebPage {
        /// What was asked for, without credentials.
        url: String,
    },
    /// Bytes that somebody on the way has packed.
    #[error(
        "{url} came with a Content-Encoding: its digest is of the bytes as published; have the server or the proxy on the way send files as they are"
    )]
    Encoded {
        /// What was asked for, without credentials.
        url: String,
    },
    /// More bytes than such a file may have.
    #[error("{url} is larger than the {limit} bytes allowed for it; is this the feed's URL?")]
    Oversized {
        /// What was asked for, without credentials.
        url: String,
        /// The limit in bytes.
        limit: u64,
    },
    /// Bytes that are no metadata.
    #[error("{name} of the feed at {url} is not TUF metadata ({reason}); was it cut short?")]
    Malformed {
        /// The feed, without credentials.
        url: String,
        /// The metadata file.
        name: String,
        /// Where parsing stopped.
        reason: String,
    },
    /// Not signed by those whom the pinned root trusts.
    #[error(
        "{name} of the feed at {url} is not signed by the keys that the pinned root trusts; nothing of it was used"
    )]
    Signature {
        /// The feed, without credentials.
        url: String,
        /// The metadata file.
        name: String,
    },
    /// Older metadata than this host has seen.
    #[error(
        "the feed offers {role} version {offered}, but this host has seen {trusted}: an old copy, or somebody holding updates back"
    )]
    Rollback {
        /// The role that went back.
        role: String,
        /// The highest version seen.
        trusted: u64,
        /// The version offered.
        offered: u64,
    },
    /// Metadata past their date.
    #[error(
        "the feed's {role} metadata expired at {expires}; what runs here goes on, but nothing is updated until the publisher signs anew (or this machine's clock is right)"
    )]
    Expired {
        /// The role that expired.
        role: String,
        /// When.
        expires: Timestamp,
    },
    /// Files that do not belong together.
    #[error(
        "{name} of the feed at {url} does not belong to the rest of the feed; it is being changed right now, or something between keeps old copies"
    )]
    Inconsistent {
        /// The feed, without credentials.
        url: String,
        /// The file.
        name: String,
    },
    /// The cache in the home could not be read or written.
    #[error("cannot {action} {path}: {source}")]
    Store {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file of version floors is unusable.
    #[error(transparent)]
    Floors(#[from] DocumentError),
    /// Cached metadata that this build cannot verify.
    #[error(
        "{path} cannot be verified from the pinned root ({reason}); remove the file, the next check brings it again"
    )]
    CacheUnreadable {
        /// The cached file.
        path: PathBuf,
        /// Why, in words of ours.
        reason: &'static str,
    },
    /// A channel's name that cannot stand in a feed.
    #[error(
        "{name:?} cannot be a channel: allowed are 1 to 64 of a-z, 0-9, - and _; mend `channel` in the configuration"
    )]
    ChannelName {
        /// The name, shortened.
        name: String,
    },
    /// A channel file that says nothing usable.
    #[error("{name} in the feed is malformed: {reason}; tell the publisher")]
    Channel {
        /// The target name of the channel file.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// The feed contradicts itself about a version.
    #[error(
        "the feed contradicts itself: {name} says {said}, but {other} says {otherwise}; tell the publisher"
    )]
    Contradiction {
        /// Where the first is said.
        name: String,
        /// What it says.
        said: String,
        /// Where the other is said.
        other: String,
        /// What that says.
        otherwise: String,
    },
    /// A channel that names an archive which is not there.
    #[error("the feed offers {archive}, but has no such archive; tell the publisher")]
    ArchiveMissing {
        /// The archive's target name.
        archive: String,
    },
    /// Too many or too few bytes.
    #[error("{archive} has {actual} bytes, but {expected} were signed for{then}")]
    ArchiveLength {
        /// The archive's target name.
        archive: String,
        /// Bytes signed for.
        expected: u64,
        /// Bytes there were; of a longer one, those announced or read until it was cut.
        actual: u64,
        /// What became of it.
        then: &'static str,
        /// Whether it merely broke off, or another copy may have the right one: trying again can help then.
        broke_off: bool,
    },
    /// Other bytes than were signed for.
    #[error(
        "{archive} has SHA-256 {actual}, but {expected} was signed for; what was downloaded is removed"
    )]
    ArchiveDigest {
        /// The archive's target name.
        archive: String,
        /// The digest signed for.
        expected: String,
        /// The digest found.
        actual: String,
        /// Whether other bytes may come next time: an earlier run's were among these, or another copy of the feed is there.
        again: bool,
    },
}

impl FeedError {
    /// Whether another copy of the feed may do better: everything but what this host's own disk or configuration says.
    pub(super) fn is_of_site(&self) -> bool {
        !matches!(
            self,
            Self::Url { .. }
                | Self::Client { .. }
                | Self::Certificates { .. }
                | Self::RootMissing { .. }
                | Self::RootUnreadable { .. }
                | Self::RootMismatch { .. }
                | Self::RootInvalid { .. }
                | Self::RootAlreadyPinned { .. }
                | Self::NotRefreshed
                | Self::Floors(_)
                | Self::CacheUnreadable { .. }
                | Self::ChannelName { .. }
        ) && !matches!(self, Self::Store { action, .. } if *action != "read")
    }

    /// How long the server asked to wait before it is asked again: at most a day.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    pub(super) fn store(
        action: &'static str,
        path: impl Into<PathBuf>,
        source: std::io::Error,
    ) -> Self {
        Self::Store {
            action,
            path: path.into(),
            source,
        }
    }

    /// An error of the TUF client while it read metadata; `trace` knows which.
    pub(super) fn from_tuf(error: Tuf, trace: &Trace, location: &Location) -> Self {
        Self::explain(error, trace.last(), location)
    }

    /// An error of the TUF client about one target.
    pub(super) fn from_tuf_target(error: Tuf, target: &str, location: &Location) -> Self {
        Self::explain(error, target.to_owned(), location)
    }

    fn explain(error: Tuf, name: String, location: &Location) -> Self {
        let url = location.to_string();
        match error {
            Tuf::Transport {
                source: Some(source),
                ..
            } => match source.downcast::<TransportError>() {
                Ok(ours) => (*ours).into(),
                Err(_) => Self::Unreachable {
                    url,
                    reason: "the transfer failed".to_owned(),
                },
            },
            // Only the client itself says this without a cause: a file that must be there was not.
            Tuf::Transport { source: None, .. } => Self::Missing { url, name },
            Tuf::Json(source) => Self::Malformed {
                url,
                name,
                reason: format!(
                    "not JSON at line {}, column {}",
                    source.line(),
                    source.column()
                ),
            },
            Tuf::Malformed(_) | Tuf::NonIntegerNumber | Tuf::UnknownRole(_) => Self::Malformed {
                url,
                name,
                reason: "JSON of another shape".to_owned(),
            },
            Tuf::ThresholdNotMet { .. }
            | Tuf::DuplicateSignature { .. }
            | Tuf::UnusableKey { .. }
            | Tuf::UnsupportedScheme { .. }
            | Tuf::Crypto(_) => Self::Signature { url, name },
            Tuf::Rollback { role, trusted, new } => Self::Rollback {
                role: plain(&role),
                trusted,
                offered: new,
            },
            Tuf::BadRootVersion { trusted, new } => Self::Rollback {
                role: "root".to_owned(),
                trusted,
                offered: new,
            },
            Tuf::Expired { role, expires } => Self::Expired {
                role: plain(&role),
                expires,
            },
            Tuf::NotRefreshed => Self::NotRefreshed,
            // Lengths and digests that differ from what the file above says; whatever a later library adds is no better.
            _ => Self::Inconsistent { url, name },
        }
    }
}

impl From<TransportError> for FeedError {
    fn from(error: TransportError) -> Self {
        match error {
            TransportError::Unreachable { url, reason } => Self::Unreachable { url, reason },
            TransportError::Status {
                url,
                status,
                retry_after,
            } => Self::Status {
                url,
                status,
                advice: advice(status),
                retry_after,
            },
            TransportError::Encoded { url } => Self::Encoded { url },
            TransportError::WebPage { url } => Self::WebPage { url },
            TransportError::Oversized { url, limit } => Self::Oversized { url, limit },
            TransportError::File { path, source } => Self::Store {
                action: "read",
                path,
                source,
            },
        }
    }
}

impl Report for FeedError {
    fn code(&self) -> &'static str {
        match self {
            Self::Url { .. } | Self::ChannelName { .. } => "FEED_CONFIGURATION",
            Self::Client { .. } => "FEED_CLIENT",
            Self::Certificates { .. } => "CA_FILE",
            Self::RootMissing { .. } => "ROOT_MISSING",
            Self::RootUnreadable { .. } => "ROOT_UNREADABLE",
            Self::RootMismatch { .. } => "ROOT_MISMATCH",
            Self::RootInvalid { .. } => "ROOT_INVALID",
            Self::RootAlreadyPinned { .. } => "ROOT_ALREADY_PINNED",
            Self::NotRefreshed => "FEED_NOT_READ",
            Self::Unreachable { .. } => "FEED_UNREACHABLE",
            Self::Slow { .. } => "FEED_SLOW",
            Self::Status { status, .. } if transient(*status) => "FEED_UNREACHABLE",
            Self::Status { .. } => "FEED_REFUSED",
            Self::Missing { .. } => "FEED_MISSING",
            Self::WebPage { .. } | Self::Oversized { .. } | Self::Malformed { .. } => {
                "FEED_MALFORMED"
            }
            Self::Encoded { .. } => "FEED_ENCODED",
            Self::Signature { .. } => "FEED_SIGNATURE",
            Self::Rollback { .. } => "FEED_ROLLBACK",
            Self::Expired { .. } => "FEED_EXPIRED",
            Self::Inconsistent { .. } => "FEED_INCONSISTENT",
            Self::Store { .. } | Self::Floors(_) => "FEED_STORE",
            Self::CacheUnreadable { .. } => "FEED_CACHE",
            Self::Channel { .. } => "CHANNEL_MALFORMED",
            Self::Contradiction { .. } => "FEED_CONTRADICTION",
            Self::ArchiveMissing { .. } => "ARCHIVE_MISSING",
            Self::ArchiveLength { .. } => "ARCHIVE_LENGTH",
            Self::ArchiveDigest { .. } => "ARCHIVE_DIGEST",
        }
    }

    fn exit(&self) -> Exit {
        match self {
            Self::Url { .. }
            | Self::ChannelName { .. }
            | Self::Certificates { .. }
            | Self::RootMissing { .. }
            | Self::RootMismatch { .. }
            | Self::RootInvalid { .. }
            | Self::RootAlreadyPinned { .. } => Exit::Configuration,
            _ => Exit::Failed,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        FeedError::retry_after(self)
    }

    fn retry(&self) -> bool {
        match self {
            // A portal is left, a copy completes, a publisher signs: by themselves, as seen from this host.
            Self::Unreachable { .. }
            | Self::Slow { .. }
            | Self::WebPage { .. }
            | Self::Inconsistent { .. } => true,
            Self::Missing { name, .. } => name != "timestamp.json",
            Self::Status { status, .. } => transient(*status),
            Self::ArchiveLength { broke_off, .. } => *broke_off,
            Self::ArchiveDigest { again, .. } => *again,
            _ => false,
        }
    }
}

/// Whether an HTTP status speaks of now rather than of always.
fn transient(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500..=599)
}

fn advice(status: u16) -> &'static str {
    match status {
        401 | 403 | 407 => {
            "check the credentials in the feed's URL and whether this host may read the feed"
        }
        404 | 410 => "check the feed's URL",
        300..=399 => "it points elsewhere too often or away from https; use the final URL",
        _ if transient(status) => "the server is in trouble or asks for patience",
        _ => "check the feed's URL and its server",
    }
}

/// A role's name as it may stand in a message.
fn plain(role: &str) -> String {
    role.chars()
        .filter(|c| c.is_ascii_alphanumeric() || " ()._-".contains(*c))
        .take(64)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location() -> Location {
        "https://ann:secret@feeds.example/rollproxy"
            .parse()
            .unwrap()
    }

    #[test]
    fn messages_hold_neither_credentials_nor_foreign_bytes() {
        let foreign = "\u{1b}[31mpwned";
        for error in [
            Tuf::Malformed(foreign.into()),
            Tuf::UnknownRole(foreign.into()),
            Tuf::IntegrityMismatch(foreign.into()),
            Tuf::UnsupportedScheme {
                keytype: foreign.into(),
                scheme: foreign.into(),
            },
            Tuf::Rollback {
                role: foreign.into(),
                trusted: 2,
                new: 1,
            },
            Tuf::transport(foreign),
        ] {
            let text = FeedError::explain(error, "timestamp.json".into(), &location()).to_string();
            assert!(
                !text.contains('\u{1b}') && !text.contains("secret"),
                "{text}"
            );
        }
    }

    #[test]
    fn what_passes_by_itself_may_be_retried_and_what_does_not_may_not() {
        for (status, retry) in [
            (500, true),
            (503, true),
            (429, true),
            (408, true),
            (403, false),
            (404, false),
            (302, false),
        ] {
            let error = FeedError::Status {
                url: String::new(),
                status,
                advice: advice(status),
                retry_after: None,
            };
            assert_eq!(error.retry(), retry, "{status}");
        }
        let missing = |name: &str| FeedError::Missing {
            url: String::new(),
            name: name.into(),
        };
        assert!(!missing("timestamp.json").retry());
        assert!(missing("7.snapshot.json").retry());
    }
}
