//! The supervisor goes on as another program, and nobody notices: its clients, its workers, its port, its lock. A program
//! that cannot go on leaves the old one where it was.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use control::supervisor::HandoverPhase;
use control::types::{Outcome, Status};
use fixtures::client::KeepAlive;
use fixtures::upstream::Upstream;
use harness::{
    Asked, Finished, HeldStream, Proxy, TestHome, ask, ask_soon, by_person, process, same_version,
    until,
};
use nix::sys::signal::Signal;

/// A home that serves 1.0.0 and has 1.1.0, whose supervisor moves only when it is asked to.
async fn serving(upstream: &Upstream, rollout: &str) -> (TestHome, Proxy) {
    let home = TestHome::new();
    home.configure_upstream(
        &upstream.url(),
        &format!("[rollout]\nrefresh_supervisor = false\nrecovery_min = \"50ms\"\n{rollout}"),
    );
    home.install_proxy("1.0.0");
    home.install_proxy("1.1.0");
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    (home, proxy)
}

async fn restart(home: &TestHome, arguments: &[&str]) -> Finished {
    home.tool("rollproxy")
        .arg("restart")
        .args(arguments.iter().copied())
        .run()
        .await
}

async fn move_to(home: &TestHome, version: &str) -> Finished {
    restart(home, &["--supervisor", "--to", version]).await
}

fn supervisor_version(status: &Status) -> String {
    status.supervisor_version.to_string()
}

/// What must be the same before and after.
fn standing(status: &Status) -> impl PartialEq + std::fmt::Debug + use<> {
    let rolling = &status.rolling;
    let draining: Vec<_> = rolling
        .draining
        .iter()
        .map(|place| (place.generation, place.pid, place.since))
        .collect();
    let active = rolling
        .active
        .as_ref()
        .map(|place| (place.generation, place.pid, place.since));
    (
        (status.supervisor_pid, status.nonce.clone(), status.since),
        (status.listeners.clone(), active, draining),
        rolling.last_rollout.clone(),
    )
}

/// The listening socket that serves this port: its inode.
fn listener_inode(port: u16) -> String {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let address = format!(":{port:04X}");
    let line = table
        .lines()
        .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>())
        .find(|fields| fields[1].ends_with(&address) && fields[3] == "0A");
    line.unwrap()[9].to_owned()
}

/// Descriptors that a child would inherit, besides the standard ones.
fn inheritable(pid: i32) -> Vec<(i32, String)> {
    const CLOSE_ON_EXEC: u32 = 0o2_000_000;
    process::descriptors(pid)
        .into_iter()
        .filter(|(number, _)| {
            let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}"));
            let flags = info
                .unwrap_or_default()
                .lines()
                .find_map(|line| u32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
            *number > 2 && flags.is_some_and(|flags| flags & CLOSE_ON_EXEC == 0)
        })
        .collect()
}

