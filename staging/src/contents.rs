//! Whether a package folder holds exactly what its manifest names.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::manifest::{self, FileEntry, Manifest};
use crate::report::{Exit, Report};
use crate::{digest, manifest::parents};

/// How a folder differs from its manifest.
#[derive(Debug, thiserror::Error)]
pub enum ContentsError {
    /// Looking failed.
    #[error("reading {path}: {source}")]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The manifest names a file that is not there.
    #[error("{path} is missing from the package")]
    Missing {
        /// The path in the package.
        path: String,
    },
    /// Something is there that the manifest does not name.
    #[error("{path} is in the package and not in its manifest")]
    Unlisted {
        /// The path in the package.
        path: String,
    },
    /// A link, device or the like.
    #[error("{path} is neither a regular file nor a folder")]
    Kind {
        /// The path in the package.
        path: String,
    },
    /// The file has another size.
    #[error("{path} has {found} bytes, its manifest says {expected}")]
    Size {
        /// The path in the package.
        path: String,
        /// The manifest's.
        expected: u64,
        /// The file's.
        found: u64,
    },
    /// The file has another mode.
    #[error("{path} has mode {found:04o}, its manifest says {expected:04o}")]
    Mode {
        /// The path in the package.
        path: String,
        /// The manifest's.
        expected: u32,
        /// The file's.
        found: u32,
    },
    /// The file has other bytes.
    #[error("{path} has sha256 {found}, its manifest says {expected}")]
    Digest {
        /// The path in the package.
        path: String,
        /// The manifest's.
        expected: String,
        /// The file's.
        found: String,
    },
}

impl Report for ContentsError {
    fn code(&self) -> &'static str {
        match self {
            ContentsError::Read { .. } => "PACKAGE_READ",
            ContentsError::Missing { .. } => "FILE_MISSING",
            ContentsError::Unlisted { .. } => "FILE_UNLISTED",
            ContentsError::Kind { .. } => "FILE_KIND",
            ContentsError::Size { .. } => "FILE_SIZE",
            ContentsError::Mode { .. } => "FILE_MODE",
            ContentsError::Digest { .. } => "FILE_DIGEST",
        }
    }
    fn exit(&self) -> Exit {
        Exit::Failed
    }
    fn retry(&self) -> bool {
        matches!(self, ContentsError::Read { .. })
    }
}

/// Compares names, kinds, sizes, modes and digests of everything in `root` with the manifest.
///
/// # Errors
/// The first difference, [`ContentsError`].
pub fn verify(root: &Path, manifest: &Manifest) -> Result<(), ContentsError> {
    verify_names(root, manifest)?;
    verify_digests(root, manifest)
}

/// Compares names, kinds, sizes and modes, as [`verify`] does, and no digests: for files that were hashed while they were
/// written, and that nothing has run since.
///
/// # Errors
/// The first difference, [`ContentsError`].
pub fn verify_names(root: &Path, manifest: &Manifest) -> Result<(), ContentsError> {
    let folders: HashSet<&str> = manifest
        .files
        .iter()
        .flat_map(|file| parents(&file.path))
        .collect();
    let mut found = HashSet::new();
    let mut open = vec![String::new()];
    while let Some(folder) = open.pop() {
        let path = root.join(&folder);
        let failed = |source| ContentsError::Read {
            path: path.clone(),
            source,
        };
        for entry in fs::read_dir(&path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let relative = match name.to_str() {
                Some(name) if folder.is_empty() => name.to_owned(),
                Some(name) => format!("{folder}/{name}"),
                None => {
                    return Err(ContentsError::Unlisted {
                        path: name.to_string_lossy().into_owned(),
                    });
                }
            };
            let metadata = fs::symlink_metadata(entry.path()).map_err(failed)?;
            if metadata.is_dir() {
                if !folders.contains(relative.as_str()) {
                    return Err(ContentsError::Unlisted { path: relative });
                }
                open.push(relative);
            } else if !metadata.is_file() {
                return Err(ContentsError::Kind { path: relative });
            } else if let Some(file) = manifest.file(&relative) {
                verify_metadata(file, &metadata)?;
                found.insert(relative);
            } else if relative != manifest::FILE {
                return Err(ContentsError::Unlisted { path: relative });
            }
        }
    }
    match manifest
        .files
        .iter()
        .find(|file| !found.contains(&file.path))
    {
        Some(file) => Err(ContentsError::Missing {
            path: file.path.clone(),
        }),
        None => Ok(()),
    }
}

fn verify_metadata(file: &FileEntry, metadata: &fs::Metadata) -> Result<(), ContentsError> {
    if metadata.len() != file.size {
        return Err(ContentsError::Size {
            path: file.path.clone(),
            expected: file.size,
            found: metadata.len(),
        });
    }
    let mode = metadata.permissions().mode() & 0o7777;
    if mode != file.mode_bits() {
        return Err(ContentsError::Mode {
            path: file.path.clone(),
            expected: file.mode_bits(),
            found: mode,
        });
    }
    Ok(())
}

