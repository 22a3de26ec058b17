//! Everybody at once through rollouts: what they lose, and what they wait for.

use std::time::Duration;

use control::supervisor::HandoverPhase;
use fixtures::client::Fault;
use fixtures::crowd::{Crowd, Histogram, Report, Traffic};
use fixtures::upstream::Upstream;
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};

use super::findings::{Findings, goal, line, table};
use super::options::Options;
use super::scene::{Scene, millis};

/// How many new supervisors come meanwhile.
const HANDOVERS: usize = 5;
/// From one rollout to the next: half of it counts as the rollout's, half as quiet.
const APART: Duration = Duration::from_secs(2);

pub async fn run(options: &Options, findings: &mut Findings) {
    let rollouts = options.pick(30, 4);
    let upstream = Upstream::start().await.unwrap();
    let scene = Scene::start(
        &upstream.url(),
        "probation = \"300ms\"\nrefresh_supervisor = false\n",
    )
    .await;
    let traffic = match options.quick {
        false => Traffic::full(),
        true => Traffic {
            busy: 8,
            busy_rate: 150.0,
            idle: 40,
            connections: 40.0,
            streams: 20,
            stream_life: Duration::from_secs(3),
            websockets: 4,
            ..Traffic::full()
        },
    };
    eprintln!("crowd: {traffic:?}");
    let crowd = Crowd::gather(scene.proxy.address, traffic);
    let here = tokio::time::timeout(Duration::from_secs(60), crowd.all_here());
    if here.await.is_err() {
        return findings.wrong(format!("not everybody is served: {:?}", crowd.seen()));
    }
    // All streams are in the middle of one, at different places.
    sleep(options.pick(Duration::from_secs(10), Duration::from_secs(2))).await;

    let mut next = Instant::now();
    let mut supervisors = 0;
    for number in 1..=rollouts {
        sleep_until(next).await;
        let rollout = crowd.in_rollout();
        if let Err(why) = scene.roll().await {
            findings.wrong(format!("rollout {number}: {why}"));
        }
        if number % (rollouts / HANDOVERS).max(1) == 0 {
            let to = if supervisors % 2 == 0 {
                "1.1.0"
            } else {
                "1.0.0"
            };
            match scene.proxy.hand_over(to).await {
                Ok(ended) if ended.phase == HandoverPhase::Moved => supervisors += 1,
                ended => findings.wrong(format!("handover at rollout {number}: {ended:?}")),
            }
        }
        sleep_until(next + APART / 2).await;
        drop(rollout);
        next = (next + APART).max(Instant::now());
    }
    let report = crowd.leave().await;
    tell(
        &scene,
        &upstream,
        &report,
        [rollouts, supervisors],
        findings,
    );
}

fn tell(
    scene: &Scene,
    upstream: &Upstream,
    report: &Report,
    [rollouts, supervisors]: [usize; 2],
    findings: &mut Findings,
) {
    table(
        &format!(
            "A crowd through {rollouts} rollouts, {APART:?} apart, and {supervisors} new supervisors"
        ),
        &["", "count"],
    );
    for (what, count) in [
        ("short requests on a reused connection", report.reused),
        (
            "short requests with a connection of their own",
            report.fresh,
        ),
        ("event streams, every byte right", report.streams),
        ("WebSockets", report.websockets),
        ("WebSocket messages echoed", report.messages),
    ] {
        line(what, &[count.to_string()]);
    }
    for fault in Fault::ALL {
        line(fault.words(), &[report.faults.count(fault).to_string()]);
    }
    let rolling = scene.proxy.rolling();
    line(
        "connections given back and handed on",
        &[rolling.returned_sockets.to_string()],
    );
    if !report.faults.is_empty() {
        findings.wrong(format!("{}: {:#?}", report.faults, report.examples));
    }
    let told = (
        rolling.rejected_sockets,
        rolling.failed_transfers,
        rolling.dropped_messages,
    );
    if told != (0, 0, 0) || rolling.last_failure.is_some() {
        findings.wrong(format!(
            "rejected, failed, dropped: {told:?}; {:?}",
            rolling.last_failure
        ));
    }
    let arrived = upstream.counts().requests;
    if arrived != report.requests() {
        findings.wrong(format!(
            "{} requests were answered, {arrived} arrived",
            report.requests()
        ));
    }

    table(
        "Times of short requests in the crowd, ms",
        &["", "how many", "p50", "p99", "p99.9", "longest"],
    );
    for (what, times) in [
        ("quiet, reused connection", &report.quiet.reused),
        ("in a rollout, reused connection", &report.rolling.reused),
        ("quiet, own connection", &report.quiet.fresh),
        ("in a rollout, own connection", &report.rolling.fresh),
    ] {
        let cells: Vec<String> = figures(times)[1..]
            .iter()
            .map(|value| format!("{value:.2}"))
            .collect();
        line(what, &[&[times.many().to_string()], &cells[..]].concat());
    }
    println!();
    for (what, rolling, quiet) in [
        ("reused", &report.rolling.reused, &report.quiet.reused),
        ("own", &report.rolling.fresh, &report.quiet.fresh),
    ] {
        let ratio = figures(rolling)[3] / figures(quiet)[3];
        goal(
            &format!("p99.9 in rollouts over quiet, {what} connection"),
            ratio,
            1.2,
        );
    }
    findings.keep(
        "crowd",
        json!({
            "rollouts": rollouts, "supervisors": supervisors,
            "faults": Fault::ALL.map(|fault| json!([fault.words(), report.faults.count(fault)])),
            "reused": report.reused, "fresh": report.fresh, "streams": report.streams,
            "websockets": report.websockets, "messages": report.messages,
            "returned": rolling.returned_sockets,
            "manyP50P99P999LongestMs": {
                "quietReused": figures(&report.quiet.reused), "rollingReused": figures(&report.rolling.reused),
                "quietFresh": figures(&report.quiet.fresh), "rollingFresh": figures(&report.rolling.fresh),
            },
        }),
    );
}

fn figures(times: &Histogram) -> [f64; 5] {
    [
        times.many() as f64,
        millis(times.quantile(0.5)),
        millis(times.quantile(0.99)),
        millis(times.quantile(0.999)),
        millis(times.longest()),
    ]
}
