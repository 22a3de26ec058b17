//! Promise 1 when somebody stands still, or has no room left: it is waited for, or replaced, and never blamed for another.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use control::types::{Outcome, Place};
use fixtures::client::{End, Faults};
use fixtures::crowd::{Crowd, Traffic};
use fixtures::upstream::Upstream;
use harness::{HeldStream, PATIENCE, Proxy, TestHome, ask_soon, process, same_version, until};
use nix::sys::signal::Signal;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

/// Longer than a transfer may take.
const STILL: Duration = Duration::from_secs(6);

/// The proxy ends first, so that its log is there to be shown.
struct Scene {
    proxy: Proxy,
    upstream: Upstream,
    _home: TestHome,
}

impl Scene {
    async fn set(rollout: &str) -> Self {
        let upstream = Upstream::start().await.unwrap();
        let home = TestHome::new();
        home.configure_upstream(&upstream.url(), &format!("[rollout]\n{rollout}"));
        for version in ["1.0.0", "1.1.0"] {
            home.install_proxy(version);
        }
        home.select("1.0.0");
        let proxy = Proxy::start(&home).await;
        Self {
            proxy,
            upstream,
            _home: home,
        }
    }

    /// A crowd whose streams and WebSockets last longer than anybody stands still; all of it has been served.
    async fn crowd(&self) -> Crowd {
        let traffic = Traffic {
            busy: 4,
            busy_rate: 40.0,
            idle: 10,
            idle_pause: Duration::from_secs(2),
            connections: 10.0,
            streams: 5,
            stream_life: 2 * STILL,
            websockets: 3,
            patience: PATIENCE,
            ..Traffic::full()
        };
        let crowd = Crowd::gather(self.proxy.address, traffic);
        tokio::time::timeout(PATIENCE, crowd.all_here())
            .await
            .expect("everybody is served");
        crowd
    }

    /// Everybody is served still; nobody lost anything since the start.
    async fn assert_unseen(&self, crowd: Crowd) {
        let before = crowd.seen();
        until("the crowd is served again", || {
            let now = crowd.seen();
            now.reused >= before.reused + 20
                && now.fresh >= before.fresh + 5
                && now.messages >= before.messages + 6
        })
        .await;
        let report = crowd.leave().await;
        assert_eq!(report.faults, Faults::new(), "{:#?}", report.examples);
        assert_eq!(report.requests(), self.upstream.counts().requests);
        assert_eq!(self.proxy.rolling().rejected_sockets, 0);
        assert!(!self.proxy.log().contains("is killed"));
    }

    async fn rolled(&self) {
        let verdict = self.proxy.roll(same_version()).await.unwrap();
        assert_eq!(verdict.verdict, Outcome::Kept, "{verdict:?}");
    }
}

fn pid(place: &Place) -> i32 {
    i32::try_from(place.pid).unwrap()
}

