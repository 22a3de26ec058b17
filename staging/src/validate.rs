//! Whether a staged package is what it says, and can be started here. The only place that runs what was downloaded, so
//! it does so last, bounded, and looks at the files once more afterwards.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::fs::StatVfsMountFlags;

use crate::archive::Unpacked;
use crate::contents::{self, ContentsError};
use crate::elf;
use crate::home::Home;
use crate::manifest::{Manifest, ManifestError};
use crate::package;
use crate::process::{self, ProcessError};
use crate::protocol::{self, CHANNEL_PROTOCOL};
use crate::report::{Exit, Report};
use crate::version::PackageVersion;

/// The entry that proves that the next update stays possible.
pub const UPDATER: &str = "rollproxy-updater";

/// What a message quotes of a program's own words, in bytes.
const MAX_QUOTE: usize = 300;

/// How a package is validated.
#[derive(Debug, Clone)]
pub struct Validator {
    /// The time that each entry has to answer `--version`.
    pub entry_timeout: Duration,
    /// The time that the staged updater has for its self-test.
    pub self_test_timeout: Duration,
    /// The channel version that the package must understand.
    pub channel: u32,
}

impl Default for Validator {
    fn default() -> Self {
        Validator {
            entry_timeout: Duration::from_secs(10),
            self_test_timeout: Duration::from_secs(30),
            channel: CHANNEL_PROTOCOL,
        }
    }
}

/// What the package must be.
#[derive(Debug, Clone)]
pub struct Expected {
    /// The version that was promised.
    pub version: PackageVersion,
    /// The digest of the manifest, if it is known already, as after unpacking.
    pub manifest_digest: Option<String>,
}

/// A package that passed.
#[derive(Debug, Clone)]
pub struct Validated {
    /// Its manifest.
    pub manifest: Manifest,
    /// How many entries answered.
    pub entries: usize,
    /// Whether it has an updater, whose self-test passed.
    pub self_tested: bool,
    /// How long it took.
    pub took: Duration,
}

/// Why a package did not pass.
#[derive(Debug, thiserror::Error)]
pub enum ValidationError {
    /// The manifest is not accepted.
    #[error("the staged package: {source}")]
    Manifest {
        /// Why.
        #[from]
        source: ManifestError,
    },
    /// It is another version than promised.
    #[error("the package is version {found}, promised was {expected}")]
    OtherVersion {
        /// The promise.
        expected: PackageVersion,
        /// The manifest.
        found: PackageVersion,
    },
    /// The manifest is another than the one unpacked.
    #[error("the manifest changed (sha256 {found}, expected {expected})")]
    ManifestChanged {
        /// The digest expected.
        expected: String,
        /// The digest found.
        found: String,
    },
    /// Built for another machine.
    #[error(
        "package {version} is built for {target}, and this is {}",
        protocol::TARGET
    )]
    Target {
        /// The package.
        version: PackageVersion,
        /// Its target.
        target: String,
    },
    /// It does not speak the supervisor's language.
    #[error(
        "package {version} understands channel {min} to {max}, this version speaks {ours}: update in smaller steps"
    )]
    Channel {
        /// The package.
        version: PackageVersion,
        /// The oldest it understands.
        min: u32,
        /// The newest it understands.
        max: u32,
        /// Ours.
        ours: u32,
    },
    /// The files are not what the manifest says.
    #[error("package {version}: {source}")]
    Contents {
        /// The package.
        version: PackageVersion,
        /// The difference.
        source: ContentsError,
    },
    /// The files are not what they were before the package ran.
    #[error("package {version} changed itself while it was tried: {source}")]
    ChangedItself {
        /// The package.
        version: PackageVersion,
        /// The difference.
        source: ContentsError,
    },
    /// An entry is no program for this machine.
    #[error("entry {entry} of package {version} cannot run here: {why}")]
    NotExecutable {
        /// The package.
        version: PackageVersion,
        /// The entry.
        entry: String,
        /// Why not.
        why: String,
    },
    /// An entry did not run, or not to its end.
    #[error("entry {entry} of package {version} with `{arguments}`: {source}")]
    Run {
        /// The package.
        version: PackageVersion,
        /// The entry.
        entry: String,
        /// What it was asked.
        arguments: String,
        /// What happened.
        source: ProcessError,
    },
    /// Nothing can be started where packages lie.
    #[error(
        "no program can be started from {folder}: its file system is mounted noexec; mount it with exec, or put the home elsewhere with ROLLPROXY_HOME"
    )]
    NoExec {
        /// The folder.
        folder: PathBuf,
    },
    /// An entry ended badly.
    #[error("entry {entry} of package {version} with `{arguments}` ended with {status}: {said}")]
    Exit {
        /// The package.
        version: PackageVersion,
        /// The entry.
        entry: String,
        /// What it was asked.
        arguments: String,
        /// How it ended.
        status: String,
        /// Its last words, shortened.
        said: String,
    },
    /// An entry was ended from outside, as by somebody who is short of memory.
    #[error(
        "entry {entry} of package {version} with `{arguments}` was ended by {signal}: that is not its own doing, and is tried again"
    )]
    Killed {
        /// The package.
        version: PackageVersion,
        /// The entry.
        entry: String,
        /// What it was asked.
        arguments: String,
        /// The signal.
        signal: String,
    },
    /// The staged updater could not go on from this home.
    #[error(
        "the updater of package {version} could not take the next update here (`check --self-test` ended with {status}): {said}"
    )]
    SelfTest {
        /// The package.
        version: PackageVersion,
        /// How it ended.
        status: String,
        /// Its last words, shortened.
        said: String,
    },
    /// An entry says that it is something else.
    #[error("entry {entry} of package {version} says that it is {said:?}")]
    Report {
        /// The package.
        version: PackageVersion,
        /// The entry.
        entry: String,
        /// What it printed, shortened.
        said: String,
    },
    /// The caller called it off.
    #[error("validating package {version} was called off")]
    Cancelled {
        /// The package.
        version: PackageVersion,
    },
}