fn zombies(home: &TestHome, supervisor: i32) -> Vec<i32> {
    let _ = home;
    let children =
        std::fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children"));
    children
        .unwrap_or_default()
        .split_ascii_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .filter(|pid| !process::is_alive(*pid))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_goes_on_under_the_new_program_and_three_draining_generations_are_still_watched()
{
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, "").await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(HeldStream::open(proxy.address, &upstream).await);
        let verdict = proxy.roll(same_version()).await.unwrap();
        assert_eq!(verdict.verdict, Outcome::Kept);
    }
    held.push(HeldStream::open(proxy.address, &upstream).await);
    let mut clients: Vec<_> = (0..10)
        .map(|seed| KeepAlive::new(proxy.address, seed))
        .collect();
    for client in &mut clients {
        client.request().await;
    }
    let before = proxy.now();
    assert_eq!(before.rolling.draining.len(), 3);
    let (inode, lock) = (
        listener_inode(proxy.address.port()),
        std::fs::metadata(home.home.supervisor_lock()).unwrap(),
    );
    let mut descriptors = Vec::new();

    for version in ["1.1.0", "1.0.0", "1.1.0"] {
        let moved = move_to(&home, version).await.expect(0);
        assert!(moved.stdout.contains("moved"), "{moved:?}");
        let after = proxy.now();
        assert_eq!(supervisor_version(&after), version);
        assert_eq!(standing(&after), standing(&before));
        let handover = after.handover.unwrap();
        assert_eq!(handover.phase, HandoverPhase::Moved);
        assert!(handover.frozen_micros.unwrap() > 0);
        assert_eq!(inheritable(proxy.pid()), []);
        for client in &mut clients {
            client.request().await;
        }
        descriptors.push(process::descriptors_at_rest(proxy.pid()).await.len());
    }
    // From image to image. The first one may have more: what its own starter left open.
    assert!(
        descriptors.iter().all(|count| *count == descriptors[0]),
        "{descriptors:?}"
    );
    assert_eq!(listener_inode(proxy.address.port()), inode);
    let record = staging::ownership::read_supervisor(&home.home)
        .unwrap()
        .unwrap();
    assert_eq!(record.version.to_string(), "1.1.0");
    assert!(record.identity.is_alive());
    let now = std::fs::metadata(home.home.supervisor_lock()).unwrap();
    assert_eq!(
        std::os::unix::fs::MetadataExt::ino(&lock),
        std::os::unix::fs::MetadataExt::ino(&now)
    );
    home.tool("rollproxy").arg("serve").run().await.expect(75);

    for stream in held {
        stream.finish(&upstream).await;
    }
    until("the drained ones have ended", || {
        proxy.rolling().draining.is_empty()
    })
    .await;
    until("they were reaped", || {
        zombies(&home, proxy.pid()).is_empty()
    })
    .await;
    for client in &mut clients {
        client.request().await;
        let counts = client.counts();
        assert_eq!(
            (counts.fresh_ok, counts.reused_ok, counts.lost()),
            (1, 4, 0)
        );
    }
    let verdict = proxy.roll(by_person("1.1.0")).await.unwrap();
    assert_eq!(verdict.verdict, Outcome::Kept, "{verdict:?}");
    assert_eq!(proxy.rolling().last_failure, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_kept_rollout_the_supervisor_follows_by_itself_once_nothing_is_under_way() {
    let upstream = Upstream::start().await.unwrap();
    let home = TestHome::new();
    home.configure_upstream(&upstream.url(), "");
    for version in ["1.0.0", "1.1.0"] {
        home.install_proxy(version);
    }
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    let before = proxy.now();
    let verdict = proxy.roll(by_person("1.1.0")).await.unwrap();
    assert_eq!(verdict.verdict, Outcome::Kept);
    until("the supervisor is the new version, too", || {
        proxy
            .status()
            .is_some_and(|status| supervisor_version(&status) == "1.1.0")
    })
    .await;
    let after = proxy.now();
    assert_eq!(
        (after.supervisor_pid, &after.nonce),
        (before.supervisor_pid, &before.nonce)
    );
    // Who asks for the verdict only now still hears it.
    let record = proxy.client().rollout(verdict.rollout).unwrap();
    assert_eq!(record.verdict.unwrap().verdict, Outcome::Kept);
    assert!(ask(proxy.address).await.is_well());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_cannot_go_on_is_named_and_the_old_one_serves_on() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, "").await;
    let held = HeldStream::open(proxy.address, &upstream).await;
    let entry = |version: &str| {
        home.home
            .package(&version.parse().unwrap())
            .join("bin/rollproxy")
    };

    home.install_proxy("2.0.0");
    let folder = entry("2.0.0").parent().unwrap().to_owned();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::remove_file(entry("2.0.0")).unwrap();
    home.install_proxy("2.1.0");
    std::fs::set_permissions(entry("2.1.0"), std::fs::Permissions::from_mode(0o444)).unwrap();
    home.install_script("2.2.0", "#!/bin/sh\necho out of order >&2\nexit 1\n");
    home.install_script("2.3.0", "no program at all\n");
    home.install_faulty_supervisor("2.4.0", "check-exits-1");
    home.install_faulty_supervisor("2.5.0", "check-hangs");
    home.install_faulty_supervisor("2.6.0", "check-tells-descriptors");
    let before = proxy.now();
    for (version, exit, words) in [
        ("9.9.9", 69, "NOT_INSTALLED"),
        ("2.0.0", 69, "PACKAGE_UNSTARTABLE"),
        ("2.1.0", 69, "not executable"),
        ("2.2.0", 1, "out of order"),
        ("2.3.0", 1, "HANDOVER_FAILED"),
        ("2.4.0", 1, "this supervisor is faulty on purpose"),
        ("2.5.0", 1, "did not end within 10s and was killed"),
        ("2.6.0", 1, "it has the descriptors 0 1 2 3"),
    ] {
        let asked = move_to(&home, version).await;
        let text = asked.text();
        assert_eq!(asked.code, Some(exit), "{version}: {text}");
        assert!(text.contains(words), "{version}: {text}");
        let after = proxy.now();
        assert_eq!(standing(&after), standing(&before), "{version}");
        assert_eq!(supervisor_version(&after), "1.0.0", "{version}");
        assert!(ask(proxy.address).await.is_well(), "{version}");
    }
    until("nothing is left of them", || {
        zombies(&home, proxy.pid()).is_empty()
    })
    .await;
    move_to(&home, "1.1.0").await.expect(0);
    assert_eq!(supervisor_version(&proxy.now()), "1.1.0");
    held.finish(&upstream).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_gives_everything_back_costs_nothing() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, "").await;
    let held = HeldStream::open(proxy.address, &upstream).await;
    let mut client = KeepAlive::new(proxy.address, 1);
    client.request().await;
    home.install_faulty_supervisor("2.0.0", "gives-back");
    let before = proxy.now();
    for _ in 0..2 {
        let asked = move_to(&home, "2.0.0").await;
        assert_eq!(asked.code, Some(1), "{asked:?}");
        assert!(asked.text().contains("HANDOVER_CAME_BACK"), "{asked:?}");
        assert!(asked.text().contains("faulty on purpose"), "{asked:?}");
        let after = proxy.now();
        assert_eq!(standing(&after), standing(&before));
        assert_eq!(supervisor_version(&after), "1.0.0");
        assert_eq!(inheritable(proxy.pid()), []);
        client.request().await;
    }
    move_to(&home, "1.1.0").await.expect(0);
    client.request().await;
    assert_eq!((client.counts().reused_ok, client.counts().lost()), (3, 0));
    held.finish(&upstream).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_knows_no_such_state_is_started_anew_when_nothing_is_in_flight() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, "").await;
    home.install_faulty_supervisor("2.0.0", "check-knows-no-such-state");
    let mut client = KeepAlive::new(proxy.address, 1);
    client.request().await;
    let held = HeldStream::open(proxy.address, &upstream).await;
    let before = proxy.now();
    let busy = tokio::spawn({
        let tool = home
            .tool("rollproxy")
            .args(["restart", "--supervisor", "--to", "2.0.0"]);
        tool.run()
    });
    until("no request is begun any more", || {
        let phase = proxy.now().handover.map(|handover| handover.phase);
        phase == Some(HandoverPhase::Pausing)
    })
    .await;
    // Who comes meanwhile waits, on a new connection and on one that is kept.
    let waiting = ask_soon(proxy.address);
    let kept = tokio::spawn(async move {
        client.request().await;
        client
    });
    let late = busy.await.unwrap();
    assert_eq!(late.code, Some(75), "{late:?}");
    assert!(
        late.text().contains("were still in use after 30s"),
        "{late:?}"
    );
    assert_eq!(standing(&proxy.now()), standing(&before));
    assert!(waiting.await.unwrap().is_well());
    let mut client = kept.await.unwrap();
    held.finish(&upstream).await;

    let inode = listener_inode(proxy.address.port());
    let moved = move_to(&home, "2.0.0").await.expect(0);
    assert!(moved.text().contains("started anew"), "{moved:?}");
    let after = proxy.now();
    assert_eq!(after.supervisor_pid, before.supervisor_pid);
    assert_ne!(after.nonce, before.nonce, "it is another instance");
    assert_eq!(listener_inode(proxy.address.port()), inode);
    client.request().await;
    assert_eq!((client.counts().reused_ok, client.counts().lost()), (2, 0));
    until("the former worker was reaped", || {
        zombies(&home, proxy.pid()).is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_rollout_is_under_way_the_supervisor_stays_and_says_why() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, "").await;
    let ready = home.folder().join("ready");
    home.install_faulty(
        "1.2.0",
        &format!("ready-when={} crash-after-ready", ready.display()),
    );
    let checked = restart(&home, &["--check"]).await.expect(0);
    assert!(checked.stdout.contains("settled"), "{checked:?}");
    let verdict = proxy.roll_begun(by_person("1.2.0")).await;
    let refused = move_to(&home, "1.1.0").await.expect(75);
    assert!(refused.text().contains("HANDOVER_DEFERRED"), "{refused:?}");
    let checked = restart(&home, &["--check", "--format", "json"])
        .await
        .expect(75);
    let checked = checked.json();
    assert_eq!(checked["settled"], false);
    let conditions = checked["conditions"].as_array().unwrap();
    let failing: Vec<_> = conditions
        .iter()
        .filter(|condition| condition["holds"] != true)
        .map(|condition| condition["name"].as_str().unwrap())
        .collect();
    assert_eq!(failing, ["noRollout"]);
    // A check is only a look.
    assert_eq!(proxy.now().handover, None);
    // The candidate dies while somebody asks again and again.
    std::fs::write(&ready, "").unwrap();
    let mut moved = move_to(&home, "1.1.0").await;
    while moved.code == Some(75) {
        moved = move_to(&home, "1.1.0").await;
    }
    moved.expect(0);
    assert_eq!(verdict.await.unwrap().unwrap().verdict, Outcome::Failed);
    assert!(ask(proxy.address).await.is_well());
    assert_eq!(proxy.active_version().as_deref(), Some("1.0.0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_die_and_signals_that_come_during_handovers_are_neither_lost_nor_counted_twice()
 {
    let upstream = Upstream::start().await.unwrap();
    let (home, mut proxy) = serving(&upstream, "").await;
    let mut generation = proxy.active().generation;
    for round in 0..8_u64 {
        let version = ["1.1.0", "1.0.0"][usize::try_from(round % 2).unwrap()];
        let victim = proxy.active_pid();
        let asked = tokio::spawn({
            let tool = home
                .tool("rollproxy")
                .args(["restart", "--supervisor", "--to", version]);
            tool.run()
        });
        // At a time that differs each round: before, in, or after the change of programs.
        let since = Instant::now();
        let wait = Duration::from_millis(round * 12);
        until("its moment has come", || since.elapsed() >= wait).await;
        process::send(victim, Signal::SIGKILL);
        proxy.signal(Signal::SIGCHLD);
        proxy.signal(Signal::SIGUSR2);
        let code = asked.await.unwrap().code;
        assert!(matches!(code, Some(0 | 75)), "{code:?}");
        let next = proxy.serves_after(generation).await;
        assert!(next.generation > generation);
        generation = next.generation;
        assert!(ask(proxy.address).await.is_well());
        until("the dead one was reaped", || {
            zombies(&home, proxy.pid()).is_empty()
        })
        .await;
    }
    let before = proxy.rolling().last_rollout.map_or(0, |rollout| rollout.id);
    let asked = tokio::spawn({
        let tool = home
            .tool("rollproxy")
            .args(["restart", "--supervisor", "--to", "1.1.0"]);
        tool.run()
    });
    for _ in 0..20 {
        proxy.signal(Signal::SIGHUP);
        tokio::task::yield_now().await;
    }
    let code = asked.await.unwrap().code;
    assert!(matches!(code, Some(0 | 75)), "{code:?}");
    until("what was asked for by signal was done", || {
        let last = proxy.rolling().last_rollout;
        last.is_some_and(|last| last.id > before && last.verdict.is_some())
    })
    .await;
    // The last word: it stops, whichever program hears it.
    let asked = tokio::spawn({
        let tool = home
            .tool("rollproxy")
            .args(["restart", "--supervisor", "--to", "1.0.0"]);
        tool.run()
    });
    proxy.signal(Signal::SIGTERM);
    assert_eq!(proxy.ended().await, Some(0));
    assert!(asked.await.unwrap().code.is_some());
    assert_eq!(ask(proxy.address).await, Asked::Refused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_file_that_was_removed_and_a_pause_are_no_reason_to_lose_anybody() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, "").await;
    let mut client = KeepAlive::new(proxy.address, 1);
    client.request().await;
    std::fs::remove_file(home.home.supervisor_lock()).unwrap();
    let lease = serde_json::json!({ "paused": true });
    let _: serde_json::Value = proxy.client().post("/admission", &lease).unwrap();
    let fresh = ask_soon(proxy.address);
    let since = Instant::now();
    move_to(&home, "1.1.0").await.expect(0);
    client.request().await;
    assert!(fresh.await.unwrap().is_well());
    assert!(
        since.elapsed() < Duration::from_secs(25),
        "it waited for a lease"
    );
    assert_eq!((client.counts().reused_ok, client.counts().lost()), (1, 0));
    assert_eq!(proxy.rolling().rejected_sockets, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_hundred_idle_clients_go_on_to_a_program_that_is_started_anew() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, "").await;
    home.install_faulty_supervisor("2.0.0", "check-knows-no-such-state");
    let mut clients: Vec<_> = (0..300)
        .map(|seed| KeepAlive::new(proxy.address, seed))
        .collect();
    for client in &mut clients {
        client.request().await;
    }
    move_to(&home, "2.0.0").await.expect(0);
    for client in &mut clients {
        client.request().await;
        let counts = client.counts();
        assert_eq!((counts.reused_ok, counts.lost()), (1, 0), "{counts:?}");
        assert_eq!(counts.closed_idle_seen_before_send, 0, "{counts:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_of_admission_ends_with_its_lease() {
    let upstream = Upstream::start().await.unwrap();
    let (_home, proxy) = serving(&upstream, "").await;
    let mut client = KeepAlive::new(proxy.address, 1);
    client.request().await;
    let begun = Instant::now();
    let lease = serde_json::json!({ "paused": true, "leaseMs": 1_500 });
    let answer: serde_json::Value = proxy.client().post("/admission", &lease).unwrap();
    assert_eq!(answer["paused"], true);
    assert!(answer["until"].is_string());
    let fresh = ask_soon(proxy.address);
    client.request().await;
    assert!(fresh.await.unwrap().is_well());
    assert!(begun.elapsed() >= Duration::from_millis(1_400));
    assert_eq!((client.counts().reused_ok, client.counts().lost()), (1, 0));
    let none = serde_json::json!({ "paused": false });
    let answer: serde_json::Value = proxy.client().post("/admission", &none).unwrap();
    assert_eq!(answer["paused"], false);
    assert!(ask(proxy.address).await.is_well());
}
