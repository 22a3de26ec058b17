//! Where a package lies before it is published: a private folder on the same filesystem, proven alive by its lock.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::files;
use crate::home::Home;
use crate::journal;
use crate::locks;
use crate::process;
use crate::report::{Exit, Report};

const LOCK: &str = "lock";
const PACKAGE: &str = "package";
/// How long a reaper may hold the lock of a folder that is to be used again.
const REAPER_PATIENCE: Duration = Duration::from_millis(500);

/// Why there is no staging folder.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// Not a name that a folder can have.
    #[error("`{job}` is no job id: use 1 to 64 letters, digits and dashes")]
    BadId {
        /// What was given.
        job: String,
    },
    /// Another process stages under this id.
    #[error("job {job} already stages at {path}: a job id is used once")]
    InUse {
        /// The job.
        job: String,
        /// Its folder.
        path: PathBuf,
    },
    /// Making it failed.
    #[error("making the staging folder {path}: {source}")]
    Create {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Removing it failed.
    #[error("removing the staging folder {path}: {source}; remove it by hand")]
    Remove {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Report for StageError {
    fn code(&self) -> &'static str {
        match self {
            StageError::BadId { .. } => "JOB_ID_INVALID",
            StageError::InUse { .. } => "STAGING_IN_USE",
            StageError::Create { .. } => "STAGING_CREATE",
            StageError::Remove { .. } => "STAGING_REMOVE",
        }
    }
    fn exit(&self) -> Exit {
        Exit::Failed
    }
    fn retry(&self) -> bool {
        matches!(self, StageError::Create { .. })
    }
}

/// One job's private folder (0700), removed when dropped. Beside the package lies the lock, outside of it, so that the
/// package can be renamed away whole.
#[derive(Debug)]
pub struct StagingFolder {
    folder: PathBuf,
    package: PathBuf,
    _lock: File,
}

impl StagingFolder {
    /// Makes the folder of a job and locks it.
    ///
    /// # Errors
    /// [`StageError`]
    pub fn create(home: &Home, job: &str) -> Result<StagingFolder, StageError> {
        if !journal::is_job_id(job) {
            return Err(StageError::BadId {
                job: job.to_owned(),
            });
        }
        let folder = home.staging_dir().join(job);
        let failed = |source| StageError::Create {
            path: folder.clone(),
            source,
        };
        files::create_private(&home.staging_dir()).map_err(failed)?;
        let deadline = Instant::now() + REAPER_PATIENCE;
        loop {
            match files::create_private(&folder).and_then(|_| hold(&folder.join(LOCK))) {
                Ok(Some(lock)) => {
                    // Removed again if what follows fails.
                    let staged = StagingFolder {
                        package: folder.join(PACKAGE),
                        folder,
                        _lock: lock,
                    };
                    // What a dead job of this id left is not ours to build on.
                    staged.clear()?;
                    return Ok(staged);
                }
                // A reaper has the lock, or a job lives there.
                Ok(None) => {}
                // A reaper took the folder while it was made.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists
                    ) => {}
                Err(error) => {
                    // A disk that ran full between folder and lock. Somebody else's folder is not empty, or made again.
                    let _ = fs::remove_dir(&folder);
                    return Err(failed(error));
                }
            }
            if Instant::now() >= deadline {
                return Err(StageError::InUse {
                    job: job.to_owned(),
                    path: folder,
                });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Where the package is put: an empty folder of mode 0700.
    pub fn path(&self) -> &Path {
        &self.package
    }

    /// Empties the folder where the package is put: what a failed try left is no beginning of the next one.
    ///
    /// # Errors
    /// [`StageError::Create`]
    pub fn clear(&self) -> Result<(), StageError> {
        files::remove_tree(&self.package)
            .and_then(|()| files::create_private(&self.package))
            .map(drop)
            .map_err(|source| StageError::Create {
                path: self.package.clone(),
                source,
            })
    }

    /// Removes the folder, and says so if that fails, which dropping does not.
    ///
    /// # Errors
    /// [`StageError::Remove`]
    pub fn remove(self) -> Result<(), StageError> {
        remove(&self.folder)
    }

    /// Removes the folders of jobs that died: those whose lock is free; what such a job had started from its folder to
    /// try it is killed first. Says how many.
    ///
    /// # Errors
    /// [`StageError::Remove`] for the first that cannot be removed.
    pub fn reap_dead(home: &Home) -> Result<usize, StageError> {
        let staging = home.staging_dir();
        let entries = match fs::read_dir(&staging) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(source) => {
                return Err(StageError::Remove {
                    path: staging,
                    source,
                });
            }
        };
        let mut reaped = 0;
        for entry in entries {
            let folder = match entry {
                Ok(entry) => entry.path(),
                Err(source) => {
                    return Err(StageError::Remove {
                        path: staging,
                        source,
                    });
                }
            };
            match hold(&folder.join(LOCK)) {
                Ok(Some(_held)) => {
                    process::kill_running_from(&folder).map_err(|source| StageError::Remove {
                        path: folder.clone(),
                        source,
                    })?;
                    remove(&folder)?;
                    reaped += 1;
                }
                // Alive, or just removed by its owner.
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => {
                    return Err(StageError::Remove {
                        path: folder,
                        source,
                    });
                }
            }
        }
        Ok(reaped)
    }
}

impl Drop for StagingFolder {
    fn drop(&mut self) {
        // What cannot be removed now is reaped by the next job, our lock being free then.
        let _ = remove(&self.folder);
    }
}

/// Takes the lock of a staging folder; `None` if another has it. `NotFound` if the folder went away meanwhile.
fn hold(path: &Path) -> io::Result<Option<File>> {
    let file = locks::open(path)?;
    if !locks::try_lock(&file)? {
        return Ok(None);
    }
    // The lock of a file that is no longer at its path protects nothing.
    let (ours, there) = (file.metadata()?, fs::symlink_metadata(path)?);
    if (ours.dev(), ours.ino()) != (there.dev(), there.ino()) {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(Some(file))
}

/// Everything else first, the lock last: while anything is left, it can be reaped; and until the lock is gone, nobody
/// else puts anything in. Whoever does between lock and folder owns it then.
fn remove(folder: &Path) -> Result<(), StageError> {
    let remove = || -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if !path.ends_with(LOCK) {
                files::remove_tree(&path)?;
            }
        }
        fs::remove_file(folder.join(LOCK))?;
        fs::remove_dir(folder)
    };
    match remove() {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotFound
            ) =>
        {
            Ok(())
        }
        result => result.map_err(|source| StageError::Remove {
            path: folder.to_owned(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::home;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_staging_folder_is_private_and_goes_with_its_owner() {
        let (_folder, home) = home();
        let staged = StagingFolder::create(&home, "job-1").unwrap();
        for path in [staged.path(), staged.path().parent().unwrap()] {
            assert_eq!(
                fs::metadata(path).unwrap().permissions().mode() & 0o7777,
                0o700
            );
        }
        fs::create_dir(staged.path().join("bin")).unwrap();
        fs::set_permissions(staged.path().join("bin"), fs::Permissions::from_mode(0o555)).unwrap();
        drop(staged);
        assert_eq!(fs::read_dir(home.staging_dir()).unwrap().count(), 0);
    }

    #[test]
    fn a_cleared_folder_is_empty_private_and_still_ours() {
        let (_folder, home) = home();
        let staged = StagingFolder::create(&home, "job-1").unwrap();
        fs::create_dir(staged.path().join("bin")).unwrap();
        fs::write(staged.path().join("bin/x"), "x").unwrap();
        fs::set_permissions(staged.path().join("bin"), fs::Permissions::from_mode(0o555)).unwrap();
        staged.clear().unwrap();
        assert_eq!(fs::read_dir(staged.path()).unwrap().count(), 0);
        let mode = fs::metadata(staged.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
        assert_eq!(StagingFolder::reap_dead(&home).unwrap(), 0);
    }

    #[test]
    fn the_living_are_spared_and_the_dead_reaped() {
        let (_folder, home) = home();
        let living = StagingFolder::create(&home, "living").unwrap();
        let dead = StagingFolder::create(&home, "dead").unwrap();
        fs::write(dead.path().join("half"), "x").unwrap();
        // As a SIGKILL would: the lock goes, the folder stays.
        let dead = std::mem::ManuallyDrop::new(dead);
        rustix::fs::flock(&dead._lock, rustix::fs::FlockOperation::Unlock).unwrap();
        fs::create_dir(home.staging_dir().join("no-lock-yet")).unwrap();
        assert_eq!(StagingFolder::reap_dead(&home).unwrap(), 2);
        assert!(living.path().exists());
        assert_eq!(fs::read_dir(home.staging_dir()).unwrap().count(), 1);
        assert_eq!(StagingFolder::reap_dead(&home).unwrap(), 0);
    }

    #[test]
    fn an_id_is_used_by_one_at_a_time_and_is_no_path() {
        let (_folder, home) = home();
        let first = StagingFolder::create(&home, "one").unwrap();
        assert!(matches!(
            StagingFolder::create(&home, "one"),
            Err(StageError::InUse { .. })
        ));
        assert!(first.path().exists());
        first.remove().unwrap();
        StagingFolder::create(&home, "one").unwrap();
        assert!(matches!(
            StagingFolder::create(&home, "../one"),
            Err(StageError::BadId { .. })
        ));
    }

    #[test]
    fn making_and_reaping_at_once_never_takes_a_living_folder() {
        let (_folder, home) = home();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    StagingFolder::reap_dead(&home).unwrap();
                }
            });
            let worked = (0..200).all(|round| {
                let staged = StagingFolder::create(&home, &format!("job-{round}"));
                staged.is_ok_and(|staged| fs::write(staged.path().join("x"), "x").is_ok())
            });
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(worked);
        });
    }
}