impl Report for ValidationError {
    fn code(&self) -> &'static str {
        match self {
            ValidationError::Manifest { source } => source.code(),
            ValidationError::OtherVersion { .. } | ValidationError::Report { .. } => {
                "VERSION_MISMATCH"
            }
            ValidationError::ManifestChanged { .. } => "MANIFEST_CHANGED",
            ValidationError::Target { .. } => "TARGET_MISMATCH",
            ValidationError::Channel { .. } => "CHANNEL_MISMATCH",
            ValidationError::Contents { source, .. } => source.code(),
            ValidationError::ChangedItself { .. } => "PACKAGE_CHANGED_ITSELF",
            ValidationError::NotExecutable { .. } => "ENTRY_NOT_EXECUTABLE",
            ValidationError::Run {
                source: ProcessError::TimedOut { .. },
                ..
            } => "ENTRY_TIMED_OUT",
            ValidationError::Run {
                source: ProcessError::Busy { .. },
                ..
            } => "ENTRY_BUSY",
            ValidationError::Run { .. } => "ENTRY_DID_NOT_RUN",
            ValidationError::NoExec { .. } => "STAGING_NOEXEC",
            ValidationError::Exit { .. } => "ENTRY_FAILED",
            ValidationError::Killed { .. } => "ENTRY_KILLED",
            ValidationError::SelfTest { .. } => "SELF_TEST_FAILED",
            ValidationError::Cancelled { .. } => "VALIDATION_CANCELLED",
        }
    }
    fn exit(&self) -> Exit {
        Exit::Failed
    }
    fn retry(&self) -> bool {
        match self {
            ValidationError::Contents { source, .. } => source.retry(),
            ValidationError::Cancelled { .. } => true,
            // A host under load may be slow or short of processes today.
            ValidationError::Run { .. } | ValidationError::Killed { .. } => true,
            // It speaks about this home as much as about the package.
            ValidationError::SelfTest { .. } => true,
            _ => false,
        }
    }
}

