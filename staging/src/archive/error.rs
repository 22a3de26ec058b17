//! Why an archive was not unpacked.

use std::io;
use std::path::PathBuf;

use crate::manifest::ManifestError;
use crate::report::{Exit, Report};
use crate::space::SpaceError;

/// Why an archive was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The side that delivers the bytes failed.
    #[error("the archive did not come to its end: {source}")]
    Read {
        /// Its own error.
        source: io::Error,
    },
    /// It ends too early.
    #[error("the archive is truncated")]
    Truncated,
    /// No gzip, no tar, or damaged.
    #[error("the archive is no gzipped tar, or damaged: {why}")]
    Corrupt {
        /// What was found.
        why: String,
    },
    /// Something follows its end.
    #[error("the archive has extra bytes {place}")]
    Trailing {
        /// Where.
        place: &'static str,
    },
    /// The manifest is not the first entry.
    #[error("the archive begins with {found:?}: its first entry must be package.json")]
    First {
        /// What is.
        found: String,
    },
    /// The manifest is not accepted.
    #[error("the archive's package.json: {source}")]
    Manifest {
        /// Why.
        #[from]
        source: ManifestError,
    },
    /// More files or bytes than allowed.
    #[error("the archive holds {found} {what}, at most {limit} are accepted")]
    TooMuch {
        /// `files` or `bytes`.
        what: &'static str,
        /// What the manifest says.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// Neither a regular file nor a folder.
    #[error("the archive's entry {path:?} is {kind}: only regular files and folders are accepted")]
    Kind {
        /// The entry.
        path: String,
        /// What it is.
        kind: String,
    },
    /// A path that does not lie plainly below the root.
    #[error("the archive's entry {path}")]
    Path {
        /// The path and what is wrong with it.
        path: String,
    },
    /// Setuid, setgid or sticky.
    #[error(
        "the archive's entry {path:?} has mode {mode:04o}: setuid, setgid and sticky are not accepted"
    )]
    SpecialMode {
        /// The entry.
        path: String,
        /// Its mode.
        mode: u32,
    },
    /// A file that others than its owner may write.
    #[error(
        "the archive's entry {path:?} has mode {mode:04o}: files that group or others may write are not accepted"
    )]
    WritableByOthers {
        /// The entry.
        path: String,
        /// Its mode.
        mode: u32,
    },
    /// The same path again.
    #[error("the archive's entry {path:?} comes twice")]
    Duplicate {
        /// The entry.
        path: String,
    },
    /// A path that differs from the manifest's only in case.
    #[error("the archive's entry {path:?} differs from {other:?} only in case")]
    CaseTwin {
        /// The entry.
        path: String,
        /// The one in the manifest.
        other: String,
    },
    /// The manifest does not name it.
    #[error("the archive's entry {path:?} is not in its manifest")]
    Unlisted {
        /// The entry.
        path: String,
    },
    /// The manifest names it and it did not come.
    #[error("the archive lacks {path:?}, which its manifest names")]
    Missing {
        /// The path.
        path: String,
    },
    /// Another size than the manifest's.
    #[error("the archive's entry {path:?} has {found} bytes, its manifest says {expected}")]
    Size {
        /// The entry.
        path: String,
        /// The manifest's.
        expected: u64,
        /// The entry's.
        found: u64,
    },
    /// Other bytes than the manifest's.
    #[error("the archive's entry {path:?} has sha256 {found}, its manifest says {expected}")]
    Digest {
        /// The entry.
        path: String,
        /// The manifest's.
        expected: String,
        /// The entry's.
        found: String,
    },
    /// There is no room for what its manifest names.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// The disk failed.
    #[error("writing {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Report for ArchiveError {
    fn code(&self) -> &'static str {
        match self {
            ArchiveError::Read { .. } => "ARCHIVE_READ",
            ArchiveError::Truncated => "ARCHIVE_TRUNCATED",
            ArchiveError::Corrupt { .. } => "ARCHIVE_CORRUPT",
            ArchiveError::Trailing { .. } => "ARCHIVE_TRAILING",
            ArchiveError::First { .. } => "ARCHIVE_FIRST_ENTRY",
            ArchiveError::Manifest { source } => source.code(),
            ArchiveError::TooMuch { .. } => "ARCHIVE_TOO_MUCH",
            ArchiveError::Kind { .. } => "ARCHIVE_ENTRY_KIND",
            ArchiveError::Path { .. } => "ARCHIVE_ENTRY_PATH",
            ArchiveError::SpecialMode { .. } | ArchiveError::WritableByOthers { .. } => {
                "ARCHIVE_ENTRY_MODE"
            }
            ArchiveError::Duplicate { .. } => "ARCHIVE_ENTRY_DUPLICATE",
            ArchiveError::CaseTwin { .. } => "ARCHIVE_ENTRY_CASE",
            ArchiveError::Unlisted { .. } => "ARCHIVE_ENTRY_UNLISTED",
            ArchiveError::Missing { .. } => "ARCHIVE_ENTRY_MISSING",
            ArchiveError::Size { .. } => "ARCHIVE_ENTRY_SIZE",
            ArchiveError::Digest { .. } => "ARCHIVE_ENTRY_DIGEST",
            ArchiveError::Space(error) => error.code(),
            ArchiveError::Write { .. } => "ARCHIVE_WRITE",
        }
    }
    fn exit(&self) -> Exit {
        Exit::Failed
    }
    fn retry(&self) -> bool {
        // Everything else is said by the archive itself, and it will say the same again.
        matches!(self, ArchiveError::Read { .. }) || self.is_ours()
    }
}

impl ArchiveError {
    /// Whether it was this host's disk that failed, not the archive nor who delivers it.
    pub fn is_ours(&self) -> bool {
        matches!(self, ArchiveError::Space(_) | ArchiveError::Write { .. })
    }
}
