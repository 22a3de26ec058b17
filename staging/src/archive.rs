//! Unpacking a release: what an archive may contain, enforced while it streams.
//!
//! The manifest comes first and decides everything after it: an entry is written only if the manifest names it, at the
//! path the manifest names, so that no path of the archive's own is ever used.

use std::collections::HashSet;
use std::fs::{OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::digest::Hasher;
use crate::files;
use crate::manifest::{self, FileEntry, Manifest, ManifestError, parents};
use crate::report::{Exit, Report};

mod stream;
use stream::Stream;

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
            ArchiveError::Write { .. } => "ARCHIVE_WRITE",
        }
    }
    fn exit(&self) -> Exit {
        Exit::Failed
    }
    fn retry(&self) -> bool {
        // Everything else is said by the archive itself, and it will say the same again.
        matches!(self, ArchiveError::Read { .. } | ArchiveError::Write { .. })
    }
}

/// Unpacks a release into an empty folder (made if missing), in one pass, digesting while it writes. `progress` is told
/// the bytes written so far after each piece. The reader is read to its very end.
///
/// Files get the manifest's modes whatever the umask; nothing is synced, which [`crate::publish`] does. After an error
/// the folder holds rubbish, for the caller to remove.
///
/// # Errors
/// [`ArchiveError`], the first rule that is broken.
pub fn unpack(
    reader: impl Read,
    into: &Path,
    limits: &Limits,
    progress: &mut dyn FnMut(u64),
) -> Result<Manifest, ArchiveError> {
    let mut stream = Stream::new(reader);
    let (manifest, bytes) = read_manifest(&mut stream)?;
    check_limits(&manifest, limits)?;

    files::create_private(into).map_err(|source| ArchiveError::Write {
        path: into.to_owned(),
        source,
    })?;
    let mut unpacker = Unpacker::new(&manifest, into, progress);
    unpacker.write_manifest(&bytes)?;
    while let Some(header) = stream.next_header()? {
        unpacker.entry(&header, &mut stream)?;
    }
    unpacker.check_complete()?;
    stream.finish(&mut unpacker.buffer)?;
    Ok(manifest)
}

fn read_manifest(stream: &mut Stream<impl Read>) -> Result<(Manifest, Vec<u8>), ArchiveError> {
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

fn check_kind(header: &tar::Header, path: &str) -> Result<(), ArchiveError> {
    let kind = header.entry_type();
    if kind.is_file() || kind.is_dir() {
        return Ok(());
    }
    let kind = match kind.as_byte() {
        b'1' => "a hard link".to_owned(),
        b'2' => "a symbolic link".to_owned(),
        b'3' | b'4' => "a device".to_owned(),
        b'6' => "a fifo".to_owned(),
        b'L' | b'K' | b'x' | b'g' => {
            "an extension header (pack with plain ustar headers)".to_owned()
        }
        other => format!("of type {:?}", char::from(other)),
    };
    Err(ArchiveError::Kind {
        path: path.to_owned(),
        kind,
    })
}

fn check_mode(header: &tar::Header, path: &str) -> Result<(), ArchiveError> {
    let mode = header.mode().map_err(damaged_header)?;
    if mode & 0o7000 != 0 {
        return Err(ArchiveError::SpecialMode {
            path: path.to_owned(),
            mode,
        });
    }
    Ok(())
}

fn size_of(header: &tar::Header) -> Result<u64, ArchiveError> {
    header.entry_size().map_err(damaged_header)
}

fn damaged_header(error: io::Error) -> ArchiveError {
    ArchiveError::Corrupt {
        why: error.to_string(),
    }
}

/// Writes entries, remembering which came.
struct Unpacker<'a> {
    manifest: &'a Manifest,
    into: &'a Path,
    progress: &'a mut dyn FnMut(u64),
    folders: HashSet<&'a str>,
    seen: HashSet<String>,
    written: u64,
    buffer: Vec<u8>,
}

impl<'a> Unpacker<'a> {
    fn new(manifest: &'a Manifest, into: &'a Path, progress: &'a mut dyn FnMut(u64)) -> Self {
        Unpacker {
            manifest,
            into,
            progress,
            folders: manifest
                .files
                .iter()
                .flat_map(|file| parents(&file.path))
                .collect(),
            seen: HashSet::from([manifest::FILE.to_owned()]),
            written: 0,
            buffer: vec![0u8; 128 * 1024],
        }
    }

