//! Starting, watching and ending worker processes: pidfds from the start, never a bare number.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::task::{Context, Poll};

use command_fds::{CommandFdExt, FdMapping};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use staging::version::PackageVersion;
use tokio::io::unix::AsyncFd;

use crate::descriptors::watch;

use crate::descriptors::{CHANNEL_FD, CONFIG_FD};

use super::origin::RUNS_AS;
use super::rollout::Generation;

/// What a worker may see of the supervisor's environment, besides its home: where certificates
/// are, and how to log. Everything else comes from the configuration.
const ENVIRONMENT: [&str; 6] = [
    "PATH",
    "ROLLPROXY_LOG",
    "RUST_BACKTRACE",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "TZ",
];

/// What a worker is started with.
pub struct Plan<'a> {
    /// The package's `rollproxy`.
    pub executable: &'a Path,
    /// Its number.
    pub generation: Generation,
    /// The version it runs.
    pub version: &'a PackageVersion,
    /// Its end of the channel.
    pub channel: OwnedFd,
    /// The sealed configuration.
    pub config: OwnedFd,
    /// The home.
    pub home: &'a Path,
}

/// A child that is ours until it is reaped.
#[derive(Debug)]
pub struct Process {
    pidfd: AsyncFd<OwnedFd>,
    pid: u32,
}

impl Process {
    /// Starts a worker: descriptors 3 and 4 and the standard output and error, nothing else.
    ///
    /// # Errors
    /// When the executable cannot be started, with the system's reason.
    pub fn spawn(plan: Plan<'_>) -> std::io::Result<Self> {
        let mut command = Command::new(plan.executable);
        command
            .arg("worker")
            .arg("--generation")
            .arg(plan.generation.to_string())
            .env_clear()
            .envs(worker_environment())
            .env("ROLLPROXY_HOME", plan.home)
            .env(RUNS_AS, plan.version.to_string())
            .current_dir("/")
            .stdin(Stdio::null());
        // Ctrl-C in a terminal is for the supervisor, which lets workers finish.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command
            .fd_mappings(vec![
                FdMapping {
                    parent_fd: plan.channel,
                    child_fd: CHANNEL_FD,
                },
                FdMapping {
                    parent_fd: plan.config,
                    child_fd: CONFIG_FD,
                },
            ])
            .map_err(|error| std::io::Error::other(error.to_string()))?;
        Self::start(&mut command)
    }

    /// Starts a child of any kind.
    ///
    /// # Errors
    /// When it cannot be started, with the system's reason.
    pub fn start(command: &mut Command) -> std::io::Result<Self> {
        let mut child = command.spawn()?;
        // Not reaped before we say so, so the number is this child's.
        Self::adopt(child.id()).inspect_err(|_| {
            // Nobody could watch it: it must not live on, nor stay behind as a zombie.
            let _ = child.kill();
            let _ = child.wait();
        })
    }

    /// A child that an earlier image of this process started.
    ///
    /// # Errors
    /// When there is no such process, or no descriptor is left.
    pub fn adopt(pid: u32) -> std::io::Result<Self> {
        let pidfd = open_pidfd(pid)?;
        Self::watched(pidfd, pid)
    }

    /// The same, of a pidfd that was opened already.
    ///
    /// # Errors
    /// When the runtime cannot watch it.
    pub fn watched(pidfd: OwnedFd, pid: u32) -> std::io::Result<Self> {
        Ok(Self {
            pidfd: watch(pidfd)?,
            pid,
        })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// SIGKILL; a process that has ended already is no error.
    pub fn kill(&self) {
        // ESRCH is the only way this fails for our own child: it has ended.
        let _ = rustix::process::pidfd_send_signal(self.pidfd.get_ref(), Signal::KILL);
    }

    /// SIGKILL for all of its process group, which it must lead.
    pub fn kill_group(&self) {
        if let Some(group) = raw_pid(self.pid) {
            // As in `kill`; it is not reaped yet, so the group is still its own.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }

    /// How it ended, once it has, in words; it is reaped by that.
    pub fn poll_exit(&self, context: &mut Context<'_>) -> Poll<String> {
        self.poll_ended(context).map(|ended| ended.to_string())
    }

    /// How it ended, once it has; it is reaped by that.
    pub fn poll_ended(&self, context: &mut Context<'_>) -> Poll<Ended> {
        loop {
            let mut guard = match self.pidfd.poll_read_ready(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(guard)) => guard,
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Ended::Unknown(format!("not watchable: {error}")));
                }
            };
            match self.reap() {
                Ok(Some(ended)) => return Poll::Ready(ended),
                Ok(None) => guard.clear_ready(),
                Err(error) => {
                    return Poll::Ready(Ended::Unknown(format!("not reapable: {error}")));
                }
            }
        }
    }

    fn reap(&self) -> rustix::io::Result<Option<Ended>> {
        let status = rustix::process::waitid(
            WaitId::PidFd(self.pidfd.get_ref().as_fd()),
            WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
        )?;
        Ok(status.map(
            |status| match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Ended::Code(code),
                (None, Some(signal)) => Ended::Signal(signal),
                (None, None) => Ended::Unknown("no reason given".to_owned()),
            },
        ))
    }
}

/// How a child ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// By itself.
    Code(i32),
    /// By a signal.
    Signal(i32),
    /// Nobody can tell.
    Unknown(String),
}

impl std::fmt::Display for Ended {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(out, "exit code {code}"),
            Self::Signal(signal) => write!(out, "signal {signal}"),
            Self::Unknown(what) => out.write_str(what),
        }
    }
}

/// What a child of ours may see of the supervisor's environment.
pub fn worker_environment() -> impl Iterator<Item = (&'static str, std::ffi::OsString)> {
    ENVIRONMENT
        .iter()
        .filter_map(|name| Some((*name, std::env::var_os(name)?)))
}

/// A descriptor of a child that was not reaped yet.
///
/// # Errors
/// When there is no such process, or no descriptor is left.
pub fn open_pidfd(pid: u32) -> std::io::Result<OwnedFd> {
    let pid = raw_pid(pid).ok_or(std::io::ErrorKind::InvalidInput)?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

fn raw_pid(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}
