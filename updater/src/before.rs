//! What stood when a check began: everything it changes later is bound to that.

use std::time::Duration;

use staging::home::Home;
use staging::locks::StateLock;
use staging::ownership::{self, Ownership, SupervisorRecord};
use staging::report::Failure;
use staging::selection::{self, Selection};
use staging::version::PackageVersion;

/// How long another holder of the state lock is waited for.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// What stood when the check began: everything later is bound to it.
#[derive(Debug)]
pub struct Before {
    /// Who supervised.
    pub ownership: Ownership,
    /// What that supervisor said about itself.
    pub supervisor: Option<SupervisorRecord>,
    /// What was selected.
    pub selection: Option<Selection>,
}

impl Before {
    /// Looks.
    ///
    /// # Errors
    /// What is not clear, or cannot be read.
    pub fn look(home: &Home) -> Result<Self, Failure> {
        let ownership = Ownership::observe(home)?;
        let supervisor = match ownership.supervisor() {
            // The record of exactly this supervisor, or none: it may have been replaced between the two looks.
            Some(identity) => {
                ownership::read_supervisor(home)?.filter(|record| record.identity == *identity)
            }
            None => None,
        };
        Ok(Self {
            ownership,
            supervisor,
            selection: selection::read(home)?,
        })
    }

    /// The selected version.
    pub fn selected(&self) -> Option<&PackageVersion> {
        self.selection.as_ref().map(|selection| &selection.version)
    }

    /// The selection's serial.
    pub fn serial(&self) -> Option<u64> {
        self.selection.as_ref().map(|selection| selection.serial)
    }

    /// The version of the supervisor.
    pub fn running(&self) -> Option<&PackageVersion> {
        self.supervisor.as_ref().map(|record| &record.version)
    }

    /// The state lock, held while everything is still as it was.
    ///
    /// # Errors
    /// Another supervises now, or the lock cannot be had.
    pub fn unchanged(&self, home: &Home) -> Result<StateLock, Failure> {
        let lock = StateLock::acquire(home, LOCK_TIMEOUT)?;
        self.ownership.recheck(&lock, home)?;
        Ok(lock)
    }
}
