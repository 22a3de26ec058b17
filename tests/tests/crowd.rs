//! Promise 1 for everybody at once: no client of any kind can see that a rollout, or a new supervisor, happened.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use control::types::Outcome;
use fixtures::client::{Fault, Faults};
use fixtures::crowd::{Crowd, Report, Traffic};
use fixtures::upstream::Upstream;
use harness::{PATIENCE, Proxy, TestHome, by_person, same_version, until};

/// How many rollouts each crowd lives through.
const ROLLOUTS: u64 = 6;

/// As many as a debug build serves beside other tests.
fn small() -> Traffic {
    Traffic {
        busy: 4,
        busy_rate: 80.0,
        idle: 20,
        idle_pause: Duration::from_secs(2),
        connections: 20.0,
        streams: 10,
        stream_life: Duration::from_millis(1_500),
        stream_interval: Duration::from_millis(50),
        websockets: 4,
        websocket_life: Duration::from_secs(1),
        patience: Duration::from_secs(30),
        ..Traffic::full()
    }
}

/// The proxy ends first, so that its log is there to be shown.
struct Scene {
    proxy: Proxy,
    home: TestHome,
    upstream: Upstream,
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
            home,
            upstream,
        }
    }

    async fn crowd(&self, traffic: Traffic) -> Crowd {
        let crowd = Crowd::gather(self.proxy.address, traffic);
        tokio::time::timeout(PATIENCE, crowd.all_here())
            .await
            .expect("everybody is served");
        crowd
    }

    /// A rollout, to the other version every second time, and some traffic after it.
    async fn roll(&self, crowd: &Crowd, number: u64, streams: u64) {
        let request = match number % 4 {
            1 => by_person("1.1.0"),
            3 => by_person("1.0.0"),
            _ => same_version(),
        };
        let rollout = crowd.in_rollout();
        let verdict = self.proxy.roll(request).await.unwrap();
        assert_eq!(verdict.verdict, Outcome::Kept, "{verdict:?}");
        drop(rollout);
        Self::goes_on(crowd, streams).await;
    }

    /// Some traffic of every kind.
    async fn goes_on(crowd: &Crowd, streams: u64) {
        let before = crowd.seen();
        until("the crowd goes on", || {
            let now = crowd.seen();
            now.reused >= before.reused + 50 && now.streams >= before.streams + streams
        })
        .await;
    }

    /// What the proxy and the upstream say about it.
    fn assert_untouched(&self, report: &Report) {
        let rolling = self.proxy.rolling();
        assert_eq!(rolling.last_failure, None);
        assert_eq!(
            (
                rolling.rejected_sockets,
                rolling.failed_transfers,
                rolling.dropped_messages
            ),
            (0, 0, 0)
        );
        let counts = self.upstream.counts();
        assert_eq!(counts.requests, report.requests(), "each arrived once");
        assert_eq!((counts.cancelled, counts.bodies_cut), (0, 0));
        assert!(!self.proxy.log().contains("is killed"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_in_a_crowd_sees_six_rollouts() {
    let scene = Scene::set("probation = \"500ms\"\n").await;
    let crowd = scene.crowd(small()).await;
    for number in 0..ROLLOUTS {
        scene.roll(&crowd, number, 5).await;
    }
    let report = crowd.leave().await;
    assert_eq!(report.faults, Faults::new(), "{:#?}", report.examples);
    scene.assert_untouched(&report);
    assert!(report.streams > 20 && report.websockets > 8, "{report:?}");
    assert!(report.rolling.reused.many() > 0 && report.quiet.reused.many() > 0);
    // The idle ones alone come back at each, so it was no rollout without anybody to hand on.
    assert!(scene.proxy.rolling().returned_sockets >= 20 * ROLLOUTS);
    assert_eq!(scene.home.selected().as_deref(), Some("1.1.0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_http2_client_is_told_to_go_and_loses_nothing_else() {
    let scene = Scene::set("probation = \"500ms\"\n").await;
    let clients = 5;
    let traffic = Traffic {
        http2: clients,
        http2_pause: Duration::from_millis(20),
        patience: Duration::from_secs(30),
        ..Traffic::none()
    };
    let crowd = scene.crowd(traffic).await;
    for number in 0..3 {
        scene.roll(&crowd, number, 0).await;
    }
    let report = crowd.leave().await;
    let told = report.faults.count(Fault::ToldToClose);
    assert_eq!(report.faults.total(), told, "{:#?}", report.examples);
    assert!((1..=3 * clients as u64).contains(&told), "{told}");
    scene.assert_untouched(&report);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_in_a_crowd_sees_a_new_supervisor() {
    let scene = Scene::set("probation = \"0\"\nrefresh_supervisor = false\n").await;
    let crowd = scene.crowd(small()).await;
    for number in 0..2 {
        // A generation drains, with streams and WebSockets, when the supervisor goes on as another one.
        scene.roll(&crowd, 2 * number, 0).await;
        let generation = scene.proxy.active().generation;
        for version in ["1.1.0", "1.0.0"] {
            let rollout = crowd.in_rollout();
            scene.proxy.go_on_as(version).await;
            drop(rollout);
            Scene::goes_on(&crowd, 5).await;
        }
        assert_eq!(scene.proxy.active().generation, generation);
    }
    let report = crowd.leave().await;
    assert_eq!(report.faults, Faults::new(), "{:#?}", report.examples);
    scene.assert_untouched(&report);
    assert!(report.streams > 20 && report.websockets > 4, "{report:?}");
}
