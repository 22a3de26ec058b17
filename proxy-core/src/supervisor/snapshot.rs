//! A configuration as its generations keep it: sealed, so that nobody edits it under them.

use std::os::fd::OwnedFd;

use crate::config::{Config, ConfigError};

use super::handover::memory::sealed;

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
        let memory = sealed("rollproxy-config", &bytes)?;
        Ok(Self {
            digest: config.digest()?,
            config,
            memory,
        })
    }

    /// The configuration of an earlier image of this process, under the digest that it is known by there.
    ///
    /// # Errors
    /// When the system has no memory or descriptor left.
    pub fn carried(config: Config, digest: String, text: &[u8]) -> Result<Self, SealError> {
        Ok(Self {
            config,
            digest,
            memory: sealed("rollproxy-config", text)?,
        })
    }

    /// Its text, as the workers read it.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn text(&self) -> std::io::Result<String> {
        let bytes = super::handover::memory::read(self.descriptor()?)?;
        String::from_utf8(bytes).map_err(|error| std::io::Error::other(error.to_string()))
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
    use std::io::Write;

    #[test]
    fn a_sealed_configuration_cannot_be_changed() {
        let snapshot = Snapshot::seal(Config::default()).unwrap();
        let mut file = std::fs::File::from(snapshot.descriptor().unwrap());
        assert!(file.write_all(b"x").is_err());
        assert!(file.set_len(0).is_err());
    }
}
