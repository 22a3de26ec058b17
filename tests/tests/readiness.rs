//! The order of a stop: `/ready` says no while everyone is still served, then the ports close, then what is in flight ends,
//! then the process, at once.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use control::ControlError;
use fixtures::client::{KeepAlive, once};
use fixtures::upstream::Upstream;
use harness::{Asked, HeldStream, Proxy, TestHome, ask, ask_soon, process, same_version, until};
use nix::sys::signal::Signal;

async fn serving(upstream: &Upstream, server: &str) -> (TestHome, Proxy) {
    let home = TestHome::new();
    let url = upstream.url();
    let text = format!(
        "[server]\nlisten = [\"127.0.0.1:0\"]\n{server}[upstreams.anthropic]\nurl = \"{url}\"\n[upstreams.openai]\nurl = \"{url}\"\n[rollout]\nprobation = \"0\"\n"
    );
    std::fs::write(home.home.config_file(), text).unwrap();
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    (home, proxy)
}

/// The status that `/ready` answers on a new connection; nothing when there is none.
async fn ready(address: SocketAddr) -> Option<u16> {
    let answer = once(address, "GET", "/ready", &[("connection", "close")], b"").await;
    answer.ok()?.0.status()
}

/// Waits until `/ready` answers this.
async fn until_ready_is(address: SocketAddr, wanted: Option<u16>) {
    let deadline = Instant::now() + harness::PATIENCE;
    while ready(address).await != wanted {
        assert!(Instant::now() < deadline, "/ready never became {wanted:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ready_says_no_for_the_window_and_everyone_is_served_until_it_ends() {
    let upstream = Upstream::start().await.unwrap();
    let window = Duration::from_secs(3);
    let (home, mut proxy) = serving(&upstream, "unready_window = \"3s\"\n").await;
    let address = proxy.address;
    assert_eq!(ready(address).await, Some(200));
    let held = HeldStream::open(address, &upstream).await;
    let mut kept = KeepAlive::new(address, 1);
    kept.request().await;

    let since = Instant::now();
    proxy.signal(Signal::SIGTERM);
    until_ready_is(address, Some(503)).await;
    // Who has a connection, and who makes one, sees nothing of it.
    kept.request().await;
    assert_eq!(kept.counts().ok(), 2);
    assert!(ask(address).await.is_well());
    // Nothing new begins.
    match proxy.roll(same_version()).await {
        Err(ControlError::Refused { failure }) => assert_eq!(failure.code, "SUPERVISOR_STOPPING"),
        other => panic!("not refused: {other:?}"),
    }

    until("the port is closed", || {
        std::net::TcpStream::connect(address).is_err()
    })
    .await;
    assert!(since.elapsed() >= window, "{:?}", since.elapsed());
    assert_eq!(ask(address).await, Asked::Refused);
    let since = Instant::now();
    held.finish(&upstream).await;
    assert_eq!(proxy.ended().await, Some(0));
    // The stop time-out is 90 s; nobody waits for it.
    assert!(
        since.elapsed() < Duration::from_secs(30),
        "{:?}",
        since.elapsed()
    );
    assert_eq!(home.processes(), [0; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_nothing_in_flight_it_ends_with_the_window_and_waits_for_no_other_thing() {
    let upstream = Upstream::start().await.unwrap();
    // Nothing else wakes it for minutes.
    let (_home, mut proxy) = serving(&upstream, "unready_window = \"500ms\"\n").await;
    let since = Instant::now();
    proxy.signal(Signal::SIGTERM);
    assert_eq!(proxy.ended().await, Some(0));
    // A ping would come after 10 s.
    assert!(
        since.elapsed() < Duration::from_secs(6),
        "{:?}",
        since.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_generation_that_begins_to_serve_within_the_window_says_no_too() {
    let upstream = Upstream::start().await.unwrap();
    let (_home, mut proxy) = serving(&upstream, "unready_window = \"10m\"\n").await;
    let first = proxy.active();
    proxy.signal(Signal::SIGTERM);
    until_ready_is(proxy.address, Some(503)).await;
    process::send(proxy.active_pid(), Signal::SIGKILL);
    let next = proxy.serves_after(first.generation).await;
    until_ready_is(proxy.address, Some(503)).await;
    assert_eq!(proxy.active().generation, next.generation);
    assert!(ask(proxy.address).await.is_well());
    proxy.signal(Signal::SIGTERM);
    assert_eq!(proxy.ended().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_sigterm_ends_everything_within_the_window() {
    let upstream = Upstream::start().await.unwrap();
    let (home, mut proxy) = serving(&upstream, "unready_window = \"10m\"\n").await;
    let held = HeldStream::open(proxy.address, &upstream).await;
    proxy.signal(Signal::SIGTERM);
    until_ready_is(proxy.address, Some(503)).await;
    proxy.signal(Signal::SIGTERM);
    assert_eq!(proxy.ended().await, Some(0));
    assert!(!held.ended().await.is_perfect());
    assert_eq!(ask(proxy.address).await, Asked::Refused);
    assert_eq!(home.processes(), [0; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_not_yet_accepted_at_sigterm_is_served() {
    let upstream = Upstream::start().await.unwrap();
    let (_home, mut proxy) = serving(&upstream, "").await;
    proxy.signal(Signal::SIGSTOP);
    // More than are accepted in one turn, and more than may be on their way to a worker at a time.
    let clients: Vec<_> = (0..300).map(|_| ask_soon(proxy.address)).collect();
    until("all wait in the kernel", || {
        process::backlog(proxy.address) == 300
    })
    .await;
    proxy.signal(Signal::SIGTERM);
    proxy.signal(Signal::SIGCONT);
    for client in clients {
        assert!(client.await.unwrap().is_well());
    }
    assert_eq!(proxy.ended().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_full_worker_at_sigterm_is_served_when_it_has_room() {
    let upstream = Upstream::start().await.unwrap();
    let (_home, mut proxy) = serving(&upstream, "max_connections = 1\n").await;
    let held = HeldStream::open(proxy.address, &upstream).await;
    let clients: Vec<_> = (0..3).map(|_| ask_soon(proxy.address)).collect();
    until("they wait", || {
        let rolling = proxy.rolling();
        rolling.queued_sockets + rolling.pending_transfers == 3
    })
    .await;
    proxy.signal(Signal::SIGTERM);
    until("the port is closed", || {
        std::net::TcpStream::connect(proxy.address).is_err()
    })
    .await;
    held.finish(&upstream).await;
    for client in clients {
        assert!(client.await.unwrap().is_well());
    }
    assert_eq!(proxy.ended().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_worker_that_never_has_room_waits_no_longer_than_the_stop_time_out() {
    let upstream = Upstream::start().await.unwrap();
    let server = "max_connections = 1\nstop_timeout = \"700ms\"\n";
    let (home, mut proxy) = serving(&upstream, server).await;
    let held = HeldStream::open(proxy.address, &upstream).await;
    let client = ask_soon(proxy.address);
    until("it waits", || {
        let rolling = proxy.rolling();
        rolling.queued_sockets + rolling.pending_transfers == 1
    })
    .await;
    let since = Instant::now();
    proxy.signal(Signal::SIGTERM);
    assert_eq!(client.await.unwrap(), Asked::Reset);
    assert!(
        since.elapsed() >= Duration::from_millis(700),
        "{:?}",
        since.elapsed()
    );
    assert_eq!(proxy.ended().await, Some(0));
    assert!(!held.ended().await.is_perfect());
    assert_eq!(home.processes(), [0; 0]);
}
