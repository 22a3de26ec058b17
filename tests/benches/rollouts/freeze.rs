//! For how long nobody is accepted while the supervisor goes on as another program, with generations and streams to carry
//! over: by its own word, and as a client sees it that connects every millisecond.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use control::supervisor::HandoverPhase;
use fixtures::client::once;
use fixtures::upstream::Upstream;
use serde_json::json;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::MissedTickBehavior;

use super::findings::{Findings, goal, line, quantile, table};
use super::held::Held;
use super::options::Options;
use super::scene::{Scene, millis};

/// The active one, and those that drain.
const GENERATIONS: usize = 5;
/// What belongs to a handover before and after it.
const AROUND: Duration = Duration::from_millis(20);

/// When a client came, and how long it waited for its whole answer.
type Visit = (Instant, Duration);

pub async fn run(options: &Options, findings: &mut Findings) {
    let upstream = Upstream::start().await.unwrap();
    let rollout = "probation = \"0\"\nrefresh_supervisor = false\n";
    let scene = Scene::start(&upstream.url(), rollout).await;
    let streams = options.pick(1_000, 50);
    let mut held = Vec::new();
    for generation in 1..=GENERATIONS {
        held.push(Held::open(scene.proxy.address, streams / GENERATIONS).await);
        if generation < GENERATIONS
            && let Err(why) = scene.roll().await
        {
            return findings.wrong(format!("generation {generation}: {why}"));
        }
    }

    let mut windows = Vec::new();
    let (mut frozen, mut took) = (Vec::new(), Vec::new());
    let visitors = Visitors::come(scene.proxy.address);
    for number in 0..options.pick(40, 4) {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let begun = Instant::now();
        let to = if number % 2 == 0 { "1.1.0" } else { "1.0.0" };
        match scene.proxy.hand_over(to).await {
            Ok(ended) if ended.phase == HandoverPhase::Moved => {
                took.push(millis(begun.elapsed()));
                frozen.extend(ended.frozen_micros.map(|micros| micros as f64 / 1e3));
            }
            ended => findings.wrong(format!("handover {number}: {ended:?}")),
        }
        windows.push((begun - AROUND, Instant::now() + AROUND));
    }
    let (visits, lost) = visitors.leave().await;
    if !lost.is_empty() {
        findings.wrong(format!("{} visitors, the first: {}", lost.len(), lost[0]));
    }
    let disturbed: usize = held.iter().map(Held::disturbed).sum();
    if disturbed > 0 {
        findings.wrong(format!("{disturbed} of {streams} streams were disturbed"));
    }
    let draining = scene.proxy.rolling().draining.len();
    if draining != GENERATIONS - 1 {
        findings.wrong(format!("{draining} generations drain"));
    }

    let inside = |at: &Instant| windows.iter().any(|(from, to)| from <= at && at <= to);
    let longest: Vec<f64> = windows
        .iter()
        .map(|(from, to)| {
            let met = visits.iter().filter(|(at, _)| from <= at && at <= to);
            met.map(|(_, waited)| millis(*waited)).fold(0.0, f64::max)
        })
        .collect();
    let quiet = visits.iter().filter(|(at, _)| !inside(at));
    let quiet: Vec<f64> = quiet.map(|(_, waited)| millis(*waited)).collect();
    table(
        &format!(
            "{GENERATIONS} generations, {streams} streams, {} new supervisors, ms",
            took.len()
        ),
        &["", "p50", "p99", "longest"],
    );
    for (what, values) in [
        ("nobody is accepted or heard (its own word)", &frozen),
        ("the longest wait of a client in each", &longest),
        ("waits of clients between handovers", &quiet),
        ("from the request to the end", &took),
    ] {
        let cells = [0.5, 0.99, 1.0].map(|share| format!("{:.2}", quantile(values, share)));
        line(what, &cells);
    }
    println!();
    goal("frozen, p99, ms", quantile(&frozen, 0.99), 20.0);
    goal(
        "longest wait of a client, p50, ms",
        quantile(&longest, 0.5),
        20.0,
    );
    goal(
        "longest wait of a client, p99, ms",
        quantile(&longest, 0.99),
        20.0,
    );
    let quiet_at = [0.5, 0.99, 0.999].map(|share| quantile(&quiet, share));
    findings.keep(
        "freezeMs",
        json!({
            "frozen": frozen, "longest": longest, "took": took,
            "quietP50P99P999": quiet_at,
        }),
    );
}

/// A client every millisecond.
struct Visitors {
    enough: Arc<AtomicBool>,
    task: JoinHandle<(Vec<Visit>, Vec<String>)>,
}

impl Visitors {
    fn come(address: SocketAddr) -> Self {
        let enough = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&enough);
        let task = tokio::spawn(async move {
            let mut clock = tokio::time::interval(Duration::from_millis(1));
            clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let (mut here, mut visits, mut lost) = (JoinSet::new(), Vec::new(), Vec::new());
            let mut note = |visit: Result<Visit, String>| match visit {
                Ok(visit) => visits.push(visit),
                Err(why) => lost.push(why),
            };
            while !told.load(Ordering::Relaxed) {
                clock.tick().await;
                here.spawn(visit(address));
                while let Some(ended) = here.try_join_next() {
                    note(ended.unwrap());
                }
            }
            here.join_all().await.into_iter().for_each(&mut note);
            (visits, lost)
        });
        Self { enough, task }
    }

    async fn leave(self) -> (Vec<Visit>, Vec<String>) {
        self.enough.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

async fn visit(address: SocketAddr) -> Result<Visit, String> {
    let begun = Instant::now();
    match once(address, "GET", "/health", &[("connection", "close")], b"").await {
        Ok((head, _)) if head.status() == Some(200) => Ok((begun, begun.elapsed())),
        Ok((head, _)) => Err(head.start),
        Err(error) => Err(error.to_string()),
    }
}
