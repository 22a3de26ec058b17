//! Where the supervisor itself came from, and where a version's worker is started from.

use std::path::PathBuf;

use staging::home::Home;
use staging::package::{self, Package, PackageError};
use staging::report::{Exit, Failure};
use staging::version::PackageVersion;

/// The name of the worker's entry point in a package.
pub const ENTRY: &str = "rollproxy";

/// The supervisor's own version and executable, seen once at the start.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The version of the package it stands in, or the compiled one.
    pub version: PackageVersion,
    /// Its executable.
    pub executable: PathBuf,
}

impl Origin {
    /// Of this process.
    ///
    /// # Errors
    /// When the system does not say which executable this is.
    pub fn detect() -> std::io::Result<Self> {
        Ok(Self {
            version: package::own_version(crate::COMPILED_VERSION),
            executable: std::env::current_exe()?,
        })
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
            Err(_) if *version == self.version => Ok(self.executable.clone()),
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
