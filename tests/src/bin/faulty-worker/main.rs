//! A `rollproxy` that misbehaves: the worker of packages that must not be kept.
//!
//! It passes for a release: it answers `--version` like any program of its package. As a worker it
//! does what the file `share/fault` of its package says; without that file it is broken the way a
//! bad release is, and crashes before it is ready. For tests and `rollproxy demo`.
//!
//! The file holds words. Each is one thing that this worker does wrong, and all others it does
//! right: with no word that it knows it serves, if only one short answer a connection. Two words
//! change the words: `told-by=<file>` adds those of a file that a test may rewrite meanwhile, and
//! `first=<count>@<file>` ends all faults once so many workers have started, counted in that file.
//!
//! No faults: `ready-when=<file>`, the worker is ready once that file is there; `keep-alive`, its
//! connections go on after an answer, and idle ones are given back as by a real worker.
//!
//! - Before it serves: `crash-before-ready`, `never-ready`, `close-channel`, `fatal-package`,
//!   `fatal-configuration`, `fatal-host`, `garbage`, `wrong-version`, `wrong-protocol`,
//!   `crash-after-ready`, `version-exits-1`, `version-hangs`, `version-lies`.
//! - When told something: `never-activated`, `activated-once` (never a second time),
//!   `crash-when-active`, `close-when-active`, `deaf`, `crash-when-standby`, `keep-on` (no drain),
//!   `old-protocol` (hears only what the first release knows).
//! - Sockets: `mute-transfers`, `refuse-transfers`, `crash-before-accepted`, `crash-after-accepted`,
//!   `crash-after-commit`, `crash-after-owned`, each by SIGKILL and `=<n>` only the n-th time;
//!   `read-before-owned` (reads what was committed before it says so, and is gone).
//! - Returns: `crash-before-returned`, `crash-after-returned`, `no-credit` (counts none).
//! - Answers: `answer-503-counted` (503 of its own, which it counts; `=<n>`: every n-th),
//!   `exit-after-requests=<n>`, `deaf-after-requests=<n>`, `fatal-after-requests=<n>`.
//!
//! With the word `real` it is a real worker in all it does, until a file appears: `exit-when=<file>`,
//! `fatal-when=<file>`, and `deaf-when=<file>`, which ends its channel.

mod faults;
mod real;
mod serve;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rollproxy::channel::{
    Addressee, Blame, Channel, Datagram, Id, SendFailure, ToSupervisor, ToWorker, decode, encode,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use faults::Faults;
use serve::{Idle, News, Service};

/// A process that crashed, as a panic in Rust ends one.
const CRASHED: u8 = 101;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let package = staging::package::own();
    let faults = package
        .as_ref()
        .and_then(|package| std::fs::read_to_string(package.root.join("share/fault")).ok())
        .map_or_else(
            || Faults::read("crash-before-ready"),
            |text| Faults::read(&text),
        );
    match arguments.first().map(String::as_str) {
        Some("--version") => version(
            &faults,
            arguments.iter().any(|argument| argument == "--verbose"),
        ),
        Some("worker") => {
            let generation = arguments
                .iter()
                .filter_map(|argument| argument.parse().ok())
                .next_back();
            worker(faults.of_this_start(), generation.unwrap_or(0))
        }
        _ => ExitCode::from(64),
    }
}

fn version(faults: &Faults, verbose: bool) -> ExitCode {
    if faults.have("version-exits-1") {
        return ExitCode::FAILURE;
    }
    if faults.have("version-hangs") {
        std::thread::sleep(Duration::from_secs(3600));
    }
    if faults.have("version-lies") {
        println!("rollproxy 6.6.6");
        return ExitCode::SUCCESS;
    }
    println!(
        "{}",
        staging::package::version_report(
            "rollproxy",
            rollproxy::COMPILED_VERSION,
            staging::COMMIT,
            verbose
        )
    );
    ExitCode::SUCCESS
}