    fn write_manifest(&mut self, bytes: &[u8]) -> Result<(), ArchiveError> {
        let path = self.into.join(manifest::FILE);
        let write = || -> io::Result<()> {
            let mut file = create_file(&path)?;
            file.write_all(bytes)?;
            file.set_permissions(Permissions::from_mode(0o444))
        };
        write().map_err(|source| ArchiveError::Write {
            path: path.clone(),
            source,
        })
    }

    fn entry(
        &mut self,
        header: &tar::Header,
        stream: &mut Stream<impl Read>,
    ) -> Result<(), ArchiveError> {
        let raw = header.path_bytes();
        let lossy = String::from_utf8_lossy(&raw).into_owned();
        check_kind(header, &lossy)?;
        check_mode(header, &lossy)?;
        let is_folder = header.entry_type().is_dir();
        let path = match std::str::from_utf8(&raw) {
            Ok(path) if is_folder => path.strip_suffix('/').unwrap_or(path),
            Ok(path) => path,
            Err(_) => {
                return Err(ArchiveError::Path {
                    path: format!("{lossy:?} is not UTF-8"),
                });
            }
        };
        manifest::check_plain(path).map_err(|path| ArchiveError::Path { path })?;
        if !self.seen.insert(path.to_owned()) {
            return Err(ArchiveError::Duplicate {
                path: path.to_owned(),
            });
        }
        let size = size_of(header)?;
        if is_folder {
            if size != 0 {
                return Err(ArchiveError::Size {
                    path: path.to_owned(),
                    expected: 0,
                    found: size,
                });
            }
            if !self.folders.contains(path) {
                return Err(self.not_listed(path));
            }
            return self.folder(path);
        }
        let manifest = self.manifest;
        let Some(file) = manifest.file(path) else {
            return Err(self.not_listed(path));
        };
        if size != file.size {
            return Err(ArchiveError::Size {
                path: path.to_owned(),
                expected: file.size,
                found: size,
            });
        }
        // It would not get that mode here; an archive that asks for it was not made by a packer.
        let mode = header.mode().map_err(damaged_header)?;
        if mode & 0o022 != 0 {
            return Err(ArchiveError::WritableByOthers {
                path: path.to_owned(),
                mode,
            });
        }
        for folder in parents(&file.path) {
            self.folder(folder)?;
        }
        self.file(file, stream)
    }

    fn folder(&self, path: &str) -> Result<(), ArchiveError> {
        let path = self.into.join(path);
        match files::create_private(&path) {
            Ok(_) => Ok(()),
            Err(source) => Err(ArchiveError::Write { path, source }),
        }
    }

    fn file(
        &mut self,
        file: &FileEntry,
        stream: &mut Stream<impl Read>,
    ) -> Result<(), ArchiveError> {
        let path = self.into.join(&file.path);
        let failed = |source| ArchiveError::Write {
            path: path.clone(),
            source,
        };
        let mut out = create_file(&path).map_err(failed)?;
        let mut hasher = Hasher::new();
        let (written, progress) = (&mut self.written, &mut self.progress);
        stream.contents(file.size, &mut self.buffer, &mut |piece| {
            hasher.update(piece);
            out.write_all(piece).map_err(failed)?;
            *written += piece.len() as u64;
            progress(*written);
            Ok(())
        })?;
        let found = hasher.finish();
        if found != file.sha256 {
            return Err(ArchiveError::Digest {
                path: file.path.clone(),
                expected: file.sha256.clone(),
                found,
            });
        }
        out.set_permissions(Permissions::from_mode(file.mode_bits()))
            .map_err(failed)
    }

    /// Why a path that the manifest does not name is refused.
    fn not_listed(&self, path: &str) -> ArchiveError {
        let folded = path.to_lowercase();
        let names = self.manifest.files.iter().map(|file| file.path.as_str());
        let mut known = names
            .chain(self.folders.iter().copied())
            .chain([manifest::FILE]);
        match known.find(|other| *other != path && other.to_lowercase() == folded) {
            Some(other) => ArchiveError::CaseTwin {
                path: path.to_owned(),
                other: other.to_owned(),
            },
            None => ArchiveError::Unlisted {
                path: path.to_owned(),
            },
        }
    }

    fn check_complete(&self) -> Result<(), ArchiveError> {
        match self
            .manifest
            .files
            .iter()
            .find(|file| !self.seen.contains(&file.path))
        {
            Some(file) => Err(ArchiveError::Missing {
                path: file.path.clone(),
            }),
            None => Ok(()),
        }
    }
}

fn create_file(path: &Path) -> io::Result<std::fs::File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

#[cfg(test)]
mod tests;
