//! The addresses follow the configuration by `restart`, and nobody who is connected to any of them notices.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use control::ControlError;
use control::types::Outcome;
use fixtures::upstream::Upstream;
use harness::{
    Asked, HeldStream, PATIENCE, Proxy, TestHome, ask, ask_soon, by_person, process, same_version,
    until,
};
use nix::sys::signal::Signal;
use staging::ownership::read_supervisor;

/// `config.toml` with these addresses; a rollout is kept at once.
fn listen(home: &TestHome, upstream: &str, addresses: &[&str], more: &str) {
    let text = format!(
        "[server]\nlisten = {addresses:?}\n[upstreams.anthropic]\nurl = \"{upstream}\"\n[upstreams.openai]\nurl = \"{upstream}\"\n[rollout]\nprobation = \"0\"\n{more}"
    );
    std::fs::write(home.home.config_file(), text).unwrap();
}

async fn serving(addresses: &[&str], more: &str) -> (Upstream, TestHome, Proxy) {
    let upstream = Upstream::start().await.unwrap();
    let home = TestHome::new();
    listen(&home, &upstream.url(), addresses, more);
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    (upstream, home, proxy)
}

fn socket_path(home: &TestHome) -> (PathBuf, String) {
    let path = home.folder().join("proxy.sock");
    let entry = format!("unix:{}", path.display());
    (path, entry)
}

/// A client of a Unix socket that asks again and again on one connection.
struct UnixClient(UnixStream);

impl UnixClient {
    fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    /// Asks whether the worker is well; the answer's head.
    fn ask(&mut self) -> std::io::Result<String> {
        self.0
            .write_all(b"GET /health HTTP/1.1\r\nhost: proxy\r\n\r\n")?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok())
            .unwrap();
        self.0.read_exact(&mut vec![0; length])?;
        Ok(head)
    }
}

fn is_well(head: &std::io::Result<String>) -> bool {
    head.as_ref()
        .is_ok_and(|head| head.starts_with("http/1.1 200"))
}

/// What the status, `run/supervisor.json` and the kernel say must agree.
async fn announced(home: &TestHome, proxy: &Proxy) -> Vec<String> {
    let listeners = proxy.now().listeners;
    until("run/supervisor.json follows", || {
        read_supervisor(&home.home).unwrap().unwrap().listeners == listeners
    })
    .await;
    listeners
}

