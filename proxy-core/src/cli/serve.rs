//! `rollproxy serve` and `rollproxy worker`.

use staging::report::{Exit, Failure};

use crate::supervisor::{self, Blocked};
use crate::{telemetry, worker};

/// Runs the supervisor until SIGTERM.
pub fn supervisor() -> Result<Exit, Failure> {
    let blocked = Blocked::block().map_err(|error| {
        Failure::new(
            "SYSTEM",
            format!("cannot block signals: {error}"),
            Exit::Failed,
            true,
        )
    })?;
    telemetry::start_logging();
    supervisor::serve(super::home()?, &blocked)?;
    Ok(Exit::Done)
}

/// Runs one generation.
pub fn worker(generation: u64) -> Result<Exit, Failure> {
    // What ends a worker comes over its channel. A service manager that signals the whole control
    // group must not cut its streams: TERM, INT, HUP and USR2 stay blocked, as inherited or not.
    Blocked::block().map_err(|error| {
        Failure::new(
            "SYSTEM",
            format!("cannot block signals: {error}"),
            Exit::Failed,
            true,
        )
    })?;
    telemetry::start_logging();
    worker::run(generation, super::home()?)
        .map_err(|error| Failure::new("WORKER_FAILED", error.to_string(), Exit::Failed, false))?;
    Ok(Exit::Done)
}
