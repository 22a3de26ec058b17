//! What it costs that a connection is handed to a worker: beside the same worker with its own listener, and beside a bare
//! exchange in two phases.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use harness::machine;
use harness::tracing::{Calls, Tracing};
use serde_json::json;
use tokio::runtime::Runtime;

use super::children::{Load, Role, Upstream};
use super::findings::{Findings, goal, line, median, table};
use super::load::{Kind, Plan, Said};
use super::options::{Options, cores};
use super::scene::Scene;

/// Who is measured.
const CONTESTANTS: [&str; 3] = ["own-listener", "bare", "rollproxy"];
/// How many connections at a time.
const CLIENTS: [usize; 2] = [1, 32];

/// A contestant that serves.
enum Running {
    Role(Role),
    Rollproxy(Box<Scene>),
}

/// One figure of each kind.
#[derive(Debug, Clone, Copy)]
struct Sample {
    rate: f64,
    p50: f64,
    p95: f64,
    cpu: f64,
    /// What others used meanwhile, in percent of the machine.
    beside: f64,
}

/// One of a sample's figures.
type Figure = fn(&Sample) -> f64;

pub fn run(options: &Options, runtime: &Runtime, findings: &mut Findings) {
    let upstream = Upstream::start();
    let mut samples: BTreeMap<(usize, &str), Vec<Sample>> = BTreeMap::new();
    for round in 0..options.rounds {
        let mut order = CONTESTANTS;
        // Everybody is once the first.
        order.rotate_left(round % CONTESTANTS.len());
        for name in order {
            let (running, address) = start(name, runtime, &upstream);
            for clients in CLIENTS {
                options.wait_for_calm();
                match sample(&running, address, clients, options, &upstream) {
                    Ok(sample) => {
                        eprintln!(
                            "{name}, {clients} at a time, round {}: {sample:.1?}",
                            round + 1
                        );
                        samples.entry((clients, name)).or_default().push(sample);
                    }
                    Err(why) => findings.wrong(format!("{name}, {clients} at a time: {why}")),
                }
            }
        }
    }
    tell(&samples, findings);
    let folder = tempfile::tempdir().unwrap();
    table("System calls a connection", &["", "calls", "of which"]);
    for name in CONTESTANTS {
        let (running, address) = start(name, runtime, &upstream);
        match traced(&running, address, options, folder.path()) {
            Ok((calls, connections)) => tell_calls(name, &calls, connections),
            Err(why) => println!("| {name} | not counted: {why} | |"),
        }
    }
}

fn start(name: &str, runtime: &Runtime, upstream: &Upstream) -> (Running, SocketAddrV4) {
    let to = upstream.address.to_string();
    if name == "rollproxy" {
        let scene = runtime.block_on(Scene::start(&format!("http://{to}"), ""));
        let SocketAddr::V4(address) = scene.proxy.address else {
            panic!("{} is no IPv4 address", scene.proxy.address);
        };
        return (Running::Rollproxy(Box::new(scene)), address);
    }
    let mut role = Role::start(&[name, &to]);
    let port = role.line().trim().parse().unwrap();
    (
        Running::Role(role),
        SocketAddrV4::new(Ipv4Addr::LOCALHOST, port),
    )
}

impl Running {
    fn pids(&self) -> Vec<i32> {
        machine::tree(match self {
            Self::Role(role) => role.pid(),
            Self::Rollproxy(scene) => scene.proxy.pid(),
        })
    }

    fn processor_time(&self) -> u64 {
        let pids = self.pids();
        pids.iter().map(|pid| machine::processor_time(*pid)).sum()
    }
}

fn plan(address: SocketAddrV4, clients: usize, options: &Options) -> Plan {
    Plan {
        kind: Kind::OneConnection { clients },
        address,
        warm: options.pick(Duration::from_secs(1), Duration::from_millis(300)),
        window: options.pick(Duration::from_secs(4), Duration::from_secs(1)),
        wait: false,
    }
}

fn sample(
    running: &Running,
    address: SocketAddrV4,
    clients: usize,
    options: &Options,
    upstream: &Upstream,
) -> Result<Sample, String> {
    let mut load = Load::start(&plan(address, clients, options));
    let begun = load.hear();
    let beside = [load.pid(), upstream.pid()];
    let read = || {
        let ours = running.processor_time();
        let tools: u64 = beside.map(machine::processor_time).iter().sum();
        (ours, machine::machine_busy(), ours + tools)
    };
    let (before, busy_before, all_before) = read();
    let ended = load.hear();
    let (after, busy_after, all_after) = read();
    let outcome = load.finish();
    let whole = matches!((begun, ended), (Some(Said::Begin), Some(Said::End { .. })));
    if !whole || outcome.errors > 0 || outcome.counted == 0 {
        return Err(format!(
            "{} errors, the first: {:?}",
            outcome.errors, outcome.first_error
        ));
    }
    let machine = outcome.seconds * 1e9 * cores() as f64;
    let others = (busy_after - busy_before).saturating_sub(all_after - all_before);
    Ok(Sample {
        beside: others as f64 / machine * 100.0,
        rate: outcome.counted as f64 / outcome.seconds,
        p50: outcome.latency.p50 as f64 / 1e3,
        p95: outcome.latency.p95 as f64 / 1e3,
        cpu: (after - before) as f64 / 1e3 / outcome.counted as f64,
    })
}

