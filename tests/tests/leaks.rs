//! What a supervisor holds when much has happened to it: no more than before, in descriptors, memory and processes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use control::types::Outcome;
use fixtures::crowd::{Crowd, Traffic};
use fixtures::upstream::Upstream;
use harness::{PATIENCE, Proxy, TestHome, process, same_version, until};

/// How many rollouts the figures may differ by nothing over.
const ROLLOUTS: u32 = 100;
/// Rollouts before the first figure: what is allocated once is there then.
const WARM: u32 = 10;
/// How much a supervisor's memory may grow by meanwhile.
const GROWTH: u64 = 2 << 20;

/// What a supervisor holds, with one worker and no client.
#[derive(Debug)]
struct Held {
    descriptors: Vec<String>,
    processes: usize,
    resident: u64,
}

/// The proxy ends first, so that its log is there to be shown.
struct Scene {
    proxy: Proxy,
    home: TestHome,
    _upstream: Upstream,
}

impl Scene {
    async fn set() -> Self {
        let upstream = Upstream::start().await.unwrap();
        let home = TestHome::new();
        home.configure_upstream(&upstream.url(), "");
        for version in ["1.0.0", "1.1.0"] {
            home.install_proxy(version);
        }
        home.select("1.0.0");
        let proxy = Proxy::start(&home).await;
        Self {
            proxy,
            home,
            _upstream: upstream,
        }
    }

    async fn roll(&self, times: u32) {
        for _ in 0..times {
            let verdict = self.proxy.roll(same_version()).await.unwrap();
            assert_eq!(verdict.verdict, Outcome::Kept, "{verdict:?}");
        }
    }

    /// So many times two new supervisors, so that the last is of the version of the first.
    async fn hand_over_twice(&self, times: u32) {
        for _ in 0..times {
            for version in ["1.1.0", "1.0.0"] {
                self.proxy.go_on_as(version).await;
            }
        }
    }

    /// What is held once every former worker is gone.
    async fn held(&self) -> Held {
        until("one worker is left", || {
            self.proxy.rolling().draining.is_empty() && self.home.processes().len() == 2
        })
        .await;
        let pid = self.proxy.pid();
        let mut descriptors: Vec<String> = process::descriptors_at_rest(pid)
            .await
            .into_iter()
            // Sockets and pipes have numbers that never come again.
            .map(|(_, target)| target.split(['[', '=']).next().unwrap().to_owned())
            .collect();
        descriptors.sort();
        Held {
            descriptors,
            processes: self.home.processes().len(),
            resident: process::resident(pid),
        }
    }

    fn assert_no_more(&self, before: &Held, after: &Held) {
        println!("{} bytes before, {} after", before.resident, after.resident);
        assert_eq!(after.descriptors, before.descriptors);
        assert_eq!(after.processes, before.processes);
        assert!(
            after.resident <= before.resident + GROWTH,
            "from {} to {} bytes",
            before.resident,
            after.resident
        );
        assert_eq!(self.proxy.rolling().last_failure, None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_rollouts_leave_nothing_behind() {
    let scene = Scene::set().await;
    scene.roll(WARM).await;
    let before = scene.held().await;
    scene.roll(ROLLOUTS).await;
    let after = scene.held().await;
    scene.assert_no_more(&before, &after);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_rollouts_with_clients_leave_nothing_behind() {
    let scene = Scene::set().await;
    let traffic = Traffic {
        busy: 4,
        busy_rate: 80.0,
        idle: 50,
        connections: 40.0,
        streams: 5,
        stream_life: Duration::from_millis(300),
        stream_interval: Duration::from_millis(50),
        websockets: 2,
        websocket_life: Duration::from_millis(500),
        patience: Duration::from_secs(30),
        ..Traffic::full()
    };
    let mut held = Vec::new();
    for rollouts in [WARM, ROLLOUTS / 5] {
        let crowd = Crowd::gather(scene.proxy.address, traffic.clone());
        tokio::time::timeout(PATIENCE, crowd.all_here())
            .await
            .expect("everybody is served");
        for _ in 0..rollouts {
            until("a place to drain in is free", || {
                scene.proxy.rolling().draining.len() < 4
            })
            .await;
            scene.roll(1).await;
        }
        let report = crowd.leave().await;
        assert!(report.faults.is_empty(), "{:#?}", report.examples);
        held.push(scene.held().await);
    }
    scene.assert_no_more(&held[0], &held[1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_new_supervisors_leave_nothing_behind() {
    let scene = Scene::set().await;
    scene.roll(WARM).await;
    scene.hand_over_twice(2).await;
    let before = scene.held().await;
    scene.hand_over_twice(10).await;
    let after = scene.held().await;
    scene.assert_no_more(&before, &after);
    // And they still roll.
    scene.roll(WARM).await;
    let after = scene.held().await;
    scene.assert_no_more(&before, &after);
}
