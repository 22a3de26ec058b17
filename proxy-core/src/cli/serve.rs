//! `rollproxy serve` and `rollproxy worker`.

use std::process::ExitCode;

use staging::report::{Exit, Failure, Format, finish};

use crate::supervisor::handover::Handed;
use crate::supervisor::{self, Blocked, LeftOpen};
use crate::{telemetry, worker};

/// Runs the supervisor until SIGTERM.
pub fn supervisor(given: Vec<LeftOpen>) -> Result<Exit, Failure> {
    let blocked = block()?;
    telemetry::start_logging();
    supervisor::serve(super::home()?, given, &blocked)?;
    Ok(Exit::Done)
}

/// Goes on as the supervisor that the program before was.
pub fn resume(handed: &Handed) -> Result<Exit, Failure> {
    let blocked = block()?;
    telemetry::start_logging();
    supervisor::handover::resume(handed, &blocked)?;
    Ok(Exit::Done)
}

/// Reads a state and changes nothing.
pub fn check_state(state: i32) -> ExitCode {
    match crate::descriptors::inherited(state) {
        Ok(state) => supervisor::handover::check(state).into(),
        Err(error) => finish(
            Err(Failure::new(
                "STATE",
                error.to_string(),
                Exit::Failed,
                false,
            )),
            Format::Text,
        ),
    }
}

/// Runs one generation.
pub fn worker(generation: u64) -> Result<Exit, Failure> {
    // What ends a worker comes over its channel. A service manager that signals the whole control
    // group must not cut its streams: TERM, INT, HUP and USR2 stay blocked, as inherited or not.
    block()?;
    telemetry::start_logging();
    worker::run(generation, super::home()?)
        .map_err(|error| Failure::new("WORKER_FAILED", error.to_string(), Exit::Failed, false))?;
    Ok(Exit::Done)
}

fn block() -> Result<Blocked, Failure> {
    Blocked::block().map_err(|error| {
        Failure::new(
            "SYSTEM",
            format!("cannot block signals: {error}"),
            Exit::Failed,
            true,
        )
    })
}
