//! Who supervises: a process proven by more than its number, and a job's right to act still being what it was.

use std::fs;
use std::io;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::document::{self, Document, DocumentError};
use crate::home::Home;
use crate::locks::{self, StateLock, SupervisorLock};
use crate::report::{Exit, Report};
use crate::version::PackageVersion;

/// A process that cannot be mistaken for another: a number alone is reused, start times repeat after a boot,
/// and the nonce tells two instances of one process (before and after an exec in place) apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessIdentity {
    /// The process id.
    pub pid: u32,
    /// When it started, in clock ticks since boot (field 22 of `/proc/<pid>/stat`).
    pub start_time: u64,
    /// The boot it belongs to.
    pub boot_id: String,
    /// Random, one an instance.
    pub nonce: String,
}

impl ProcessIdentity {
    /// This process, with a fresh nonce: call it once and keep the answer.
    ///
    /// # Errors
    /// [`OwnershipError::Proc`] if /proc does not tell.
    pub fn current() -> Result<ProcessIdentity, OwnershipError> {
        let pid = std::process::id();
        let stat_path = PathBuf::from("/proc/self/stat");
        let stat = read_proc(stat_path.clone())?;
        let (_, start_time) = parse_stat(&stat).ok_or_else(|| OwnershipError::Proc {
            path: stat_path,
            source: io::Error::other("the line has not the expected form"),
        })?;
        Ok(ProcessIdentity {
            pid,
            start_time,
            boot_id: boot_id()?,
            nonce: read_proc(PathBuf::from("/proc/sys/kernel/random/uuid"))?,
        })
    }

    /// Whether exactly this process still runs. A zombie does not; neither does anything of another boot.
    pub fn is_alive(&self) -> bool {
        if boot_id().ok().as_deref() != Some(self.boot_id.as_str()) {
            return false;
        }
        let Ok(stat) = fs::read_to_string(format!("/proc/{}/stat", self.pid)) else {
            return false;
        };
        match parse_stat(&stat) {
            Some((state, start_time)) => {
                start_time == self.start_time && !matches!(state, 'Z' | 'X' | 'x')
            }
            None => false,
        }
    }
}

impl std::fmt::Display for ProcessIdentity {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "pid {}", self.pid)
    }
}

fn boot_id() -> Result<String, OwnershipError> {
    read_proc(PathBuf::from("/proc/sys/kernel/random/boot_id"))
}

fn read_proc(path: PathBuf) -> Result<String, OwnershipError> {
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text.trim_end().to_owned()),
        Err(source) => Err(OwnershipError::Proc { path, source }),
    }
}

/// State and start time out of `/proc/<pid>/stat`. The program's name may hold spaces and parentheses, so the fields
/// are counted from the last closing one.
fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // The state is field 3; the start time is field 22.
    let start_time = fields.nth(18)?.parse().ok()?;
    Some((state, start_time))
}

/// `run/supervisor.json`: who supervises this home, written by who holds the supervisor lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SupervisorRecord {
    /// Always written as 1.
    pub schema: u32,
    /// The process.
    #[serde(flatten)]
    pub identity: ProcessIdentity,
    /// The supervisor's own version.
    pub version: PackageVersion,
    /// Its executable.
    pub executable: PathBuf,
    /// The addresses it listens on.
    pub listeners: Vec<String>,
    /// Since when it supervises.
    pub since: Timestamp,
}

impl Document for SupervisorRecord {
    const SCHEMA: u32 = 1;
    const NAME: &'static str = "supervisor record";
}

/// Why ownership is not established; each defers a job, for nothing may be changed on a guess.
#[derive(Debug, thiserror::Error)]
pub enum OwnershipError {
    /// /proc does not tell.
    #[error("reading {path}: {source}")]
    Proc {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The record is there and cannot be read.
    #[error("who supervises cannot be read: {source}")]
    Record {
        /// What is wrong with the record.
        #[from]
        source: DocumentError,
    },
    /// The lock and its record disagree, as while a supervisor starts.
    #[error("a supervisor holds {lock} and has not yet said who it is: try again in a moment")]
    Unclear {
        /// The supervisor lock.
        lock: PathBuf,
    },
    /// Looking at the lock failed.
    #[error("looking at {lock}: {source}")]
    Look {
        /// The supervisor lock.
        lock: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another supervises than at the start of the job.
    #[error(
        "the supervisor changed while the job ran (was {was}, is {now}): nothing was changed, run the job again"
    )]
    Changed {
        /// At the start.
        was: Box<Owner>,
        /// Now.
        now: Box<Owner>,
    },
}