/// Digests of all files, a few at a time.
fn verify_digests(root: &Path, manifest: &Manifest) -> Result<(), ContentsError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for_each_parallel(&manifest.files, cores.min(4), |file| {
        let path = root.join(&file.path);
        let (_, found) = digest::of_file(&path).map_err(|source| ContentsError::Read {
            path: path.clone(),
            source,
        })?;
        if found == file.sha256 {
            return Ok(());
        }
        Err(ContentsError::Digest {
            path: file.path.clone(),
            expected: file.sha256.clone(),
            found,
        })
    })
}

/// Does something with each item on at most so many threads, and gives the first error in the items' order.
pub(crate) fn for_each_parallel<T: Sync, E: Send>(
    items: &[T],
    threads: usize,
    act: impl Fn(&T) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let threads = threads.min(items.len());
    if threads <= 1 {
        return items.iter().try_for_each(act);
    }
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let item = items.get(index)?;
            if let Err(error) = act(item) {
                // What follows need not be begun; what others have begun may still fail earlier in the order.
                next.store(items.len(), Ordering::Relaxed);
                return Some((index, error));
            }
        }
    };
    let first = std::thread::scope(|scope| {
        let handles: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut failures: Vec<(usize, E)> = work().into_iter().collect();
        for handle in handles {
            match handle.join() {
                Ok(failure) => failures.extend(failure),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        failures.into_iter().min_by_key(|(index, _)| *index)
    });
    match first {
        Some((_, error)) => Err(error),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::pack_folder;
    use crate::pack::tests::plan;

    #[test]
    fn each_difference_is_named() {
        type Break = fn(&Path);
        let cases: [(&str, Break); 8] = [
            ("FILE_MISSING", |root| {
                fs::remove_file(root.join("bin/rollproxy")).unwrap()
            }),
            ("FILE_UNLISTED", |root| {
                fs::write(root.join("bin/extra"), "").unwrap()
            }),
            ("FILE_UNLISTED", |root| {
                fs::create_dir(root.join("empty")).unwrap()
            }),
            ("FILE_KIND", |root| {
                std::os::unix::fs::symlink("rollproxy", root.join("bin/link")).unwrap()
            }),
            ("FILE_MODE", |root| mode(&root.join("bin/rollproxy"), 0o755)),
            ("FILE_MODE", |root| {
                mode(&root.join("bin/rollproxy"), 0o4555)
            }),
            ("FILE_SIZE", |root| {
                rewrite(&root.join("bin/rollproxy"), |bytes| bytes.push(0))
            }),
            ("FILE_DIGEST", |root| {
                rewrite(&root.join("bin/rollproxy"), |bytes| bytes[20] ^= 1)
            }),
        ];
        for (code, break_it) in cases {
            let folder = crate::scratch::Scratch::new();
            let root = folder.path().join("package");
            let manifest = pack_folder(&plan(folder.path(), "1.0.0"), &root).unwrap();
            verify(&root, &manifest).unwrap();
            break_it(&root);
            assert_eq!(verify(&root, &manifest).unwrap_err().code(), code);
        }
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn rewrite(path: &Path, change: fn(&mut Vec<u8>)) {
        let mut bytes = fs::read(path).unwrap();
        change(&mut bytes);
        mode(path, 0o755);
        fs::write(path, bytes).unwrap();
        mode(path, 0o555);
    }

    #[test]
    fn parallel_work_sees_every_item_and_reports_a_failure() {
        let items: Vec<usize> = (0..100).collect();
        let seen = AtomicUsize::new(0);
        for_each_parallel(&items, 4, |_| {
            seen.fetch_add(1, Ordering::Relaxed);
            Ok::<(), ()>(())
        })
        .unwrap();
        assert_eq!(seen.load(Ordering::Relaxed), 100);
        let fails_at_40 = |item: &usize| if *item == 40 { Err(*item) } else { Ok(()) };
        assert_eq!(for_each_parallel(&items, 4, fails_at_40), Err(40));
        assert_eq!(for_each_parallel(&[] as &[u8], 4, |_| Err(())), Ok(()));
    }

    #[test]
    fn parallel_work_is_parallel_and_bounded() {
        const THREADS: usize = 4;
        let (now, most) = (std::sync::Mutex::new((0, 0)), std::sync::Condvar::new());
        for_each_parallel(&[(); 40], THREADS, |()| {
            let mut there = now.lock().unwrap();
            there.0 += 1;
            there.1 = there.1.max(there.0);
            most.notify_all();
            // Nobody goes before all of them have met once.
            let patience = std::time::Duration::from_secs(20);
            let (mut there, late) = most
                .wait_timeout_while(there, patience, |there| there.1 < THREADS)
                .unwrap();
            there.0 -= 1;
            if late.timed_out() {
                Err(there.1)
            } else {
                Ok(())
            }
        })
        .unwrap();
        assert_eq!(now.into_inner().unwrap(), (0, THREADS));
    }
}
