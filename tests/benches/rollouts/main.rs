//! What rollouts and new supervisors cost whoever is a client meanwhile, and what the hand-off costs at any time.
//!
//! `cargo bench -p rollproxy-tests --bench rollouts`; see `options.rs` for what may follow after `--`. Ends with exit code
//! 1 if a client lost anything or a connection was closed. Goals that are missed are said, and change no exit code.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../serving/answer.rs"]
mod answer;
mod bare;
#[allow(dead_code, reason = "the serving bench uses all of it")]
#[path = "../serving/children.rs"]
mod children;
mod crowd;
mod findings;
mod freeze;
mod handoff;
mod held;
#[path = "../serving/load/mod.rs"]
mod load;
mod memory;
mod options;
#[path = "../serving/reactor.rs"]
mod reactor;
mod restart;
mod scene;
#[path = "../serving/upstream.rs"]
mod upstream;
#[path = "../serving/wire.rs"]
mod wire;

use std::process::ExitCode;

use findings::Findings;
use options::{Options, USAGE, cores};

fn main() -> ExitCode {
    raise_descriptors();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        // The roles of child processes.
        Some("upstream") => upstream::run(),
        Some("load") => load::run(&serde_json::from_str(&arguments[1]).unwrap()),
        Some("own-listener") => bare::own_listener(&arguments[1]),
        Some("bare") => bare::supervisor(&arguments[1]),
        Some("bare-worker") => bare::worker(&arguments[1]),
        _ => match Options::read(arguments.into_iter()) {
            Ok(options) => return run(&options),
            Err(wrong) => {
                eprintln!("{wrong}\n{USAGE}");
                return ExitCode::from(64);
            }
        },
    }
    ExitCode::SUCCESS
}

fn run(options: &Options) -> ExitCode {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    println!("{} cores, Linux {}", cores(), kernel.trim());
    if cfg!(debug_assertions) {
        println!("A debug build: no figure means anything.");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores())
        .enable_all()
        .build()
        .unwrap();
    let mut findings = Findings::default();
    if options.wants("crowd") {
        options.wait_for_calm();
        runtime.block_on(crowd::run(options, &mut findings));
    }
    if options.wants("restart") {
        options.wait_for_calm();
        runtime.block_on(restart::run(options, &mut findings));
    }
    if options.wants("memory") {
        options.wait_for_calm();
        runtime.block_on(memory::run(options, &mut findings));
    }
    if options.wants("freeze") {
        options.wait_for_calm();
        runtime.block_on(freeze::run(options, &mut findings));
    }
    if options.wants("hand-off") {
        handoff::run(options, &runtime, &mut findings);
    }
    findings.finish(options.json.as_deref())
}

/// 5,000 streams need them here twice, and children inherit them.
fn raise_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}
