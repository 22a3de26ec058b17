//! Promise 1, where two processes meet: a client that connected gets exactly one answer, whatever the
//! worker that was offered its connection does.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use control::types::{Outcome, Place};
use fixtures::client::KeepAlive;
use fixtures::upstream::Upstream;
use harness::{
    Asked, HeldStream, Proxy, TestHome, ask, ask_soon, by_person, process, same_version, until,
};
use nix::sys::signal::Signal;

/// A home that serves 1.0.0, and can roll to 1.1.0, whose workers do what they are told when they start.
async fn serving(upstream: &Upstream, rollout: &str) -> (TestHome, Proxy) {
    let home = TestHome::new();
    home.configure_upstream(
        &upstream.url(),
        &format!("[rollout]\nrecovery_min = \"50ms\"\n{rollout}"),
    );
    home.install_proxy("1.0.0");
    home.install_faulty("1.1.0", &format!("told-by={}", home.told_file().display()));
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    (home, proxy)
}

/// Makes a worker with this fault active; every worker after it is a good one.
async fn roll_to_faulty(home: &TestHome, proxy: &Proxy, fault: &str) -> Place {
    home.tell(fault);
    let verdict = proxy.roll(by_person("1.1.0")).await.unwrap();
    assert_eq!(verdict.verdict, Outcome::Kept, "{verdict:?}");
    home.tell("");
    proxy.active()
}

fn pid(place: &Place) -> i32 {
    i32::try_from(place.pid).unwrap()
}

