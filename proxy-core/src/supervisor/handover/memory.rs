//! Memory files: what is handed to another program without a name in any folder.

use std::fs::File;
use std::io::{Result, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags};

/// A file in memory that nobody can change any more.
pub fn sealed(name: &str, bytes: &[u8]) -> Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(rustix::fs::memfd_create(name, flags)?);
    file.write_all(bytes)?;
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// An empty file in memory, to be written by somebody and then read.
pub fn readable(name: &str) -> Result<File> {
    Ok(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?.into())
}

/// All that is in it; by offset, for the position is shared with whoever had it before.
pub fn read(memory: OwnedFd) -> Result<Vec<u8>> {
    let file = File::from(memory);
    let size = usize::try_from(file.metadata()?.len()).unwrap_or(0);
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}
