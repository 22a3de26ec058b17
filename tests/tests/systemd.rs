//! What a service manager hears and keeps: exact datagrams of a real supervisor on a socket of the test's own.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::VecDeque;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt, FdMapping};
use control::supervisor::{HandoverPhase, HandoverRequest};
use control::types::{By, Outcome};
use fixtures::upstream::Upstream;
use harness::{
    Asked, HeldStream, PATIENCE, Proxy, Starting, TestHome, ask, by_person, process, same_version,
    until, until_some,
};
use nix::sys::signal::Signal;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// The test's own service manager.
struct Manager {
    socket: UnixDatagram,
    /// As `NOTIFY_SOCKET` names it.
    name: String,
    heard: VecDeque<(String, Option<OwnedFd>)>,
}

impl Manager {
    fn on_a_path(home: &TestHome) -> Self {
        let path = home.folder().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        Self::of(socket, path.display().to_string())
    }

    fn abstract_one(home: &TestHome) -> Self {
        let name = format!("rollproxy-test{}", home.folder().display());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
        Self::of(
            UnixDatagram::bind_addr(&address).unwrap(),
            format!("@{name}"),
        )
    }

    fn of(socket: UnixDatagram, name: String) -> Self {
        socket.set_nonblocking(true).unwrap();
        Self {
            socket,
            name,
            heard: VecDeque::new(),
        }
    }

    /// A supervisor as a service manager starts it, with these variables and descriptors.
    fn start(&self, home: &TestHome, environment: &[String], given: Vec<OwnedFd>) -> Starting {
        let program = harness::binaries().path("rollproxy-launcher");
        let mut command = Command::new("/bin/sh");
        // `$$` is the supervisor's own pid: it takes the shell's place.
        let variables = environment.join(" ");
        let script = format!("export NOTIFY_SOCKET=\"$1\" {variables}; exec \"$0\" serve");
        command.arg("-c").arg(script).arg(program).arg(&self.name);
        let mappings = given
            .into_iter()
            .zip(3..)
            .map(|(parent_fd, child_fd)| FdMapping {
                parent_fd,
                child_fd,
            })
            .collect();
        command.fd_mappings(mappings).unwrap();
        Starting::run(home, &mut command)
    }

    fn receive(&mut self) {
        let mut bytes = [0; 4096];
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let mut slices = [IoSliceMut::new(&mut bytes)];
            let Ok(received) = recvmsg(&self.socket, &mut slices, &mut control, flags) else {
                return;
            };
            let descriptor = control.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut all) => all.next(),
                _ => None,
            });
            let text = String::from_utf8(bytes[..received.bytes].to_vec()).unwrap();
            self.heard.push_back((text, descriptor));
        }
    }

    /// The next datagram.
    async fn next(&mut self) -> (String, Option<OwnedFd>) {
        until_some("the service manager is told something", || {
            self.receive();
            self.heard.pop_front()
        })
        .await
    }

    /// The text of the next one, which carries nothing.
    async fn said(&mut self) -> String {
        let (text, descriptor) = self.next().await;
        assert!(descriptor.is_none(), "{text}");
        text
    }

    /// The descriptor that it is to keep next, under this name.
    async fn stored(&mut self, name: &str) -> OwnedFd {
        let (text, descriptor) = self.next().await;
        assert_eq!(text, format!("FDSTORE=1\nFDNAME={name}"));
        descriptor.expect("a descriptor comes with it")
    }

    /// From here to the datagram that is `last`; the others only tell how it stands.
    async fn said_until(&mut self, last: &str) {
        loop {
            let text = self.said().await;
            if text == last {
                return;
            }
            assert!(text.starts_with("STATUS="), "{text} before {last}");
        }
    }

    /// A reload begins, and says when.
    async fn reloading(&mut self, since: u64) {
        let text = self.said().await;
        let micros = text
            .strip_prefix("RELOADING=1\nMONOTONIC_USEC=")
            .unwrap_or_else(|| panic!("{text}"));
        let micros: u64 = micros.parse().unwrap();
        assert!(
            (since..=monotonic_micros()).contains(&micros),
            "{micros} is not after {since}"
        );
    }
}

fn monotonic_micros() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000 + u64::try_from(now.tv_nsec).unwrap() / 1_000
}

/// `socket:[inode]` of a descriptor of this process.
fn inode(descriptor: &OwnedFd) -> String {
    let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    std::fs::read_link(link)
        .unwrap()
        .to_string_lossy()
        .into_owned()
}

