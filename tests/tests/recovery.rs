//! Promise 1 when a worker is lost: the port stays open, whoever connects waits and is served by the
//! next one, and nobody else's stream is touched.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use control::types::Outcome;
use fixtures::client::End;
use fixtures::upstream::Upstream;
use harness::{
    Asked, HeldStream, Proxy, Starting, TestHome, ask, ask_soon, by_person, process, same_version,
    until,
};
use nix::sys::signal::Signal;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_first_workers_fail_the_port_stays_open_and_recovery_serves_who_waits() {
    let home = TestHome::new();
    home.configure("[rollout]\nrecovery_min = \"100ms\"\n");
    // The supervisor runs from its build folder; of its own version there is a package, a bad one.
    let starts = home.folder().join("starts");
    let fault = format!("crash-before-ready first=2@{}", starts.display());
    home.install_faulty(rollproxy::COMPILED_VERSION, &fault);
    let proxy = Starting::unpackaged(&home).answering().await;
    let clients: Vec<_> = (0..5).map(|_| ask_soon(proxy.address)).collect();
    for client in clients {
        assert_eq!(client.await.unwrap(), Asked::by_faulty());
    }
    let rolling = proxy.rolling();
    assert_eq!(rolling.active.unwrap().generation, 3, "two crashed");
    assert_eq!((rolling.queued_sockets, rolling.rejected_sockets), (0, 0));
    let failure = rolling.last_failure.unwrap();
    for part in [
        "WORKER_EXITED",
        "exit code 101",
        "generation 2",
        rollproxy::COMPILED_VERSION,
    ] {
        assert!(failure.contains(part), "{failure}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_worker_costs_its_own_streams_only_and_a_client_at_that_moment_is_served() {
    let upstream = Upstream::start().await.unwrap();
    let home = TestHome::new();
    home.configure_upstream(&upstream.url(), "");
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    let older = HeldStream::open(proxy.address, &upstream).await;
    assert_eq!(
        proxy.roll(same_version()).await.unwrap().verdict,
        Outcome::Kept
    );
    let own = HeldStream::open(proxy.address, &upstream).await;
    until("the worker said that it has a stream", || {
        proxy.active().streams == 1
    })
    .await;

    let killed = proxy.active();
    process::send(proxy.active_pid(), Signal::SIGKILL);
    let answers = [ask_soon(proxy.address), ask_soon(proxy.address)];
    for answer in answers {
        assert!(answer.await.unwrap().is_well());
    }
    let active = proxy.active();
    assert_eq!(
        (active.generation, &active.version),
        (killed.generation + 1, &killed.version)
    );
    let failure = proxy.last_failure();
    for part in ["WORKER_EXITED", "signal 9", "lost with it: 1"] {
        assert!(failure.contains(part), "{failure}");
    }
    let cut = own.ended().await;
    assert!(
        matches!(cut.end, End::Cut | End::Reset),
        "never an end that looks clean: {cut:?}"
    );
    assert!(cut.in_order && cut.events >= 3, "{cut:?}");
    older.finish(&upstream).await;
    let counts = upstream.counts();
    assert_eq!((counts.finished, counts.cancelled), (1, 1), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_kept_version_is_recovered_even_when_the_tree_we_came_from_is_gone() {
    let home = TestHome::new();
    home.install_proxy("1.0.0");
    home.install_faulty("1.1.0", "");
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    assert_eq!(
        proxy.roll(by_person("1.1.0")).await.unwrap().verdict,
        Outcome::Kept
    );
    staging::files::remove_tree(&home.home.package(&"1.0.0".parse().unwrap())).unwrap();
    process::send(proxy.active_pid(), Signal::SIGKILL);
    assert_eq!(ask(proxy.address).await, Asked::by_faulty());
    assert_eq!(proxy.active_version().as_deref(), Some("1.1.0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_running_versions_own_tree_may_go_before_and_after_a_handover() {
    let home = TestHome::new();
    home.configure("[rollout]\nrecovery_min = \"50ms\"\n");
    for version in ["1.0.0", "1.1.0"] {
        home.install_proxy(version);
    }
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    for version in ["1.0.0", "1.1.0"] {
        if version != "1.0.0" {
            let verdict = proxy.roll(by_person(version)).await.unwrap();
            assert_eq!(verdict.verdict, Outcome::Kept);
            until("the supervisor has followed", || {
                proxy
                    .status()
                    .is_some_and(|status| status.supervisor_version.to_string() == version)
            })
            .await;
        }
        staging::files::remove_tree(&home.home.package(&version.parse().unwrap())).unwrap();
        // It must not become a supervisor that does not know what it is and can start nobody.
        let restart = home.tool("rollproxy").args(["restart", "--supervisor"]);
        let refused = restart.run().await.expect(69);
        assert!(refused.text().contains("NOT_INSTALLED"), "{refused:?}");
        assert_eq!(proxy.now().supervisor_version.to_string(), version);
        for _ in 0..2 {
            let killed = proxy.active();
            process::send(proxy.active_pid(), Signal::SIGKILL);
            assert!(ask(proxy.address).await.is_well());
            let active = proxy.serves_after(killed.generation).await;
            assert_eq!(active.version.to_string(), version);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_dies_or_hangs_up_whenever_it_is_active_is_started_again_until_one_stays() {
    let upstream = Upstream::start().await.unwrap();
    let home = TestHome::new();
    home.configure_upstream(&upstream.url(), "[rollout]\nrecovery_min = \"50ms\"\n");
    home.install_proxy("1.0.0");
    home.install_faulty("1.1.0", &format!("told-by={}", home.told_file().display()));
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    let held = HeldStream::open(proxy.address, &upstream).await;
    for (fault, code) in [
        ("crash-when-active", "WORKER_EXITED"),
        ("close-when-active", "WORKER_CHANNEL_CLOSED"),
    ] {
        home.tell(fault);
        let verdict = proxy.roll(by_person("1.1.0")).await.unwrap();
        assert_eq!(verdict.verdict, Outcome::Kept, "{fault}");
        let first = verdict.generation.unwrap();
        let client = ask_soon(proxy.address);
        until("it failed more than once", || {
            let rolling = proxy.rolling();
            rolling.last_failure.is_some_and(|failure| {
                failure.contains(code) && failure.contains(&format!("generation {}", first + 1))
            })
        })
        .await;
        assert!(!client.is_finished(), "{fault}");
        home.tell("");
        assert_eq!(client.await.unwrap(), Asked::by_faulty(), "{fault}");
    }
    held.finish(&upstream).await;
}