impl Report for OwnershipError {
    fn code(&self) -> &'static str {
        match self {
            OwnershipError::Proc { .. } => "OWNERSHIP_PROC",
            OwnershipError::Record { .. } => "OWNERSHIP_UNREADABLE",
            OwnershipError::Unclear { .. } => "OWNERSHIP_UNCLEAR",
            OwnershipError::Look { .. } => "OWNERSHIP_LOOK",
            OwnershipError::Changed { .. } => "OWNERSHIP_CHANGED",
        }
    }
    fn exit(&self) -> Exit {
        Exit::Deferred
    }
    fn retry(&self) -> bool {
        true
    }
}

/// Who supervises a home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// Nobody.
    None,
    /// This process.
    Supervisor(ProcessIdentity),
}

impl std::fmt::Display for Owner {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Owner::None => formatter.write_str("nobody"),
            Owner::Supervisor(identity) => identity.fmt(formatter),
        }
    }
}

/// The record of the supervisor as it stands, dead or alive.
///
/// # Errors
/// [`OwnershipError::Record`]
pub fn read_supervisor(home: &Home) -> Result<Option<SupervisorRecord>, OwnershipError> {
    Ok(document::read(&home.supervisor_record())?)
}

/// Who supervised when a job began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ownership {
    owner: Owner,
}

impl Ownership {
    /// Sees who supervises now.
    ///
    /// # Errors
    /// [`OwnershipError`] when that is not clear.
    pub fn observe(home: &Home) -> Result<Ownership, OwnershipError> {
        if let Some(record) = read_supervisor(home)?
            && record.identity.is_alive()
        {
            return Ok(Ownership {
                owner: Owner::Supervisor(record.identity),
            });
        }
        // Nobody alive in the record. The lock tells a supervisor that has just begun from none.
        match locks::is_held(&home.supervisor_lock()) {
            Ok(false) => Ok(Ownership { owner: Owner::None }),
            Ok(true) => Err(OwnershipError::Unclear {
                lock: home.supervisor_lock(),
            }),
            Err(source) => Err(OwnershipError::Look {
                lock: home.supervisor_lock(),
                source,
            }),
        }
    }

    /// Who it was.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The supervisor, if there was one.
    pub fn supervisor(&self) -> Option<&ProcessIdentity> {
        match &self.owner {
            Owner::None => None,
            Owner::Supervisor(identity) => Some(identity),
        }
    }

    /// Refuses unless it still is who it was. The state lock is held across this and what it allows.
    ///
    /// # Errors
    /// [`OwnershipError::Changed`], or that it is not clear.
    pub fn recheck(&self, _lock: &StateLock, home: &Home) -> Result<(), OwnershipError> {
        let now = Ownership::observe(home)?;
        if now.owner == self.owner {
            return Ok(());
        }
        Err(OwnershipError::Changed {
            was: Box::new(self.owner.clone()),
            now: Box::new(now.owner),
        })
    }
}

