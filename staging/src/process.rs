//! Running a program that is not trusted to end: bounded in time, in output, and in what it leaves behind.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

/// What is kept of each stream, in bytes; more is read and dropped, so that the program does not stall on it.
pub const MAX_OUTPUT: usize = 64 * 1024;

/// How often the cancel question is asked: it is a closure, which poll cannot wait for.
const CANCEL_INTERVAL: Duration = Duration::from_millis(50);
/// How long a just written program may be "busy": another thread's child may hold its descriptor until its exec.
const BUSY_PATIENCE: Duration = Duration::from_secs(2);

/// What a program left.
#[derive(Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// The first [`MAX_OUTPUT`] bytes of its stdout.
    pub stdout: Vec<u8>,
    /// The first [`MAX_OUTPUT`] bytes of its stderr.
    pub stderr: Vec<u8>,
}

/// Why a program did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// It could not be started.
    #[error("starting {program}: {source}")]
    Spawn {
        /// The program.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// Another process has the file open for writing.
    #[error(
        "{program} is held open for writing by another process, so it cannot be started; run again (`fuser {program}` names who holds a file that is still there)"
    )]
    Busy {
        /// The program.
        program: String,
    },
    /// It was started and could not be watched; it was killed.
    #[error("watching {program}: {source}")]
    Watch {
        /// The program.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// It did not end in time; its process group was killed.
    #[error("{program} did not end within {} s and was killed", timeout.as_secs_f64())]
    TimedOut {
        /// The program.
        program: String,
        /// The time it had.
        timeout: Duration,
    },
    /// The caller called it off; its process group was killed.
    #[error("{program} was called off and killed")]
    Cancelled {
        /// The program.
        program: String,
    },
}

/// Runs a program in its own process group with no stdin, until it ends, `timeout` is over, or `cancel` says so. When
/// this returns, the program is reaped and what it left in its group is killed.
///
/// # Errors
/// [`ProcessError`]. A program that ends, however badly, is no error: look at the status.
pub fn run_bounded(
    command: &mut Command,
    timeout: Duration,
    cancel: &dyn Fn() -> bool,
) -> Result<Output, ProcessError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let deadline = Instant::now() + timeout;
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let child = spawn(command).map_err(|source| match source.kind() {
        io::ErrorKind::ExecutableFileBusy => ProcessError::Busy {
            program: program.clone(),
        },
        _ => ProcessError::Spawn {
            program: program.clone(),
            source,
        },
    })?;
    let mut group = Group::new(child);
    let watch = |source| ProcessError::Watch {
        program: program.clone(),
        source,
    };
    let pidfd = rustix::process::pidfd_open(group.pid, PidfdFlags::empty())
        .map_err(|error| watch(error.into()))?;
    let mut stdout = Capture::new(group.child.stdout.take()).map_err(watch)?;
    let mut stderr = Capture::new(group.child.stderr.take()).map_err(watch)?;

    loop {
        if cancel() {
            return Err(ProcessError::Cancelled { program });
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ProcessError::TimedOut { program, timeout });
        }
        let ended = wait(&pidfd, [&stdout, &stderr], left.min(CANCEL_INTERVAL)).map_err(watch)?;
        stdout.drain().map_err(watch)?;
        stderr.drain().map_err(watch)?;
        if ended {
            break;
        }
    }
    let status = group.reap().map_err(watch)?;
    Ok(Output {
        status,
        stdout: stdout.bytes,
        stderr: stderr.bytes,
    })
}

/// How many processes, of those that we may look at, execute a file below `folder`.
///
/// # Errors
/// What reading `/proc` or the folder's own path says.
pub fn running_from(folder: &Path) -> io::Result<usize> {
    let folder = folder.canonicalize()?;
    let mut running = 0;
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok());
        if let Some(pid) = number.and_then(Pid::from_raw)
            && runs_from(pid, &folder)
        {
            running += 1;
        }
    }
    Ok(running)
}

/// Kills what still runs from below `folder`: programs whose starter died before it could. Says how many there were.
///
/// # Errors
/// What reading `/proc` or the folder's own path says.
pub fn kill_running_from(folder: &Path) -> io::Result<usize> {
    let folder = match folder.canonicalize() {
        Ok(folder) => folder,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let mut killed = 0;
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.parse().ok());
        let Some(pid) = number.and_then(Pid::from_raw) else {
            continue;
        };
        if !runs_from(pid, &folder) {
            continue;
        }
        // Held before it is looked at once more: its number cannot become another's meanwhile without our noticing.
        let Ok(held) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
            continue;
        };
        if runs_from(pid, &folder) {
            // What it started itself is in its group, which it leads.
            if rustix::process::getpgid(Some(pid)) == Ok(pid) {
                let _ = rustix::process::kill_process_group(pid, Signal::KILL);
            }
            let _ = rustix::process::pidfd_send_signal(&held, Signal::KILL);
            killed += 1;
        }
    }
    Ok(killed)
}

/// Whether a process of ours executes a file below `folder`; also one that is removed already.
fn runs_from(pid: Pid, folder: &Path) -> bool {
    std::fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero()))
        .is_ok_and(|executable| executable.starts_with(folder))
}

