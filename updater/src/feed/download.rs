//! Archives, streamed to disk while they are counted and hashed, and resumed where an earlier run was stopped.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::OFlags;
use staging::digest::Hasher;
use tokio::sync::mpsc;

use super::transport::{Answer, Body, Client};
use super::{FeedError, Wanted};

/// Streams the archives of one feed. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Downloader {
    client: Client,
}

/// How far a download is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the archive that are on disk.
    pub received: u64,
    /// Bytes of the whole archive.
    pub total: u64,
}

/// An archive that is on disk, whole and of the signed digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Downloaded {
    /// Its file.
    pub path: PathBuf,
    /// Bytes that an earlier run had brought already.
    pub resumed: u64,
    /// Bytes that came now.
    pub fetched: u64,
}

impl Downloader {
    pub(super) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Brings `wanted` to `<folder>/<sha256>.part`, calling `progress` as bytes reach the disk. All of its bytes go into `blocks`
    /// too, from the first on, those first that an earlier run left; when it is full, the transfer waits, and when nobody
    /// receives any more, it goes on without.
    ///
    /// Whoever drops the future stops the transfer; what came so far stays, and the next call goes on from there if the server
    /// can. A whole file of the right digest is not brought again. One read may bring nothing for at most `inactivity`; further
    /// deadlines are the caller's.
    ///
    /// # Errors
    /// [`FeedError::ArchiveLength`] and [`FeedError::ArchiveDigest`] (the file is removed, unless the transfer merely broke off),
    /// [`FeedError::ArchiveMissing`], [`FeedError::Store`], and what the feed answers.
    pub async fn download(
        &self,
        wanted: &Wanted,
        folder: &Path,
        inactivity: Duration,
        progress: &mut (dyn FnMut(Progress) + Send),
        blocks: Option<mpsc::Sender<Bytes>>,
    ) -> Result<Downloaded, FeedError> {
        let downloaded = self.bring(wanted, folder, inactivity, progress).await?;
        if let Some(blocks) = blocks {
            let failed = |e| FeedError::store("read", &downloaded.path, e);
            let mut file = File::open(&downloaded.path).map_err(failed)?;
            let mut block = vec![0; 128 * 1024];
            loop {
                let count = file.read(&mut block).map_err(failed)?;
                let block = Bytes::copy_from_slice(&block[..count]);
                if count == 0 || blocks.send(block).await.is_err() {
                    break;
                }
            }
        }
        Ok(downloaded)
    }

