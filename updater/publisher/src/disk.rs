//! Whole files or none: everything a feed or a keys folder holds is written beside its place, flushed, and renamed.

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::PublishError;

/// Mode of what is served: any user's file server may read it.
pub(crate) const SERVED: u32 = 0o644;
/// How the names of files begin that are not whole yet.
const TEMPORARY: &str = ".writing-";
/// Mode of a private key.
pub(crate) const PRIVATE: u32 = 0o600;

/// Length and SHA-256 of a file's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Measure {
    pub(crate) length: u64,
    pub(crate) sha256: Vec<u8>,
}

/// A whole file of the feed or of the keys, if it has at most `limit` bytes; `None` if it is not there.
pub(crate) fn read_bounded(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, PublishError> {
    staging::files::read_bounded(path, limit).map_err(|e| PublishError::read(path, e))
}

/// Renames within a folder, durably.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), PublishError> {
    #[cfg(test)]
    faults::before_write(to)?;
    fs::rename(from, to)
        .and_then(|()| File::open(folder_of(to))?.sync_all())
        .map_err(|e| PublishError::write(to, e))
}

/// Removes what a publisher that was killed left half written in a folder. The caller holds the lock.
pub(crate) fn reap(folder: &Path) -> Result<(), PublishError> {
    for entry in fs::read_dir(folder).map_err(|e| PublishError::read(folder, e))? {
        let entry = entry.map_err(|e| PublishError::read(folder, e))?;
        if entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(TEMPORARY.as_bytes())
        {
            let path = entry.path();
            fs::remove_file(&path).map_err(|e| PublishError::write(path, e))?;
        }
    }
    Ok(())
}

/// Writes `bytes` to `path`, so that a reader meets the old whole or the new whole file, also after a power cut.
pub(crate) fn write_whole(path: &Path, bytes: &[u8], mode: u32) -> Result<(), PublishError> {
    let mut temporary = temporary_beside(path, mode)?;
    temporary
        .write_all(bytes)
        .map_err(|e| PublishError::write(path, e))?;
    persist(temporary, path)
}

/// Copies the file at `from` to `path` in the same manner.
pub(crate) fn copy_whole(from: &Path, path: &Path, mode: u32) -> Result<(), PublishError> {
    let mut temporary = temporary_beside(path, mode)?;
    let mut source = staging::files::open_regular(from).map_err(|e| PublishError::read(from, e))?;
    std::io::copy(&mut source, &mut temporary).map_err(|e| PublishError::write(path, e))?;
    persist(temporary, path)
}

/// Makes a folder with its parents; a new one gets `mode`.
pub(crate) fn make_folder(path: &Path, mode: u32) -> Result<(), PublishError> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        // What lies in a folder is as lasting as the folder's own name.
        .and_then(|()| File::open(folder_of(path))?.sync_all())
        .map_err(|e| PublishError::write(path, e))
}

/// Reads a file to its end, counting and hashing.
pub(crate) fn measure(path: &Path) -> Result<Measure, PublishError> {
    let mut file = staging::files::open_regular(path).map_err(|e| PublishError::read(path, e))?;
    let (mut hash, mut length) = (Sha256::new(), 0u64);
    let mut buffer = vec![0u8; 64 * 1024];
    loop {
        match file
            .read(&mut buffer)
            .map_err(|e| PublishError::read(path, e))?
        {
            0 => break,
            n => {
                hash.update(&buffer[..n]);
                length += n as u64;
            }
        }
    }
    Ok(Measure {
        length,
        sha256: hash.finalize().to_vec(),
    })
}

/// The measure of bytes in memory.
pub(crate) fn measure_bytes(bytes: &[u8]) -> Measure {
    Measure {
        length: bytes.len() as u64,
        sha256: Sha256::digest(bytes).to_vec(),
    }
}

/// `path` without links and `..`, also where its end does not exist yet.
pub(crate) fn resolve(path: &Path) -> Result<PathBuf, PublishError> {
    let absolute = std::path::absolute(path).map_err(|e| PublishError::read(path, e))?;
    let mut missing = Vec::new();
    let mut there = absolute.as_path();
    loop {
        match there.canonicalize() {
            Ok(mut resolved) => {
                resolved.extend(missing.iter().rev());
                return Ok(resolved);
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                // `..` below a folder that does not exist has no meaning yet.
                let (Some(parent), Some(Component::Normal(name))) =
                    (there.parent(), there.components().next_back())
                else {
                    return Err(PublishError::read(path, e));
                };
                missing.push(name.to_owned());
                there = parent;
            }
            Err(e) => return Err(PublishError::read(path, e)),
        }
    }
}

fn temporary_beside(path: &Path, mode: u32) -> Result<tempfile::NamedTempFile, PublishError> {
    tempfile::Builder::new()
        .prefix(TEMPORARY)
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(folder_of(path))
        .map_err(|e| PublishError::write(path, e))
}

fn persist(temporary: tempfile::NamedTempFile, path: &Path) -> Result<(), PublishError> {
    #[cfg(test)]
    faults::before_write(path)?;
    let failed = |e| PublishError::write(path, e);
    temporary.as_file().sync_all().map_err(failed)?;
    temporary.persist(path).map_err(|e| failed(e.error))?;
    File::open(folder_of(path))
        .and_then(|folder| folder.sync_all())
        .map_err(failed)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Tests stop a publisher in front of any of its writes, as a kill would.
#[cfg(test)]
pub(crate) mod faults {
    use std::cell::Cell;
    use std::path::Path;

    use crate::PublishError;

    thread_local! {
        static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    }

    /// Lets `count` more writes of this thread succeed; `None`: all.
    pub(crate) fn allow(count: Option<usize>) {
        LEFT.set(count);
    }

    pub(super) fn before_write(path: &Path) -> Result<(), PublishError> {
        match LEFT.get() {
            Some(0) => Err(PublishError::write(path, std::io::Error::other("killed"))),
            Some(left) => {
                LEFT.set(Some(left - 1));
                Ok(())
            }
            None => Ok(()),
        }
    }
}
