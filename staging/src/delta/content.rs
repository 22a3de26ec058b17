//! The content of a package as one row of bytes, read where it is needed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::DeltaError;
use crate::manifest::{self, Manifest};
use crate::{digest, files};

/// Where a piece of the content comes from.
#[derive(Debug)]
enum Source {
    Manifest(Vec<u8>),
    File(PathBuf),
}

#[derive(Debug)]
struct Piece {
    at: u64,
    length: u64,
    source: Source,
}

/// The manifest's bytes, then the files' in its order.
#[derive(Debug)]
pub(super) struct Content {
    pieces: Vec<Piece>,
    length: u64,
    /// The file that was read last: regions mostly lie in one.
    open: Option<(usize, File)>,
}

impl Content {
    /// The content of the package at `root`, whose manifest must be `manifest`. That its files are what the manifest says is
    /// for the caller to know; here they are only found again where it says they are.
    pub(super) fn open(root: &Path, manifest: &Manifest) -> Result<Content, DeltaError> {
        let path = root.join(manifest::FILE);
        let failed = |source| DeltaError::Read {
            path: path.clone(),
            source,
        };
        let bytes = files::read_bounded(&path, manifest::MAX_BYTES)
            .map_err(failed)?
            .ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let found = digest::of(&bytes);
        if found != manifest.digest() {
            return Err(DeltaError::OtherManifest {
                path,
                expected: manifest.digest().to_owned(),
                found,
            });
        }
        let mut length = bytes.len() as u64;
        let mut pieces = vec![Piece {
            at: 0,
            length,
            source: Source::Manifest(bytes),
        }];
        for file in &manifest.files {
            pieces.push(Piece {
                at: length,
                length: file.size,
                source: Source::File(root.join(&file.path)),
            });
            length = length
                .checked_add(file.size)
                .ok_or_else(|| failed(io::ErrorKind::FileTooLarge.into()))?;
        }
        Ok(Content {
            pieces,
            length,
            open: None,
        })
    }

    /// How many bytes there are.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Fills `into` from `offset` on; a range that does not lie within is refused before anything is read.
    pub(super) fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let within = offset
            .checked_add(into.len() as u64)
            .is_some_and(|end| end <= self.length);
        if !within {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the patch refers to bytes beyond the old package",
            ));
        }
        let mut index = self
            .pieces
            .partition_point(|piece| piece.at + piece.length <= offset);
        let (mut at, mut rest) = (offset, into);
        while !rest.is_empty() {
            let Some(piece) = self.pieces.get(index) else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            let from = at - piece.at;
            let left = piece.length - from;
            let count = usize::try_from(left).map_or(rest.len(), |left| left.min(rest.len()));
            let (now, later) = rest.split_at_mut(count);
            match &piece.source {
                Source::Manifest(bytes) => {
                    let from = from as usize;
                    now.copy_from_slice(&bytes[from..from + count]);
                }
                Source::File(path) => {
                    let file = match self.open.take() {
                        Some((open, file)) if open == index => file,
                        _ => files::open_regular(path)?,
                    };
                    file.read_exact_at(now, from)?;
                    self.open = Some((index, file));
                }
            }
            rest = later;
            at += count as u64;
            index += 1;
        }
        Ok(())
    }
}