impl SupervisorLock {
    /// Writes who supervises beside the lock.
    ///
    /// # Errors
    /// [`DocumentError::Write`]
    pub fn announce(&self, home: &Home, record: &SupervisorRecord) -> Result<(), DocumentError> {
        document::write(&home.supervisor_record(), record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::home;
    use std::time::Duration;

    fn record(identity: ProcessIdentity) -> SupervisorRecord {
        SupervisorRecord {
            schema: 1,
            identity,
            version: PackageVersion::new(1, 2, 3),
            executable: "/opt/rollproxy".into(),
            listeners: vec!["127.0.0.1:8787".into()],
            since: crate::clock::now(),
        }
    }

    #[test]
    fn names_with_parentheses_and_spaces_do_not_confuse_the_fields() {
        let tail = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        for name in ["plain", "a b", "a) R 1 (b", ")))", ""] {
            assert_eq!(
                parse_stat(&format!("77 ({name}) {tail}")),
                Some(('S', 4242)),
                "{name:?}"
            );
        }
        assert_eq!(parse_stat("77 (x) S 1 2"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn this_process_lives_and_its_lookalikes_do_not() {
        let me = ProcessIdentity::current().unwrap();
        assert!(me.is_alive());
        assert_ne!(me.nonce, ProcessIdentity::current().unwrap().nonce);
        let reused = ProcessIdentity {
            start_time: me.start_time + 1,
            ..me.clone()
        };
        assert!(!reused.is_alive(), "a reused pid was taken for the process");
        let rebooted = ProcessIdentity {
            boot_id: "other".into(),
            ..me.clone()
        };
        assert!(!rebooted.is_alive());
    }

    #[test]
    fn a_zombie_is_dead() {
        let mut child = std::process::Command::new("/bin/sh")
            .arg("-c")
            .arg("exit 0")
            .spawn()
            .unwrap();
        let pidfd = rustix::process::pidfd_open(
            rustix::process::Pid::from_child(&child),
            rustix::process::PidfdFlags::empty(),
        )
        .unwrap();
        let mut fds = [rustix::event::PollFd::new(
            &pidfd,
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut fds, None).unwrap();
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let (state, start_time) = parse_stat(&stat).unwrap();
        assert_eq!(state, 'Z');
        let identity = ProcessIdentity {
            pid: child.id(),
            start_time,
            ..ProcessIdentity::current().unwrap()
        };
        assert!(!identity.is_alive());
        child.wait().unwrap();
    }

    #[test]
    fn the_record_is_flat_camel_case() {
        let value = serde_json::to_value(record(ProcessIdentity::current().unwrap())).unwrap();
        for key in [
            "schema",
            "pid",
            "startTime",
            "bootId",
            "nonce",
            "version",
            "executable",
            "listeners",
            "since",
        ] {
            assert!(value.get(key).is_some(), "{key}");
        }
    }

    #[test]
    fn a_job_sees_its_supervisor_go_come_and_be_replaced() {
        let (_folder, home) = home();
        let state = StateLock::acquire(&home, Duration::ZERO).unwrap();
        let before = Ownership::observe(&home).unwrap();
        assert_eq!(before.owner(), &Owner::None);
        before.recheck(&state, &home).unwrap();

        // One that starts: lock held, nothing said yet.
        let supervisor = SupervisorLock::try_acquire(&home).unwrap();
        assert!(matches!(
            before.recheck(&state, &home),
            Err(OwnershipError::Unclear { .. })
        ));

        let me = ProcessIdentity::current().unwrap();
        supervisor.announce(&home, &record(me.clone())).unwrap();
        assert!(matches!(
            before.recheck(&state, &home),
            Err(OwnershipError::Changed { .. })
        ));
        let during = Ownership::observe(&home).unwrap();
        assert_eq!(during.supervisor(), Some(&me));
        during.recheck(&state, &home).unwrap();

        // Another instance: same pid and start time, another nonce.
        let next = ProcessIdentity::current().unwrap();
        supervisor.announce(&home, &record(next)).unwrap();
        let error = during.recheck(&state, &home).unwrap_err();
        assert_eq!(error.code(), "OWNERSHIP_CHANGED");
        assert_eq!(error.exit(), Exit::Deferred);

        // Dead, its record left behind.
        let dead = ProcessIdentity {
            start_time: 1,
            ..me
        };
        supervisor.announce(&home, &record(dead)).unwrap();
        drop(supervisor);
        assert!(matches!(
            during.recheck(&state, &home),
            Err(OwnershipError::Changed { .. })
        ));
        before.recheck(&state, &home).unwrap();
    }

    #[test]
    fn an_unreadable_record_defers() {
        let (_folder, home) = home();
        fs::write(home.supervisor_record(), "{").unwrap();
        let error = Ownership::observe(&home).unwrap_err();
        assert_eq!(error.code(), "OWNERSHIP_UNREADABLE");
        assert_eq!(error.exit(), Exit::Deferred);
    }
}
