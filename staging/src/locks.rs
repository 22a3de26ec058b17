//! The three locks of a home. Each is a file locked for as long as the value lives; a killed holder frees it.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fs2::FileExt;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::document::{self, Document, DocumentError};
use crate::files;
use crate::home::Home;
use crate::ownership::{self, OwnershipError, ProcessIdentity};
use crate::report::{Exit, Report};
use crate::space;

/// How long a starting owner retries: who only looks at a lock holds it for an instant.
const LOOKED_AT: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(10);

/// Why a lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody else has it.
    #[error("{what} of this home already runs ({}): {path} is held", describe(by))]
    Held {
        /// `a supervisor`, `an updater`, `a change of state`.
        what: &'static str,
        /// The lock file.
        path: PathBuf,
        /// Who, if that is known.
        by: Option<ProcessIdentity>,
    },
    /// The file could not be opened or locked at all.
    #[error("locking {path}: {source}; is the home made (`rollproxy-updater init`) and ours?")]
    Open {
        /// The lock file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The record beside the lock could not be written.
    #[error("saying who holds the lock: {source}")]
    Record {
        /// What went wrong.
        #[from]
        source: DocumentError,
    },
    /// This process's own identity is not known.
    #[error("finding out who we are: {source}")]
    Identity {
        /// What went wrong.
        #[from]
        source: OwnershipError,
    },
}

fn describe(by: &Option<ProcessIdentity>) -> String {
    match by {
        Some(identity) => identity.to_string(),
        None => "it has not said who it is".to_owned(),
    }
}

impl Report for LockError {
    fn code(&self) -> &'static str {
        match self {
            LockError::Held { .. } => "LOCK_HELD",
            LockError::Open { .. } => "LOCK_OPEN",
            LockError::Record { .. } => "LOCK_RECORD",
            LockError::Identity { .. } => "LOCK_IDENTITY",
        }
    }
    fn exit(&self) -> Exit {
        match self {
            LockError::Held { .. } => Exit::Deferred,
            _ => Exit::Failed,
        }
    }
    fn retry(&self) -> bool {
        matches!(self, LockError::Held { .. })
    }
}

/// Held for life by the one supervisor of a home.
#[derive(Debug)]
pub struct SupervisorLock {
    file: File,
}

impl SupervisorLock {
    /// Takes the lock, retrying for about a second. Say who you are with [`SupervisorLock::announce`] at once.
    ///
    /// # Errors
    /// [`LockError::Held`] by the supervisor that runs, [`LockError::Open`].
    pub fn try_acquire(home: &Home) -> Result<SupervisorLock, LockError> {
        let path = home.supervisor_lock();
        match lock(&path, LOOKED_AT)? {
            Some(file) => Ok(SupervisorLock { file }),
            None => Err(LockError::Held {
                what: "a supervisor",
                path,
                by: ownership::read_supervisor(home)
                    .ok()
                    .flatten()
                    .map(|record| record.identity),
            }),
        }
    }
}

impl SupervisorLock {
    /// The lock as an earlier image of this process held it: it belongs to the open file, which an exec keeps, whatever
    /// became of its name since.
    pub fn inherited(descriptor: OwnedFd) -> SupervisorLock {
        SupervisorLock {
            file: File::from(descriptor),
        }
    }
}

impl AsFd for SupervisorLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// `run/updater.json`: which job runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdaterRecord {
    /// Always written as 1.
    pub schema: u32,
    /// The process.
    #[serde(flatten)]
    pub identity: ProcessIdentity,
    /// Since when.
    pub since: Timestamp,
}

impl Document for UpdaterRecord {
    const SCHEMA: u32 = 1;
    const NAME: &'static str = "updater record";
}

/// Held by the one update job of a home.
#[derive(Debug)]
pub struct UpdaterLock {
    _file: File,
    identity: ProcessIdentity,
}

impl UpdaterLock {
    /// Takes the lock and says who holds it in `run/updater.json`.
    ///
    /// # Errors
    /// [`LockError`]; `Held` names the job that runs.
    pub fn try_acquire(home: &Home) -> Result<UpdaterLock, LockError> {
        let path = home.updater_lock();
        let Some(file) = lock(&path, LOOKED_AT)? else {
            return Err(LockError::Held {
                what: "an updater",
                path,
                by: read_updater(home)
                    .ok()
                    .flatten()
                    .map(|record| record.identity),
            });
        };
        let identity = ProcessIdentity::current()?;
        let record = UpdaterRecord {
            schema: UpdaterRecord::SCHEMA,
            identity: identity.clone(),
            since: clock::now(),
        };
        match document::write(&home.updater_record(), &record) {
            // The lock is what counts. On a full disk nothing must stand before what makes room.
            Err(error) if space::ran_out(&error) => {
                let _stale = std::fs::remove_file(home.updater_record());
            }
            written => written?,
        }
        Ok(UpdaterLock {
            _file: file,
            identity,
        })
    }