fn tell(samples: &BTreeMap<(usize, &str), Vec<Sample>>, findings: &mut Findings) {
    let of = |clients: usize, name: &str, figure: Figure| -> Vec<f64> {
        let found = samples.get(&(clients, name)).map(Vec::as_slice);
        found.unwrap_or_default().iter().map(figure).collect()
    };
    let figures: [(&str, Figure); 5] = [
        ("connections/s", |sample| sample.rate),
        ("p50 µs", |sample| sample.p50),
        ("p95 µs", |sample| sample.p95),
        ("CPU µs a connection", |sample| sample.cpu),
        ("other work, % of the machine", |sample| sample.beside),
    ];
    for clients in CLIENTS {
        let titles: Vec<&str> = figures.iter().map(|(title, _)| *title).collect();
        table(
            &format!("A connection for each request, {clients} at a time"),
            &[&[""], &titles[..]].concat(),
        );
        for name in CONTESTANTS {
            let cells: Vec<String> = figures
                .iter()
                .map(|(_, figure)| format!("{:.1}", median(&of(clients, name, *figure))))
                .collect();
            line(name, &cells);
        }
    }
    println!();
    // The median of the rounds' own differences: each pair was measured close together.
    let pairs = |clients, name, figure, how: fn(f64, f64) -> f64| {
        let own = of(clients, "own-listener", figure);
        let pairs = of(clients, name, figure).into_iter().zip(own);
        median(&pairs.map(|(its, own)| how(its, own)).collect::<Vec<_>>())
    };
    let added = |its: f64, own: f64| its - own;
    for (name, goals) in [
        ("rollproxy", [30.0, 1_000.0, 15.0]),
        ("bare", [22.0, 1_000.0, 10.0]),
    ] {
        let p50 = pairs(1, name, |sample| sample.p50, added);
        let p95 = pairs(32, name, |sample| sample.p95, added);
        let cpu = pairs(1, name, |sample| sample.cpu, added);
        let rate = pairs(32, name, |sample| sample.rate, |its, own| own / its);
        goal(
            &format!("{name}: added p50, one at a time, µs"),
            p50,
            goals[0],
        );
        goal(
            &format!("{name}: added p95, 32 at a time, µs"),
            p95,
            goals[1],
        );
        goal(
            &format!("{name}: added CPU a connection, µs"),
            cpu,
            goals[2],
        );
        goal(
            &format!("{name}: own listener's connections/s over its"),
            rate,
            1.0 / 0.9,
        );
    }
    let all: Vec<_> = samples
        .iter()
        .map(|((clients, name), samples)| {
            let rounds: Vec<_> = samples
                .iter()
                .map(|s| [s.rate, s.p50, s.p95, s.cpu, s.beside])
                .collect();
            json!({ "name": name, "clients": clients, "ratePerSecondP50P95CpuMicrosBeside": rounds })
        })
        .collect();
    findings.keep("handOff", json!(all));
}

fn traced(
    running: &Running,
    address: SocketAddrV4,
    options: &Options,
    folder: &std::path::Path,
) -> Result<(Calls, u64), String> {
    let tracing = Tracing::attach(&running.pids(), folder)?;
    let mut load = Load::start(&plan(address, 32, options));
    load.hear();
    let Some(Said::End { all }) = load.hear() else {
        return Err("the load broke off".into());
    };
    let calls = tracing.finish();
    load.finish();
    Ok((calls, all))
}

fn tell_calls(name: &str, calls: &Calls, connections: u64) {
    let each = |calls: u64| calls as f64 / connections.max(1) as f64;
    let mut most: Vec<(&String, f64)> = calls
        .iter()
        .map(|(name, calls)| (name, each(*calls)))
        .collect();
    most.sort_by(|one, other| other.1.total_cmp(&one.1));
    let words: Vec<String> = most
        .iter()
        .filter(|(_, calls)| *calls >= 0.05)
        .map(|(name, calls)| format!("{name} {calls:.2}"))
        .collect();
    line(
        name,
        &[
            format!("{:.2}", each(calls.values().sum())),
            words.join(", "),
        ],
    );
}
