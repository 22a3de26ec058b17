//! Where the supervisor itself came from, and where a version's worker is started from.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;

use staging::home::Home;
use staging::package::{self, Package, PackageError};
use staging::report::{Exit, Failure};
use staging::version::PackageVersion;

use super::handover::own_executable;

/// The name of the worker's entry point in a package.
pub const ENTRY: &str = "rollproxy";

/// What tells a worker which version it is where its executable does not: its package was removed.
pub const RUNS_AS: &str = "ROLLPROXY_RUNS_AS";

/// The supervisor's own version and executable, seen once at the start.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The version of the package it stands in, or the compiled one.
    pub version: PackageVersion,
    /// Its executable's path; the file may be gone since.
    pub executable: PathBuf,
    /// The same by descriptor, which stays.
    file: Rc<OwnedFd>,
}

impl Origin {
    /// Of this process.
    ///
    /// # Errors
    /// When the system does not say which executable this is.
    pub fn detect() -> std::io::Result<Self> {
        Self::carried(
            package::own_version(crate::COMPILED_VERSION),
            std::env::current_exe()?,
        )
    }

    /// Of this process, which knows from before what it is.
    ///
    /// # Errors
    /// When the system does not let us have our own executable.
    pub fn carried(version: PackageVersion, executable: PathBuf) -> std::io::Result<Self> {
        Ok(Self {
            version,
            executable,
            file: Rc::new(own_executable()?),
        })
    }

    /// This program's own executable.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Where this program can be started from: its path, and without that our descriptor of it.
    fn own_program(&self) -> PathBuf {
        if self.executable.exists() {
            return self.executable.clone();
        }
        // By our number: a child's own table has other things in the place of some of ours.
        PathBuf::from(format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            self.file.as_raw_fd()
        ))
    }

    /// The program of `version` for a supervisor: a file that is there. Our descriptor of a removed one starts workers, who
    /// are told their version; a supervisor that was started from it would not know what it is, and hold nothing that
    /// could start the next worker.
    ///
    /// # Errors
    /// As [`Self::executable_of`], and when the version's package was removed.
    pub fn program_of(&self, home: &Home, version: &PackageVersion) -> Result<PathBuf, Failure> {
        let program = self.executable_of(home, version)?;
        if Package::open(home, version).is_err() && program != self.executable {
            return Err(Failure::new(
                "NOT_INSTALLED",
                format!(
                    "version {version} runs, but its package was removed; select an installed version (`rollproxy list`)"
                ),
                Exit::NoPackage,
                false,
            ));
        }
        Ok(program)
    }

    /// The executable of `version`: among the packages first, then where the supervisor came from,
    /// so that removing an old tree never prevents a recovery.
    ///
    /// # Errors
    /// When neither has it, or its package speaks another channel protocol.
    pub fn executable_of(&self, home: &Home, version: &PackageVersion) -> Result<PathBuf, Failure> {
        match Package::open(home, version) {
            Ok(package) => {
                let range = &package.manifest.protocol.channel;
                let ours = staging::protocol::CHANNEL_PROTOCOL;
                if ours < range.min || ours > range.max {
                    return Err(Failure::new(
                        "PROTOCOL_MISMATCH",
                        format!(
                            "version {version} speaks channel protocols {} to {}, this supervisor ({}) speaks {ours}; restart the supervisor with a version that speaks both",
                            range.min, range.max, self.version
                        ),
                        Exit::Failed,
                        false,
                    ));
                }
                Ok(package.entry(ENTRY)?)
            }
            Err(_) if *version == self.version => Ok(self.own_program()),
            Err(PackageError::Missing { version, .. }) => Err(Failure::new(
                "NOT_INSTALLED",
                format!(
                    "version {version} is not installed; `rollproxy-launcher list` shows what is"
                ),
                Exit::NoPackage,
                false,
            )),
            Err(error) => Err(error.into()),
        }
    }
}
