//! A running supervisor.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use control::supervisor::{Handover, HandoverPhase, HandoverRequest};
use control::types::{By, Place, Rolling, RolloutRequest, Status, Verdict};
use control::{Client, ControlError};
use nix::sys::signal::Signal;
use tokio::task::JoinHandle;

use crate::{TestHome, process, until, until_some};

/// A supervisor of a [`TestHome`] that was started and has not said anything yet; ended with
/// SIGKILL when dropped, its workers with the home.
pub struct Starting {
    child: Child,
    client: Client,
    log: PathBuf,
}

/// A supervisor whose control socket answers.
pub struct Proxy {
    started: Starting,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Starting {
    /// Starts the selected package through the launcher.
    pub fn selected(home: &TestHome) -> Self {
        Self::spawn(home, &crate::binaries().path("rollproxy-launcher"))
    }

    /// Starts the program under test where it was built, outside any package: its version is the
    /// compiled one.
    pub fn unpackaged(home: &TestHome) -> Self {
        Self::spawn(home, &crate::binaries().path("rollproxy"))
    }

    fn spawn(home: &TestHome, program: &Path) -> Self {
        Self::run(home, Command::new(program).arg("serve"))
    }

    /// Starts what `command` says, with the environment and the log of a supervisor.
    pub fn run(home: &TestHome, command: &mut Command) -> Self {
        let log = home.folder().join("supervisor.log");
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap();
        let child = command
            .env_clear()
            .env("ROLLPROXY_HOME", home.home.root())
            .env("ROLLPROXY_LOG", "debug")
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        let client = Client::new(&home.home);
        Self { child, client, log }
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// Waits until its control socket answers.
    pub async fn answering(mut self) -> Proxy {
        let pid = self.child.id();
        let status = until_some("the control socket answers", || {
            if let Some(end) = self.child.try_wait().unwrap() {
                panic!("the supervisor ended: {end}");
            }
            let status = self.client.status().ok();
            status.filter(|status| status.supervisor_pid == pid)
        })
        .await;
        let address = status.listeners[0].parse().unwrap();
        Proxy {
            started: self,
            address,
        }
    }

    /// Waits for its end; its exit code.
    pub async fn ended(&mut self) -> Option<i32> {
        let status = until_some("the supervisor ends", || self.child.try_wait().unwrap()).await;
        status.code()
    }

    /// What it and its workers logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Proxy {
    /// Starts the selected package through the launcher and waits until somebody serves.
    pub async fn start(home: &TestHome) -> Self {
        let proxy = Self::start_unready(home).await;
        proxy.serves().await;
        proxy
    }

    /// Starts the selected package through the launcher and waits for its control socket only.
    pub async fn start_unready(home: &TestHome) -> Self {
        Starting::selected(home).answering().await
    }

    /// Waits until a generation is active.
    pub async fn serves(&self) -> Place {
        until_some("a generation serves", || self.status()?.rolling.active).await
    }

    /// Waits until a generation is active that is not `before`.
    pub async fn serves_after(&self, before: u64) -> Place {
        until_some("another generation serves", || {
            self.status()?
                .rolling
                .active
                .filter(|place| place.generation != before)
        })
        .await
    }

    /// The status, if it answers.
    pub fn status(&self) -> Option<Status> {
        self.started.client.status().ok()
    }

    /// The status.
    pub fn now(&self) -> Status {
        self.started.client.status().unwrap()
    }

    /// The places and counters.
    pub fn rolling(&self) -> Rolling {
        self.now().rolling
    }

    /// The active place.
    pub fn active(&self) -> Place {
        self.rolling().active.expect("a generation serves")
    }

    /// The active version.
    pub fn active_version(&self) -> Option<String> {
        self.status()?
            .rolling
            .active
            .map(|place| place.version.to_string())
    }

    /// The active worker's pid.
    pub fn active_pid(&self) -> i32 {
        i32::try_from(self.active().pid).unwrap()
    }

    /// Why something last failed; empty when nothing did.
    pub fn last_failure(&self) -> String {
        self.rolling().last_failure.unwrap_or_default()
    }

    /// A client of its control socket.
    pub fn client(&self) -> &Client {
        &self.started.client
    }

    /// Asks for a rollout and waits for its verdict.
    pub async fn roll(&self, request: RolloutRequest) -> Result<Verdict, ControlError> {
        self.roll_begun(request).await.await.unwrap()
    }

    /// Asks for a rollout and waits until it has begun, or was joined; its verdict comes later.
    pub async fn roll_begun(
        &self,
        request: RolloutRequest,
    ) -> JoinHandle<Result<Verdict, ControlError>> {
        let client = self.started.client.clone();
        let (begun, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let verdict = tokio::task::spawn_blocking(move || {
            client.roll(&request, &mut |_| {
                // Only the first step is waited for.
                let _ = begun.send(());
            })
        });
        // A request that is refused has no step: its end closes the channel.
        let _: Option<()> = heard.recv().await;
        verdict
    }

    /// Has the supervisor go on as this version; how that ended. The process must be the same.
    pub async fn hand_over(&self, version: &str) -> Result<Handover, ControlError> {
        let client = self.started.client.clone();
        let request = HandoverRequest {
            version: Some(version.to_owned()),
            by: By::Person,
            nonce: None,
        };
        let pid = self.pid();
        let ended = move || {
            let begun = client.hand_over(&request)?;
            let status = client.await_handover(&begun)?;
            assert_eq!(i32::try_from(status.supervisor_pid), Ok(pid));
            Ok(status.handover.expect("the handover is remembered"))
        };
        tokio::task::spawn_blocking(ended).await.unwrap()
    }

    /// [`Proxy::hand_over`], which must succeed.
    pub async fn go_on_as(&self, version: &str) -> Handover {
        let ended = self.hand_over(version).await.unwrap();
        assert_eq!(ended.phase, HandoverPhase::Moved, "{ended:?}");
        let now = self.now().supervisor_version.to_string();
        assert_eq!(now, version);
        ended
    }

    /// The supervisor's pid.
    pub fn pid(&self) -> i32 {
        self.started.pid()
    }

    /// Sends a signal to the supervisor.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        process::send(self.pid(), signal);
    }

    /// Stops the supervisor with SIGSTOP for a time, and lets it go on.
    pub async fn freeze(&self, time: Duration) {
        self.signal(Signal::SIGSTOP);
        until("the supervisor is stopped", || {
            process::is_stopped(self.pid())
        })
        .await;
        let since = Instant::now();
        until("it was stopped long enough", || since.elapsed() >= time).await;
        self.signal(Signal::SIGCONT);
    }

    /// Waits for the supervisor's end; its exit code.
    pub async fn ended(&mut self) -> Option<i32> {
        self.started.ended().await
    }

    /// What supervisor and workers logged.
    pub fn log(&self) -> String {
        self.started.log()
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!(
                "--- log of the supervisor and its workers\n{}\n---",
                self.log()
            );
        }
    }
}