/// Stops a worker, and waits until it is.
async fn stop(place: &Place) {
    process::send(pid(place), Signal::SIGSTOP);
    until("the worker stands still", || {
        process::is_stopped(pid(place))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_supervisor_that_stands_still_for_six_seconds_costs_nobody_anything() {
    let scene = Scene::set("").await;
    let (crowd, active) = (scene.crowd().await, scene.proxy.active());
    scene.proxy.freeze(STILL).await;
    let now = scene.proxy.active();
    assert_eq!((now.generation, now.pid), (active.generation, active.pid));
    scene.assert_unseen(crowd).await;
    let rolling = scene.proxy.rolling();
    assert_eq!((rolling.last_failure, rolling.failed_transfers), (None, 0));
    assert_eq!(rolling.active.unwrap().pid, active.pid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_stands_still_for_six_seconds_costs_nobody_anything() {
    let scene = Scene::set("").await;
    let (crowd, active) = (scene.crowd().await, scene.proxy.active());
    stop(&active).await;
    let since = Instant::now();
    let newcomer = ask_soon(scene.proxy.address);
    until("it stood still for long", || since.elapsed() >= STILL).await;
    assert!(process::is_stopped(pid(&active)), "nobody killed it");
    process::send(pid(&active), Signal::SIGCONT);
    assert!(newcomer.await.unwrap().is_well());
    scene.assert_unseen(crowd).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_stands_still_for_longer_than_a_ping_may_take_is_replaced_and_ended() {
    let scene = Scene::set(
        "transfer_timeout = \"300ms\"\nping_interval = \"200ms\"\nping_timeout = \"2s\"\n\
         recovery_min = \"50ms\"\n",
    )
    .await;
    let older = HeldStream::open(scene.proxy.address, &scene.upstream).await;
    scene.rolled().await;
    let own = HeldStream::open(scene.proxy.address, &scene.upstream).await;
    let still = scene.proxy.active();
    stop(&still).await;

    // Nobody connects: the pings alone tell.
    until("it was ended", || !process::is_alive(pid(&still))).await;
    let next = scene.proxy.serves_after(still.generation).await;
    assert_eq!(next.version, still.version);
    let cut = own.ended().await;
    assert!(matches!(cut.end, End::Cut | End::Reset), "{cut:?}");
    assert!(ask_soon(scene.proxy.address).await.unwrap().is_well());
    let failure = scene.proxy.last_failure();
    assert!(
        failure.contains(&format!("generation {}", still.generation)),
        "{failure}"
    );
    older.finish(&scene.upstream).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_without_a_free_descriptor_keeps_its_streams_and_who_comes_waits_for_room() {
    let scene = Scene::set("").await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(HeldStream::open(scene.proxy.address, &scene.upstream).await);
    }
    let active = scene.proxy.active();
    let worker = Pid::from_raw(pid(&active)).unwrap();
    let open = process::descriptors_at_rest(pid(&active)).await;
    let free = (0..).find(|free| open.iter().all(|(number, _)| number != free));
    let limit = getrlimit(Resource::Nofile);
    let none_left = Rlimit {
        current: free.and_then(|free| u64::try_from(free).ok()),
        maximum: limit.maximum,
    };
    prlimit(Some(worker), Resource::Nofile, none_left).unwrap();

    let clients: Vec<_> = (0..5).map(|_| ask_soon(scene.proxy.address)).collect();
    until("they wait", || {
        let rolling = scene.proxy.rolling();
        rolling.queued_sockets + rolling.pending_transfers == 5
    })
    .await;
    let since = Instant::now();
    until("they have waited for a while", || {
        since.elapsed() > Duration::from_secs(1)
    })
    .await;
    assert!(clients.iter().all(|client| !client.is_finished()));
    // One ends, and makes room for itself only: its upstream's connection and its own.
    held.pop().unwrap().finish(&scene.upstream).await;

    let all = Rlimit {
        current: limit.maximum,
        ..limit
    };
    prlimit(Some(worker), Resource::Nofile, all).unwrap();
    for client in clients {
        assert!(client.await.unwrap().is_well());
    }
    let rolling = scene.proxy.rolling();
    assert_eq!(rolling.active.unwrap().pid, active.pid, "it is no crime");
    assert_eq!((rolling.last_failure, rolling.rejected_sockets), (None, 0));
    for stream in held {
        stream.finish(&scene.upstream).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_generations_that_drain_are_watched_by_the_next_supervisor_too_and_all_finish() {
    let scene = Scene::set("refresh_supervisor = false\n").await;
    let mut held = Vec::new();
    let mut places = Vec::new();
    for _ in 0..3 {
        held.push(HeldStream::open(scene.proxy.address, &scene.upstream).await);
        places.push(scene.proxy.active());
        scene.rolled().await;
    }
    let draining = |proxy: &Proxy| -> Vec<u64> {
        let rolling = proxy.rolling();
        rolling
            .draining
            .iter()
            .map(|place| place.generation)
            .collect()
    };
    let all: Vec<u64> = places.iter().map(|place| place.generation).collect();
    assert_eq!(draining(&scene.proxy), all);
    scene.proxy.go_on_as("1.1.0").await;
    assert_eq!(draining(&scene.proxy), all);

    // One is killed: the new supervisor sees that, and nobody else does.
    let killed = held.remove(0);
    process::send(pid(&places[0]), Signal::SIGKILL);
    until("it is missed", || draining(&scene.proxy) == all[1..]).await;
    let cut = killed.ended().await;
    assert!(matches!(cut.end, End::Cut | End::Reset), "{cut:?}");
    // The others finish, each when its stream does.
    for (stream, place) in held.into_iter().zip(&places[1..]) {
        assert!(process::is_alive(pid(place)));
        stream.finish(&scene.upstream).await;
        until("it has drained", || {
            !draining(&scene.proxy).contains(&place.generation)
        })
        .await;
        until("it has ended", || !process::is_alive(pid(place))).await;
    }
    assert!(ask_soon(scene.proxy.address).await.unwrap().is_well());
}
