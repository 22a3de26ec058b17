//! Patches: what makes one version's archive content from the files of another that is installed.
//!
//! The *content* of a package is its manifest's bytes followed by its files' in the manifest's order, and nothing between
//! them. A patch makes the uncompressed tar of a new archive from the content of an old package, piece by piece: each
//! [`SEGMENT`] of the tar at most is one zstd frame that has a region of at most [`REGION`] of the content as its prefix. So
//! making it again takes the memory of one segment and one region, however large the archive is.
//!
//! ```text
//! magic       8 bytes
//! segment     u32 bytes it makes | u64 offset of the region | u32 bytes of it | u32 bytes of the frame | the frame
//! …
//! end         a segment that makes nothing: 20 zero bytes, and then nothing more
//! ```
//!
//! Numbers are little-endian. A patch is believed nothing: what it asks for lies within bounds or is refused, and what it
//! makes is judged by digests that are signed elsewhere, and by the rules of [`crate::archive`].

use std::io;
use std::path::PathBuf;

use crate::archive::ArchiveError;
use crate::report::{Exit, Report};

mod content;
mod make;
mod patched;
mod regions;
#[cfg(test)]
mod tests;

pub use make::{LEVEL, Made, make, make_at};
pub use patched::Patched;

/// The most of a new archive's tar that one frame makes.
pub const SEGMENT: usize = 4 * 1024 * 1024;
/// The most of the old content that one frame refers to.
pub const REGION: usize = 8 * 1024 * 1024;

const MAGIC: &[u8; 8] = b"RPpatch1";

/// What stands before a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    makes: u32,
    offset: u64,
    length: u32,
    frame: u32,
}

impl Head {
    const BYTES: usize = 20;
    const END: Head = Head {
        makes: 0,
        offset: 0,
        length: 0,
        frame: 0,
    };

    fn to_bytes(self) -> [u8; Head::BYTES] {
        let mut bytes = [0; Head::BYTES];
        bytes[..4].copy_from_slice(&self.makes.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.offset.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.length.to_le_bytes());
        bytes[16..].copy_from_slice(&self.frame.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; Head::BYTES]) -> Head {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t] = bytes;
        Head {
            makes: u32::from_le_bytes([a, b, c, d]),
            offset: u64::from_le_bytes([e, f, g, h, i, j, k, l]),
            length: u32::from_le_bytes([m, n, o, p]),
            frame: u32::from_le_bytes([q, r, s, t]),
        }
    }
}

/// Why there is no patch, or why one cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeltaError {
    /// One of the two archives is no good one.
    #[error("{path}: {source}")]
    Archive {
        /// The archive.
        path: PathBuf,
        /// What is wrong with it.
        source: ArchiveError,
    },
    /// Reading failed.
    #[error("reading {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Writing failed.
    #[error("writing {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The compressor failed.
    #[error("making the patch: {why}")]
    Compress {
        /// What it said.
        why: String,
    },
    /// The manifest in the folder is not the one that was named.
    #[error("{path} has sha256 {found}, expected {expected}")]
    OtherManifest {
        /// The manifest's file.
        path: PathBuf,
        /// The digest expected.
        expected: String,
        /// The digest found.
        found: String,
    },
    /// The patch, tried, does not make the new archive's content.
    #[error(
        "the patch does not make what it should: did one of the archives change meanwhile? Make it again"
    )]
    Wrong,
}

impl Report for DeltaError {
    fn code(&self) -> &'static str {
        match self {
            DeltaError::Archive { source, .. } => source.code(),
            DeltaError::Read { .. } => "DELTA_READ",
            DeltaError::Write { .. } => "DELTA_WRITE",
            DeltaError::Compress { .. } => "DELTA_COMPRESS",
            DeltaError::OtherManifest { .. } => "DELTA_OTHER_MANIFEST",
            DeltaError::Wrong => "DELTA_WRONG",
        }
    }
    fn exit(&self) -> Exit {
        Exit::Failed
    }
    fn retry(&self) -> bool {
        matches!(
            self,
            DeltaError::Read { .. } | DeltaError::Write { .. } | DeltaError::Wrong
        )
    }
}
