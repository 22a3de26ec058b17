//! A running supervisor.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use control::Client;
use control::types::{RolloutRequest, Status, Verdict};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{TestHome, until, until_some};

/// A supervisor of a [`TestHome`], ended with SIGKILL when dropped; its workers end with the home.
pub struct Proxy {
    child: Child,
    client: Client,
    log: PathBuf,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Proxy {
    /// Starts the selected package through the launcher and waits until somebody serves.
    pub async fn start(home: &TestHome) -> Self {
        let proxy = Self::start_unready(home).await;
        until("a generation serves", || proxy.status().is_some_and(|s| s.rolling.active.is_some())).await;
        proxy
    }

    /// Starts the selected package through the launcher and waits for its control socket only.
    pub async fn start_unready(home: &TestHome) -> Self {
        let log = home.folder().join(format!("supervisor-{}.log", std::process::id()));
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let child = Command::new(crate::binaries().path("rollproxy-launcher"))
            .arg("serve")
            .env_clear()
            .env("ROLLPROXY_HOME", home.home.root())
            .env("ROLLPROXY_LOG", "debug")
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        let client = Client::new(&home.home);
        let pid = child.id();
        let status = until_some("the control socket answers", || {
            client.status().ok().filter(|status| status.supervisor_pid == pid)
        })
        .await;
        let address = status.listeners[0].parse().unwrap();
        Self { child, client, log, address }
    }

    /// The status, if it answers.
    pub fn status(&self) -> Option<Status> {
        self.client.status().ok()
    }

    /// The status.
    pub fn now(&self) -> Status {
        self.client.status().unwrap()
    }

    /// The active version.
    pub fn active_version(&self) -> Option<String> {
        self.status()?.rolling.active.map(|place| place.version.to_string())
    }

    /// The active worker's pid.
    pub fn active_pid(&self) -> i32 {
        i32::try_from(self.now().rolling.active.unwrap().pid).unwrap()
    }

    /// Asks for a rollout on a thread of its own and waits for its verdict.
    pub async fn roll(&self, request: RolloutRequest) -> Result<Verdict, control::ControlError> {
        let client = self.client.clone();
        tokio::task::spawn_blocking(move || client.roll(&request, &mut |_| {})).await.unwrap()
    }

    /// The supervisor's pid.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// Sends a signal to the supervisor.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap();
    }

    /// Waits for the supervisor's end; its exit code.
    pub async fn ended(&mut self) -> Option<i32> {
        let status = until_some("the supervisor ends", || self.child.try_wait().unwrap()).await;
        status.code()
    }

    /// What supervisor and workers logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of the supervisor and its workers\n{}\n---", self.log());
        }
    }
}
