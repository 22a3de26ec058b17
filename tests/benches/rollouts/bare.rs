//! What the hand-off is measured against, each a process of its own that runs the same relay as a worker does: one with
//! its own listener, and one that is given each socket in two phases and nothing besides.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;

use rollproxy::config::{Config, Route, Upstream};
use rollproxy::gateway::{Gateway, Vitals};
use rollproxy::relay::Relay;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use super::options::cores;

struct Process;

impl Vitals for Process {
    fn ready(&self) -> bool {
        true
    }

    fn status(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}

/// With as many threads as a worker has.
fn relay(upstream: &str) -> Relay {
    let mut config = Config::default();
    let upstream = Upstream::new(format!("http://{upstream}"));
    config.upstreams.insert("bench".into(), upstream);
    config.routes = vec![Route::new("/v1/*", "bench")];
    let gateway = Arc::new(Gateway::new(&config, Arc::new(Process)).unwrap());
    Relay::start(Arc::new(config), gateway, cores()).unwrap()
}

/// Says its port, and ends with its standard input.
fn listen() -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&listener, 4096).unwrap();
    println!("{}", listener.local_addr().unwrap().port());
    std::io::stdout().flush().unwrap();
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    listener
}

/// A worker that accepts for itself.
pub fn own_listener(upstream: &str) {
    let relay = relay(upstream);
    let listener = listen();
    loop {
        let (socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        relay.adopt(socket.into()).unwrap();
    }
}

/// Accepts, offers the socket, hears that it is held, commits, and hears that it is owned: one after the other.
pub fn supervisor(upstream: &str) {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let mut worker = Command::new(std::env::current_exe().unwrap())
        .args(["bare-worker", upstream])
        .stdin(Stdio::from(theirs))
        .spawn()
        .unwrap();
    hear(&ours, b'r');
    let listener = listen();
    let offer = || {
        let (socket, _) = listener.accept().ok()?;
        say(&ours, b's', Some(&socket.into()));
        hear(&ours, b'a');
        say(&ours, b'c', None);
        hear(&ours, b'o');
        Some(())
    };
    while offer().is_some() {}
    let _ = worker.kill();
    let _ = worker.wait();
}

/// The other end, on its standard input.
pub fn worker(upstream: &str) {
    let relay = relay(upstream);
    let channel = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    say(&channel, b'r', None);
    loop {
        let Some(socket) = hear(&channel, b's') else {
            return;
        };
        say(&channel, b'a', None);
        hear(&channel, b'c');
        say(&channel, b'o', None);
        rustix::io::ioctl_fionbio(&socket, true).unwrap();
        relay.adopt(socket).unwrap();
    }
}

fn say(channel: &OwnedFd, word: u8, socket: Option<&OwnedFd>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let sockets = socket.map(|socket| [socket.as_fd()]);
    if let Some(sockets) = &sockets {
        control.push(SendAncillaryMessage::ScmRights(sockets));
    }
    let words = [IoSlice::new(std::slice::from_ref(&word))];
    if sendmsg(channel, &words, &mut control, SendFlags::NOSIGNAL).is_err() {
        std::process::exit(0);
    }
}

/// The socket that came with the word; whoever says nothing more has ended, and so do we.
fn hear(channel: &OwnedFd, word: u8) -> Option<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut said = [0];
    let received = recvmsg(
        channel,
        &mut [IoSliceMut::new(&mut said)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    );
    if !received.is_ok_and(|received| received.bytes == 1) {
        std::process::exit(0);
    }
    assert_eq!(said, [word]);
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut sockets) => sockets.next(),
        _ => None,
    })
}
