//! Check mode: the new program reads a copy of the state as a child, and changes nothing.

use std::io::{Read, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::clock::Moment;
use command_fds::{CommandFdExt, FdMapping};

use super::super::process::{Ended, Process, worker_environment};
use super::super::record::shortened;
use super::conditions::Checked;
use super::memory::{readable, sealed};
use super::state::{State, StateError};

/// How long the new program may take to read the state.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Where the child finds the copy of the state.
const STATE_FD: i32 = 3;

/// The exit code that says: a state of another schema. `EX_DATAERR` of sysexits.h.
const INCOMPATIBLE: u8 = 65;

/// The longest words of the child that are read, in bytes.
const WORDS: u64 = 4096;

/// A check under way.
#[derive(Debug)]
pub struct Check {
    child: Process,
    words: std::fs::File,
    deadline: Moment,
    killed: bool,
    outcome: Option<Checked>,
}

impl Check {
    /// Starts the program in check mode on a copy of `state`: it has that, a place for its words, and nothing else.
    ///
    /// # Errors
    /// When it cannot be started, in words for a person.
    pub fn start(now: Moment, program: &Path, home: &Path, state: &[u8]) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", program.display());
        let state = sealed("rollproxy-state", state).map_err(failed)?;
        let words = readable("rollproxy-check").map_err(failed)?;
        let mut command = Command::new(program);
        command
            .args(["serve", "--check-state", &STATE_FD.to_string()])
            .env_clear()
            .envs(worker_environment())
            .env("ROLLPROXY_HOME", home)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::from(words.try_clone().map_err(failed)?))
            .stderr(Stdio::from(words.try_clone().map_err(failed)?))
            .process_group(0);
        command
            .fd_mappings(vec![FdMapping {
                parent_fd: state,
                child_fd: STATE_FD,
            }])
            .map_err(|error| error.to_string())?;
        Ok(Self {
            child: Process::start(&mut command).map_err(failed)?,
            words,
            deadline: now + TIMEOUT,
            killed: false,
            outcome: None,
        })
    }

    /// Whether it has just ended.
    pub fn poll(&mut self, context: &mut Context<'_>) -> bool {
        if self.outcome.is_some() {
            return false;
        }
        let Poll::Ready(ended) = self.child.poll_ended(context) else {
            return false;
        };
        let words = self.words();
        self.outcome = Some(match ended {
            Ended::Code(0) => Checked::Ready,
            Ended::Code(code) if code == i32::from(INCOMPATIBLE) => Checked::Incompatible(words),
            _ if self.killed => Checked::Failed(format!(
                "check mode did not end within {TIMEOUT:?} and was killed"
            )),
            other if words.is_empty() => Checked::Failed(format!("check mode ended ({other})")),
            other => Checked::Failed(format!("check mode ended ({other}): {words}")),
        });
        true
    }

    /// What it came to, once it has ended.
    pub fn outcome(&self) -> Option<Checked> {
        self.outcome.clone()
    }

    /// One that takes too long is killed, with all it started.
    pub fn tick(&mut self, now: Moment) {
        if self.deadline <= now && !self.killed && self.outcome.is_none() {
            self.killed = true;
            self.child.kill_group();
        }
    }

    /// When [`Self::tick`] has something to do.
    pub fn next_deadline(&self) -> Option<Moment> {
        (!self.killed && self.outcome.is_none()).then_some(self.deadline)
    }

    /// Ends it: nobody wants to know any more. It is reaped by whoever polls what is returned.
    pub fn abandon(self) -> Option<Process> {
        // Reaped already: its number may be another's.
        if self.outcome.is_some() {
            return None;
        }
        self.child.kill_group();
        Some(self.child)
    }

    fn words(&mut self) -> String {
        let mut bytes = Vec::new();
        // Words that cannot be read are no words; the exit code stands.
        let _ = self.words.rewind();
        let _ = (&mut self.words).take(WORDS).read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        shortened(last.unwrap_or_default().trim())
    }
}

/// `rollproxy serve --check-state`: reads the state, says nothing, changes nothing. The exit code.
pub fn check(state: OwnedFd) -> u8 {
    let read = super::memory::read(state)
        .map_err(StateError::Memory)
        .and_then(|bytes| State::parse(&bytes));
    let error = match read {
        Ok(_) => return 0,
        Err(error) => error,
    };
    staging::report::note(&error.to_string());
    match error {
        StateError::Memory(_) => 1,
        // Also one of our schema that has words in it which only another version knows.
        _ => INCOMPATIBLE,
    }
}
