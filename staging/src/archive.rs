//! Unpacking a release: what an archive may contain, enforced while it streams.
//!
//! The manifest comes first and decides everything after it: an entry is written only if the manifest names it, at the
//! path the manifest names, so that no path of the archive's own is ever used.

use std::io::Read;
use std::path::Path;

use crate::files;
use crate::manifest::{self, Manifest};
use crate::share::Shelf;
use crate::space::SpaceError;

mod entries;
mod error;
mod stream;
use entries::{Unpacker, check_kind, check_mode, size_of};
pub use error::ArchiveError;
use stream::{Bytes, Gzip, Plain, Stream};

/// How much an archive may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// All files together, unpacked, in bytes.
    pub max_bytes: u64,
    /// How many files.
    pub max_files: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_bytes: 1024 * 1024 * 1024,
            max_files: 1_000,
        }
    }
}

/// A package that was unpacked: every file was hashed on its way and is what the manifest says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpacked {
    /// Its manifest.
    pub manifest: Manifest,
    /// Bytes of it that an installed package shares.
    pub shared: u64,
}

/// How a release is unpacked: into an empty folder (made if missing), in one pass, digesting while it writes. The reader
/// is read to its very end.
///
/// Files get the manifest's modes whatever the umask; nothing is synced, which [`crate::publish`] does. After an error
/// the folder holds rubbish, for the caller to remove.
pub struct Unpacking<'a> {
    /// How much is accepted.
    pub limits: Limits,
    /// Files that need not be written again.
    pub shelf: &'a Shelf,
    /// Asked once the manifest is known and before anything is written: whether there is room.
    pub room: &'a mut dyn FnMut(&Manifest) -> Result<(), SpaceError>,
    /// Told the bytes unpacked so far, after each piece.
    pub progress: &'a mut dyn FnMut(u64),
}

impl Unpacking<'_> {
    /// Unpacks a gzipped tar.
    ///
    /// # Errors
    /// [`ArchiveError`], the first rule that is broken.
    pub fn gzip(self, reader: impl Read, into: &Path) -> Result<Unpacked, ArchiveError> {
        self.run(Stream::new(Gzip::new(reader)), into)
    }

    /// Unpacks a bare tar, as a patch makes it.
    ///
    /// # Errors
    /// [`ArchiveError`], the first rule that is broken.
    pub fn tar(self, reader: impl Read, into: &Path) -> Result<Unpacked, ArchiveError> {
        self.run(Stream::new(Plain::new(reader)), into)
    }

    fn run(self, mut stream: Stream<impl Bytes>, into: &Path) -> Result<Unpacked, ArchiveError> {
        let (manifest, bytes) = read_manifest(&mut stream)?;
        check_limits(&manifest, &self.limits)?;
        (self.room)(&manifest)?;

        files::create_private(into).map_err(|source| ArchiveError::Write {
            path: into.to_owned(),
            source,
        })?;
        let mut unpacker = Unpacker::new(&manifest, into, self.shelf, self.progress);
        unpacker.write_manifest(&bytes)?;
        while let Some(header) = stream.next_header()? {
            unpacker.entry(&header, &mut stream)?;
        }
        unpacker.check_complete()?;
        stream.finish(&mut unpacker.buffer)?;
        let shared = unpacker.shared;
        Ok(Unpacked { manifest, shared })
    }
}

/// [`Unpacking`] of a gzipped tar where nothing is installed and room is not asked for.
///
/// # Errors
/// [`ArchiveError`], the first rule that is broken.
pub fn unpack(
    reader: impl Read,
    into: &Path,
    limits: &Limits,
    progress: &mut dyn FnMut(u64),
) -> Result<Manifest, ArchiveError> {
    let unpacking = Unpacking {
        limits: *limits,
        shelf: &Shelf::default(),
        room: &mut |_| Ok(()),
        progress,
    };
    Ok(unpacking.gzip(reader, into)?.manifest)
}

fn read_manifest(stream: &mut Stream<impl Bytes>) -> Result<(Manifest, Vec<u8>), ArchiveError> {
    let Some(header) = stream.next_header()? else {
        return Err(ArchiveError::First {
            found: "nothing".to_owned(),
        });
    };
    let path = String::from_utf8_lossy(&header.path_bytes()).into_owned();
    check_kind(&header, &path)?;
    check_mode(&header, &path)?;
    if path != manifest::FILE || !header.entry_type().is_file() {
        return Err(ArchiveError::First { found: path });
    }
    let size = size_of(&header)?;
    if size > manifest::MAX_BYTES {
        return Err(ArchiveError::TooMuch {
            what: "bytes of manifest",
            found: size,
            limit: manifest::MAX_BYTES,
        });
    }
    let mut bytes = Vec::new();
    let mut buffer = vec![0u8; 64 * 1024];
    stream.contents(size, &mut buffer, &mut |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    })?;
    Ok((Manifest::parse(&bytes)?, bytes))
}

/// Refuses by what the manifest promises, before anything is written; that no entry holds more is checked as it comes.
fn check_limits(manifest: &Manifest, limits: &Limits) -> Result<(), ArchiveError> {
    if manifest.files.len() > limits.max_files {
        return Err(ArchiveError::TooMuch {
            what: "files",
            found: manifest.files.len() as u64,
            limit: limits.max_files as u64,
        });
    }
    match manifest.total_size() {
        Some(total) if total <= limits.max_bytes => Ok(()),
        total => Err(ArchiveError::TooMuch {
            what: "bytes",
            found: total.unwrap_or(u64::MAX),
            limit: limits.max_bytes,
        }),
    }
}

#[cfg(test)]
mod failures;
#[cfg(test)]
mod tests;
