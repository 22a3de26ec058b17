//! Whole files or none: everything a feed or a keys folder holds is written beside its place, flushed, and renamed.

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::PublishError;

/// Mode of what is served: any user's file server may read it.
pub(crate) const SERVED: u32 = 0o644;
/// Mode of a private key.
pub(crate) const PRIVATE: u32 = 0o600;

/// Length and SHA-256 of a file's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Measure {
    pub(crate) length: u64,
    pub(crate) sha256: Vec<u8>,
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
    let mut source = File::open(from).map_err(|e| PublishError::read(from, e))?;
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
        .map_err(|e| PublishError::write(path, e))
}

/// Reads a file to its end, counting and hashing.
pub(crate) fn measure(path: &Path) -> Result<Measure, PublishError> {
    let mut file = File::open(path).map_err(|e| PublishError::read(path, e))?;
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
        .prefix(".writing-")
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(folder_of(path))
        .map_err(|e| PublishError::write(path, e))
}

fn persist(temporary: tempfile::NamedTempFile, path: &Path) -> Result<(), PublishError> {
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
