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
//! `ready-when=<file>` is no fault: the worker is ready once that file is there.
//!
//! With the word `real` it is a real worker in all it does, until a file appears: `exit-when=<file>`,
//! `fatal-when=<file>`, and `deaf-when=<file>`, which ends its channel.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rollproxy::channel::{
    Addressee, Blame, Channel, Datagram, Id, ToSupervisor, ToWorker, decode, encode,
};
use rollproxy::descriptors::WorkerDescriptors;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

/// A process that crashed, as a panic in Rust ends one.
const CRASHED: u8 = 101;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let package = staging::package::own();
    let faults = package
        .as_ref()
        .and_then(|package| std::fs::read_to_string(package.root.join("share/fault")).ok())
        .map_or_else(
            || Faults(vec!["crash-before-ready".into()]),
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
        return real_worker(&faults, descriptors, generation);
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
        Faulty {
            channel: Some(channel),
            us,
            faults,
            held: BTreeMap::new(),
            serving: JoinSet::new(),
        }
        .run()
        .await
    })
}

/// The real worker in this process, and beside it whatever is to end it.
fn real_worker(faults: &Faults, descriptors: WorkerDescriptors, generation: u64) -> ExitCode {
    let Ok(home) = staging::home::Home::from_env(&|name| std::env::var_os(name)) else {
        return ExitCode::from(2);
    };
    let us = Addressee {
        generation,
        pid: std::process::id(),
    };
    type End = fn(&OwnedFd, Addressee);
    let ends: [(&str, End); 3] = [
        ("exit-when", |_, _| std::process::exit(CRASHED.into())),
        ("fatal-when", |channel, us| {
            let fatal = ToSupervisor::Fatal {
                reason: "this worker is faulty on purpose".into(),
                blame: Blame::Package,
            };
            // If it cannot be said, the test does not hear it.
            let _ = rustix::io::write(channel, &encode(&fatal, us));
            std::process::exit(1);
        }),
        ("deaf-when", |channel, _| {
            let _ = rustix::net::shutdown(channel, rustix::net::Shutdown::Both);
        }),
    ];
    for (word, end) in ends {
        let (Some(file), Ok(channel)) = (faults.value(word), descriptors.channel.try_clone())
        else {
            continue;
        };
        let file = Path::new(file).to_owned();
        std::thread::spawn(move || {
            while !file.exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
            end(&channel, us);
        });
    }
    match rollproxy::worker::run_on(descriptors, generation, home) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// What is to go wrong.
struct Faults(Vec<String>);

impl Faults {
    fn read(text: &str) -> Self {
        let mut words = Vec::new();
        for word in text.split_whitespace() {
            match word.strip_prefix("told-by=") {
                // Not written yet: nothing is to go wrong yet.
                Some(file) => words.extend(
                    std::fs::read_to_string(file)
                        .unwrap_or_default()
                        .split_whitespace()
                        .map(str::to_owned),
                ),
                None => words.push(word.to_owned()),
            }
        }
        Self(words)
    }

    fn have(&self, word: &str) -> bool {
        self.0.iter().any(|known| known == word)
    }

    /// What stands behind `name=`.
    fn value(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    /// The faults that hold for a worker that starts now.
    fn of_this_start(self) -> Self {
        let first = self
            .value("first")
            .and_then(|first| first.split_once('@'))
            .and_then(|(count, file)| Some((count.parse::<u32>().ok()?, Path::new(file))));
        match first {
            Some((count, file)) if count_start(file) > count => Self(Vec::new()),
            _ => self,
        }
    }
}

/// The number of this start. Workers of one home start one after the other, so a plain file will do.
fn count_start(file: &Path) -> u32 {
    let before = std::fs::read_to_string(file)
        .ok()
        .and_then(|text| text.trim().parse::<u32>().ok())
        .unwrap_or(0);
    // A count that cannot be written leaves the worker faulty, and the test says so.
    let _ = std::fs::write(file, (before + 1).to_string());
    before + 1
}

struct Faulty {
    channel: Option<Channel>,
    us: Addressee,
    faults: Faults,
    /// The sockets between their `socket-accepted` and their `socket-commit`.
    held: BTreeMap<Id, OwnedFd>,
    serving: JoinSet<()>,
}

impl Faulty {
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
        while let Some(datagram) = self.hear().await {
            let Ok(message) = decode::<ToWorker>(&datagram.bytes, self.us) else {
                continue;
            };
            if let Some(code) = self.obey(message, datagram).await {
                return code;
            }
        }
        self.finish().await
    }

    async fn obey(&mut self, message: ToWorker, datagram: Datagram) -> Option<ExitCode> {
        match message {
            ToWorker::Activate if self.faults.have("never-activated") => {}
            ToWorker::Activate => {
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
                self.say(&ToSupervisor::SocketRefused {
                    id,
                    reason: "faulty".into(),
                });
            }
            ToWorker::Socket { id } => {
                self.held
                    .extend(datagram.descriptor.map(|socket| (id, socket)));
                self.say(&ToSupervisor::SocketAccepted { id });
                if self.faults.have("crash-after-accepted") {
                    return Some(ExitCode::from(CRASHED));
                }
            }
            ToWorker::SocketCommit { .. } if self.faults.have("crash-after-commit") => {
                return Some(ExitCode::from(CRASHED));
            }
            ToWorker::SocketCommit { id } => {
                self.say(&ToSupervisor::SocketOwned { id });
                if self.faults.have("crash-after-owned") {
                    return Some(ExitCode::from(CRASHED));
                }
                if let Some(socket) = self.held.remove(&id) {
                    self.serving.spawn(serve_once(socket));
                }
            }
            ToWorker::SocketCancel { id } => drop(self.held.remove(&id)),
            ToWorker::Drain { .. } if self.faults.have("keep-on") => {}
            ToWorker::Drain { .. } => {
                let code = self.finish().await;
                self.say(&ToSupervisor::Drained);
                return Some(code);
            }
            // It gives nothing back, so a standby of it only keeps what it has.
            ToWorker::Standby { .. }
            | ToWorker::ReturnCredit { .. }
            | ToWorker::Unready
            | ToWorker::Streams { .. } => {}
            ToWorker::Admission { id, .. } => {
                let held = self.serving.len() as u64;
                self.say(&ToSupervisor::Admission {
                    id,
                    connections: held,
                    exchanges: held,
                });
            }
            ToWorker::Shutdown => return Some(ExitCode::SUCCESS),
        }
        None
    }

    /// What was begun is answered.
    async fn finish(&mut self) -> ExitCode {
        while self.serving.join_next().await.is_some() {}
        ExitCode::SUCCESS
    }

    async fn hear(&mut self) -> Option<Datagram> {
        let channel = self.channel.as_mut()?;
        std::future::poll_fn(|context| channel.poll_recv(context))
            .await
            .ok()
            .flatten()
    }

    fn say(&self, message: &ToSupervisor) {
        self.send(&encode(message, self.us));
    }

    fn send(&self, bytes: &[u8]) {
        if let Some(channel) = &self.channel {
            // A worker this faulty may be hung up on; then there is nobody to tell.
            let _ = channel.try_send(bytes, None);
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

/// One request, one short answer.
async fn serve_once(socket: OwnedFd) {
    let Ok(mut stream) = tokio::net::TcpStream::from_std(std::net::TcpStream::from(socket)) else {
        return;
    };
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nfaulty";
    let _ = stream.write_all(answer).await;
}
