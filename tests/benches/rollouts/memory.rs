//! What all processes hold together while generation after generation drains.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fixtures::crowd::{Crowd, Traffic};
use fixtures::upstream::Upstream;
use harness::machine;
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};

use super::findings::{Findings, line, table};
use super::options::Options;
use super::scene::Scene;

/// Streams take 8 s: five generations drain at a time.
const APART: Duration = Duration::from_millis(1_500);
const LOOK: Duration = Duration::from_millis(250);

/// KiB, shared pages counted once.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    all: u64,
    supervisor: u64,
    processes: usize,
}

impl Held {
    fn look(root: i32) -> Self {
        let tree = machine::tree(root);
        Self {
            all: tree.iter().map(|pid| machine::memory_kib(*pid)).sum(),
            supervisor: machine::memory_kib(root),
            processes: tree.len(),
        }
    }

    fn max(self, other: Self) -> Self {
        Self {
            all: self.all.max(other.all),
            supervisor: self.supervisor.max(other.supervisor),
            processes: self.processes.max(other.processes),
        }
    }
}

pub async fn run(options: &Options, findings: &mut Findings) {
    let rollouts = options.pick(30, 4);
    let upstream = Upstream::start().await.unwrap();
    let scene = Scene::start(&upstream.url(), "probation = \"0\"\n").await;
    let root = scene.proxy.pid();
    let fresh = Held::look(root);
    let traffic = Traffic {
        streams: options.pick(200, 20),
        stream_life: options.pick(Duration::from_secs(8), Duration::from_secs(3)),
        ..Traffic::none()
    };
    let crowd = Crowd::gather(scene.proxy.address, traffic);
    sleep(options.pick(Duration::from_secs(9), Duration::from_secs(3))).await;
    let serving = Held::look(root);

    let over = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&over);
    let looking = tokio::spawn(async move {
        let mut most = Held::default();
        while !told.load(Ordering::Relaxed) {
            most = most.max(Held::look(root));
            sleep(LOOK).await;
        }
        most
    });
    let mut next = Instant::now();
    for number in 1..=rollouts {
        sleep_until(next).await;
        if let Err(why) = scene.roll().await {
            findings.wrong(format!("rollout {number}: {why}"));
        }
        next += APART;
    }
    let report = crowd.leave().await;
    if !report.faults.is_empty() {
        findings.wrong(format!("{}: {:#?}", report.faults, report.examples));
    }
    scene.drained().await;
    over.store(true, Ordering::Relaxed);
    let most = looking.await.unwrap();
    let after = Held::look(root);

    table(
        &format!("Memory of all processes through {rollouts} rollouts with drains, MiB"),
        &["", "all", "supervisor", "processes"],
    );
    let all = [
        ("after the start", fresh),
        ("with the streams", serving),
        ("most while rolling", most),
        ("after the last drain", after),
    ];
    for (what, held) in all {
        let mib = |kib: u64| format!("{:.1}", kib as f64 / 1024.0);
        line(
            what,
            &[
                mib(held.all),
                mib(held.supervisor),
                held.processes.to_string(),
            ],
        );
    }
    let figures = all.map(|(what, held)| json!([what, held.all, held.supervisor, held.processes]));
    findings.keep("memoryKib", json!(figures));
}
