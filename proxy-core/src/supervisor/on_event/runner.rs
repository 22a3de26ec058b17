//! The thread that runs the command.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use serde::{Deserialize, Serialize};
use staging::home::Home;

use crate::clock::Moment;

use super::super::process::worker_environment;
use super::{Backlog, FeedTold, Notice, expiry};

/// How long the command may take before it is killed with its process group.
const LIMIT: Duration = Duration::from_secs(30);

/// How often the feed's metadata are looked at.
const FEED_LOOK: Duration = Duration::from_secs(3600);

/// No `timestamp.json` comes near this.
const TIMESTAMP_LIMIT: u64 = 1024 * 1024;

/// Runs the command, one event after the other.
pub struct Runner {
    home: Home,
    shared: Arc<Shared>,
    started: bool,
    limit: Duration,
}

/// What thread and main loop share.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    command: Vec<String>,
    backlog: Backlog,
    /// One is being started: for that moment its number is not known.
    starting: bool,
    running: Option<Running>,
    feed: FeedTold,
    /// When the feed is looked at again; none = now.
    feed_at: Option<Moment>,
    /// Nothing is started any more.
    closed: bool,
}

/// A command that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Running {
    pid: i32,
    /// When it is killed.
    until: Moment,
}

/// Everything that another image of this process must know to go on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Carried {
    backlog: Backlog,
    running: Option<Running>,
    feed: FeedTold,
}

