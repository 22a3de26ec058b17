//! A `rollproxy` that misbehaves: the worker of packages that must not be kept.
//!
//! It passes for a release: it answers `--version` like any program of its package. As a worker it
//! does what the file `share/fault` of its package says; without that file it is broken the way a
//! bad release is, and crashes before it is ready. For tests and `rollproxy demo`.

use std::process::ExitCode;
use std::time::Duration;

use rollproxy::channel::{
    Addressee, Blame, Channel, Datagram, ToSupervisor, ToWorker, decode, encode,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let package = staging::package::own();
    let fault = package
        .as_ref()
        .and_then(|package| std::fs::read_to_string(package.root.join("share/fault")).ok())
        .unwrap_or_else(|| "crash-before-ready".to_owned());
    match arguments.first().map(String::as_str) {
        Some("--version") => version(&fault, arguments.iter().any(|argument| argument == "--verbose")),
        Some("worker") => {
            let generation = arguments.iter().filter_map(|argument| argument.parse().ok()).next_back();
            worker(&fault, generation.unwrap_or(0))
        }
        _ => ExitCode::from(64),
    }
}

fn version(fault: &str, verbose: bool) -> ExitCode {
    match fault {
        "version-exits-1" => return ExitCode::FAILURE,
        "version-hangs" => std::thread::sleep(Duration::from_secs(3600)),
        "version-lies" => {
            println!("rollproxy 6.6.6");
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    println!(
        "{}",
        staging::package::version_report("rollproxy", rollproxy::COMPILED_VERSION, rollproxy::COMMIT, verbose)
    );
    ExitCode::SUCCESS
}

fn worker(fault: &str, generation: u64) -> ExitCode {
    if fault == "crash-before-ready" {
        eprintln!("generation {generation}: this release is broken");
        return ExitCode::from(101);
    }
    let Ok(descriptors) = rollproxy::descriptors::take_worker_descriptors() else {
        return ExitCode::from(2);
    };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return ExitCode::from(2);
    };
    runtime.block_on(async {
        let Ok(channel) = Channel::new(descriptors.channel) else { return ExitCode::from(2) };
        let us = Addressee { generation, pid: std::process::id() };
        Faulty { channel: Some(channel), us, fault: fault.to_owned() }.run().await
    })
}

struct Faulty {
    channel: Option<Channel>,
    us: Addressee,
    fault: String,
}

impl Faulty {
    async fn run(mut self) -> ExitCode {
        let own = staging::package::own_version(rollproxy::COMPILED_VERSION).to_string();
        match self.fault.as_str() {
            "never-ready" => return hang().await,
            "close-channel" => {
                self.channel = None;
                return hang().await;
            }
            "fatal-configuration" => {
                self.fatal(Blame::Configuration);
                return ExitCode::FAILURE;
            }
            "fatal-package" => {
                self.fatal(Blame::Package);
                return ExitCode::FAILURE;
            }
            "garbage" => self.talk_garbage(),
            _ => {}
        }
        let version = if self.fault == "wrong-version" { "6.6.6".to_owned() } else { own };
        self.say(&ToSupervisor::Ready { version, protocol: staging::protocol::CHANNEL_PROTOCOL });
        if self.fault == "crash-after-ready" {
            return ExitCode::from(101);
        }
        while let Some(datagram) = self.hear().await {
            let Ok(message) = decode::<ToWorker>(&datagram.bytes, self.us) else { continue };
            if let Some(code) = self.obey(message, datagram).await {
                return code;
            }
        }
        ExitCode::SUCCESS
    }

    async fn obey(&mut self, message: ToWorker, datagram: Datagram) -> Option<ExitCode> {
        match message {
            ToWorker::Activate if self.fault == "never-activated" => {}
            ToWorker::Activate => {
                self.say(&ToSupervisor::Activated);
                if self.fault == "crash-when-active" {
                    return Some(ExitCode::from(101));
                }
                if self.fault == "deaf" {
                    return Some(hang().await);
                }
            }
            ToWorker::Ping { id } => self.say(&ToSupervisor::Pong { id }),
            ToWorker::Socket { .. } if self.fault == "mute-transfers" => {}
            ToWorker::Socket { id } if self.fault == "refuse-transfers" => {
                self.say(&ToSupervisor::SocketRefused { id, reason: "faulty".into() });
            }
            ToWorker::Socket { id } => {
                self.say(&ToSupervisor::SocketAccepted { id });
                if self.fault == "crash-after-accepted" {
                    return Some(ExitCode::from(101));
                }
                if let Some(ToWorker::SocketCommit { id }) = self.next_message().await {
                    if self.fault == "crash-after-commit" {
                        return Some(ExitCode::from(101));
                    }
                    self.say(&ToSupervisor::SocketOwned { id });
                    if let Some(socket) = datagram.descriptor {
                        serve_once(socket).await;
                    }
                }
            }
            ToWorker::Drain => {
                self.say(&ToSupervisor::Drained);
                return Some(ExitCode::SUCCESS);
            }
            ToWorker::Shutdown => return Some(ExitCode::SUCCESS),
            ToWorker::SocketCommit { .. } | ToWorker::SocketCancel { .. } => {}
        }
        None
    }

    async fn next_message(&mut self) -> Option<ToWorker> {
        loop {
            let datagram = self.hear().await?;
            match decode(&datagram.bytes, self.us) {
                Ok(ToWorker::Ping { id }) => self.say(&ToSupervisor::Pong { id }),
                Ok(message) => return Some(message),
                Err(_) => {}
            }
        }
    }

    async fn hear(&mut self) -> Option<Datagram> {
        let channel = self.channel.as_mut()?;
        std::future::poll_fn(|context| channel.poll_recv(context)).await.ok().flatten()
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

    fn fatal(&self, blame: Blame) {
        self.say(&ToSupervisor::Fatal { reason: "this worker is faulty on purpose".into(), blame });
    }

    /// Five messages that must be dropped and counted: they promise what is not so.
    fn talk_garbage(&self) {
        self.send(b"\xff\xfe not even text");
        self.send(b"{}");
        self.send(br#"{"type":"conquer","generation":1,"pid":1}"#);
        let stale = Addressee { generation: self.us.generation + 1000, ..self.us };
        self.send(&encode(&ToSupervisor::Activated, stale));
        let stranger = Addressee { pid: 1, ..self.us };
        self.send(&encode(&ToSupervisor::Drained, stranger));
    }
}

async fn hang() -> ExitCode {
    std::future::pending::<ExitCode>().await
}

/// One request, one short answer.
async fn serve_once(socket: std::os::fd::OwnedFd) {
    let Ok(mut stream) = tokio::net::TcpStream::from_std(std::net::TcpStream::from(socket)) else { return };
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