    async fn bring(
        &self,
        wanted: &Wanted,
        folder: &Path,
        inactivity: Duration,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Downloaded, FeedError> {
        let path = folder.join(format!("{}.part", wanted.sha256));
        let mut part = Part::resume(path.clone(), wanted.length).await?;
        let resumed = part.length;
        match self.complete(&mut part, wanted, inactivity, progress).await {
            // What an earlier run left was not what it seemed. Once more, from nothing.
            Err(FeedError::ArchiveDigest { .. }) if part.resumed > 0 => {
                let mut part = Part::resume(path, wanted.length).await?;
                self.complete(&mut part, wanted, inactivity, progress)
                    .await?;
                Ok(part.downloaded(0))
            }
            outcome => outcome.map(|()| part.downloaded(resumed)),
        }
    }

    async fn complete(
        &self,
        part: &mut Part,
        wanted: &Wanted,
        inactivity: Duration,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<(), FeedError> {
        let mut report = |part: &Part| {
            progress(Progress {
                received: part.length,
                total: wanted.length,
            });
        };
        report(part);
        if part.length < wanted.length {
            let mut body = self.ask(part, wanted, inactivity).await?;
            while let Some(block) = within(inactivity, wanted, body.next()).await? {
                if part.length + block.len() as u64 > wanted.length {
                    let actual = part.length + block.len() as u64;
                    part.remove()?;
                    return Err(wrong_length(
                        wanted,
                        actual,
                        "; the transfer was cut, and what came is removed",
                    ));
                }
                part.append(&block)?;
                report(part);
            }
        }
        if part.length < wanted.length {
            return Err(FeedError::ArchiveLength {
                archive: wanted.name.clone(),
                expected: wanted.length,
                actual: part.length,
                then: "; the transfer ended early, what came is kept for resuming",
                broke_off: true,
            });
        }
        let actual = part.digest();
        if actual != wanted.sha256 {
            part.remove()?;
            return Err(FeedError::ArchiveDigest {
                archive: wanted.name.clone(),
                expected: wanted.sha256.clone(),
                actual,
            });
        }
        Ok(())
    }

    /// Asks for what is missing. A server that sends all of it makes the part start anew.
    async fn ask(
        &self,
        part: &mut Part,
        wanted: &Wanted,
        inactivity: Duration,
    ) -> Result<Body, FeedError> {
        let at = self.client.location().target(&wanted.path)?;
        match within(inactivity, wanted, self.client.get(&at, part.length)).await? {
            Answer::Absent => Err(FeedError::ArchiveMissing {
                archive: wanted.name.clone(),
            }),
            Answer::Content { from, length, body } => {
                if let Some(actual) = length.map(|length| from + length)
                    && actual != wanted.length
                {
                    part.remove()?;
                    return Err(wrong_length(wanted, actual, "; nothing was downloaded"));
                }
                if from != part.length {
                    part.restart()?;
                }
                Ok(body)
            }
        }
    }
}

/// Waits for one step of a transfer, but not for ever.
async fn within<T, E: Into<FeedError>>(
    inactivity: Duration,
    wanted: &Wanted,
    step: impl Future<Output = Result<T, E>>,
) -> Result<T, FeedError> {
    match tokio::time::timeout(inactivity, step).await {
        Ok(outcome) => outcome.map_err(Into::into),
        Err(_) => Err(FeedError::Unreachable {
            url: wanted.name.clone(),
            reason: format!("nothing came for {} ms", inactivity.as_millis()),
        }),
    }
}

fn wrong_length(wanted: &Wanted, actual: u64, then: &'static str) -> FeedError {
    FeedError::ArchiveLength {
        archive: wanted.name.clone(),
        expected: wanted.length,
        actual,
        then,
        broke_off: false,
    }
}

/// The file of a download, and the digest of what is in it. Blocks are small and go to the page cache, so they are written
/// where they arrive.
struct Part {
    path: PathBuf,
    file: File,
    hasher: Hasher,
    /// Bytes in the file.
    length: u64,
    /// Of those, bytes that were there before.
    resumed: u64,
}

impl Part {
    /// Opens the file and hashes what an earlier run left in it, if that can be the start of `total` bytes.
    async fn resume(path: PathBuf, total: u64) -> Result<Self, FeedError> {
        let failed = path.clone();
        let opened = tokio::task::spawn_blocking(move || Self::open(path, total)).await;
        opened
            .unwrap_or_else(|stopped| Err(io::Error::other(stopped)))
            .map_err(|e| FeedError::store("write", failed, e))
    }

    fn open(path: PathBuf, total: u64) -> io::Result<Self> {
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(&path)?;
        if file.metadata()?.len() > total {
            file.set_len(0)?;
        }
        let (mut hasher, mut length) = (Hasher::new(), 0);
        let mut block = vec![0; 128 * 1024];
        loop {
            match file.read(&mut block)? {
                0 => break,
                count => {
                    hasher.update(&block[..count]);
                    length += count as u64;
                }
            }
        }
        Ok(Self {
            path,
            file,
            hasher,
            length,
            resumed: length,
        })
    }

    fn append(&mut self, block: &[u8]) -> Result<(), FeedError> {
        self.file.write_all(block).map_err(|e| self.failed(e))?;
        self.hasher.update(block);
        self.length += block.len() as u64;
        Ok(())
    }

    fn restart(&mut self) -> Result<(), FeedError> {
        self.file.set_len(0).map_err(|e| self.failed(e))?;
        self.hasher = Hasher::new();
        self.length = 0;
        self.resumed = 0;
        Ok(())
    }

    fn remove(&mut self) -> Result<(), FeedError> {
        std::fs::remove_file(&self.path).map_err(|e| self.failed(e))
    }

    fn digest(&self) -> String {
        self.hasher.clone().finish()
    }

    fn downloaded(self, resumed: u64) -> Downloaded {
        let resumed = resumed.min(self.resumed);
        Downloaded {
            resumed,
            fetched: self.length - resumed,
            path: self.path,
        }
    }

    fn failed(&self, source: io::Error) -> FeedError {
        FeedError::store("write", &self.path, source)
    }
}
