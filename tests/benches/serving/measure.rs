//! One contestant under one kind of traffic, once.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use harness::machine;
use harness::tracing::{Calls, Tracing};

use super::children::{Load, Upstream};
use super::contestants::Running;
use super::load::{Kind, Outcome, Plan, Said};
use super::scenarios::Scenario;

/// Figures by the key of their column.
pub type Sample = BTreeMap<&'static str, f64>;

/// Streams while strace looks on: it costs the traced process many times what the calls do.
const TRACED_STREAMS: usize = 500;

/// What the kernel counted at one moment.
struct Reading {
    at: Instant,
    all: u64,
    root: u64,
    load: u64,
    upstream: u64,
    busy: u64,
}

impl Reading {
    fn take(running: &Running, load: &Load, upstream: &Upstream) -> Self {
        let (all, root) = running.processor_time();
        Self {
            at: Instant::now(),
            all,
            root,
            load: machine::processor_time(load.pid()),
            upstream: machine::processor_time(upstream.pid()),
            busy: machine::machine_busy(),
        }
    }
}

/// Runs the plan; the figures, or what went wrong.
pub fn sample(
    scenario: &Scenario,
    plan: &Plan,
    running: &Running,
    upstream: &Upstream,
    cores: usize,
) -> Result<Sample, String> {
    // What a start leaves behind (page faults, first pings) is not the traffic's.
    std::thread::sleep(Duration::from_millis(500));
    let idle = running.memory_kib();
    let mut load = Load::start(plan);
    let Some(Said::Begin) = load.hear() else {
        return Err(failed(&load.finish()));
    };
    let begin = Reading::take(running, &load, upstream);
    let Some(Said::End { .. }) = load.hear() else {
        return Err(failed(&load.finish()));
    };
    let end = Reading::take(running, &load, upstream);
    let held = running.memory_kib();
    let outcome = load.finish();
    if outcome.errors > 0 || outcome.counted == 0 {
        return Err(failed(&outcome));
    }

    let each = |nanos: u64| nanos as f64 / 1e3 / outcome.counted as f64;
    let machine = (end.at - begin.at).as_nanos() as f64 * cores as f64;
    let ours = (end.all - begin.all) + (end.load - begin.load) + (end.upstream - begin.upstream);
    let beside = (end.busy - begin.busy).saturating_sub(ours);
    let mut sample = Sample::from([
        ("rate", outcome.counted as f64 / outcome.seconds),
        ("p50", outcome.latency.p50 as f64 / 1e3),
        ("p99", outcome.latency.p99 as f64 / 1e3),
        ("max", outcome.latency.max as f64 / 1e3),
        ("load-cpu", each(end.load - begin.load)),
        ("upstream-cpu", each(end.upstream - begin.upstream)),
        ("beside", beside as f64 / machine * 100.0),
    ]);
    if !running.pids.is_empty() {
        sample.insert("cpu", each(end.all - begin.all));
        sample.insert("cpu-root", each(end.root - begin.root));
    }
    if let Kind::Streams { streams, .. } = scenario.kind {
        sample.extend([
            ("first-p50", outcome.first_byte.p50 as f64 / 1e6),
            ("first-p99", outcome.first_byte.p99 as f64 / 1e6),
            ("first-max", outcome.first_byte.max as f64 / 1e6),
            ("gap-p50", outcome.gap.p50 as f64 / 1e6),
            ("gap-p99", outcome.gap.p99 as f64 / 1e6),
            ("gap-max", outcome.gap.max as f64 / 1e6),
        ]);
        if !running.pids.is_empty() {
            let grown = held.saturating_sub(idle) as f64;
            sample.insert("memory", grown / streams as f64);
            sample.insert("idle-memory", idle as f64 / 1024.0);
        }
    }
    Ok(sample)
}

/// System calls, and the requests or events that they were for.
pub struct Traced {
    pub calls: Calls,
    pub work: u64,
}

/// Runs the plan with strace attached: of streams, while they flow; of requests, from the first connection on.
pub fn traced(
    scenario: &Scenario,
    plan: &Plan,
    running: &Running,
    folder: &Path,
) -> Result<Traced, String> {
    // The worker or workers where a root only watches over them; with a connection a request, the hand-off is of interest.
    let whole = matches!(scenario.kind, Kind::OneConnection { .. });
    let pids = match &running.pids[..] {
        [_, workers @ ..] if !workers.is_empty() && !whole => workers,
        all => all,
    };
    let attach = || Tracing::attach(pids, folder);
    let mut plan = plan.clone();
    if let Kind::Streams { streams, .. } = &mut plan.kind {
        // As many as can be watched without falling behind.
        *streams = TRACED_STREAMS.min(*streams);
        plan.wait = true;
    }
    let (mut load, tracing);
    if plan.wait {
        load = Load::start(&plan);
        let Some(Said::Ready) = load.hear() else {
            return Err(failed(&load.finish()));
        };
        tracing = attach()?;
        load.begin();
    } else {
        tracing = attach()?;
        load = Load::start(&plan);
    }
    let Some(Said::Begin) = load.hear() else {
        return Err(failed(&load.finish()));
    };
    let Some(Said::End { all }) = load.hear() else {
        return Err(failed(&load.finish()));
    };
    let calls = tracing.finish();
    let outcome = load.finish();
    if outcome.errors > 0 {
        return Err(failed(&outcome));
    }
    Ok(Traced { calls, work: all })
}

fn failed(outcome: &Outcome) -> String {
    let first = outcome
        .first_error
        .as_deref()
        .unwrap_or("nothing was counted");
    format!("{} errors, the first: {first}", outcome.errors)
}
