//! One publisher at a time: locks on the keys folder and on the feed, held from reading the feed to its last rename.
//!
//! Both, because the keys of one feed may lie in several folders (the timestamp's with cron, the others elsewhere), and one
//! keys folder may serve several feeds.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::PublishError;
use crate::disk::PRIVATE;

/// How long a second publisher waits for the first.
const PATIENCE: Duration = Duration::from_secs(10);

/// Held until dropped.
#[derive(Debug)]
pub(crate) struct PublisherLock {
    _files: Vec<File>,
}

impl PublisherLock {
    /// Takes the lock of a keys folder and that of a feed's folder of metadata, waiting for at most ten seconds.
    pub(crate) fn acquire(keys: &Path, metadata: &Path) -> Result<Self, PublishError> {
        Self::acquire_within(keys, metadata, PATIENCE)
    }

    fn acquire_within(
        keys: &Path,
        metadata: &Path,
        patience: Duration,
    ) -> Result<Self, PublishError> {
        let deadline = Instant::now() + patience;
        let path = keys.join("publisher.lock");
        let of_keys = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(PRIVATE)
            .open(&path)
            .map_err(|e| PublishError::write(&path, e))?;
        wait(&of_keys, deadline, || path.clone(), keys)?;
        let of_feed = File::open(metadata).map_err(|e| PublishError::read(metadata, e))?;
        match wait(&of_feed, deadline, || metadata.to_owned(), metadata) {
            // File systems of a network cannot always lock a folder; the keys' lock is left then.
            Err(PublishError::Write { source, .. }) if cannot_lock(&source) => {}
            other => other?,
        }
        Ok(Self {
            _files: vec![of_keys, of_feed],
        })
    }
}

fn wait(
    file: &File,
    deadline: Instant,
    path: impl Fn() -> PathBuf,
    folder: &Path,
) -> Result<(), PublishError> {
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(Errno::WOULDBLOCK) => {
                return Err(PublishError::Busy {
                    folder: folder.to_owned(),
                });
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(PublishError::write(path(), e.into())),
        }
    }
}

fn cannot_lock(error: &std::io::Error) -> bool {
    [Errno::BADF, Errno::NOLCK, Errno::OPNOTSUPP, Errno::NOSYS]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_publisher_is_told_what_is_in_the_way() {
        let [keys, others, feed] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let first = PublisherLock::acquire(keys.path(), feed.path()).unwrap();
        for keys in [&keys, &others] {
            let second = PublisherLock::acquire_within(keys.path(), feed.path(), Duration::ZERO);
            assert!(matches!(second, Err(PublishError::Busy { .. })));
        }
        drop(first);
        PublisherLock::acquire_within(others.path(), feed.path(), Duration::ZERO).unwrap();
    }
}
