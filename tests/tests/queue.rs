//! Promise 3 for clients nobody can serve: they wait for a bounded time in a bounded number, and then
//! see a reset, never an end that looks like an answer; each is counted.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use control::types::Outcome;
use harness::{Asked, Proxy, Starting, TestHome, ask, ask_soon, by_person, process, until};
use nix::sys::signal::Signal;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

/// A supervisor whose only package never gets a worker ready while it is told so.
async fn unserved(rollout: &str) -> (TestHome, Proxy) {
    let home = TestHome::new();
    home.configure(&format!(
        "[rollout]\nrecovery_min = \"50ms\"\nrecovery_max = \"50ms\"\n{rollout}"
    ));
    let told = format!("told-by={}", home.told_file().display());
    home.install_faulty(rollproxy::COMPILED_VERSION, &told);
    home.tell("crash-before-ready");
    let proxy = Starting::unpackaged(&home).answering().await;
    (home, proxy)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_when_the_queue_is_full_is_reset_and_who_waits_is_served_in_the_end() {
    let (home, proxy) = unserved("queue_limit = 2\n").await;
    let waiting = [ask_soon(proxy.address), ask_soon(proxy.address)];
    until("two wait", || proxy.rolling().queued_sockets == 2).await;
    for _ in 0..3 {
        assert_eq!(ask(proxy.address).await, Asked::Reset);
    }
    let rolling = proxy.rolling();
    assert_eq!((rolling.queued_sockets, rolling.rejected_sockets), (2, 3));
    home.tell("");
    for client in waiting {
        assert_eq!(client.await.unwrap(), Asked::by_faulty());
    }
    assert_eq!(ask(proxy.address).await, Asked::by_faulty());
    assert_eq!(proxy.rolling().rejected_sockets, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waited_too_long_is_reset() {
    let (_home, proxy) = unserved("queue_timeout = \"400ms\"\n").await;
    let since = Instant::now();
    let clients = [ask_soon(proxy.address), ask_soon(proxy.address)];
    for client in clients {
        assert_eq!(client.await.unwrap(), Asked::Reset);
    }
    assert!(
        since.elapsed() >= Duration::from_millis(400),
        "{:?}",
        since.elapsed()
    );
    let rolling = proxy.rolling();
    assert_eq!((rolling.queued_sockets, rolling.rejected_sockets), (0, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_refused_by_the_worker_for_too_long_is_reset() {
    let (home, proxy) = unserved("queue_timeout = \"400ms\"\n").await;
    home.tell("refuse-transfers");
    proxy.serves().await;
    assert_eq!(ask(proxy.address).await, Asked::Reset);
    assert_eq!(proxy.rolling().rejected_sockets, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_connects_while_the_supervisor_has_no_descriptor_left_waits_in_the_kernel() {
    let home = TestHome::new();
    home.install_proxy("1.0.0");
    home.install_faulty("1.1.0", "");
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    assert_eq!(
        proxy.roll(by_person("1.1.0")).await.unwrap().verdict,
        Outcome::Kept
    );
    until("the former worker has ended", || {
        proxy.rolling().draining.is_empty()
    })
    .await;

    let pid = Pid::from_raw(proxy.pid());
    let limit = getrlimit(Resource::Nofile);
    let open = process::descriptors_at_rest(proxy.pid()).await;
    let free = (0..)
        .find(|free| open.iter().all(|(number, _)| number != free))
        .unwrap();
    let none_left = Rlimit {
        current: u64::try_from(free).ok(),
        maximum: limit.maximum,
    };
    prlimit(pid, Resource::Nofile, none_left).unwrap();

    let used = process::processor_seconds(proxy.pid());
    let since = Instant::now();
    let clients: Vec<_> = (0..3).map(|_| ask_soon(proxy.address)).collect();
    until("the supervisor noticed", || {
        proxy.log().contains("cannot accept")
    })
    .await;
    until("it has tried for a while", || {
        since.elapsed() > Duration::from_secs(1)
    })
    .await;
    let used = process::processor_seconds(proxy.pid()) - used;
    assert!(used < 0.5, "{used} s of processor time for waiting");
    assert!(clients.iter().all(|client| !client.is_finished()));

    prlimit(
        pid,
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    )
    .unwrap();
    for client in clients {
        assert_eq!(client.await.unwrap(), Asked::by_faulty());
    }
    let rolling = proxy.rolling();
    assert_eq!((rolling.rejected_sockets, rolling.last_failure), (0, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_supervisor_with_few_descriptors_keeps_some_back_for_the_recovery_and_the_control_socket()
{
    let home = TestHome::new();
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    let program = harness::binaries().path("rollproxy-launcher");
    let mut command = std::process::Command::new("/bin/sh");
    command
        .args(["-c", "ulimit -n 80; exec \"$0\" serve"])
        .arg(program);
    let proxy = Starting::run(&home, &mut command).answering().await;
    let first = proxy.serves().await;
    process::send(proxy.active_pid(), Signal::SIGSTOP);

    // Half of 80 are kept back; the rest of the clients wait where they cost nothing.
    let clients: Vec<_> = (0..100).map(|_| ask_soon(proxy.address)).collect();
    until("as many are taken as may be", || {
        let rolling = proxy.rolling();
        rolling.queued_sockets + rolling.pending_transfers == 40
    })
    .await;
    process::send(proxy.active_pid(), Signal::SIGKILL);
    proxy.serves_after(first.generation).await;
    for client in clients {
        assert!(client.await.unwrap().is_well());
    }
    assert_eq!(proxy.rolling().rejected_sockets, 0);
    assert!(!proxy.log().contains("Too many open files"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_refuses_is_asked_again_without_hurry() {
    let (home, proxy) = unserved("").await;
    home.tell("refuse-transfers");
    proxy.serves().await;
    let clients: Vec<_> = (0..20).map(|_| ask_soon(proxy.address)).collect();
    until("they wait", || proxy.rolling().queued_sockets == 20).await;
    let (used, since) = (process::processor_seconds(proxy.pid()), Instant::now());
    until("it has tried for a while", || {
        since.elapsed() > Duration::from_secs(2)
    })
    .await;
    let used = process::processor_seconds(proxy.pid()) - used;
    assert!(used < 0.3, "{used} s of processor time for waiting 2 s");
    assert!(clients.iter().all(|client| !client.is_finished()));
}