fn worker(faults: Faults, generation: u64) -> ExitCode {
    if faults.have("crash-before-ready") {
        eprintln!("generation {generation}: this release is broken");
        return ExitCode::from(CRASHED);
    }
    let Ok(descriptors) = rollproxy::descriptors::take_worker_descriptors() else {
        return ExitCode::from(2);
    };
    if faults.have("real") {
        return real::real_worker(&faults, descriptors, generation);
    }
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    else {
        return ExitCode::from(2);
    };
    runtime.block_on(async {
        let Ok(channel) = Channel::new(descriptors.channel) else {
            return ExitCode::from(2);
        };
        let us = Addressee {
            generation,
            pid: std::process::id(),
        };
        Faulty::new(channel, us, faults).run().await
    })
}

struct Faulty {
    channel: Option<Channel>,
    us: Addressee,
    faults: Faults,
    /// The sockets between their `socket-accepted` and their `socket-commit`.
    held: BTreeMap<Id, OwnedFd>,
    serving: JoinSet<()>,
    service: Service,
    idle: watch::Sender<Idle>,
    news: mpsc::UnboundedReceiver<News>,
    /// Connections that wait for a credit, how many may be unanswered, and how many are.
    waiting: VecDeque<OwnedFd>,
    window: Option<u32>,
    unanswered: u32,
    returned: u64,
    activated: bool,
    draining: bool,
    requests: u64,
    local_5xx: u64,
}

/// What ends the wait of the main loop.
enum Wake {
    Said(Option<Datagram>),
    News(News),
    Ended,
}

impl Faulty {
    fn new(channel: Channel, us: Addressee, faults: Faults) -> Self {
        let (idle, idle_of_all) = watch::channel(Idle::Keep);
        let (to_main, news) = mpsc::unbounded_channel();
        let service = Service {
            keep_alive: faults.have("keep-alive"),
            fails_every: faults.count("answer-503-counted").unwrap_or(0),
            idle: idle_of_all,
            news: to_main,
            begun: Arc::new(AtomicU64::new(0)),
        };
        Self {
            channel: Some(channel),
            us,
            faults,
            held: BTreeMap::new(),
            serving: JoinSet::new(),
            service,
            idle,
            news,
            waiting: VecDeque::new(),
            window: None,
            unanswered: 0,
            returned: 0,
            activated: false,
            draining: false,
            requests: 0,
            local_5xx: 0,
        }
    }

