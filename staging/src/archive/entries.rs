//! The entries behind the manifest: each is judged by it, written or shared, and hashed as it comes.

use std::collections::HashSet;
use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use super::ArchiveError;
use super::stream::{Bytes, Stream};
use crate::digest::Hasher;
use crate::files;
use crate::manifest::{self, FileEntry, Manifest, parents};
use crate::share::Shelf;

/// Writes entries, remembering which came.
pub(super) struct Unpacker<'a> {
    manifest: &'a Manifest,
    into: &'a Path,
    shelf: &'a Shelf,
    progress: &'a mut dyn FnMut(u64),
    folders: HashSet<&'a str>,
    seen: HashSet<String>,
    /// Bytes of files that are there.
    written: u64,
    /// Of those, bytes that an installed package has, too.
    pub(super) shared: u64,
    pub(super) buffer: Vec<u8>,
}

impl<'a> Unpacker<'a> {
    pub(super) fn new(
        manifest: &'a Manifest,
        into: &'a Path,
        shelf: &'a Shelf,
        progress: &'a mut dyn FnMut(u64),
    ) -> Self {
        Unpacker {
            manifest,
            into,
            shelf,
            progress,
            folders: manifest
                .files
                .iter()
                .flat_map(|file| parents(&file.path))
                .collect(),
            seen: HashSet::from([manifest::FILE.to_owned()]),
            written: 0,
            shared: 0,
            buffer: vec![0u8; 128 * 1024],
        }
    }

    pub(super) fn write_manifest(&mut self, bytes: &[u8]) -> Result<(), ArchiveError> {
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

    pub(super) fn entry(
        &mut self,
        header: &tar::Header,
        stream: &mut Stream<impl Bytes>,
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
        stream: &mut Stream<impl Bytes>,
    ) -> Result<(), ArchiveError> {
        let path = self.into.join(&file.path);
        let failed = |source| ArchiveError::Write {
            path: path.clone(),
            source,
        };
        // What an installed package has is only hashed; should it turn out to be no such file, the archive is refused.
        let shared = self.shelf.place(file, &path);
        let mut out = match shared {
            true => None,
            false => Some(create_file(&path).map_err(failed)?),
        };
        let mut hasher = Hasher::new();
        let (written, progress) = (&mut self.written, &mut self.progress);
        stream.contents(file.size, &mut self.buffer, &mut |piece| {
            hasher.update(piece);
            if let Some(out) = &mut out {
                out.write_all(piece).map_err(failed)?;
            }
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
        match out {
            Some(out) => out
                .set_permissions(Permissions::from_mode(file.mode_bits()))
                .map_err(failed),
            None => {
                self.shared += file.size;
                Ok(())
            }
        }
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

    pub(super) fn check_complete(&self) -> Result<(), ArchiveError> {
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

pub(super) fn check_kind(header: &tar::Header, path: &str) -> Result<(), ArchiveError> {
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

pub(super) fn check_mode(header: &tar::Header, path: &str) -> Result<(), ArchiveError> {
    let mode = header.mode().map_err(damaged_header)?;
    if mode & 0o7000 != 0 {
        return Err(ArchiveError::SpecialMode {
            path: path.to_owned(),
            mode,
        });
    }
    Ok(())
}

pub(super) fn size_of(header: &tar::Header) -> Result<u64, ArchiveError> {
    header.entry_size().map_err(damaged_header)
}

fn damaged_header(error: io::Error) -> ArchiveError {
    ArchiveError::Corrupt {
        why: error.to_string(),
    }
}