impl Carried {
    /// The command that runs.
    pub fn pid(&self) -> Option<u32> {
        self.running
            .and_then(|running| u32::try_from(running.pid).ok())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Runner {
    /// Goes on where another image of this process was. Nothing is run before there is a command.
    pub fn resume(home: &Home, command: &[String], carried: Carried) -> Self {
        let shared = Arc::new(Shared::default());
        {
            let mut state = shared.lock();
            state.backlog = carried.backlog;
            state.running = carried.running;
            state.feed = carried.feed;
        }
        let mut runner = Self {
            home: home.clone(),
            shared,
            started: false,
            limit: LIMIT,
        };
        runner.configure(command);
        runner
    }

    /// Starts no further command until [`Self::thaw`], so that what [`Self::carry`] says stays true; one that
    /// runs goes on. Not in the moment in which one is being started: then to be tried again a little later.
    pub fn freeze(&self) -> bool {
        let mut state = self.shared.lock();
        state.closed = !state.starting;
        state.closed
    }

    /// What another image needs to go on.
    pub fn carry(&self) -> Carried {
        let state = self.shared.lock();
        Carried {
            backlog: state.backlog.clone(),
            running: state.running,
            feed: state.feed,
        }
    }

    /// The other image did not come to be: goes on.
    pub fn thaw(&self) {
        self.shared.lock().closed = false;
        self.shared.changed.notify_all();
    }

    /// Another command from now on; an empty one tells nobody.
    pub fn configure(&mut self, command: &[String]) {
        let needed = {
            let mut state = self.shared.lock();
            if state.command != command {
                state.command = command.to_vec();
                state.feed_at = None;
            }
            if command.is_empty() {
                state.backlog.clear();
            }
            !command.is_empty() || state.running.is_some()
        };
        self.shared.changed.notify_all();
        if needed && !self.started {
            let (home, shared) = (self.home.clone(), self.shared.clone());
            let thread = std::thread::Builder::new().name("on_event".into());
            let limit = self.limit;
            match thread.spawn(move || work(&home, &shared, limit)) {
                Ok(_) => self.started = true,
                Err(error) => tracing::warn!(%error, "on_event: cannot start a thread"),
            }
        }
    }

    /// Tells the command, some time.
    pub fn tell(&self, notice: Notice) {
        let mut state = self.shared.lock();
        if !state.command.is_empty() {
            state.backlog.push(notice);
            self.shared.changed.notify_all();
        }
    }

    /// The supervisor ends: nothing is started any more, and what runs is killed, for nobody would end it.
    pub fn end(&self) {
        let mut state = self.shared.lock();
        state.closed = true;
        if let Some(running) = state.running.take() {
            kill_group(running.pid);
        }
    }
}

/// What the thread has to do next.
enum Next {
    Watch(Running),
    Run(Vec<String>, Notice),
    LookAtFeed,
}

fn work(home: &Home, shared: &Shared, limit: Duration) {
    loop {
        match next(shared) {
            Next::Watch(running) => watch(running, shared),
            Next::Run(command, notice) => {
                if let Some(running) = start(home, &command, &notice, limit, shared) {
                    watch(running, shared);
                }
            }
            Next::LookAtFeed => look_at_feed(home, shared),
        }
    }
}

/// Waits for something to do.
fn next(shared: &Shared) -> Next {
    let mut state = shared.lock();
    loop {
        let now = Moment::now();
        let mut wait = FEED_LOOK;
        if let Some(running) = state.running {
            return Next::Watch(running);
        }
        if !state.closed && !state.command.is_empty() {
            if let Some(notice) = state.backlog.pop() {
                state.starting = true;
                return Next::Run(state.command.clone(), notice);
            }
            match state.feed_at {
                Some(at) if at > now => wait = at.until(now),
                _ => {
                    state.feed_at = Some(now + FEED_LOOK);
                    return Next::LookAtFeed;
                }
            }
        }
        let waited = shared.changed.wait_timeout(state, wait);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn look_at_feed(home: &Home, shared: &Shared) {
    let file = home.feed().join("timestamp.json");
    let Some(expires) = read(&file).as_deref().and_then(expiry) else {
        return;
    };
    let mut state = shared.lock();
    if let Some(notice) = state.feed.look(expires, staging::clock::now()) {
        state.backlog.push(notice);
    }
}

/// A feed that was never asked has no such file: that is no news.
fn read(file: &std::path::Path) -> Option<Vec<u8>> {
    use std::io::Read;
    let file = staging::files::open_regular(file).ok()?;
    let mut bytes = Vec::new();
    file.take(TIMESTAMP_LIMIT).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Starts the command and notes that it runs.
fn start(
    home: &Home,
    command: &[String],
    notice: &Notice,
    limit: Duration,
    shared: &Shared,
) -> Option<Running> {
    // Without the lock: a file system that hangs must not hold the main loop.
    let started = spawn(home, command, notice);
    let mut state = shared.lock();
    state.starting = false;
    match started {
        Ok(pid) => {
            let until = Moment::now() + limit;
            let running = Running { pid, until };
            state.running = Some(running);
            tracing::info!(pid, event = ?notice.event, "on_event: tells");
            Some(running)
        }
        Err(error) => {
            tracing::warn!(?command, %error, "on_event: cannot be told; look at [rollout] on_event");
            None
        }
    }
}

/// Starts the command with the notice on its standard input. Its output goes nowhere: a flood of it is
/// nobody's burden.
fn spawn(home: &Home, command: &[String], notice: &Notice) -> std::io::Result<i32> {
    let (program, arguments) = command
        .split_first()
        .ok_or(std::io::ErrorKind::InvalidInput)?;
    let mut json = serde_json::to_vec(notice)?;
    json.push(b'\n');
    let mut child = Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(worker_environment())
        .env("ROLLPROXY_HOME", home.root())
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        // Less than a pipe holds: this waits for nobody. A command that does not read is no failure.
        let _ = input.write_all(&json);
    }
    Ok(Pid::from_child(&child).as_raw_nonzero().get())
}

/// Waits for the end of a child of ours; kills it with its group when its time is over.
fn watch(running: Running, shared: &Shared) {
    let pid = running.pid;
    let ended = wait(running);
    // Reaped under the lock: whoever finds its number there may signal it.
    let mut state = shared.lock();
    state.running = None;
    let how = ended.and_then(|pidfd| reap(&pidfd));
    drop(state);
    match how {
        Ok(how) if how == "exit code 0" => {}
        Ok(how) => tracing::warn!(pid, how, "on_event: the command failed"),
        Err(error) => tracing::warn!(pid, %error, "on_event: the command cannot be watched"),
    }
}

/// Until it has ended; it is not reaped by that.
fn wait(running: Running) -> rustix::io::Result<OwnedFd> {
    let pid = Pid::from_raw(running.pid).ok_or(rustix::io::Errno::SRCH)?;
    // Nobody but this thread reaps it: the number is its own until then.
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    let mut killed = false;
    loop {
        let left = running.until.until(Moment::now());
        if left.is_zero() && !killed {
            tracing::warn!(
                pid = running.pid,
                "on_event: the command took too long and is killed"
            );
            kill_group(running.pid);
            killed = true;
        }
        let left = if killed { LIMIT } else { left };
        let timeout = rustix::event::Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], timeout.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => return Ok(pidfd),
            Err(error) => return Err(error),
        }
    }
}

fn reap(pidfd: &OwnedFd) -> rustix::io::Result<String> {
    let flags = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let status = rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), flags)?;
    let how = status.map(|status| (status.exit_status(), status.terminating_signal()));
    Ok(match how {
        Some((Some(code), _)) => format!("exit code {code}"),
        Some((None, Some(signal))) => format!("signal {signal}"),
        _ => "no reason given".to_owned(),
    })
}

/// SIGKILL to a group whose leader has not been reaped; one that has ended is no error.
fn kill_group(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    }
}

#[cfg(test)]
mod tests;
