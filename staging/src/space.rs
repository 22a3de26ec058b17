//! Room on the disk: looked for before it is needed, and named when it ran out.

use std::error::Error;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::manifest::Manifest;
use crate::report::{Exit, Report};

/// What a file takes beside its bytes: the rest of its last block, and its name.
const PER_FILE: u64 = 4096;
/// What a job writes beside a package: journal, state, metadata.
const BESIDE: u64 = 1024 * 1024;
/// The code of every failure for want of room.
pub const CODE: &str = "NO_SPACE";

/// Why there is no room.
#[derive(Debug, thiserror::Error)]
pub enum SpaceError {
    /// Less is free than is needed.
    #[error(
        "the file system of {path} has {free} bytes free: {needed} are needed and {reserve} stay free (update.reserve); free at least {} bytes and run again",
        short(*.free, *.needed, *.reserve)
    )]
    Short {
        /// A folder on the file system.
        path: PathBuf,
        /// What is needed.
        needed: u64,
        /// What stays free.
        reserve: u64,
        /// What is free.
        free: u64,
    },
    /// The system does not say what is free.
    #[error("asking how much is free at {path}: {source}")]
    Ask {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Report for SpaceError {
    fn code(&self) -> &'static str {
        match self {
            SpaceError::Short { .. } => CODE,
            SpaceError::Ask { .. } => "SPACE_UNKNOWN",
        }
    }
    fn exit(&self) -> Exit {
        Exit::Failed
    }
    fn retry(&self) -> bool {
        true
    }
}

/// Refuses what would leave less than `reserve` free on the file system of `path`.
///
/// # Errors
/// [`SpaceError`]
pub fn check(path: &Path, needed: u64, reserve: u64) -> Result<(), SpaceError> {
    let free = free(path).map_err(|source| SpaceError::Ask {
        path: path.to_owned(),
        source,
    })?;
    if short(free, needed, reserve) == 0 {
        return Ok(());
    }
    Err(SpaceError::Short {
        path: path.to_owned(),
        needed,
        reserve,
        free,
    })
}

/// [`check`] of several folders: what lies on the same file system is needed there together.
///
/// # Errors
/// [`SpaceError`]
pub fn check_all(needs: &[(PathBuf, u64)], reserve: u64) -> Result<(), SpaceError> {
    let mut systems: Vec<(u64, &Path, u64)> = Vec::new();
    for (path, needed) in needs {
        let device = std::fs::metadata(path)
            .map_err(|source| SpaceError::Ask {
                path: path.clone(),
                source,
            })?
            .dev();
        match systems.iter_mut().find(|(known, ..)| *known == device) {
            Some((.., sum)) => *sum = sum.saturating_add(*needed),
            None => systems.push((device, path, *needed)),
        }
    }
    systems
        .into_iter()
        .try_for_each(|(_, path, needed)| check(path, needed, reserve))
}

/// Bytes that an ordinary user may still write on the file system of `path`.
///
/// # Errors
/// What the system says.
pub fn free(path: &Path) -> io::Result<u64> {
    let said = rustix::fs::statvfs(path)?;
    Ok(said.f_bavail.saturating_mul(said.f_frsize))
}

/// What a package takes on disk, and what a job writes beside it.
pub fn of_package(manifest: &Manifest) -> u64 {
    let files = manifest.files.len() as u64 + 1;
    manifest
        .total_size()
        .unwrap_or(u64::MAX)
        .saturating_add(files.saturating_mul(PER_FILE))
        .saturating_add(BESIDE)
}

/// What a package of so many bytes takes, as long as its manifest is not known.
pub fn of_bytes(bytes: u64) -> u64 {
    bytes.saturating_add(BESIDE)
}

/// How much is missing.
fn short(free: u64, needed: u64, reserve: u64) -> u64 {
    needed.saturating_add(reserve).saturating_sub(free)
}

/// Whether the system said that there is no room: a full disk, or a quota that is used up.
pub fn ran_out(error: &(dyn Error + 'static)) -> bool {
    let mut error = Some(error);
    while let Some(now) = error {
        if let Some(said) = now.downcast_ref::<io::Error>() {
            if matches!(
                said.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            ) {
                return true;
            }
            // An error that was put into one of `io` is no source of it.
            if said.get_ref().is_some_and(|inner| ran_out(inner)) {
                return true;
            }
        }
        error = now.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_touch_the_reserve_is_refused_with_the_numbers() {
        assert_eq!(short(100, 60, 40), 0);
        assert_eq!(short(100, 61, 40), 1);
        assert_eq!(short(u64::MAX, u64::MAX, 5), 0, "never an overflow");
        assert_eq!(short(0, u64::MAX, 5), u64::MAX);
        let folder = crate::scratch::Scratch::new();
        check(folder.path(), 1, 0).unwrap();
        let error = check(folder.path(), u64::MAX / 2, 7).unwrap_err();
        assert_eq!((error.code(), error.retry()), ("NO_SPACE", true));
        let said = error.to_string();
        for part in [
            folder.path().to_str().unwrap(),
            &(u64::MAX / 2).to_string(),
            "7 stay free",
        ] {
            assert!(said.contains(part), "{said}");
        }
        let nowhere = check(&folder.path().join("nowhere"), 1, 0).unwrap_err();
        assert_eq!(nowhere.code(), "SPACE_UNKNOWN");
    }

    #[test]
    fn what_lies_on_one_file_system_is_needed_there_together() {
        let folder = crate::scratch::Scratch::new();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::create_dir(&a).unwrap();
        std::fs::create_dir(&b).unwrap();
        // So much that what others write meanwhile does not matter.
        let most = free(&a).unwrap() / 3 * 2;
        check_all(&[(a.clone(), most)], 0).unwrap();
        let error = check_all(&[(a.clone(), most), (b, most)], 0).unwrap_err();
        assert!(
            error.to_string().contains(&(2 * most).to_string()),
            "{error}"
        );
        let elsewhere = [(a, most), (PathBuf::from("/proc"), 0)];
        check_all(&elsewhere, 0).unwrap();
    }

    #[test]
    fn a_full_disk_and_a_quota_are_recognised_wherever_they_stand() {
        #[derive(Debug, thiserror::Error)]
        #[error("writing failed")]
        struct Outer {
            source: io::Error,
        }
        let full = || io::Error::from_raw_os_error(28);
        assert!(ran_out(&full()));
        assert!(ran_out(&io::Error::from_raw_os_error(122)));
        assert!(ran_out(&Outer { source: full() }));
        assert!(ran_out(&io::Error::other(Outer { source: full() })));
        assert!(!ran_out(&io::Error::from_raw_os_error(5)));
        assert!(!ran_out(&Outer {
            source: io::Error::other("x")
        }));
    }
}