fn spawn(command: &mut Command) -> io::Result<Child> {
    let deadline = Instant::now() + BUSY_PATIENCE;
    loop {
        match command.spawn() {
            Err(error)
                if error.kind() == io::ErrorKind::ExecutableFileBusy
                    && Instant::now() < deadline =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
}

/// Waits until the program ended (true), something can be read, or the time is over.
fn wait(pidfd: &OwnedFd, captures: [&Capture; 2], time: Duration) -> io::Result<bool> {
    let mut fds = vec![PollFd::new(pidfd, PollFlags::IN)];
    for pipe in captures
        .into_iter()
        .filter_map(|capture| capture.pipe.as_ref())
    {
        fds.push(PollFd::from_borrowed_fd(pipe.as_fd(), PollFlags::IN));
    }
    let time = Timespec::try_from(time).map_err(io::Error::other)?;
    match rustix::event::poll(&mut fds, Some(&time)) {
        Ok(_) => Ok(!fds[0].revents().is_empty()),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A process group led by our child: killed and reaped when dropped.
struct Group {
    child: Child,
    pid: Pid,
    reaped: bool,
}

impl Group {
    fn new(child: Child) -> Group {
        let pid = Pid::from_child(&child);
        Group {
            child,
            pid,
            reaped: false,
        }
    }

    /// Kills what is left of the group, then reaps its leader. In this order: until the leader is reaped, the number
    /// of its group cannot become another's.
    fn reap(&mut self) -> io::Result<ExitStatus> {
        let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
        let status = self.child.wait()?;
        self.reaped = true;
        Ok(status)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.reaped {
            let _ = self.reap();
        }
    }
}

/// One output stream, read without blocking.
struct Capture {
    pipe: Option<std::fs::File>,
    bytes: Vec<u8>,
}

impl Capture {
    fn new(pipe: Option<impl Into<OwnedFd>>) -> io::Result<Capture> {
        let pipe = match pipe {
            Some(pipe) => {
                let pipe: OwnedFd = pipe.into();
                rustix::io::ioctl_fionbio(&pipe, true)?;
                Some(pipe.into())
            }
            None => None,
        };
        Ok(Capture {
            pipe,
            bytes: Vec::new(),
        })
    }

    /// Reads what is there, up to a bound, so that one that writes without end cannot hold us here.
    fn drain(&mut self) -> io::Result<()> {
        let mut buffer = [0u8; 16 * 1024];
        for _ in 0..64 {
            let Some(pipe) = &mut self.pipe else {
                return Ok(());
            };
            match pipe.read(&mut buffer) {
                Ok(0) => self.pipe = None,
                Ok(count) => {
                    let room = MAX_OUTPUT - self.bytes.len();
                    self.bytes.extend_from_slice(&buffer[..count.min(room)]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const LONG: Duration = Duration::from_secs(60);

    fn sh(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    fn never() -> bool {
        false
    }

    /// Whether a process is gone or a zombie, soon.
    fn dies(pid: &str) -> bool {
        let deadline = Instant::now() + LONG;
        while Instant::now() < deadline {
            match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
                Err(_) => return true,
                Ok(stat) if stat.contains(") Z ") => return true,
                Ok(_) => std::thread::yield_now(),
            }
        }
        false
    }

    #[test]
    fn output_and_status_come_back() {
        let output = run_bounded(&mut sh("echo out; echo err >&2; exit 3"), LONG, &never).unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(
            (output.stdout.as_slice(), output.stderr.as_slice()),
            (&b"out\n"[..], &b"err\n"[..])
        );
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = run_bounded(&mut Command::new("/nonexistent/x"), LONG, &never).unwrap_err();
        assert!(
            matches!(&error, ProcessError::Spawn { .. })
                && error.to_string().contains("/nonexistent/x")
        );
    }

    #[test]
    fn a_hang_is_killed_with_its_children() {
        let folder = crate::scratch::Scratch::new();
        let pids = folder.path().join("pids");
        let script = format!(
            "sleep 1000 & echo $! >{0}.tmp; mv {0}.tmp {0}; wait",
            pids.display()
        );
        // Called off, not timed out, so that the children surely exist.
        let error = run_bounded(&mut sh(&script), LONG, &|| pids.exists()).unwrap_err();
        assert!(matches!(error, ProcessError::Cancelled { .. }), "{error}");
        let pid = std::fs::read_to_string(&pids).unwrap();
        assert!(dies(pid.trim()), "the grandchild {pid} outlived its group");
    }

    #[test]
    fn time_over_is_said_and_soon() {
        let start = Instant::now();
        let error =
            run_bounded(&mut sh("sleep 1000"), Duration::from_millis(100), &never).unwrap_err();
        assert!(matches!(error, ProcessError::TimedOut { .. }), "{error}");
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_grandchild_that_holds_the_pipes_holds_nobody_up_and_dies() {
        let output = run_bounded(&mut sh("sleep 1000 & echo $!"), LONG, &never).unwrap();
        let pid = String::from_utf8(output.stdout).unwrap();
        assert!(dies(pid.trim()), "{pid}");
    }

    #[test]
    fn endless_output_is_bounded_and_does_not_stall_the_program() {
        let output = run_bounded(&mut sh("i=0; while [ $i -lt 4000 ]; do echo 0123456789012345678901234567890123456789012345678901234567890123; i=$((i+1)); done"), LONG, &never).unwrap();
        assert!(output.status.success());
        assert_eq!(output.stdout.len(), MAX_OUTPUT);
    }

    #[test]
    fn cancel_is_asked_before_anything_is_waited_for() {
        let asked = Cell::new(0);
        let error = run_bounded(&mut sh("sleep 1000"), LONG, &|| {
            asked.set(asked.get() + 1);
            true
        })
        .unwrap_err();
        assert!(matches!(error, ProcessError::Cancelled { .. }));
        assert_eq!(asked.get(), 1);
    }
}