    /// Who holds it: this process.
    pub fn identity(&self) -> &ProcessIdentity {
        &self.identity
    }
}

/// The record of the last job that held the updater lock, dead or alive.
///
/// # Errors
/// [`DocumentError`]
pub fn read_updater(home: &Home) -> Result<Option<UpdaterRecord>, DocumentError> {
    document::read(&home.updater_record())
}

/// Held while the selection, the update state or the packages change: briefly, by whoever changes them.
#[derive(Debug)]
pub struct StateLock {
    _file: File,
}

impl StateLock {
    /// Takes the lock, waiting for at most `timeout`.
    ///
    /// # Errors
    /// [`LockError::Held`] when the time is over, [`LockError::Open`].
    pub fn acquire(home: &Home, timeout: Duration) -> Result<StateLock, LockError> {
        let path = home.state_lock();
        match lock(&path, timeout)? {
            Some(file) => Ok(StateLock { _file: file }),
            None => Err(LockError::Held {
                what: "a change of the state",
                path,
                by: None,
            }),
        }
    }
}

/// Locks a file, made where missing; `None` if it is still held after `timeout`.
fn lock(path: &Path, timeout: Duration) -> Result<Option<File>, LockError> {
    let failed = |source| LockError::Open {
        path: path.to_owned(),
        source,
    };
    let file = open(path).map_err(failed)?;
    let deadline = Instant::now() + timeout;
    loop {
        if try_lock(&file).map_err(failed)? {
            return Ok(Some(file));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        // flock has no timed wait, and a waiting thread could not be called off.
        std::thread::sleep(RETRY.min(left));
    }
}

/// Opens a lock file, CLOEXEC as std opens everything: a child must not keep our lock.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    // A umask that took our own bits would lock us out next time.
    if file.metadata()?.permissions().mode() & 0o600 != 0o600 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    match FileExt::try_lock_exclusive(file) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether somebody holds a lock. Changes nothing on disk, and needs no permission to write.
pub(crate) fn is_held(path: &Path) -> io::Result<bool> {
    let file = match files::open_regular(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    match FileExt::try_lock_shared(&file) {
        Ok(()) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::home;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn the_second_updater_is_told_who_runs() {
        let (_folder, home) = home();
        let first = UpdaterLock::try_acquire(&home).unwrap();
        let error = UpdaterLock::try_acquire(&home).unwrap_err();
        assert!(
            error
                .to_string()
                .contains(&format!("pid {}", std::process::id())),
            "{error}"
        );
        assert_eq!(error.exit(), Exit::Deferred);
        assert!(matches!(&error, LockError::Held { by: Some(by), .. } if by == first.identity()));
        drop(first);
        UpdaterLock::try_acquire(&home).unwrap();
    }

    #[test]
    fn looking_never_makes_an_owner_fail() {
        let (_folder, home) = home();
        drop(SupervisorLock::try_acquire(&home).unwrap());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    is_held(&home.supervisor_lock()).unwrap();
                }
            });
            for _ in 0..50 {
                let taken = SupervisorLock::try_acquire(&home);
                if taken.is_err() {
                    stop.store(true, Ordering::Relaxed);
                }
                taken.unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn the_state_lock_waits_for_its_holder_and_no_longer_than_told() {
        let (_folder, home) = home();
        let held = StateLock::acquire(&home, Duration::ZERO).unwrap();
        let error = StateLock::acquire(&home, Duration::from_millis(30)).unwrap_err();
        assert!(matches!(error, LockError::Held { .. }));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| StateLock::acquire(&home, Duration::from_secs(60)));
            drop(held);
            waiting.join().unwrap().unwrap();
        });
    }

    #[test]
    fn children_do_not_keep_a_lock() {
        let (_folder, home) = home();
        let lock = SupervisorLock::try_acquire(&home).unwrap();
        let mut child = std::process::Command::new("/bin/sh")
            .args(["-c", "read x"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        drop(lock);
        SupervisorLock::try_acquire(&home).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn a_home_that_was_never_made_is_named() {
        let folder = crate::scratch::Scratch::new();
        let error =
            StateLock::acquire(&Home::at(folder.path().join("none")), Duration::ZERO).unwrap_err();
        assert_eq!(error.code(), "LOCK_OPEN");
        assert!(!is_held(&folder.path().join("none")).unwrap());
    }
}
