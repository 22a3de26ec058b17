//! `rollproxy status`: a picture grasped at a glance, once or live.

use control::types::Status;
use control::{Client, ControlError};
use staging::home::Home;
use staging::report::{Exit, Failure, Format, line};

use super::picture::{self, Look};

/// Shows the live status, or the last one of a supervisor that is gone.
pub fn status(format: Format) -> Result<Exit, Failure> {
    let home = super::home()?;
    match Client::new(&home).status() {
        Ok(status) => {
            line(&match format {
                Format::Json => serde_json::to_string_pretty(&status).unwrap_or_default(),
                Format::Text => drawn(&status),
            });
            Ok(Exit::Done)
        }
        Err(ControlError::NotRunning { .. }) => gone(&home, format),
        Err(error) => Err(error.into_failure()),
    }
}

/// Shows what holds one generation, or every one.
pub fn streams(generation: Option<u64>, format: Format) -> Result<Exit, Failure> {
    let streams = Client::new(&super::home()?)
        .streams(generation)
        .map_err(ControlError::into_failure)?;
    line(&match format {
        Format::Json => serde_json::to_string_pretty(&streams).unwrap_or_default(),
        Format::Text => picture::streams(&streams, Look::of_output()),
    });
    Ok(Exit::Done)
}

/// No supervisor answers: what it was when it last wrote, and that it is gone.
fn gone(home: &Home, format: Format) -> Result<Exit, Failure> {
    let failure = ControlError::NotRunning {
        home: home.root().to_owned(),
    }
    .into_failure();
    match (last_written(home), format) {
        (None, _) => return Err(failure),
        (Some(last), Format::Json) => {
            let answer = serde_json::json!({ "running": false, "last": last, "error": failure });
            line(&answer.to_string());
        }
        (Some(last), Format::Text) => {
            line("The supervisor is gone. This is what it last wrote:\n");
            line(&drawn(&last));
            return Err(failure);
        }
    }
    Ok(failure.exit)
}

/// What the supervisor of this home last wrote of itself.
pub(super) fn last_written(home: &Home) -> Option<Status> {
    let bytes = std::fs::read(home.snapshot_file()).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn drawn(status: &Status) -> String {
    picture::status(status, jiff::Timestamp::now(), Look::of_output())
}