async fn wait(time: Duration) {
    let since = Instant::now();
    until("some time has passed", || since.elapsed() >= time).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_answers_pings_but_no_transfer_is_replaced_and_not_killed() {
    let upstream = Upstream::start().await.unwrap();
    let rollout =
        "transfer_timeout = \"300ms\"\nping_interval = \"50ms\"\nping_timeout = \"500ms\"\n";
    let (home, proxy) = serving(&upstream, rollout).await;
    let held = HeldStream::open(proxy.address, &upstream).await;
    let mute = roll_to_faulty(&home, &proxy, "mute-transfers keep-on").await;

    let clients: Vec<_> = (0..5).map(|_| ask_soon(proxy.address)).collect();
    for client in clients {
        assert_eq!(client.await.unwrap(), Asked::by_faulty());
    }
    let rolling = proxy.rolling();
    let next = rolling.active.unwrap();
    assert_eq!(
        (next.generation, &next.version),
        (mute.generation + 1, &mute.version)
    );
    assert_eq!(rolling.failed_transfers, 5);
    assert!(
        rolling
            .last_failure
            .unwrap()
            .contains("WORKER_UNRESPONSIVE")
    );
    wait(Duration::from_secs(2)).await;
    assert!(
        process::is_alive(pid(&mute)),
        "it answers its pings and may have streams"
    );
    assert!(
        proxy
            .rolling()
            .draining
            .iter()
            .any(|place| place.generation == mute.generation)
    );
    assert!(!proxy.log().contains("is killed"));
    held.finish(&upstream).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_answers_no_ping_either_is_replaced_first_and_killed_then() {
    let upstream = Upstream::start().await.unwrap();
    let rollout = "transfer_timeout = \"200ms\"\nping_interval = \"50ms\"\nping_timeout = \"3s\"\n";
    let (home, proxy) = serving(&upstream, rollout).await;
    let held = HeldStream::open(proxy.address, &upstream).await;
    let deaf = roll_to_faulty(&home, &proxy, "deaf").await;

    let client = ask_soon(proxy.address);
    until("it is replaced while it lives", || {
        let rolling = proxy.rolling();
        let drains = rolling
            .draining
            .iter()
            .any(|place| place.generation == deaf.generation);
        drains
            && rolling
                .active
                .is_some_and(|place| place.generation > deaf.generation)
    })
    .await;
    assert!(process::is_alive(pid(&deaf)));
    assert_eq!(client.await.unwrap(), Asked::by_faulty());
    until("it is killed", || !process::is_alive(pid(&deaf))).await;
    until("nobody remembers it", || {
        proxy
            .rolling()
            .draining
            .iter()
            .all(|place| place.generation != deaf.generation)
    })
    .await;
    assert_eq!(
        proxy.log().matches("is killed").count(),
        1,
        "{}",
        proxy.log()
    );
    held.finish(&upstream).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_killed_between_any_two_messages_costs_no_client_an_answer_nor_gives_it_two() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, "").await;
    let held = HeldStream::open(proxy.address, &upstream).await;
    // What of 20 clients is lost: only whose connection the worker already called its own.
    for (fault, lost) in [
        ("crash-after-accepted", 0),
        ("crash-after-commit", 0),
        ("crash-after-owned", 1),
    ] {
        let before = proxy.rolling();
        let faulty = roll_to_faulty(&home, &proxy, fault).await;
        let clients: Vec<_> = (0..20).map(|_| ask_soon(proxy.address)).collect();
        let mut answered = 0;
        for client in clients {
            match client.await.unwrap() {
                answer if answer == Asked::by_faulty() => answered += 1,
                Asked::Closed | Asked::Reset => {}
                other => panic!("{fault}: {other:?}"),
            }
        }
        assert_eq!(answered, 20 - lost, "{fault}");
        let after = proxy.rolling();
        assert!(
            after.active.unwrap().generation > faulty.generation,
            "{fault}"
        );
        assert!(
            after.last_failure.unwrap().contains("WORKER_EXITED"),
            "{fault}"
        );
        let offered_again = after.failed_transfers - before.failed_transfers;
        assert!(offered_again >= 1 || lost > 0, "{fault}: {offered_again}");
        assert_eq!(after.rejected_sockets, 0, "{fault}");
    }
    held.finish(&upstream).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusing_a_socket_is_no_crime_and_the_client_waits_for_somebody_who_takes_it() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, "").await;
    let choosy = roll_to_faulty(&home, &proxy, "refuse-transfers").await;
    let clients: Vec<_> = (0..5).map(|_| ask_soon(proxy.address)).collect();
    until("sockets were refused again and again", || {
        proxy.log().matches("socket-refused").count() > 50
    })
    .await;
    assert_eq!(proxy.active().generation, choosy.generation);
    assert_eq!(proxy.rolling().last_failure, None);
    assert!(clients.iter().all(|client| !client.is_finished()));
    assert_eq!(
        proxy.roll(same_version()).await.unwrap().verdict,
        Outcome::Kept
    );
    for client in clients {
        assert_eq!(client.await.unwrap(), Asked::by_faulty());
    }
    let rolling = proxy.rolling();
    assert_eq!((rolling.rejected_sockets, rolling.failed_transfers), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_stood_still_for_a_while_keeps_its_streams_and_others_serve_meanwhile() {
    let upstream = Upstream::start().await.unwrap();
    let rollout =
        "transfer_timeout = \"300ms\"\nping_interval = \"50ms\"\nping_timeout = \"50s\"\n";
    let (_home, proxy) = serving(&upstream, rollout).await;
    let held = HeldStream::open(proxy.address, &upstream).await;
    let still = proxy.active();
    process::send(pid(&still), Signal::SIGSTOP);
    until("the worker stands still", || {
        process::is_stopped(pid(&still))
    })
    .await;

    let clients: Vec<_> = (0..5).map(|_| ask_soon(proxy.address)).collect();
    for client in clients {
        assert!(client.await.unwrap().is_well());
    }
    assert!(
        process::is_stopped(pid(&still)),
        "the clients were served by the next one"
    );
    let next = proxy.active();
    assert_eq!(
        (next.generation, &next.version),
        (still.generation + 1, &still.version)
    );

    process::send(pid(&still), Signal::SIGCONT);
    held.finish(&upstream).await;
    until("the one that stood still has finished", || {
        proxy.rolling().draining.is_empty()
    })
    .await;
    until("it ends by itself", || !process::is_alive(pid(&still))).await;
    assert!(!proxy.log().contains("is killed"));
    assert_eq!(proxy.active().generation, next.generation);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_go_on_to_the_next_worker_and_their_clients_never_see_a_close() {
    let upstream = Upstream::start().await.unwrap();
    // More than may be under way at once, before a queue that is nearly none: its bound is for new clients.
    let (_home, proxy) = serving(&upstream, "queue_limit = 1\n").await;
    let mut clients: Vec<_> = (0..100)
        .map(|seed| KeepAlive::new(proxy.address, seed))
        .collect();
    for roll in 1..=3 {
        for client in &mut clients {
            client.request().await;
        }
        assert_eq!(
            proxy.roll(same_version()).await.unwrap().verdict,
            Outcome::Kept
        );
        until("all came back", || {
            proxy.rolling().returned_sockets == 100 * roll
        })
        .await;
        until("the former worker has ended", || {
            proxy.rolling().draining.is_empty()
        })
        .await;
    }
    for client in &mut clients {
        client.request().await;
        let counts = client.counts();
        assert_eq!(
            (counts.fresh_ok, counts.reused_ok, counts.lost()),
            (1, 3, 0),
            "{counts:?}"
        );
        assert_eq!(counts.closed_idle_seen_before_send, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_supervisor_that_stood_still_under_load_blames_nobody_for_it() {
    let upstream = Upstream::start().await.unwrap();
    let rollout = "ready_timeout = \"2s\"\ntransfer_timeout = \"300ms\"\nping_interval = \"50ms\"\n\
                   ping_timeout = \"300ms\"\nqueue_timeout = \"300ms\"\n";
    let (home, proxy) = serving(&upstream, rollout).await;
    let ready = home.folder().join("ready");
    home.install_faulty("1.2.0", &format!("ready-when={}", ready.display()));
    let held = HeldStream::open(proxy.address, &upstream).await;
    let active = proxy.active();

    let enough = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..100)
        .map(|_| {
            let (address, enough) = (proxy.address, enough.clone());
            tokio::spawn(async move {
                let mut answers = 0;
                while !enough.load(Ordering::Relaxed) {
                    let answer = ask(address).await;
                    match answer {
                        Asked::Answered(200, _) => answers += 1,
                        other => return Err(other),
                    }
                }
                Ok(answers)
            })
        })
        .collect();
    for _ in 0..3 {
        proxy.freeze(Duration::from_secs(1)).await;
        let now = proxy.active();
        assert_eq!((now.generation, now.pid), (active.generation, active.pid));
    }
    // In the middle of a rollout: the candidate gets ready meanwhile, and its time runs out.
    let verdict = proxy.roll_begun(by_person("1.2.0")).await;
    proxy.signal(Signal::SIGSTOP);
    until("the supervisor is stopped", || {
        process::is_stopped(proxy.pid())
    })
    .await;
    std::fs::write(&ready, "").unwrap();
    wait(Duration::from_millis(2_500)).await;
    proxy.signal(Signal::SIGCONT);
    let verdict = verdict.await.unwrap().unwrap();
    assert_eq!(verdict.verdict, Outcome::Kept, "{verdict:?}");

    enough.store(true, Ordering::Relaxed);
    for client in load {
        assert!(client.await.unwrap().unwrap() > 0);
    }
    let rolling = proxy.rolling();
    assert_eq!(rolling.last_failure, None);
    assert_eq!((rolling.rejected_sockets, rolling.failed_transfers), (0, 0));
    assert!(!proxy.log().contains("is killed"));
    held.finish(&upstream).await;
}
