//! A configuration as its generations keep it: sealed, so that nobody edits it under them.

use std::io::Write;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags};

use crate::config::{Config, ConfigError};

/// A configuration, sealed into memory.
#[derive(Debug)]
pub struct Snapshot {
    /// The configuration.
    pub config: Config,
    /// Its digest.
    pub digest: String,
    memory: OwnedFd,
}

/// Why a configuration could not be sealed.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// It cannot be written down.
    #[error(transparent)]
    Write(#[from] ConfigError),
    /// The system has no memory or descriptor for it.
    #[error("cannot seal the configuration into memory: {0}")]
    Memory(#[from] std::io::Error),
}

impl Snapshot {
    /// Writes `config` into a new memfd and seals it.
    ///
    /// # Errors
    /// When the system has no memory or descriptor left.
    pub fn seal(config: Config) -> Result<Self, SealError> {
        let bytes = config.to_snapshot()?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory =
            rustix::fs::memfd_create("rollproxy-config", flags).map_err(std::io::Error::from)?;
        let mut file = std::fs::File::from(memory);
        file.write_all(&bytes)?;
        let memory = OwnedFd::from(file);
        let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&memory, seals).map_err(std::io::Error::from)?;
        Ok(Self {
            digest: config.digest()?,
            config,
            memory,
        })
    }

    /// A descriptor for one worker.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn descriptor(&self) -> std::io::Result<OwnedFd> {
        self.memory.try_clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_configuration_cannot_be_changed() {
        let snapshot = Snapshot::seal(Config::default()).unwrap();
        let mut file = std::fs::File::from(snapshot.descriptor().unwrap());
        assert!(file.write_all(b"x").is_err());
        assert!(file.set_len(0).is_err());
    }
}