/// The inodes of the sockets that a process holds when nobody asks it anything.
async fn sockets_at_rest(pid: i32) -> Vec<String> {
    let open = process::descriptors_at_rest(pid).await.into_iter();
    open.map(|(_, what)| what)
        .filter(|what| what.starts_with("socket:"))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_come_and_go_by_restart_and_the_others_do_not_notice() {
    let (upstream, home, proxy) = serving(&["127.0.0.1:0"], "").await;
    let (path, unix) = socket_path(&home);
    let held = HeldStream::open(proxy.address, &upstream).await;

    let all = ["127.0.0.1:0", "[::1]:0", unix.as_str()];
    listen(&home, &upstream.url(), &all, "");
    let verdict = proxy.roll(same_version()).await.unwrap();
    assert_eq!(
        (verdict.verdict, verdict.reason),
        (Outcome::Kept, None),
        "restart has nothing to say about it"
    );
    let listeners = announced(&home, &proxy).await;
    assert_eq!(listeners.len(), 3, "{listeners:?}");
    assert_eq!(listeners[0], proxy.address.to_string());
    assert_eq!(listeners[2], unix);
    let v6: SocketAddr = listeners[1].parse().unwrap();
    assert!(v6.is_ipv6() && v6.port() != 0);
    assert!(ask(proxy.address).await.is_well());
    assert!(ask(v6).await.is_well());
    assert!(is_well(&UnixClient::connect(&path).ask()));
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );

    let on_v6 = HeldStream::open(v6, &upstream).await;
    listen(&home, &upstream.url(), &[&unix], "");
    proxy.roll(same_version()).await.unwrap();
    assert_eq!(announced(&home, &proxy).await, std::slice::from_ref(&unix));
    assert_eq!(ask(proxy.address).await, Asked::Refused);
    assert_eq!(ask(v6).await, Asked::Refused);
    assert!(is_well(&UnixClient::connect(&path).ask()));
    held.finish(&upstream).await;
    on_v6.finish(&upstream).await;

    let back = proxy.address.to_string();
    listen(&home, &upstream.url(), &[&back], "");
    proxy.roll(same_version()).await.unwrap();
    assert_eq!(announced(&home, &proxy).await, [back]);
    assert!(ask(proxy.address).await.is_well());
    assert!(!path.exists(), "its file went with the socket");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_addresses_can_follow_one_of_them_on_the_same_port() {
    let (upstream, home, proxy) = serving(&["127.0.0.1:0"], "").await;
    let all = format!("0.0.0.0:{}", proxy.address.port());
    listen(&home, &upstream.url(), &[&all], "");
    proxy.roll(same_version()).await.unwrap();
    assert_eq!(announced(&home, &proxy).await, [all]);
    assert!(ask(proxy.address).await.is_well());
    let other = SocketAddr::from(([127, 0, 0, 2], proxy.address.port()));
    assert!(ask(other).await.is_well());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_in_use_refuses_the_rollout_and_changes_nothing() {
    let (upstream, home, proxy) = serving(&["127.0.0.1:0"], "").await;
    let (path, unix) = socket_path(&home);
    let before = (announced(&home, &proxy).await, proxy.active());
    let open = sockets_at_rest(proxy.pid()).await;

    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = stranger.local_addr().unwrap().to_string();
    listen(&home, &upstream.url(), &[&unix, &taken], "");
    match proxy.roll(same_version()).await {
        Err(ControlError::Refused { failure }) => {
            assert_eq!(failure.code, "ADDRESS_IN_USE");
            assert!(failure.message.contains(&taken), "{}", failure.message);
        }
        other => panic!("not refused: {other:?}"),
    }
    let told = home.tool("rollproxy").arg("restart").run().await.expect(1);
    assert!(
        told.stderr.contains("error[ADDRESS_IN_USE]"),
        "{}",
        told.stderr
    );

    let after = (announced(&home, &proxy).await, proxy.active());
    assert_eq!(after.0, before.0);
    assert_eq!(after.1.generation, before.1.generation);
    assert!(!path.exists(), "the one that could be bound is gone, too");
    assert_eq!(sockets_at_rest(proxy.pid()).await, open);
    assert!(ask(proxy.address).await.is_well());

    drop(stranger);
    proxy.roll(same_version()).await.unwrap();
    assert_eq!(announced(&home, &proxy).await, [unix, taken]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_addresses_of_a_candidate_that_fails_are_closed_again() {
    let (upstream, home, proxy) = serving(&["127.0.0.1:0"], "").await;
    let (path, unix) = socket_path(&home);
    home.install_faulty("2.0.0", "never-ready");
    listen(
        &home,
        &upstream.url(),
        &[&unix],
        "ready_timeout = \"1500ms\"\n",
    );
    let before = announced(&home, &proxy).await;
    let verdict = proxy.roll_begun(by_person("2.0.0")).await;

    // Bound, so that it cannot fail later; served by nobody before the verdict.
    let mut early = UnixClient::connect(&path);
    assert_eq!(proxy.now().listeners, before);
    assert_eq!(verdict.await.unwrap().unwrap().verdict, Outcome::Failed);
    assert!(early.ask().is_err());
    assert!(!path.exists());
    assert_eq!(announced(&home, &proxy).await, before);
    assert!(ask(proxy.address).await.is_well());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_in_the_backlog_of_an_address_that_goes_is_served() {
    let rollout = "queue_limit = 2\ntransfer_timeout = \"5m\"\n";
    let (upstream, home, proxy) = serving(&["127.0.0.1:0"], rollout).await;
    home.install_faulty("1.1.0", "mute-transfers");
    proxy.roll(by_person("1.1.0")).await.unwrap();
    let clients: Vec<_> = (0..64 + 2 + 5).map(|_| ask_soon(proxy.address)).collect();
    until("two wait in the queue, five in the kernel", || {
        let rolling = proxy.rolling();
        (rolling.pending_transfers, rolling.queued_sockets) == (64, 2)
            && process::backlog(proxy.address) == 5
    })
    .await;

    let (path, unix) = socket_path(&home);
    listen(&home, &upstream.url(), &[&unix], rollout);
    let verdict = proxy.roll(by_person("1.0.0")).await.unwrap();
    assert_eq!(verdict.verdict, Outcome::Kept);
    for client in clients {
        assert!(client.await.unwrap().is_well());
    }
    assert_eq!(ask(proxy.address).await, Asked::Refused);
    assert!(is_well(&UnixClient::connect(&path).ask()));
    assert_eq!(proxy.rolling().rejected_sockets, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_a_unix_socket_is_handed_on_like_any_other() {
    let upstream = Upstream::start().await.unwrap();
    let home = TestHome::new();
    let (path, unix) = socket_path(&home);
    listen(&home, &upstream.url(), &["127.0.0.1:0", &unix], "");
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    // What a dead process left is no obstacle.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let mut proxy = Proxy::start(&home).await;

    let mut client = UnixClient::connect(&path);
    assert!(is_well(&client.ask()));
    let before = proxy.active();
    proxy.roll(same_version()).await.unwrap();
    until("its connection was handed on", || {
        let rolling = proxy.rolling();
        rolling.returned_sockets == 1 && rolling.active.is_some_and(|a| a.connections == 1)
    })
    .await;
    assert!(is_well(&client.ask()));
    until("the former generation has ended", || {
        proxy.rolling().draining.is_empty()
    })
    .await;
    assert_ne!(proxy.active().generation, before.generation);
    assert!(is_well(&client.ask()));

    let second = home.tool("rollproxy").arg("serve").run().await;
    assert!(second.stderr.contains("LOCK_HELD"), "{}", second.stderr);
    assert!(is_well(&client.ask()));

    proxy.signal(Signal::SIGTERM);
    assert_eq!(proxy.ended().await, Some(0));
    assert!(!path.exists(), "a stop leaves no file behind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_permissions_of_a_unix_socket_are_a_setting_and_a_file_in_its_place_is_an_error() {
    let home = TestHome::new();
    let (path, unix) = socket_path(&home);
    let text = format!("[server]\nlisten = [\"127.0.0.1:0\", \"{unix}\"]\nunix_mode = \"0666\"\n");
    std::fs::write(home.home.config_file(), text).unwrap();
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    std::fs::write(&path, "precious").unwrap();
    let refused = home.tool("rollproxy").arg("serve").run().await;
    assert!(
        refused.stderr.contains("error[CANNOT_LISTEN]")
            && refused.stderr.contains(&path.display().to_string()),
        "{}",
        refused.stderr
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");

    std::fs::remove_file(&path).unwrap();
    let proxy = Proxy::start(&home).await;
    let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o666);
    let mut client = UnixClient::connect(&path);
    assert!(is_well(&client.ask()));

    let text = std::fs::read_to_string(home.home.config_file()).unwrap();
    let text = text.replace("0666", "0640") + "[rollout]\nprobation = \"0\"\n";
    std::fs::write(home.home.config_file(), text).unwrap();
    proxy.roll(same_version()).await.unwrap();
    assert_eq!(
        mode(),
        0o640,
        "the very same socket, with other permissions"
    );
    assert!(is_well(&client.ask()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_not_yet_accepted_when_a_rollout_begins_is_served() {
    let (_upstream, _home, proxy) = serving(&["127.0.0.1:0"], "").await;
    let before = proxy.active();
    proxy.signal(Signal::SIGSTOP);
    let clients: Vec<_> = (0..100).map(|_| ask_soon(proxy.address)).collect();
    until("all wait in the kernel", || {
        process::backlog(proxy.address) == 100
    })
    .await;
    proxy.signal(Signal::SIGHUP);
    proxy.signal(Signal::SIGCONT);
    for client in clients {
        assert!(client.await.unwrap().is_well());
    }
    proxy.serves_after(before.generation).await;
    assert_eq!(proxy.rolling().rejected_sockets, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_of_a_superseded_rollout_is_served_as_long_as_its_generation_is() {
    let home = TestHome::new();
    let configure = |addresses: &[&str], more: &str| {
        let text =
            format!("[server]\nlisten = {addresses:?}\n[rollout]\nprobation = \"10m\"\n{more}");
        std::fs::write(home.home.config_file(), text).unwrap();
    };
    configure(&["127.0.0.1:0"], "");
    home.install_proxy("1.0.0");
    home.install_proxy("1.1.0");
    home.install_faulty("1.2.0", "never-ready");
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    configure(&["127.0.0.1:0", "[::1]:0"], "");
    let first = proxy.roll_begun(by_person("1.1.0")).await;
    until("it is on probation", || proxy.rolling().probation.is_some()).await;
    let v6: SocketAddr = announced(&home, &proxy).await[1].parse().unwrap();
    assert!(ask(v6).await.is_well());

    let second = proxy.roll_begun(by_person("1.2.0")).await;
    assert_eq!(first.await.unwrap().unwrap().verdict, Outcome::Superseded);
    for address in [v6, proxy.address] {
        assert!(ask(address).await.is_well());
    }
    let candidate = proxy.rolling().candidate.unwrap();
    process::send(i32::try_from(candidate.pid).unwrap(), Signal::SIGKILL);
    assert_eq!(second.await.unwrap().unwrap().verdict, Outcome::Failed);
    assert!(ask(proxy.address).await.is_well());
    assert_eq!(ask(v6).await, Asked::Refused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_probation_old_and_new_addresses_are_served_and_a_take_over_brings_the_old_ones_back() {
    let home = TestHome::new();
    let (path, unix) = socket_path(&home);
    let configure = |addresses: &[&str]| {
        let text = format!("[server]\nlisten = {addresses:?}\n[rollout]\nprobation = \"10m\"\n");
        std::fs::write(home.home.config_file(), text).unwrap();
    };
    configure(&["127.0.0.1:0", &unix]);
    home.install_proxy("1.0.0");
    home.install_proxy("1.1.0");
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    let before = announced(&home, &proxy).await;

    configure(&["127.0.0.1:0", "[::1]:0"]);
    let verdict = proxy.roll_begun(by_person("1.1.0")).await;
    until("it is on probation", || proxy.rolling().probation.is_some()).await;
    let listeners = announced(&home, &proxy).await;
    assert_eq!(listeners[..2], before);
    let v6: SocketAddr = listeners[2].parse().unwrap();
    assert!(ask(proxy.address).await.is_well());
    assert!(ask(v6).await.is_well());
    assert!(is_well(&UnixClient::connect(&path).ask()));

    process::send(proxy.active_pid(), Signal::SIGKILL);
    let verdict = verdict.await.unwrap().unwrap();
    assert_eq!(verdict.verdict, Outcome::RolledBack);
    assert_eq!(announced(&home, &proxy).await, before);
    assert_eq!(ask(v6).await, Asked::Refused);
    assert!(ask(proxy.address).await.is_well());
    assert!(is_well(&UnixClient::connect(&path).ask()));
}
