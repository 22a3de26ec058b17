//! What stood when a check began: everything it changes later is bound to that.

use std::time::Duration;

use staging::home::Home;
use staging::locks::StateLock;
use staging::ownership::{self, Ownership, SupervisorRecord};
use staging::report::{Exit, Failure};
use staging::selection::{self, Selection};
use staging::update_state;
use staging::version::PackageVersion;

use crate::policy::{self, Stood};

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
    /// What was selected and pending, as later steps compare it.
    stood: Stood,
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
        let selection = selection::read(home)?;
        let stood = stood(home, selection.as_ref())?;
        Ok(Self {
            ownership,
            supervisor,
            selection,
            stood,
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

    /// The state lock, held while everything is still as it was, or as `job`, who asks, made it.
    ///
    /// # Errors
    /// Another supervises now, another version is selected or pending, or the lock cannot be had.
    pub fn unchanged(&self, home: &Home, job: &str) -> Result<StateLock, Failure> {
        let lock = StateLock::acquire(home, LOCK_TIMEOUT)?;
        self.ownership.recheck(&lock, home)?;
        let now = stood(home, selection::read(home)?.as_ref())?;
        if policy::is_unchanged(&self.stood, &now, Some(job)) {
            return Ok(lock);
        }
        Err(Failure::new(
            "STATE_CHANGED",
            "what is selected or pending changed since this check began: nothing more is done, the next one decides anew",
            Exit::Deferred,
            true,
        ))
    }
}

fn stood(home: &Home, selection: Option<&Selection>) -> Result<Stood, Failure> {
    Ok(Stood {
        serial: selection.map(|selection| selection.serial),
        pending: update_state::read(home)?.pending.map(|pending| pending.job),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use staging::selection::Change;

    fn select(home: &Home, version: PackageVersion) {
        let lock = StateLock::acquire(home, Duration::from_secs(10)).unwrap();
        let change = Change {
            version,
            pinned: false,
            by: "job".to_owned(),
        };
        selection::write(&lock, home, change).unwrap();
    }

    fn pend(home: &Home, job: &str) {
        let lock = StateLock::acquire(home, Duration::from_secs(10)).unwrap();
        let version = PackageVersion::new(1, 1, 0);
        update_state::set_pending(&lock, home, &version, job, "d").unwrap();
    }

    #[test]
    fn a_job_that_slept_through_a_newer_one_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::at(folder.path().join("home"));
        home.create().unwrap();
        select(&home, PackageVersion::new(1, 0, 0));
        let stale = Before::look(&home).unwrap();
        drop(stale.unchanged(&home, "stale").unwrap());
        // Its own step is none that it stumbles over.
        pend(&home, "stale");
        drop(stale.unchanged(&home, "stale").unwrap());

        pend(&home, "newer");
        let refused = stale.unchanged(&home, "stale").unwrap_err();
        assert_eq!(
            (refused.code.as_str(), refused.exit),
            ("STATE_CHANGED", Exit::Deferred)
        );
        // The newer one ended: its version is selected, and nothing is pending any more.
        let lock = StateLock::acquire(&home, Duration::from_secs(10)).unwrap();
        update_state::modify(&lock, &home, |state| {
            state.kept(&PackageVersion::new(1, 1, 0))
        })
        .unwrap();
        drop(lock);
        select(&home, PackageVersion::new(1, 1, 0));
        assert_eq!(
            stale.unchanged(&home, "stale").unwrap_err().code,
            "STATE_CHANGED"
        );
        drop(
            Before::look(&home)
                .unwrap()
                .unchanged(&home, "next")
                .unwrap(),
        );
    }
}
