//! One pass from socket to disk: what a download brings is unpacked while it comes.
//!
//! The downloader hands its blocks on through a short channel, on whose other end a thread of its own hashes, inflates and
//! writes. So neither can be further ahead than a few blocks. What is unpacked is believed only after the digest of all of
//! the download was right: until then whatever the unpacker has to say is kept, for a wrong digest explains it better.

use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use staging::archive::{ArchiveError, Limits, Unpacked, Unpacking};
use staging::delta::Patched;
use staging::digest::Hasher;
use staging::report::{Exit, Failure, Report};
use staging::share::Shelf;
use staging::space;
use tokio::sync::mpsc;

use super::patch::Base;
use super::{Staged, stopped_short};
use crate::deadline::Deadline;
use crate::feed::{Downloaded, FeedError};

/// Blocks on their way from the downloader to the unpacker.
pub(super) const BLOCKS: usize = 8;

/// What the download is.
#[derive(Debug, Clone)]
pub(super) enum Form {
    /// The archive.
    Whole,
    /// What makes the archive's tar from an installed package.
    Patch(Arc<Base>),
}

/// How a download is poured into the staging folder.
pub(super) struct Pour {
    pub(super) staged: Arc<Staged>,
    pub(super) shelf: Arc<Shelf>,
    pub(super) deadline: Deadline,
    pub(super) form: Form,
    /// Bytes that stay free.
    pub(super) reserve: u64,
    /// The manifest's digest, if the feed says it.
    pub(super) manifest: Option<String>,
}

/// What was poured.
#[derive(Debug)]
pub(super) struct Poured {
    pub(super) unpacked: Unpacked,
    pub(super) archive: PathBuf,
    pub(super) fetched: u64,
    /// When the last byte was there.
    pub(super) downloaded: Instant,
}

/// How far a download is, told by one side to the other.
#[derive(Debug, Clone)]
pub(super) struct Tap {
    length: u64,
    received: Arc<AtomicU64>,
}

impl Tap {
    /// So many bytes are on disk.
    pub(super) fn received(&self, bytes: u64) {
        self.received.store(bytes, Ordering::Relaxed);
    }

    fn left(&self) -> u64 {
        self.length
            .saturating_sub(self.received.load(Ordering::Relaxed))
    }
}

/// Why nothing good lies in the staging folder.
#[derive(Debug)]
enum Unfit {
    /// This host's disk, or a deadline: no more of the download helps.
    Here(Failure),
    /// What was downloaded, if its digest is right.
    Content(Failure),
}

impl Unfit {
    fn content(code: &str, why: String) -> Unfit {
        Unfit::Content(Failure::new(code, why, Exit::Failed, false))
    }
}

impl Pour {
    /// A download of so many bytes that has not begun.
    pub(super) fn tap(&self, length: u64) -> Tap {
        Tap {
            length,
            received: Arc::default(),
        }
    }

    /// One try. What `download` brings comes through `blocks`, whose other end it holds.
    ///
    /// The outer error is the download's and may be tried again; the inner one is what was downloaded, or this host.
    pub(super) async fn run(
        &self,
        tap: &Tap,
        blocks: mpsc::Receiver<Bytes>,
        download: impl Future<Output = Result<Downloaded, FeedError>>,
    ) -> Result<Result<Poured, Failure>, FeedError> {
        let work = Work {
            staged: Arc::clone(&self.staged),
            shelf: Arc::clone(&self.shelf),
            deadline: self.deadline.clone(),
            form: self.form.clone(),
            reserve: self.reserve,
            manifest: self.manifest.clone(),
            tap: tap.clone(),
        };
        let mut unpacking = tokio::task::spawn_blocking(move || work.run(blocks));
        let mut unpacked = None;
        let downloaded = {
            tokio::pin!(download);
            loop {
                tokio::select! {
                    biased;
                    downloaded = &mut download => break downloaded,
                    done = &mut unpacking, if unpacked.is_none() => {
                        match done.unwrap_or_else(|stopped| Err(Unfit::Here(stopped_short(stopped)))) {
                            // What came stays for the next run.
                            Err(Unfit::Here(failure)) => return Ok(Err(failure)),
                            done => unpacked = Some(done),
                        }
                    }
                }
            }
        };
        let ended = Instant::now();
        // Its channel has ended: so does it.
        let unpacked = match unpacked {
            Some(unpacked) => unpacked,
            None => unpacking
                .await
                .unwrap_or_else(|stopped| Err(Unfit::Here(stopped_short(stopped)))),
        };
        let downloaded = downloaded?;
        Ok(match unpacked {
            Ok(unpacked) => Ok(Poured {
                unpacked,
                archive: downloaded.path,
                fetched: downloaded.fetched,
                downloaded: ended,
            }),
            Err(Unfit::Here(failure) | Unfit::Content(failure)) => Err(failure),
        })
    }
}

