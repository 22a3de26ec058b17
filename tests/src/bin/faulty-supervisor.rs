//! A `rollproxy` whose supervisor cannot go on: what a supervisor must not become, or must come back from.
//!
//! It does what the file `share/fault` of its package says, and stands beside a real program (`bin/rollproxy-real`),
//! which does everything else:
//! - `check-exits-1`, `check-hangs`, `check-tells-descriptors` (fails, naming what it was given),
//!   `check-knows-no-such-state`;
//! - `gives-back`: executes the program before again when it is to go on.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(package) = staging::package::own() else {
        return ExitCode::from(2);
    };
    let fault = std::fs::read_to_string(package.root.join("share/fault")).unwrap_or_default();
    let has = |argument: &str| arguments.iter().any(|given| given == argument);
    if has("--check-state") {
        match fault.trim() {
            "check-exits-1" => {
                eprintln!("this supervisor is faulty on purpose");
                return ExitCode::FAILURE;
            }
            "check-hangs" => std::thread::sleep(std::time::Duration::from_secs(3600)),
            "check-tells-descriptors" => {
                eprintln!("{}", descriptors());
                return ExitCode::FAILURE;
            }
            "check-knows-no-such-state" => {
                eprintln!("the state is of schema 1, this program knows 2");
                return ExitCode::from(65);
            }
            _ => {}
        }
    }
    if has("--resume") && fault.trim() == "gives-back" {
        let number = |name: &str| {
            let at = arguments.iter().position(|given| given == name)?;
            arguments.get(at + 1)?.parse::<i32>().ok()
        };
        if let (Some(state), Some(back)) = (number("--resume"), number("--back")) {
            let error =
                rollproxy::supervisor::handover::give_back(state, back, "faulty on purpose");
            eprintln!("giving back failed: {error}");
        }
        return ExitCode::from(2);
    }
    let real = package.root.join("bin/rollproxy-real");
    let error = Command::new(real).args(&arguments).exec();
    eprintln!("{error}");
    ExitCode::from(2)
}

/// `0 1 2 3`, and the one that looks at them left out.
fn descriptors() -> String {
    let mut numbers: Vec<i32> = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    // The folder that is being read.
    numbers.pop();
    let words: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    format!("it has the descriptors {}", words.join(" "))
}
