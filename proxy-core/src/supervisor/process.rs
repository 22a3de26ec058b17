//! Starting, watching and ending worker processes: pidfds from the start, never a bare number.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::task::{Context, Poll};

use command_fds::{CommandFdExt, FdMapping};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use tokio::io::unix::AsyncFd;

use crate::descriptors::watch;

use crate::descriptors::{CHANNEL_FD, CONFIG_FD};

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

/// The whole environment of a worker, and of the command that is told of events.
pub fn environment(home: &Path) -> impl Iterator<Item = (&'static str, OsString)> {
    let home = ("ROLLPROXY_HOME", home.as_os_str().to_owned());
    ENVIRONMENT
        .iter()
        .filter_map(|name| Some((*name, std::env::var_os(name)?)))
        .chain([home])
}

/// What a worker is started with.
pub struct Plan<'a> {
    /// The package's `rollproxy`.
    pub executable: &'a Path,
    /// Its number.
    pub generation: Generation,
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
            .envs(environment(plan.home))
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
        let child = command.spawn()?;
        let pid = Pid::from_child(&child);
        // Not reaped yet, so the number is still this child's.
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self {
            pidfd: watch(pidfd)?,
            pid: child.id(),
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

    /// How it ended, once it has; it is reaped by that.
    pub fn poll_exit(&self, context: &mut Context<'_>) -> Poll<String> {
        loop {
            let mut guard = match self.pidfd.poll_read_ready(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(guard)) => guard,
                Poll::Ready(Err(error)) => return Poll::Ready(format!("not watchable: {error}")),
            };
            match self.reap() {
                Ok(Some(how)) => return Poll::Ready(how),
                Ok(None) => guard.clear_ready(),
                Err(error) => return Poll::Ready(format!("not reapable: {error}")),
            }
        }
    }

    fn reap(&self) -> rustix::io::Result<Option<String>> {
        let status = rustix::process::waitid(
            WaitId::PidFd(self.pidfd.get_ref().as_fd()),
            WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
        )?;
        Ok(status.map(
            |status| match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => format!("exit code {code}"),
                (None, Some(signal)) => format!("signal {signal}"),
                (None, None) => "no reason given".to_owned(),
            },
        ))
    }
}