fn holds(pid: i32, file: &str) -> bool {
    process::descriptors(pid)
        .iter()
        .any(|(_, what)| what == file)
}

async fn one_version(upstream: &Upstream) -> TestHome {
    let home = TestHome::new();
    home.configure_upstream(&upstream.url(), "");
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    home
}

/// Starts it and hears what comes until it is ready.
async fn ready(manager: &mut Manager, home: &TestHome, more: &[String]) -> (Proxy, OwnedFd) {
    let starting = manager.start(home, more, Vec::new());
    let listener = manager.stored("listener-1").await;
    assert_eq!(
        manager.said().await,
        "STATUS=nobody serves, 1.0.0 is being started (generation 1)"
    );
    assert_eq!(
        manager.said().await,
        "READY=1\nSTATUS=1.0.0 serves (generation 1)"
    );
    (starting.answering().await, listener)
}

/// A request on a connection that is there already.
fn send_request(mut stream: &TcpStream) {
    stream
        .write_all(b"GET /health HTTP/1.1\r\nhost: proxy\r\nconnection: close\r\n\r\n")
        .unwrap();
}

fn read_answer(mut stream: TcpStream) -> String {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_hears_of_the_start_of_rollouts_that_are_kept_and_fail_and_of_the_stop() {
    let upstream = Upstream::start().await.unwrap();
    let home = one_version(&upstream).await;
    let mut manager = Manager::abstract_one(&home);
    let (mut proxy, listener) = ready(&mut manager, &home, &[]).await;
    assert!(
        holds(proxy.pid(), &inode(&listener)),
        "it is the very socket that the supervisor listens on"
    );
    let held = HeldStream::open(proxy.address, &upstream).await;
    until("the stream is counted", || proxy.active().streams == 1).await;

    // Kept, by a signal.
    let since = monotonic_micros();
    proxy.signal(Signal::SIGHUP);
    manager.reloading(since).await;
    assert_eq!(
        manager.said().await,
        "STATUS=1.0.0 serves (generation 1), 1.0.0 is being started (generation 2)"
    );
    let kept = "1.0.0 serves (generation 2), 1 stream drains on 1 older";
    assert_eq!(manager.said().await, format!("STATUS={kept}"));
    assert_eq!(manager.said().await, format!("READY=1\nSTATUS={kept}"));

    // Failed, by the control socket.
    home.install_faulty("2.0.0", "crash-before-ready");
    let since = monotonic_micros();
    let verdict = proxy.roll(by_person("2.0.0")).await.unwrap();
    assert_eq!(verdict.verdict, Outcome::Failed);
    manager.reloading(since).await;
    assert_eq!(
        manager.said().await,
        "STATUS=1.0.0 serves (generation 2), 2.0.0 is being started (generation 3), 1 stream drains on 1 older"
    );
    assert_eq!(manager.said().await, format!("STATUS={kept}"));
    assert_eq!(manager.said().await, format!("READY=1\nSTATUS={kept}"));

    // Refused, by a signal: it waits for an answer to that, too.
    let config = std::fs::read_to_string(home.home.config_file()).unwrap();
    std::fs::write(home.home.config_file(), "[server]\nlisten = 1\n").unwrap();
    let since = monotonic_micros();
    proxy.signal(Signal::SIGHUP);
    manager.reloading(since).await;
    assert_eq!(manager.said().await, format!("READY=1\nSTATUS={kept}"));
    assert!(proxy.last_failure().contains("CONFIG_VALUE"));
    std::fs::write(home.home.config_file(), config).unwrap();

    // The old stream ends: one line says so, nothing else.
    held.finish(&upstream).await;
    manager
        .said_until("STATUS=1.0.0 serves (generation 2)")
        .await;

    let held = HeldStream::open(proxy.address, &upstream).await;
    until("the stream is counted", || proxy.active().streams == 1).await;
    proxy.signal(Signal::SIGTERM);
    let (text, _) = manager.next().await;
    assert_eq!(text, "FDSTOREREMOVE=1\nFDNAME=listener-1");
    assert_eq!(
        manager.said().await,
        "STOPPING=1\nSTATUS=stops, 1 stream drains"
    );
    // What the manager still holds is no door any more.
    assert_eq!(ask(proxy.address).await, Asked::Refused);
    held.finish(&upstream).await;
    assert_eq!(proxy.ended().await, Some(0));
    assert_eq!(manager.said().await, "STATUS=stops");
    manager.receive();
    assert_eq!(manager.heard.len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_hears_signs_of_life_and_workers_know_nothing_of_it() {
    let upstream = Upstream::start().await.unwrap();
    let home = one_version(&upstream).await;
    let mut manager = Manager::on_a_path(&home);
    let environment = [
        "WATCHDOG_USEC=400000",
        "WATCHDOG_PID=$$",
        "LISTEN_PID=1",
        "LISTEN_FDS=1",
        "LISTEN_FDNAMES=of-another",
    ]
    .map(str::to_owned);
    let starting = manager.start(&home, &environment, Vec::new());
    let proxy = starting.answering().await;
    proxy.serves().await;
    let mut signs = Vec::new();
    while signs.len() < 5 {
        if manager.next().await.0 == "WATCHDOG=1" {
            signs.push(Instant::now());
        }
    }
    let took = signs[4] - signs[0];
    assert!(took >= Duration::from_millis(600), "{took:?}");

    let environ = std::fs::read(format!("/proc/{}/environ", proxy.active_pid())).unwrap();
    let names: Vec<String> = environ
        .split(|byte| *byte == 0)
        .filter_map(|one| {
            String::from_utf8_lossy(one)
                .split_once('=')
                .map(|(name, _)| name.to_owned())
        })
        .collect();
    assert!(names.contains(&"ROLLPROXY_HOME".to_owned()), "{names:?}");
    let told = ["NOTIFY_SOCKET", "LISTEN_", "WATCHDOG_"];
    assert!(
        !names
            .iter()
            .any(|name| told.iter().any(|told| name.starts_with(told))),
        "{names:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_crash_the_next_supervisor_serves_on_the_kept_port_and_who_came_between() {
    let upstream = Upstream::start().await.unwrap();
    let home = one_version(&upstream).await;
    let mut manager = Manager::abstract_one(&home);
    let (mut proxy, listener) = ready(&mut manager, &home, &[]).await;
    let address = proxy.address;
    let held = HeldStream::open(address, &upstream).await;
    proxy.signal(Signal::SIGKILL);
    assert_eq!(proxy.ended().await, None);

    let between = TcpStream::connect(address).unwrap();
    send_request(&between);
    let environment = ["LISTEN_PID=$$", "LISTEN_FDS=1", "LISTEN_FDNAMES=listener-1"];
    let kept = inode(&listener);
    let next = manager.start(&home, &environment.map(str::to_owned), vec![listener]);
    // It is kept already: nothing is stored again.
    assert_eq!(
        manager.said().await,
        "STATUS=nobody serves, 1.0.0 is being started (generation 1)"
    );
    let next = next.answering().await;
    assert_eq!(next.address, address);
    assert!(holds(next.pid(), &kept));
    let answer = tokio::task::spawn_blocking(move || read_answer(between));
    assert!(answer.await.unwrap().starts_with("HTTP/1.1 200"));
    assert!(ask(address).await.is_well());
    held.finish(&upstream).await;

    // And it can still be forgotten.
    next.signal(Signal::SIGTERM);
    loop {
        let text = manager.said().await;
        match text.as_str() {
            "FDSTOREREMOVE=1\nFDNAME=listener-1" => return,
            text => assert!(!text.starts_with("FDSTORE"), "{text}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_it_keeps_follows_the_addresses() {
    let upstream = Upstream::start().await.unwrap();
    let home = one_version(&upstream).await;
    let mut manager = Manager::abstract_one(&home);
    let (proxy, first) = ready(&mut manager, &home, &[]).await;
    let unix = format!("unix:{}", home.folder().join("proxy.sock").display());
    std::fs::write(
        home.home.config_file(),
        format!("[server]\nlisten = [\"{unix}\"]\n[rollout]\nprobation = \"0\"\n"),
    )
    .unwrap();
    proxy.roll(same_version()).await.unwrap();
    let mut heard = Vec::new();
    let mut second = None;
    while !heard
        .last()
        .is_some_and(|text: &String| text.starts_with("READY"))
    {
        let (text, descriptor) = manager.next().await;
        second = second.or(descriptor);
        if !text.starts_with("STATUS") && !text.starts_with("RELOADING") {
            heard.push(text);
        }
    }
    assert_eq!(
        heard[..2],
        [
            "FDSTORE=1\nFDNAME=listener-2",
            "FDSTOREREMOVE=1\nFDNAME=listener-1"
        ]
    );
    assert!(holds(proxy.pid(), &inode(&second.unwrap())));
    assert!(!holds(proxy.pid(), &inode(&first)));
    // The manager's copy is still open here, and yet nobody is let in to wait for nothing.
    assert_eq!(ask(proxy.address).await, Asked::Refused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sockets_of_a_socket_unit_are_used_and_stay_its_own() {
    let upstream = Upstream::start().await.unwrap();
    let home = one_version(&upstream).await;
    let mut manager = Manager::abstract_one(&home);
    let ours = TcpListener::bind("127.0.0.1:0").unwrap();
    let beside = TcpListener::bind("127.0.0.1:0").unwrap();
    let [asked, extra]: [SocketAddr; 2] =
        [&ours, &beside].map(|listener| listener.local_addr().unwrap());
    std::fs::write(
        home.home.config_file(),
        format!("[server]\nlisten = [\"{asked}\"]\n"),
    )
    .unwrap();
    let given = [&ours, &beside].map(|listener| listener.as_fd().try_clone_to_owned().unwrap());
    let no_socket = home.folder().join("no-socket");
    let useless = std::fs::File::create(&no_socket).unwrap();
    let environment = [
        "LISTEN_PID=$$",
        "LISTEN_FDS=3",
        "LISTEN_FDNAMES=rollproxy.socket:rollproxy.socket:null",
    ];
    let given = given.into_iter().chain([OwnedFd::from(useless)]).collect();
    let mut proxy = manager
        .start(&home, &environment.map(str::to_owned), given)
        .answering()
        .await;
    // It has them already.
    assert!(manager.said().await.starts_with("STATUS="));
    assert_eq!(
        proxy.now().listeners,
        [asked.to_string(), extra.to_string()]
    );
    assert!(ask(asked).await.is_well());
    assert!(ask(extra).await.is_well());
    assert!(
        proxy
            .log()
            .contains("was given a descriptor that is of no use")
    );
    assert!(!holds(proxy.pid(), &no_socket.display().to_string()));

    proxy.signal(Signal::SIGTERM);
    assert_eq!(proxy.ended().await, Some(0));
    // Whoever comes now waits for the next start, as with any socket unit.
    let waiting = TcpStream::connect(asked).unwrap();
    send_request(&waiting);
    assert!(ours.accept().is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_anybody_who_listens_there_it_serves_all_the_same() {
    let upstream = Upstream::start().await.unwrap();
    let home = one_version(&upstream).await;
    let manager = Manager::on_a_path(&home);
    std::fs::remove_file(&manager.name).unwrap();
    let proxy = manager.start(&home, &[], Vec::new()).answering().await;
    proxy.serves().await;
    assert!(ask(proxy.address).await.is_well());
    assert_eq!(
        proxy.roll(same_version()).await.unwrap().verdict,
        Outcome::Kept
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_hears_that_the_supervisor_goes_on_as_another_program_and_keeps_what_it_keeps() {
    let upstream = Upstream::start().await.unwrap();
    let home = one_version(&upstream).await;
    let mut manager = Manager::abstract_one(&home);
    let (mut proxy, listener) = ready(&mut manager, &home, &[]).await;
    let client = proxy.client().clone();
    let moved = tokio::task::spawn_blocking(move || {
        let begun = client.hand_over(&HandoverRequest {
            version: None,
            by: By::Person,
            nonce: None,
        });
        client.await_handover(&begun.unwrap()).unwrap()
    });
    let moved = moved.await.unwrap().handover.unwrap();
    assert_eq!(moved.phase, HandoverPhase::Moved, "{moved:?}");
    // Nothing is stored twice: this is the next that it hears.
    assert_eq!(
        manager.said().await,
        "READY=1\nSTATUS=1.0.0 serves (generation 1)"
    );
    assert!(holds(proxy.pid(), &inode(&listener)));
    assert!(ask(proxy.address).await.is_well());
    proxy.signal(Signal::SIGTERM);
    assert_eq!(manager.said().await, "FDSTOREREMOVE=1\nFDNAME=listener-1");
    assert_eq!(manager.said().await, "STOPPING=1\nSTATUS=stops");
    assert_eq!(proxy.ended().await, Some(0));
}