    async fn run(mut self) -> ExitCode {
        let own = staging::package::own_version(rollproxy::COMPILED_VERSION).to_string();
        if self.faults.have("never-ready") {
            return hang().await;
        }
        if self.faults.have("close-channel") {
            self.channel = None;
            return hang().await;
        }
        for (word, blame) in [
            ("fatal-configuration", Blame::Configuration),
            ("fatal-package", Blame::Package),
            ("fatal-host", Blame::Host),
        ] {
            if self.faults.have(word) {
                self.say(&ToSupervisor::Fatal {
                    reason: "this worker is faulty on purpose".into(),
                    blame,
                });
                return ExitCode::FAILURE;
            }
        }
        if self.faults.have("garbage") {
            self.talk_garbage();
        }
        if let Some(file) = self.faults.value("ready-when") {
            while !Path::new(file).exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        self.say(&ToSupervisor::Ready {
            version: if self.faults.have("wrong-version") {
                "6.6.6".into()
            } else {
                own
            },
            protocol: if self.faults.have("wrong-protocol") {
                999
            } else {
                staging::protocol::CHANNEL_PROTOCOL
            },
        });
        if self.faults.have("crash-after-ready") {
            return ExitCode::from(CRASHED);
        }
        loop {
            let obeyed = match self.wake().await {
                Wake::Said(Some(datagram)) => match decode::<ToWorker>(&datagram.bytes, self.us) {
                    Ok(message) if self.understands(&message) => self.obey(message, datagram).await,
                    _ => None,
                },
                // Nobody takes anything over: what was begun is answered.
                Wake::Said(None) => {
                    self.idle.send_replace(Idle::Close);
                    while self.serving.join_next().await.is_some() {}
                    return ExitCode::SUCCESS;
                }
                Wake::News(News::Answered { failed }) => self.answered(failed).await,
                Wake::News(News::LetGo(socket)) => {
                    self.let_go(socket).await;
                    None
                }
                Wake::Ended => None,
            };
            if let Some(code) = obeyed {
                return code;
            }
            let is_empty = self.serving.is_empty() && self.held.is_empty();
            if self.draining && is_empty && self.waiting.is_empty() && self.news.is_empty() {
                self.say(&ToSupervisor::Drained);
                return ExitCode::SUCCESS;
            }
        }
    }

    async fn wake(&mut self) -> Wake {
        let Some(channel) = &mut self.channel else {
            return Wake::Said(None);
        };
        tokio::select! {
            biased;
            said = std::future::poll_fn(|context| channel.poll_recv(context)) => Wake::Said(said.ok().flatten()),
            Some(news) = self.news.recv() => Wake::News(news),
            Some(_) = self.serving.join_next() => Wake::Ended,
        }
    }

    fn understands(&self, message: &ToWorker) -> bool {
        let is_newer = matches!(
            message,
            ToWorker::Standby { .. }
                | ToWorker::ReturnCredit { .. }
                | ToWorker::Unready
                | ToWorker::Streams { .. }
                | ToWorker::Admission { .. }
        );
        !(is_newer && self.faults.have("old-protocol"))
    }

    async fn obey(&mut self, message: ToWorker, datagram: Datagram) -> Option<ExitCode> {
        match message {
            ToWorker::Activate if self.faults.have("never-activated") => {}
            ToWorker::Activate if self.activated && self.faults.have("activated-once") => {}
            ToWorker::Activate => {
                self.activated = true;
                self.keep();
                self.say(&ToSupervisor::Activated);
                if self.faults.have("crash-when-active") {
                    return Some(ExitCode::from(CRASHED));
                }
                if self.faults.have("close-when-active") {
                    self.channel = None;
                    return Some(hang().await);
                }
                if self.faults.have("deaf") {
                    return Some(hang().await);
                }
            }
            ToWorker::Ping { id } => self.say(&ToSupervisor::Pong { id }),
            ToWorker::Socket { .. } if self.faults.have("mute-transfers") => {}
            ToWorker::Socket { id } if self.faults.have("refuse-transfers") => {
                self.refuse(id, "faulty");
            }
            ToWorker::Socket { id } if self.draining => self.refuse(id, "draining"),
            ToWorker::Socket { id } if *self.idle.borrow() == Idle::GiveBack => {
                self.refuse(id, "standby");
            }
            ToWorker::Socket { id } => {
                self.faults.pass("crash-before-accepted");
                self.held
                    .extend(datagram.descriptor.map(|socket| (id, socket)));
                self.say(&ToSupervisor::SocketAccepted { id });
                self.faults.pass("crash-after-accepted");
            }
            ToWorker::SocketCommit { id } => {
                self.faults.pass("crash-after-commit");
                let socket = self.held.remove(&id)?;
                if self.faults.have("read-before-owned") {
                    read_a_byte(socket).await;
                    return Some(ExitCode::from(CRASHED));
                }
                self.say(&ToSupervisor::SocketOwned { id });
                self.faults.pass("crash-after-owned");
                self.serving.spawn(self.service.clone().serve(socket));
            }
            ToWorker::SocketCancel { id } => drop(self.held.remove(&id)),
            ToWorker::Drain { .. } if self.faults.have("keep-on") => {}
            ToWorker::Drain { close, returns } => {
                self.draining = true;
                match close {
                    true => {
                        self.idle.send_replace(Idle::Close);
                        self.waiting.clear();
                    }
                    false => self.give_back(returns).await,
                }
            }
            ToWorker::Standby { returns } => {
                if self.faults.have("crash-when-standby") {
                    return Some(ExitCode::from(CRASHED));
                }
                self.give_back(returns).await;
            }
            ToWorker::ReturnCredit { count } => {
                self.unanswered = self.unanswered.saturating_sub(count);
                self.send_waiting().await;
            }
            ToWorker::Unready => {}
            // What nobody answers must not hold up who asked.
            ToWorker::Streams { .. } => {}
            ToWorker::Admission { id, .. } => {
                let held = self.serving.len() as u64;
                self.say(&ToSupervisor::Admission {
                    id,
                    connections: held,
                    exchanges: self.exchanges(),
                });
            }
            ToWorker::Shutdown => return Some(ExitCode::SUCCESS),
        }
        None
    }

    fn refuse(&self, id: Id, reason: &str) {
        self.say(&ToSupervisor::SocketRefused {
            id,
            reason: reason.into(),
        });
    }

    fn exchanges(&self) -> u64 {
        let begun = self.service.begun.load(Ordering::Relaxed);
        begun.saturating_sub(self.requests)
    }

    /// A request was answered: it is counted, and may have been one too many.
    async fn answered(&mut self, failed: bool) -> Option<ExitCode> {
        self.requests += 1;
        self.local_5xx += u64::from(failed);
        self.say(&ToSupervisor::Load {
            connections: self.serving.len() as u64,
            exchanges: self.exchanges(),
            requests: self.requests,
            local_5xx: self.local_5xx,
        });
        let is_over = |name| self.faults.count(name).is_some_and(|n| n <= self.requests);
        if is_over("exit-after-requests") {
            return Some(ExitCode::from(CRASHED));
        }
        if is_over("deaf-after-requests") {
            return Some(hang().await);
        }
        if is_over("fatal-after-requests") {
            self.say(&ToSupervisor::Fatal {
                reason: "this worker is faulty on purpose".into(),
                blame: Blame::Package,
            });
            return Some(ExitCode::FAILURE);
        }
        None
    }

    /// Idle connections are kept, those too that waited for a credit.
    fn keep(&mut self) {
        self.idle.send_replace(Idle::Keep);
        for socket in std::mem::take(&mut self.waiting) {
            self.serving.spawn(self.service.clone().serve(socket));
        }
    }

    /// Idle connections go back from now on.
    async fn give_back(&mut self, window: Option<u32>) {
        self.window = match self.faults.have("no-credit") || self.faults.have("old-protocol") {
            true => None,
            false => window,
        };
        self.idle.send_replace(Idle::GiveBack);
        self.send_waiting().await;
    }

    async fn let_go(&mut self, socket: OwnedFd) {
        if *self.idle.borrow() == Idle::Keep {
            self.serving.spawn(self.service.clone().serve(socket));
            return;
        }
        self.waiting.push_back(socket);
        self.send_waiting().await;
    }

    async fn send_waiting(&mut self) {
        while self.window.is_none_or(|window| self.unanswered < window)
            && let Some(socket) = self.waiting.pop_front()
        {
            self.faults.pass("crash-before-returned");
            self.unanswered += u32::from(self.window.is_some());
            self.returned += 1;
            let message = ToSupervisor::SocketReturned { id: self.returned };
            let bytes = encode(&message, self.us);
            while self.try_send(&bytes, Some(socket.as_fd())) == Err(SendFailure::BackPressure) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            self.faults.pass("crash-after-returned");
        }
    }

    fn say(&self, message: &ToSupervisor) {
        self.send(&encode(message, self.us));
    }

    fn send(&self, bytes: &[u8]) {
        // A worker this faulty may be hung up on; then there is nobody to tell.
        let _ = self.try_send(bytes, None);
    }

    fn try_send(&self, bytes: &[u8], socket: Option<BorrowedFd<'_>>) -> Result<(), SendFailure> {
        match &self.channel {
            Some(channel) => channel.try_send(bytes, socket),
            None => Err(SendFailure::Closed),
        }
    }

    /// Seven messages that must be dropped and counted: they promise what is not so.
    fn talk_garbage(&self) {
        self.send(b"\xff\xfe not even text");
        self.send(b"{}");
        self.send(b"[1, 2, 3]");
        self.send(
            format!(
                r#"{{"type":"conquer","generation":{},"pid":{}}}"#,
                self.us.generation, self.us.pid
            )
            .as_bytes(),
        );
        let stale = Addressee {
            generation: self.us.generation + 1000,
            ..self.us
        };
        self.send(&encode(&ToSupervisor::Activated, stale));
        let stranger = Addressee { pid: 1, ..self.us };
        self.send(&encode(&ToSupervisor::Drained, stranger));
        self.send(&vec![b'x'; rollproxy::channel::MAX_DATAGRAM + 1]);
    }
}

async fn hang() -> ExitCode {
    std::future::pending::<ExitCode>().await
}

/// What no worker may do with a socket that it has not called its own.
async fn read_a_byte(socket: OwnedFd) {
    use tokio::io::AsyncReadExt;
    if let Ok(mut stream) = tokio::net::TcpStream::from_std(std::net::TcpStream::from(socket)) {
        let _ = stream.read_u8().await;
    }
}
