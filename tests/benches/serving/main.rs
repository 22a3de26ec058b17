//! Rollproxy beside nginx, haproxy and no proxy at all, under four kinds of traffic.
//!
//! `cargo bench -p rollproxy-tests --bench serving`; see `options.rs` for what may follow after `--`. The peers are
//! measured where they are installed. Load and upstream are processes of their own, made of this same program. Ends
//! with exit code 1 if a byte of any answer or event was wrong, missing or late for ever.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod answer;
mod children;
mod contestants;
mod load;
mod measure;
mod options;
mod reactor;
mod report;
mod scenarios;
mod upstream;
mod wire;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use children::Upstream;
use contestants::{Name, Stage};
use harness::{TestHome, binaries, machine};
use measure::{Sample, Traced};
use options::Options;
use report::Rounds;
use scenarios::Scenario;

fn main() -> ExitCode {
    raise_descriptors();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("upstream") => upstream::run(),
        Some("load") => load::run(&serde_json::from_str(&arguments[1]).unwrap()),
        _ => match Options::read(arguments.into_iter()) {
            Ok(options) => return run(&options),
            Err(wrong) => {
                eprintln!("{wrong}\n{}", options::USAGE);
                return ExitCode::from(64);
            }
        },
    }
    ExitCode::SUCCESS
}

fn run(options: &Options) -> ExitCode {
    let mut names = options.names.clone();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    println!(
        "{cores} cores, Linux {}, medians of {} rounds",
        kernel.trim(),
        options.rounds
    );
    names.retain(|name| {
        let version = name.version();
        let words = version.as_deref().unwrap_or("not installed, not measured");
        println!("- {}: {words}", name.text());
        version.is_some()
    });
    if names.is_empty() {
        return ExitCode::FAILURE;
    }
    let home = TestHome::new();
    let upstream = Upstream::start();
    home.configure_upstream(&format!("http://{}", upstream.address), "");
    let rollproxy = match &options.binary {
        Some(binary) => std::fs::canonicalize(binary).unwrap(),
        None if names.contains(&Name::Rollproxy) => {
            home.install_proxy("1.0.0");
            home.select("1.0.0");
            binaries().path("rollproxy-launcher")
        }
        None => PathBuf::new(),
    };
    let before = options.against.as_ref();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let stage = Stage {
        upstream: upstream.address,
        home: &home,
        runtime: &runtime,
        rollproxy,
        before: before.map(|binary| std::fs::canonicalize(binary).unwrap()),
        cores,
    };
    let scenarios = scenarios::all(options.quick);
    let mut all_right = true;
    let mut results = Vec::new();

    for scenario in scenarios
        .iter()
        .filter(|scenario| options.wants(scenario.key))
    {
        let mut rounds = Rounds::new();
        for round in 0..options.rounds {
            // Everybody is once the first.
            names.rotate_left(round.min(1));
            for name in &names {
                match calm_sample(options, scenario, &stage, &upstream, *name) {
                    Ok(sample) => {
                        eprintln!(
                            "{} {}, round {}: {sample:.1?}",
                            scenario.key,
                            name.text(),
                            round + 1
                        );
                        rounds.entry(*name).or_default().push(sample);
                    }
                    Err(wrong) => {
                        all_right = false;
                        println!("{} {}: FAILED, {wrong}", scenario.key, name.text());
                    }
                }
            }
        }
        report::table(scenario, &rounds);
        results.push((scenario, rounds));
    }

    let mut traced = Vec::new();
    if options.wants("system-calls") {
        traced = trace(options, &stage, &scenarios, &names);
        report::calls(&traced);
    }
    if let Some(file) = &options.json {
        std::fs::write(file, json(&results, &traced)).unwrap();
    }
    if all_right {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// One sample; another, as long as the options allow, if others used the machine meanwhile.
fn calm_sample(
    options: &Options,
    scenario: &Scenario,
    stage: &Stage<'_>,
    upstream: &Upstream,
    name: Name,
) -> Result<Sample, String> {
    let deadline = Instant::now() + options.calm;
    loop {
        let running = stage.start(name);
        machine::wait_for_calm(stage.cores, deadline);
        let plan = scenario.plan(running.address, options.quick);
        let sample = measure::sample(scenario, &plan, &running, upstream, stage.cores);
        let disturbed = |sample: &Sample| sample["beside"] > machine::CALM;
        if !sample.as_ref().is_ok_and(disturbed) || Instant::now() > deadline {
            return sample;
        }
    }
}

/// A round of its own: who is watched call by call is slow.
fn trace<'a>(
    options: &Options,
    stage: &Stage<'_>,
    scenarios: &'a [Scenario],
    names: &[Name],
) -> Vec<(&'a Scenario, Name, Traced)> {
    let mut all = Vec::new();
    for scenario in scenarios {
        for name in names.iter().filter(|name| **name != Name::Direct) {
            let running = stage.start(*name);
            machine::wait_for_calm(stage.cores, Instant::now() + options.calm);
            let plan = scenario.plan(running.address, options.quick);
            match measure::traced(scenario, &plan, &running, stage.home.folder()) {
                Ok(traced) => all.push((scenario, *name, traced)),
                Err(why) => println!("system calls of {}: not counted, {why}", name.text()),
            }
        }
    }
    all
}

fn json(results: &[(&Scenario, Rounds)], traced: &[(&Scenario, Name, Traced)]) -> String {
    let mut scenarios = serde_json::Map::new();
    for (scenario, rounds) in results {
        let rounds: serde_json::Map<_, _> = rounds
            .iter()
            .map(|(name, samples)| (name.text().to_owned(), serde_json::json!(samples)))
            .collect();
        scenarios.insert(scenario.key.to_owned(), rounds.into());
    }
    let calls: Vec<_> = traced
        .iter()
        .map(|(scenario, name, traced)| {
            serde_json::json!({
                "scenario": scenario.key,
                "proxy": name.text(),
                "work": traced.work,
                "calls": traced.calls,
            })
        })
        .collect();
    let all = serde_json::json!({ "scenarios": scenarios, "systemCalls": calls });
    format!("{all:#}\n")
}

/// 2,000 streams need them here, and children inherit them.
fn raise_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}
