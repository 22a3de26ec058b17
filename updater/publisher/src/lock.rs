//! One publisher at a time: a lock in the keys folder, held from reading the feed to its last rename.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::PublishError;
use crate::disk::PRIVATE;

/// How long a second publisher waits for the first.
const PATIENCE: Duration = Duration::from_secs(10);

/// Held until dropped.
#[derive(Debug)]
pub(crate) struct PublisherLock {
    _file: File,
}

impl PublisherLock {
    /// Takes the lock of a keys folder, waiting for at most ten seconds.
    pub(crate) fn acquire(keys: &Path) -> Result<Self, PublishError> {
        Self::acquire_within(keys, PATIENCE)
    }

    fn acquire_within(keys: &Path, patience: Duration) -> Result<Self, PublishError> {
        let path = keys.join("publisher.lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(PRIVATE)
            .open(&path)
            .map_err(|e| PublishError::write(&path, e))?;
        let deadline = Instant::now() + patience;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _file: file }),
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    return Err(PublishError::Busy {
                        keys: keys.to_owned(),
                    });
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(PublishError::write(&path, e.into())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_publisher_is_told_who_is_in_the_way() {
        let keys = tempfile::tempdir().unwrap();
        let first = PublisherLock::acquire(keys.path()).unwrap();
        let second = PublisherLock::acquire_within(keys.path(), Duration::ZERO);
        assert!(matches!(second, Err(PublishError::Busy { .. })));
        drop(first);
        assert!(PublisherLock::acquire_within(keys.path(), Duration::ZERO).is_ok());
    }
}
