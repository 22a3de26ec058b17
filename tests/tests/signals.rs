//! What a person or a service manager says by signal holds at any time, and costs no client anything.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use control::types::{By, Outcome};
use fixtures::client::End;
use fixtures::script::Script;
use fixtures::upstream::Upstream;
use harness::{
    Asked, HeldStream, Proxy, Starting, TestHome, ask, ask_soon, by_person, process, same_version,
    until,
};
use nix::sys::signal::Signal;

/// A home with a good 1.0.0 that is selected, a bad 1.1.0 and a good 1.2.0.
fn three_versions(upstream: &Upstream) -> TestHome {
    let home = TestHome::new();
    home.configure_upstream(&upstream.url(), "");
    home.install_proxy("1.0.0");
    home.install_faulty("1.1.0", "crash-before-ready");
    home.install_faulty("1.2.0", "");
    home.select("1.0.0");
    home
}

async fn one_version(upstream: &Upstream, more: &str) -> (TestHome, Proxy) {
    let home = TestHome::new();
    home.configure_upstream(&upstream.url(), more);
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    (home, proxy)
}

/// SIGUSR2 as early as it can be heard: before the supervisor has bound or started anything.
async fn start_and_signal_at_once(home: &TestHome) -> Proxy {
    let starting = Starting::selected(home);
    let pid = starting.pid();
    while !process::blocks(pid, Signal::SIGUSR2) {
        // The window is a few milliseconds long: no pause.
        assert!(process::is_alive(pid), "{}", starting.log());
        tokio::task::yield_now().await;
    }
    process::send(pid, Signal::SIGUSR2);
    starting.answering().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigusr2_rolls_to_the_pending_version_even_during_start_up() {
    let upstream = Upstream::start().await.unwrap();
    let home = three_versions(&upstream);
    home.set_pending("1.2.0");
    let proxy = start_and_signal_at_once(&home).await;
    until("the pending version serves", || {
        proxy.active_version().as_deref() == Some("1.2.0")
    })
    .await;
    until("it is selected", || {
        home.selected().as_deref() == Some("1.2.0")
    })
    .await;
    assert_eq!(home.pending(), None);
    let rollout = proxy.rolling().last_rollout.unwrap();
    assert_eq!((rollout.id, rollout.by), (1, By::Signal), "{rollout:?}");
    assert_eq!(ask(proxy.address).await, Asked::by_faulty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_pending_version_at_start_up_leaves_the_selected_one_serving_and_the_next_sigusr2_works()
 {
    let upstream = Upstream::start().await.unwrap();
    let home = three_versions(&upstream);
    home.set_pending("1.1.0");
    let proxy = start_and_signal_at_once(&home).await;
    assert!(ask(proxy.address).await.is_well());
    assert_eq!(proxy.active_version().as_deref(), Some("1.0.0"));
    until("the verdict is written", || home.is_known_bad("1.1.0")).await;
    assert_eq!(
        (home.selected().as_deref(), home.pending()),
        (Some("1.0.0"), None)
    );
    let failure = proxy.last_failure();
    assert!(
        failure.contains("WORKER_EXITED") && failure.contains("1.1.0"),
        "{failure}"
    );

    // Nothing is pending: nothing happens.
    let before = proxy.active();
    proxy.signal(Signal::SIGUSR2);
    until("the signal was heard", || {
        proxy.log().contains("no version is pending")
    })
    .await;
    assert_eq!(proxy.active().generation, before.generation);

    let held = HeldStream::open(proxy.address, &upstream).await;
    home.set_pending("1.2.0");
    proxy.signal(Signal::SIGUSR2);
    until("the next one serves", || {
        proxy.active_version().as_deref() == Some("1.2.0")
    })
    .await;
    until("it is selected", || {
        home.selected().as_deref() == Some("1.2.0")
    })
    .await;
    held.finish(&upstream).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_left_pending_is_rolled_to_at_the_next_start_without_any_signal() {
    let upstream = Upstream::start().await.unwrap();
    let home = three_versions(&upstream);
    home.set_pending("1.2.0");
    let proxy = Proxy::start(&home).await;
    until("the pending version serves", || {
        proxy.active_version().as_deref() == Some("1.2.0")
    })
    .await;
    let rolling = proxy.rolling();
    assert_eq!(rolling.last_rollout.unwrap().by, By::Pending);
    assert_eq!(rolling.generation, Some(2), "the selected one served first");
    until("it is selected", || {
        home.selected().as_deref() == Some("1.2.0")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_persons_pin_outlives_what_a_job_had_left_pending() {
    let upstream = Upstream::start().await.unwrap();
    let home = TestHome::new();
    home.configure_upstream(&upstream.url(), "");
    for version in ["1.0.0", "1.1.0", "1.2.0"] {
        home.install_proxy(version);
    }
    home.select("1.0.0");
    let mut proxy = Proxy::start(&home).await;
    home.set_pending("1.2.0");
    home.tool("rollproxy-launcher")
        .args(["select", "1.1.0"])
        .run()
        .await
        .expect(0);
    assert_eq!(home.pending(), None);
    proxy.signal(Signal::SIGKILL);
    proxy.ended().await;

    let proxy = Proxy::start(&home).await;
    until("the pinned version serves", || {
        proxy.active_version().as_deref() == Some("1.1.0")
    })
    .await;
    // What was to be rolled to after the start would be there before the end of a rollout of our own.
    let request = same_version();
    let verdict = proxy.roll(request).await.unwrap();
    assert_eq!(verdict.version.to_string(), "1.1.0");
    assert_eq!(home.selected().as_deref(), Some("1.1.0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sighup_rolls_the_same_version_with_the_configuration_as_it_now_is() {
    let (one, other) = (
        Upstream::start().await.unwrap(),
        Upstream::start().await.unwrap(),
    );
    let (home, proxy) = one_version(&one, "").await;
    let first = proxy.active();
    let held = HeldStream::open(proxy.address, &one).await;
    home.configure_upstream(&other.url(), "");
    proxy.signal(Signal::SIGHUP);
    let second = proxy.serves_after(first.generation).await;
    assert_eq!(second.version, first.version);
    let stream =
        fixtures::client::stream(proxy.address, &Script::new(5, Duration::ZERO, 1).into()).await;
    assert!(stream.is_perfect(), "{stream:?}");
    assert_eq!((one.counts().requests, other.counts().requests), (1, 1));
    held.finish(&one).await;

    // Broken: the whole of it is refused, by file and key, and what runs goes on.
    home.configure_upstream(&one.url(), "[rollout]\nready_timeout = \"soon\"\n");
    proxy.signal(Signal::SIGHUP);
    until("the signal was heard", || !proxy.last_failure().is_empty()).await;
    let failure = proxy.last_failure();
    let file = home.home.config_file().display().to_string();
    assert!(
        failure.contains(&file) && failure.contains("rollout.ready_timeout"),
        "{failure}"
    );
    assert_eq!(proxy.active().generation, second.generation);
    let told = home.tool("rollproxy").arg("restart").run().await.expect(78);
    assert!(
        told.stderr.contains("rollout.ready_timeout"),
        "{}",
        told.stderr
    );
    // Nor does a recovery look into a file that somebody edits.
    process::send(proxy.active_pid(), Signal::SIGKILL);
    let third = proxy.serves_after(second.generation).await;
    assert!(
        fixtures::client::stream(proxy.address, &Script::new(5, Duration::ZERO, 2).into())
            .await
            .is_perfect()
    );
    assert_eq!((one.counts().requests, other.counts().requests), (1, 2));

    home.configure_upstream(&one.url(), "");
    proxy.signal(Signal::SIGHUP);
    proxy.serves_after(third.generation).await;
    assert!(
        fixtures::client::stream(proxy.address, &Script::new(5, Duration::ZERO, 3).into())
            .await
            .is_perfect()
    );
    assert_eq!((one.counts().requests, other.counts().requests), (2, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_lets_streams_finish_and_then_ends_at_once_and_leaves_nothing() {
    let upstream = Upstream::start().await.unwrap();
    let (home, mut proxy) = one_version(&upstream, "").await;
    let older = HeldStream::open(proxy.address, &upstream).await;
    assert_eq!(
        proxy.roll(same_version()).await.unwrap().verdict,
        Outcome::Kept
    );
    let newer = HeldStream::open(proxy.address, &upstream).await;
    // A service manager signals every process it knows: what ends a worker comes over its channel.
    for signal in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGUSR2,
    ] {
        process::send(proxy.active_pid(), signal);
    }
    proxy.signal(Signal::SIGTERM);
    until("nobody is let in any more", || {
        std::net::TcpStream::connect(proxy.address).is_err()
    })
    .await;
    // Not in the same moment: who was just let in is with a worker first.
    until("both finish, and the status still says so", || {
        proxy.rolling().draining.len() == 2
    })
    .await;
    let told = home.tool("rollproxy").arg("restart").run().await.expect(75);
    assert!(
        told.stderr.contains("SUPERVISOR_STOPPING"),
        "{}",
        told.stderr
    );
    newer.finish(&upstream).await;
    older.finish(&upstream).await;
    // Far less than the stop time-out of 90 s.
    assert_eq!(proxy.ended().await, Some(0));
    assert_eq!(home.processes(), [0; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stop_time_out_cuts_what_is_left_but_never_to_look_clean() {
    let upstream = Upstream::start().await.unwrap();
    let (home, mut proxy) = one_version(&upstream, "").await;
    let file = home.home.config_file();
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(
        &file,
        text.replace("[server]\n", "[server]\nstop_timeout = \"500ms\"\n"),
    )
    .unwrap();
    assert_eq!(
        proxy.roll(same_version()).await.unwrap().verdict,
        Outcome::Kept
    );
    let held = HeldStream::open(proxy.address, &upstream).await;
    let since = Instant::now();
    proxy.signal(Signal::SIGTERM);
    let cut = held.ended().await;
    assert!(matches!(cut.end, End::Cut | End::Reset), "{cut:?}");
    assert!(
        since.elapsed() >= Duration::from_millis(500),
        "{:?}",
        since.elapsed()
    );
    assert_eq!(proxy.ended().await, Some(0));
    assert_eq!(home.processes(), [0; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_twice_ends_now() {
    let upstream = Upstream::start().await.unwrap();
    let (home, mut proxy) = one_version(&upstream, "").await;
    let held = HeldStream::open(proxy.address, &upstream).await;
    proxy.signal(Signal::SIGTERM);
    until("the first one was heard", || {
        std::net::TcpStream::connect(proxy.address).is_err()
    })
    .await;
    proxy.signal(Signal::SIGTERM);
    assert_eq!(proxy.ended().await, Some(0));
    let cut = held.ended().await;
    assert!(matches!(cut.end, End::Cut | End::Reset), "{cut:?}");
    assert_eq!(home.processes(), [0; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_turns_those_away_at_once_who_wait_for_a_worker_that_will_not_come() {
    let upstream = Upstream::start().await.unwrap();
    let home = TestHome::new();
    home.configure_upstream(&upstream.url(), "[rollout]\nqueue_timeout = \"10m\"\n");
    home.install_proxy("1.0.0");
    home.install_faulty("1.1.0", &format!("told-by={}", home.told_file().display()));
    home.select("1.0.0");
    let mut proxy = Proxy::start(&home).await;
    let held = HeldStream::open(proxy.address, &upstream).await;
    proxy.roll(by_person("1.1.0")).await.unwrap();
    home.tell("never-ready");
    process::send(proxy.active_pid(), Signal::SIGKILL);
    until("nobody serves", || proxy.rolling().active.is_none()).await;
    let client = ask_soon(proxy.address);
    until("the client waits", || proxy.rolling().queued_sockets == 1).await;

    proxy.signal(Signal::SIGTERM);
    assert_eq!(client.await.unwrap(), Asked::Reset);
    assert_eq!(proxy.rolling().rejected_sockets, 1);
    held.finish(&upstream).await;
    assert_eq!(proxy.ended().await, Some(0));
    assert_eq!(home.processes(), [0; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_of_a_killed_supervisor_finish_what_they_serve_beside_the_next_supervisor() {
    let upstream = Upstream::start().await.unwrap();
    let (home, mut proxy) = one_version(&upstream, "").await;
    let held = HeldStream::open(proxy.address, &upstream).await;
    let orphan = proxy.active_pid();
    proxy.signal(Signal::SIGKILL);
    assert_eq!(proxy.ended().await, None);

    let told = home.tool("rollproxy").arg("status").run().await.expect(1);
    assert!(
        told.stdout.contains("The supervisor is gone"),
        "{}",
        told.stdout
    );
    assert!(
        told.stderr.contains("error[NOT_RUNNING]"),
        "{}",
        told.stderr
    );
    let next = Proxy::start(&home).await;
    assert!(ask(next.address).await.is_well());
    assert!(process::is_alive(orphan));
    held.finish(&upstream).await;
    until("the orphan ends by itself", || !process::is_alive(orphan)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_supervisor_of_the_same_home_says_who_runs_and_disturbs_nobody() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = one_version(&upstream, "").await;
    let before = proxy.now();
    let told = home.tool("rollproxy").arg("serve").run().await.expect(75);
    let pid = format!("pid {}", proxy.pid());
    assert!(
        told.stderr.contains("error[LOCK_HELD]") && told.stderr.contains(&pid),
        "{}",
        told.stderr
    );
    let after = proxy.now();
    assert_eq!(after.nonce, before.nonce);
    assert_eq!(
        after.rolling.active.unwrap().pid,
        before.rolling.active.unwrap().pid
    );
    assert!(ask(proxy.address).await.is_well());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_after_a_rollout_does_not_wait_for_idle_connections_that_were_handed_on() {
    let upstream = Upstream::start().await.unwrap();
    let (_home, mut proxy) = one_version(&upstream, "").await;
    let mut idle = fixtures::client::KeepAlive::new(proxy.address, 1);
    idle.request().await;
    assert_eq!(idle.counts().ok(), 1);
    let verdict = proxy.roll(same_version()).await.unwrap();
    assert_eq!(verdict.verdict, Outcome::Kept);
    until("it was handed on", || {
        let rolling = proxy.rolling();
        rolling.returned_sockets == 1 && rolling.active.is_some_and(|a| a.connections == 1)
    })
    .await;
    let since = Instant::now();
    proxy.signal(Signal::SIGTERM);
    assert_eq!(proxy.ended().await, Some(0));
    // A head may take 30 s; nothing of one has come.
    assert!(
        since.elapsed() < Duration::from_secs(15),
        "{:?}",
        since.elapsed()
    );
}
