//! `rollproxy drain <generation> --now`: ends a draining generation before its deadline. Asked twice,
//! because it cuts what that generation still serves.

use std::io::{BufRead, IsTerminal, Write};
use std::time::{Duration, Instant};

use control::types::{DrainAnswer, DrainRequest};
use control::{Client, ControlError};
use staging::report::{Exit, Failure, Format, line};

use super::picture::{self, Look};

/// How long a generation may take to end: its own grace, the supervisor's before it kills, and some more.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Shows what would be cut, asks, ends the generation, and waits until it is gone.
pub fn drain(generation: u64, yes: bool, format: Format) -> Result<Exit, Failure> {
    let client = Client::new(&super::home()?);
    let ask = |confirm| {
        client.drain(&DrainRequest {
            generation,
            confirm,
        })
    };
    let answer = ask(None).map_err(ControlError::into_failure)?;
    show(&answer, format);
    consent(&answer, yes)?;
    match ask(answer.confirm.clone()) {
        Ok(_) => {}
        // Its last stream ended while the person was reading.
        Err(ControlError::Refused { failure }) if failure.code == "NO_SUCH_GENERATION" => {}
        // Whether it was heard is unknown: what is seen now decides.
        Err(ControlError::Exchange { .. } | ControlError::Silent { .. }) => {}
        Err(error) => return Err(error.into_failure()),
    }
    wait_until_gone(&client, generation)?;
    line(&match format {
        Format::Text => format!("generation {generation} is gone"),
        Format::Json => {
            serde_json::json!({ "outcome": "ended", "generation": generation }).to_string()
        }
    });
    Ok(Exit::Done)
}

fn show(answer: &DrainAnswer, format: Format) {
    line(&match format {
        Format::Text => picture::held(&answer.held, Look::of_output()),
        // Our own types: serialising them has no way to fail.
        Format::Json => serde_json::to_string(answer).unwrap_or_default(),
    });
}

/// The second asking: `--yes`, a person at a terminal, or the same command once more.
fn consent(answer: &DrainAnswer, yes: bool) -> Result<(), Failure> {
    let generation = answer.held.generation;
    if yes || (answer.asked_before && !is_interactive()) {
        return Ok(());
    }
    if !is_interactive() {
        return Err(Failure::new(
            "CONFIRMATION_NEEDED",
            format!(
                "nothing was done yet: run the same command again within a minute to cut what generation {generation} still serves, or run it with --yes"
            ),
            Exit::Deferred,
            true,
        ));
    }
    let mut err = std::io::stderr();
    let _ = write!(
        err,
        "End generation {generation} and cut what it still serves? [y/N] "
    );
    let _ = err.flush();
    let mut said = String::new();
    let read = std::io::stdin().lock().read_line(&mut said);
    if read.is_ok() && ["y", "yes"].contains(&said.trim().to_lowercase().as_str()) {
        return Ok(());
    }
    Err(Failure::new(
        "NOT_CONFIRMED",
        format!("nothing was done; generation {generation} drains on"),
        Exit::Failed,
        false,
    ))
}

fn is_interactive() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// It was told to end: it is gone when no place shows it any more. A supervisor that replaces itself
/// meanwhile is asked again.
fn wait_until_gone(client: &Client, generation: u64) -> Result<(), Failure> {
    let begun = Instant::now();
    let mut why = "it is still there".to_owned();
    while begun.elapsed() < PATIENCE {
        match client.status() {
            Ok(status) => {
                let there = status
                    .rolling
                    .places()
                    .any(|(_, place)| place.generation == generation);
                if !there {
                    return Ok(());
                }
            }
            Err(error) => why = error.to_string(),
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Err(Failure::new(
        "NOT_GONE",
        format!(
            "generation {generation} was told to end, but within {PATIENCE:?} could not be seen gone: {why}; see `rollproxy status`"
        ),
        Exit::Unverified,
        true,
    ))
}