impl Validator {
    /// Validates the package in `staged` against what was promised and for this home. `cancel` is asked often; once it
    /// says yes, whatever runs is killed.
    ///
    /// # Errors
    /// [`ValidationError`], the first thing that is wrong.
    pub fn validate(
        &self,
        staged: &Path,
        expected: &Expected,
        home: &Home,
        cancel: &dyn Fn() -> bool,
    ) -> Result<Validated, ValidationError> {
        self.judge(staged, expected, home, cancel, contents::verify)
    }

    /// [`Validator::validate`] of what this process has just unpacked there, hashing it: nothing is hashed again before the
    /// package runs. Afterwards everything is, as always.
    ///
    /// # Errors
    /// [`ValidationError`], the first thing that is wrong.
    pub fn validate_unpacked(
        &self,
        staged: &Path,
        version: &PackageVersion,
        unpacked: &Unpacked,
        home: &Home,
        cancel: &dyn Fn() -> bool,
    ) -> Result<Validated, ValidationError> {
        let expected = Expected {
            version: version.clone(),
            manifest_digest: Some(unpacked.manifest.digest().to_owned()),
        };
        self.judge(staged, &expected, home, cancel, contents::verify_names)
    }

    fn judge(
        &self,
        staged: &Path,
        expected: &Expected,
        home: &Home,
        cancel: &dyn Fn() -> bool,
        verify: fn(&Path, &Manifest) -> Result<(), ContentsError>,
    ) -> Result<Validated, ValidationError> {
        let start = Instant::now();
        let manifest = Manifest::read(staged)?;
        check_identity(&manifest, expected)?;
        self.check_fits(&manifest)?;
        let trial = Trial {
            staged,
            manifest: &manifest,
            home,
            cancel,
        };
        trial.go_on()?;
        verify(staged, &manifest).map_err(|source| ValidationError::Contents {
            version: manifest.version.clone(),
            source,
        })?;
        for entry in manifest.entries.keys() {
            trial.check_executable(entry)?;
        }
        for entry in manifest.entries.keys() {
            trial.ask_version(entry, self.entry_timeout)?;
        }
        let self_tested = manifest.entries.contains_key(UPDATER);
        if self_tested {
            let tested = trial.run(UPDATER, &["check", "--self-test"], self.self_test_timeout);
            tested.map_err(|error| match error {
                ValidationError::Exit {
                    version,
                    status,
                    said,
                    ..
                } => ValidationError::SelfTest {
                    version,
                    status,
                    said,
                },
                other => other,
            })?;
        }
        trial.check_unchanged()?;
        Ok(Validated {
            entries: manifest.entries.len(),
            self_tested,
            took: start.elapsed(),
            manifest,
        })
    }

    fn check_fits(&self, manifest: &Manifest) -> Result<(), ValidationError> {
        let version = &manifest.version;
        if !protocol::runs_here(&manifest.target) {
            return Err(ValidationError::Target {
                version: version.clone(),
                target: manifest.target.clone(),
            });
        }
        let channel = manifest.protocol.channel;
        if !channel.contains(self.channel) {
            return Err(ValidationError::Channel {
                version: version.clone(),
                min: channel.min,
                max: channel.max,
                ours: self.channel,
            });
        }
        Ok(())
    }
}

fn check_identity(manifest: &Manifest, expected: &Expected) -> Result<(), ValidationError> {
    if manifest.version != expected.version {
        return Err(ValidationError::OtherVersion {
            expected: expected.version.clone(),
            found: manifest.version.clone(),
        });
    }
    match &expected.manifest_digest {
        Some(digest) if digest != manifest.digest() => Err(ValidationError::ManifestChanged {
            expected: digest.clone(),
            found: manifest.digest().to_owned(),
        }),
        _ => Ok(()),
    }
}

/// One package on trial.
struct Trial<'a> {
    staged: &'a Path,
    manifest: &'a Manifest,
    home: &'a Home,
    cancel: &'a dyn Fn() -> bool,
}

