//! Archives, streamed to disk while they are counted and hashed, and resumed where an earlier run was stopped.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::mirrors::Mirrors;
use super::part::Part;
use super::transport::{Answer, Body, Client, From};
use super::{FeedError, Wanted};

/// Streams the archives of one feed. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Downloader {
    client: Client,
    mirrors: Arc<Mirrors>,
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
    pub(super) fn new(client: Client, mirrors: Arc<Mirrors>) -> Self {
        Self { client, mirrors }
    }

    /// Brings `wanted` to `<folder>/<sha256>.part`, calling `progress` as bytes reach the disk. All of its bytes go into `blocks`
    /// too, from the first on, those first that an earlier run left; when it is full, the transfer waits, and when nobody
    /// receives any more, it goes on without. A copy of the feed that fails is left for the next one, which goes on where it
    /// stopped.
    ///
    /// Whoever drops the future stops the transfer; what came so far stays, and the next call goes on from there if the server
    /// can. A whole file of the right digest is not brought again. One read may bring nothing for at most `inactivity`; further
    /// deadlines are the caller's.
    ///
    /// # Errors
    /// [`FeedError::ArchiveLength`] and [`FeedError::ArchiveDigest`] (the file is removed, unless the transfer merely broke off),
    /// [`FeedError::ArchiveMissing`], [`FeedError::Store`], and what the feed answers. One that says it may be retried is,
    /// with new `blocks`.
    pub async fn download(
        &self,
        wanted: &Wanted,
        folder: &Path,
        inactivity: Duration,
        progress: &mut (dyn FnMut(Progress) + Send),
        blocks: Option<mpsc::Sender<Bytes>>,
    ) -> Result<Downloaded, FeedError> {
        let alone = blocks.is_none();
        let outcome = self
            .attempt(wanted, folder, inactivity, progress, blocks)
            .await;
        match outcome {
            // Nobody has seen the wrong bytes: once more, from nothing.
            Err(FeedError::ArchiveDigest { again: true, .. }) if alone => {
                self.attempt(wanted, folder, inactivity, progress, None)
                    .await
            }
            outcome => outcome,
        }
    }

    async fn attempt(
        &self,
        wanted: &Wanted,
        folder: &Path,
        inactivity: Duration,
        progress: &mut (dyn FnMut(Progress) + Send),
        blocks: Option<mpsc::Sender<Bytes>>,
    ) -> Result<Downloaded, FeedError> {
        let path = folder.join(format!("{}.part", wanted.sha256));
        let mut part = Part::resume(path, wanted.length).await?;
        if part.length == wanted.length && part.digest() != wanted.sha256 {
            // What an earlier run left was not what it seemed, and nobody has seen it yet.
            part.restart()?;
        }
        let mut transfer = Transfer {
            resumed: part.length,
            part,
            wanted,
            inactivity,
            progress,
            blocks: Blocks {
                receiver: blocks,
                sent: 0,
            },
            spoiled: false,
        };
        transfer.report();
        self.fill(&mut transfer).await?;
        let resumed = transfer.resumed;
        Ok(transfer.part.downloaded(resumed))
    }

    /// Fills the part from one copy of the feed after another, and judges it.
    async fn fill(&self, transfer: &mut Transfer<'_>) -> Result<(), FeedError> {
        let mut contributed = Vec::new();
        let mut worst: Option<FeedError> = None;
        for site in self.mirrors.order() {
            let before = transfer.part.length;
            let outcome = transfer.from(&self.client.on(site)).await;
            if transfer.part.length != before {
                contributed.push(site);
            }
            match outcome {
                Ok(()) => {
                    worst = None;
                    break;
                }
                Err(mut error) if error.is_of_site() => {
                    self.mirrors.failed(site);
                    if transfer.spoiled && !transfer.begin_anew()? {
                        // Somebody has its bytes already: only another try can begin with another copy.
                        if let FeedError::ArchiveLength { broke_off, .. } = &mut error {
                            *broke_off = self.client.locations().len() > 1;
                        }
                        worst = Some(error);
                        break;
                    }
                    // A person looks after the feed; a mirror's trouble tells them less.
                    if site == 0 || worst.is_none() {
                        worst = Some(error);
                    }
                }
                Err(error) => {
                    worst = Some(error);
                    break;
                }
            }
        }
        let judged = match worst {
            Some(error) => Err(error),
            None => transfer.judge(self.client.locations().len() > 1),
        };
        if judged.is_err() && (transfer.spoiled || transfer.part.length == 0) {
            transfer.part.remove()?;
        }
        if matches!(judged, Err(FeedError::ArchiveDigest { .. })) {
            contributed
                .iter()
                .for_each(|site| self.mirrors.failed(*site));
        }
        self.mirrors.save();
        judged
    }
}

