//! Runs a program and stops it before each of its calls that change files: the product has no hooks for tests, the
//! kernel has. What is traced are all its threads and everything that it starts.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{self, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::calls::{self, Call, Reader};

/// A job takes less than a second; one that hangs is killed after this.
const PATIENCE: Duration = Duration::from_secs(60);

/// What happens to a stopped job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It goes on.
    Go,
    /// It is killed with all that it started, before it makes the call.
    Kill,
}

/// What was seen of a program.
#[derive(Debug)]
pub struct Trace {
    pub calls: Vec<Call>,
    /// None if it was killed.
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
    /// When it first wrote to its stdout: the moment from which it has said what it did. Counted as the calls are.
    pub said: Option<u64>,
}

impl Trace {
    /// How many calls a walk stops at.
    pub fn points(&self) -> usize {
        self.calls.iter().filter(|call| call.is_point).count()
    }
}

/// Runs `command` to its end or until `decide` kills it; `decide` is asked before each call that changes files below
/// `within` and is a point, with how many there were before.
pub fn run(
    command: &Command,
    within: &Path,
    decide: &mut dyn FnMut(usize, &Call) -> Next,
) -> Trace {
    let folder = tempfile::tempdir().unwrap();
    let (out, err) = (folder.path().join("out"), folder.path().join("err"));
    let mut waiting = waiting(command);
    waiting
        .stdin(Stdio::piped())
        .stdout(File::create(&out).unwrap())
        .stderr(File::create(&err).unwrap());
    // Reaped by the tracer, which sees its end first.
    #[allow(clippy::zombie_processes)]
    let mut child = waiting.spawn().unwrap();
    let leader = Pid::from_raw(child.id().cast_signed());
    let (ended, watch) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        // The leader is reaped by our caller's thread only after it has told us.
        if watch.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = signal::kill(leader, Signal::SIGKILL);
        }
    });
    attach(leader);
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut tracer = Tracer {
        leader,
        within: within.to_owned(),
        out: out.clone(),
        now: 0,
        reader: Reader::default(),
        threads: HashMap::from([(leader, Thread::default())]),
        calls: Vec::new(),
        points: 0,
        said: None,
        killed: false,
    };
    let code = tracer.follow(decide);
    ended.send(()).unwrap();
    watchdog.join().unwrap();
    Trace {
        calls: tracer.calls,
        code,
        out: fs::read_to_string(out).unwrap(),
        err: fs::read_to_string(err).unwrap(),
        said: tracer.said,
    }
}

/// The command, but first waiting for a line: until then it can be taken hold of.
fn waiting(command: &Command) -> Command {
    let mut waiting = Command::new("/bin/sh");
    waiting
        .args(["-c", "read -r line; exec \"$@\" </dev/null", "sh"])
        .arg(command.get_program())
        .args(command.get_args())
        .env_clear();
    for (name, value) in command.get_envs() {
        waiting.env(name, value.unwrap());
    }
    waiting
}

fn attach(leader: Pid) {
    let options = Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_EXITKILL;
    ptrace::seize(leader, options).expect("tracing a child of ours (is ptrace forbidden here?)");
    ptrace::interrupt(leader).unwrap();
    match waitpid(leader, Some(WaitPidFlag::__WALL)).unwrap() {
        WaitStatus::PtraceEvent(..) => ptrace::syscall(leader, None).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[derive(Default)]
struct Thread {
    /// Set between the two stops of a call.
    inside: bool,
    /// Which of the calls it is in.
    call: Option<usize>,
}

struct Tracer {
    leader: Pid,
    within: std::path::PathBuf,
    out: std::path::PathBuf,
    now: u64,
    reader: Reader,
    threads: HashMap<Pid, Thread>,
    calls: Vec<Call>,
    points: usize,
    said: Option<u64>,
    killed: bool,
}

impl Tracer {
    /// Until nothing of it is left; the leader's exit code.
    fn follow(&mut self, decide: &mut dyn FnMut(usize, &Call) -> Next) -> Option<i32> {
        let mut code = None;
        // Of this thread only: tests beside this one have children too.
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        loop {
            let status = match waitpid(None, Some(flags)) {
                Ok(status) => status,
                Err(Errno::EINTR) => continue,
                Err(Errno::ECHILD) => return code,
                Err(error) => panic!("waiting: {error}"),
            };
            match status {
                WaitStatus::Exited(pid, with) => {
                    self.threads.remove(&pid);
                    if pid == self.leader {
                        code = Some(with);
                    }
                }
                WaitStatus::Signaled(pid, ..) => {
                    self.threads.remove(&pid);
                }
                WaitStatus::PtraceSyscall(pid) => {
                    self.call(pid, decide);
                    self.go_on(pid, None);
                }
                WaitStatus::PtraceEvent(pid, _, event) => {
                    let thread = self.threads.entry(pid).or_default();
                    // Taken hold of in the middle of a call, a process may count wrong; in this event it is in one.
                    thread.inside |= event == nix::libc::PTRACE_EVENT_EXEC;
                    self.go_on(pid, None);
                }
                WaitStatus::Stopped(pid, signal) => self.go_on(pid, Some(signal)),
                _ => {}
            }
        }
    }

    fn go_on(&self, pid: Pid, signal: Option<Signal>) {
        if self.killed {
            // Also what was started while the others were being killed.
            let _ = signal::kill(pid, Signal::SIGKILL);
        }
        // It may be gone already: then waiting says so.
        let _ = ptrace::syscall(pid, signal);
    }

    /// A thread enters a call or comes back from one.
    fn call(&mut self, pid: Pid, decide: &mut dyn FnMut(usize, &Call) -> Next) {
        self.now += 1;
        let Ok(registers) = calls::registers(pid) else {
            return;
        };
        let thread = self.threads.entry(pid).or_default();
        thread.inside = !thread.inside;
        if !thread.inside {
            if let Some(at) = thread.call.take() {
                self.calls[at].left = Some(self.now);
                self.calls[at].ok = registers.result >= 0;
            }
            return;
        }
        if self.killed {
            return;
        }
        let Some(call) = self.reader.read(pid, &registers, &self.within, self.now) else {
            if self.said.is_none() && self.says(pid, &registers) {
                self.said = Some(self.now);
            }
            return;
        };
        thread.call = Some(self.calls.len());
        let point = call.is_point.then(|| {
            self.points += 1;
            self.points - 1
        });
        self.calls.push(call);
        if let (Some(point), Some(call)) = (point, self.calls.last())
            && decide(point, call) == Next::Kill
        {
            self.killed = true;
            self.calls.pop();
            for pid in self.threads.keys() {
                let _ = signal::kill(*pid, Signal::SIGKILL);
            }
        }
    }

    /// Whether the job writes to its own stdout.
    fn says(&self, pid: Pid, registers: &calls::Registers) -> bool {
        use nix::libc::{SYS_write, SYS_writev};
        (registers.number == SYS_write || registers.number == SYS_writev)
            && fs::read_link(format!("/proc/{pid}/fd/{}", registers.args[0]))
                .is_ok_and(|path| path == self.out)
    }
}