impl Trial<'_> {
    fn version(&self) -> PackageVersion {
        self.manifest.version.clone()
    }

    fn go_on(&self) -> Result<(), ValidationError> {
        if (self.cancel)() {
            return Err(ValidationError::Cancelled {
                version: self.version(),
            });
        }
        Ok(())
    }

    fn path(&self, entry: &str) -> PathBuf {
        // Every entry names a path: the manifest was checked for it.
        self.staged.join(
            self.manifest
                .entries
                .get(entry)
                .map_or(entry, String::as_str),
        )
    }

    fn check_executable(&self, entry: &str) -> Result<(), ValidationError> {
        let why = match elf::check_file(&self.path(entry)) {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(why)) => why,
            Err(error) => error.to_string(),
        };
        Err(ValidationError::NotExecutable {
            version: self.version(),
            entry: entry.to_owned(),
            why,
        })
    }

    fn ask_version(&self, entry: &str, timeout: Duration) -> Result<(), ValidationError> {
        let output = self.run(entry, &["--version"], timeout)?;
        let printed = String::from_utf8_lossy(&output.stdout);
        let version = self.manifest.version.to_string();
        if package::reported_version(&printed) == Some((entry, version.as_str())) {
            return Ok(());
        }
        Err(ValidationError::Report {
            version: self.version(),
            entry: entry.to_owned(),
            said: quote(&output.stdout),
        })
    }

    /// Runs an entry from the staging folder. It gets this home and a PATH, and nothing else of our environment.
    fn run(
        &self,
        entry: &str,
        arguments: &[&str],
        timeout: Duration,
    ) -> Result<process::Output, ValidationError> {
        self.go_on()?;
        let mut command = Command::new(self.path(entry));
        command
            .args(arguments)
            .current_dir("/")
            .env_clear()
            .env("ROLLPROXY_HOME", self.home.root());
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        let output = match process::run_bounded(&mut command, timeout, self.cancel) {
            Ok(output) => output,
            Err(ProcessError::Cancelled { .. }) => {
                return Err(ValidationError::Cancelled {
                    version: self.version(),
                });
            }
            Err(ProcessError::Spawn { source, .. }) if self.is_forbidden(&source) => {
                return Err(ValidationError::NoExec {
                    folder: self.home.packages(),
                });
            }
            Err(source) => {
                return Err(ValidationError::Run {
                    version: self.version(),
                    entry: entry.to_owned(),
                    arguments: arguments.join(" "),
                    source,
                });
            }
        };
        if output.status.success() {
            return Ok(output);
        }
        if let Some(signal) = from_outside(output.status) {
            return Err(ValidationError::Killed {
                version: self.version(),
                entry: entry.to_owned(),
                arguments: arguments.join(" "),
                signal: signal.to_owned(),
            });
        }
        let said = if output.stderr.is_empty() {
            &output.stdout
        } else {
            &output.stderr
        };
        Err(ValidationError::Exit {
            version: self.version(),
            entry: entry.to_owned(),
            arguments: arguments.join(" "),
            status: output.status.to_string(),
            said: quote(said),
        })
    }

    /// Whether it is the file system that forbids to start what lies on it.
    fn is_forbidden(&self, error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::PermissionDenied
            && rustix::fs::statvfs(self.staged)
                .is_ok_and(|about| about.f_flag.contains(StatVfsMountFlags::NOEXEC))
    }

    fn check_unchanged(&self) -> Result<(), ValidationError> {
        self.go_on()?;
        let now = Manifest::read(self.staged)?;
        if now.digest() != self.manifest.digest() {
            return Err(ValidationError::ManifestChanged {
                expected: self.manifest.digest().to_owned(),
                found: now.digest().to_owned(),
            });
        }
        contents::verify(self.staged, self.manifest).map_err(|source| {
            ValidationError::ChangedItself {
                version: self.version(),
                source,
            }
        })
    }
}

/// The signal that ended a program, if it is one that programs do not earn by a fault of their own.
fn from_outside(status: ExitStatus) -> Option<&'static str> {
    const KILL: i32 = 9;
    const HANG_UP: i32 = 1;
    const INTERRUPT: i32 = 2;
    const TERMINATE: i32 = 15;
    match status.signal()? {
        KILL => Some("SIGKILL"),
        TERMINATE => Some("SIGTERM"),
        INTERRUPT => Some("SIGINT"),
        HANG_UP => Some("SIGHUP"),
        _ => None,
    }
}

