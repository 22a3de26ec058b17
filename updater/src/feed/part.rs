//! The file of a download while it grows, and the tag of what it is a part of.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rustix::fs::OFlags;
use staging::digest::Hasher;
use staging::files;

use super::FeedError;
use super::download::Downloaded;

/// Bytes that are read back at a time.
const BLOCK: usize = 128 * 1024;
/// No tag comes near this many bytes.
const MAX_TAG: u64 = 1024;

/// The file of a download, and the digest of what is in it. Blocks are small and go to the page cache, so they are written
/// where they arrive.
pub(super) struct Part {
    pub(super) path: PathBuf,
    file: File,
    hasher: Hasher,
    /// Bytes in the file.
    pub(super) length: u64,
    /// Of those, bytes that were there before.
    pub(super) resumed: u64,
}

impl Part {
    /// Opens the file and hashes what an earlier run left in it, if that can be the start of `total` bytes.
    pub(super) async fn resume(path: PathBuf, total: u64) -> Result<Self, FeedError> {
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
        let mut block = vec![0; BLOCK];
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

    pub(super) fn append(&mut self, block: &[u8]) -> Result<(), FeedError> {
        self.file.write_all(block).map_err(|e| self.failed(e))?;
        self.hasher.update(block);
        self.length += block.len() as u64;
        Ok(())
    }

    pub(super) fn restart(&mut self) -> Result<(), FeedError> {
        self.file.set_len(0).map_err(|e| self.failed(e))?;
        self.hasher = Hasher::new();
        self.length = 0;
        self.resumed = 0;
        Ok(())
    }

    /// Bytes that are there already, from `offset` on.
    pub(super) fn read_at(&mut self, offset: u64) -> Result<Bytes, FeedError> {
        let mut block = vec![0; BLOCK];
        // Appending goes to the end whatever the position is.
        let count = self
            .file
            .seek(SeekFrom::Start(offset))
            .and_then(|_| self.file.read(&mut block))
            .and_then(|count| match count {
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                count => Ok(count),
            })
            .map_err(|e| FeedError::store("read back", &self.path, e))?;
        block.truncate(count);
        Ok(block.into())
    }

    /// The tag that came with this part, if it came from `url`.
    pub(super) fn tag(&self, url: &str) -> Option<String> {
        let bytes = files::read_bounded(&self.tag_file(), MAX_TAG).ok()??;
        let text = String::from_utf8(bytes).ok()?;
        let (from, tag) = text.split_once('\n')?;
        (from == url && !tag.is_empty()).then(|| tag.to_owned())
    }

    /// Remembers which state of the file at `url` (shown without credentials) this is a part of. Without it the rest is
    /// asked for all the same: the digest decides.
    pub(super) fn keep_tag(&self, url: &str, tag: Option<&str>) {
        match tag {
            Some(tag) => {
                let _ = std::fs::write(self.tag_file(), format!("{url}\n{tag}"));
            }
            None => self.forget_tag(),
        }
    }

    pub(super) fn forget_tag(&self) {
        let _ = std::fs::remove_file(self.tag_file());
    }

    fn tag_file(&self) -> PathBuf {
        tag_file(&self.path)
    }

    pub(super) fn remove(&mut self) -> Result<(), FeedError> {
        self.forget_tag();
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.failed(error)),
            _ => Ok(()),
        }
    }

    pub(super) fn digest(&self) -> String {
        self.hasher.clone().finish()
    }

    pub(super) fn downloaded(self, resumed: u64) -> Downloaded {
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

/// Where the tag of the part at `path` lies.
pub(super) fn tag_file(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tag");
    name.into()
}