/// The blocking half of one try.
struct Work {
    staged: Arc<Staged>,
    shelf: Arc<Shelf>,
    deadline: Deadline,
    form: Form,
    reserve: u64,
    manifest: Option<String>,
    tap: Tap,
}

impl Work {
    fn run(self, receiver: mpsc::Receiver<Bytes>) -> Result<Unpacked, Unfit> {
        self.staged
            .folder
            .clear()
            .map_err(|error| Unfit::Here(error.into()))?;
        let blocks = Blocks {
            receiver,
            rest: Bytes::new(),
            deadline: self.deadline.clone(),
        };
        let unpacked = match &self.form {
            Form::Whole => self.unpack(|unpacking, into| unpacking.gzip(blocks, into))?,
            // Another try makes the same of it.
            Form::Patch(base) => self.patch(base, blocks).map_err(|unfit| match unfit {
                Unfit::Content(failure) => Unfit::Content(Failure {
                    retry: false,
                    ..failure
                }),
                here => here,
            })?,
        };
        let found = unpacked.manifest.digest();
        match &self.manifest {
            Some(said) if said != found => Err(Unfit::content(
                "MANIFEST_MISMATCH",
                format!(
                    "the archive's package.json has sha256 {found}, the feed says {said}: the publisher has to add the version again"
                ),
            )),
            _ => Ok(unpacked),
        }
    }

    fn unpack(
        &self,
        run: impl FnOnce(Unpacking, &std::path::Path) -> Result<Unpacked, ArchiveError>,
    ) -> Result<Unpacked, Unfit> {
        let into = self.staged.folder.path();
        let mut before = 0;
        let unpacking = Unpacking {
            limits: Limits::default(),
            shelf: &self.shelf,
            room: &mut |manifest| {
                let needed = space::of_package(manifest).saturating_add(self.tap.left());
                space::check(into, needed, self.reserve)
            },
            progress: &mut |so_far| {
                self.deadline.wrote(so_far - before);
                before = so_far;
            },
        };
        run(unpacking, into).map_err(|error| {
            if self.deadline.is_cancelled() || error.is_ours() {
                Unfit::Here(error.into())
            } else {
                Unfit::Content(error.into())
            }
        })
    }

    /// Makes the archive's tar and unpacks it. That the patch is the signed one is known later; that the tar is, is said here.
    fn patch(&self, base: &Base, blocks: Blocks) -> Result<Unpacked, Unfit> {
        let Base { delta, package } = base;
        let patched = Patched::open(&package.root, &package.manifest, blocks)
            .map_err(|error| Unfit::Content((&error as &dyn Report).into()))?;
        let mut tar = Hashed {
            inner: patched,
            hasher: Hasher::new(),
            length: 0,
        };
        let unpacked = self.unpack(|unpacking, into| unpacking.tar(&mut tar, into))?;
        let (length, sha256) = (tar.length, tar.hasher.finish());
        if (length, &sha256) != (delta.content_length, &delta.content_sha256) {
            return Err(Unfit::content(
                "DELTA_CONTENT",
                format!(
                    "what the patch makes has {length} bytes and sha256 {sha256}, the feed says {} and {}",
                    delta.content_length, delta.content_sha256
                ),
            ));
        }
        Ok(unpacked)
    }
}

/// The unpacker's end of the channel.
struct Blocks {
    receiver: mpsc::Receiver<Bytes>,
    rest: Bytes,
    deadline: Deadline,
}

impl Read for Blocks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.receiver.blocking_recv() {
                Some(block) => self.rest = block,
                None => break,
            }
        }
        if self.deadline.is_cancelled() {
            return Err(io::Error::other("staging was stopped"));
        }
        let count = self.rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.rest.split_to(count));
        Ok(count)
    }
}

/// A reader that knows length and digest of what was read.
struct Hashed<R> {
    inner: R,
    hasher: Hasher,
    length: u64,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        self.length += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