/// One file on its way.
struct Transfer<'a> {
    part: Part,
    /// Bytes that were there before.
    resumed: u64,
    wanted: &'a Wanted,
    inactivity: Duration,
    progress: &'a mut (dyn FnMut(Progress) + Send),
    blocks: Blocks,
    /// A copy sent another file than was signed for: what came is left for no later run.
    spoiled: bool,
}

/// Who else gets the bytes.
struct Blocks {
    receiver: Option<mpsc::Sender<Bytes>>,
    /// Bytes sent so far.
    sent: u64,
}

impl Blocks {
    async fn send(&mut self, block: Bytes) {
        self.sent += block.len() as u64;
        if let Some(receiver) = &self.receiver
            && receiver.send(block).await.is_err()
        {
            // Whose fault that is, the digest decides: so the rest is brought all the same.
            self.receiver = None;
        }
    }
}

impl Transfer<'_> {
    fn report(&mut self) {
        (self.progress)(Progress {
            received: self.part.length,
            total: self.wanted.length,
        });
    }

    /// Brings what is missing from one copy of the feed.
    async fn from(&mut self, client: &Client) -> Result<(), FeedError> {
        if self.part.length < self.wanted.length {
            let (mut body, mut skip) = self.ask(client).await?;
            self.read_back().await?;
            while let Some(mut block) = within(self.inactivity, self.wanted, body.next()).await? {
                let known = usize::try_from(skip).map_or(block.len(), |skip| skip.min(block.len()));
                skip -= known as u64;
                block = block.slice(known..);
                if self.part.length + block.len() as u64 > self.wanted.length {
                    let actual = self.part.length + block.len() as u64;
                    self.spoiled = true;
                    return Err(wrong_length(
                        self.wanted,
                        actual,
                        "; the transfer was cut, and what came is removed",
                    ));
                }
                self.part.append(&block)?;
                self.report();
                self.blocks.send(block).await;
            }
        }
        self.read_back().await?;
        if self.part.length < self.wanted.length {
            return Err(FeedError::ArchiveLength {
                archive: self.wanted.name.clone(),
                expected: self.wanted.length,
                actual: self.part.length,
                then: "; the transfer ended early, what came is kept for resuming",
                broke_off: true,
            });
        }
        Ok(())
    }

    /// Asks for what is missing. A server that sends all of it makes the part start anew, unless somebody has its start
    /// already: then so many bytes of the answer are known.
    async fn ask(&mut self, client: &Client) -> Result<(Body, u64), FeedError> {
        let at = client.location().target(&self.wanted.path)?;
        let tag = self.part.tag(&at.to_string());
        let from = From {
            byte: self.part.length,
            total: Some(self.wanted.length),
            tag: tag.as_deref(),
        };
        match within(self.inactivity, self.wanted, client.get(&at, from)).await? {
            Answer::Absent => Err(FeedError::ArchiveMissing {
                archive: self.wanted.name.clone(),
            }),
            Answer::Content {
                from,
                length,
                tag,
                body,
            } => {
                if let Some(actual) = length.map(|length| from + length)
                    && actual != self.wanted.length
                {
                    // Another file than was signed for. What is there may be the start of the right one.
                    self.spoiled = self.blocks.sent == 0 && from == self.part.length;
                    return Err(wrong_length(
                        self.wanted,
                        actual,
                        "; nothing was downloaded",
                    ));
                }
                let mut skip = 0;
                if from != self.part.length {
                    if self.blocks.sent == 0 {
                        self.part.restart()?;
                        self.resumed = 0;
                    } else {
                        skip = self.part.length;
                    }
                }
                self.part.keep_tag(&at.to_string(), tag.as_deref());
                Ok((body, skip))
            }
        }
    }

    /// Forgets what came, if nobody was given any of it.
    fn begin_anew(&mut self) -> Result<bool, FeedError> {
        if self.blocks.receiver.is_some() && self.blocks.sent > 0 {
            return Ok(false);
        }
        self.blocks.sent = 0;
        self.part.restart()?;
        self.resumed = 0;
        self.spoiled = false;
        Ok(true)
    }

    /// Sends what is on disk and was not sent yet.
    async fn read_back(&mut self) -> Result<(), FeedError> {
        while self.blocks.receiver.is_some() && self.blocks.sent < self.part.length {
            let block = self.part.read_at(self.blocks.sent)?;
            self.blocks.send(block).await;
        }
        Ok(())
    }

    /// Whether what came is what was signed for; what is not is removed.
    fn judge(&mut self, others: bool) -> Result<(), FeedError> {
        let actual = self.part.digest();
        if actual == self.wanted.sha256 {
            self.part.forget_tag();
            return Ok(());
        }
        self.part.remove()?;
        Err(FeedError::ArchiveDigest {
            archive: self.wanted.name.clone(),
            expected: self.wanted.sha256.clone(),
            actual,
            again: self.part.resumed > 0 || others,
        })
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