/// A program's last words, fit for a message: bounded, one line, no control characters.
fn quote(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_end();
    let mut from = text.len().saturating_sub(MAX_QUOTE);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..]
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::pack_folder;
    use crate::pack::tests::plan;

    fn never() -> bool {
        false
    }

    /// What is refused before anything runs. Running entries are tried in `tests/validation.rs`.
    fn refusal(
        change: impl FnOnce(&mut crate::pack::Plan, &mut Expected, &mut Validator),
    ) -> ValidationError {
        let folder = crate::scratch::Scratch::new();
        let mut plan = plan(folder.path(), "1.2.0");
        let mut expected = Expected {
            version: "1.2.0".parse().unwrap(),
            manifest_digest: None,
        };
        let mut validator = Validator::default();
        change(&mut plan, &mut expected, &mut validator);
        let root = folder.path().join("package");
        pack_folder(&plan, &root).unwrap();
        let home = Home::at(folder.path().join("home"));
        validator
            .validate(&root, &expected, &home, &never)
            .unwrap_err()
    }

    #[test]
    fn a_promise_of_another_version_is_broken() {
        let error = refusal(|_, expected, _| expected.version = "9.9.0".parse().unwrap());
        assert_eq!(error.code(), "VERSION_MISMATCH");
        assert!(
            error.to_string().contains("9.9.0") && error.to_string().contains("1.2.0"),
            "{error}"
        );
    }

    #[test]
    fn another_machine_and_a_foreign_channel_are_refused() {
        let other = if cfg!(target_arch = "x86_64") {
            "aarch64"
        } else {
            "x86_64"
        };
        let error = refusal(|plan, _, _| plan.target = format!("{other}-unknown-linux-gnu"));
        assert_eq!(error.code(), "TARGET_MISMATCH");
        let error = refusal(|_, _, validator| validator.channel = 2);
        assert_eq!(error.code(), "CHANNEL_MISMATCH");
        let error = refusal(|_, expected, _| expected.manifest_digest = Some("00".into()));
        assert_eq!(error.code(), "MANIFEST_CHANGED");
    }

    #[test]
    fn a_script_and_a_program_of_another_processor_are_no_entries() {
        let error = refusal(|plan, _, _| {
            std::fs::write(&plan.binaries[0].1, "#!/bin/sh\necho rollproxy 1.2.0\n").unwrap()
        });
        assert_eq!(error.code(), "ENTRY_NOT_EXECUTABLE");
        let other = if cfg!(target_arch = "x86_64") {
            183
        } else {
            62
        };
        let error = refusal(|plan, _, _| {
            std::fs::write(&plan.binaries[0].1, elf::tests::header(other, 3)).unwrap()
        });
        assert_eq!(error.code(), "ENTRY_NOT_EXECUTABLE");
        assert!(error.to_string().contains("rollproxy"), "{error}");
    }

    #[test]
    fn a_program_the_kernel_refuses_is_named() {
        // ELF in its first bytes only.
        let error = refusal(|_, _, _| ());
        assert!(
            matches!(
                error,
                ValidationError::Run { .. } | ValidationError::Exit { .. }
            ),
            "{error}"
        );
    }

    #[test]
    fn what_somebody_else_ended_is_told_from_what_fell() {
        for (raw, outside) in [
            (9, Some("SIGKILL")),
            (15, Some("SIGTERM")),
            (11, None),
            (6, None),
            (1 << 8, None),
        ] {
            assert_eq!(from_outside(ExitStatus::from_raw(raw)), outside, "{raw}");
        }
    }

    #[test]
    fn last_words_are_bounded_and_on_one_line() {
        assert_eq!(quote(b"a\nb\x1b[31m\n"), "a b [31m");
        let long = "\u{e4}".repeat(MAX_QUOTE);
        let quoted = quote(long.as_bytes());
        assert!(quoted.len() <= MAX_QUOTE && quoted.chars().all(|c| c == '\u{e4}'));
    }
}
