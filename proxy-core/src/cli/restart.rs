//! `rollproxy restart`: a rollout, its steps as they happen, its verdict as the exit code.

use control::Client;
use control::types::{By, Outcome, RolloutRequest, Step, Verdict};
use staging::report::{Exit, Failure, Format, line};

/// Asks the supervisor for a rollout and waits for the verdict.
pub fn restart(to: Option<String>, format: Format) -> Result<Exit, Failure> {
    let home = super::home()?;
    let client = Client::connect(&home).map_err(control::ControlError::into_failure)?;
    let before = client
        .status()
        .map_err(control::ControlError::into_failure)?;
    let mut request = RolloutRequest::new(By::Person).seen(&before);
    request.version = to;
    let verdict = client
        .roll(&request, &mut |step| show_step(step, format))
        .map_err(control::ControlError::into_failure)?;
    show_verdict(&verdict, format);
    if verdict.exit() != Exit::Done {
        return Ok(verdict.exit());
    }
    verify(&client, &verdict, format)
}

/// Reads the status again: what was kept must be what serves.
fn verify(client: &Client, verdict: &Verdict, format: Format) -> Result<Exit, Failure> {
    let active = client
        .status()
        .ok()
        .and_then(|status| status.rolling.active);
    let serves = active.is_some_and(|active| {
        active.version == verdict.version
            && verdict
                .generation
                .is_none_or(|generation| active.generation >= generation)
    });
    if serves {
        return Ok(Exit::Done);
    }
    if format == Format::Text {
        line("activated, but the status read again disagrees; see `rollproxy status`");
    }
    Ok(Exit::Unverified)
}

fn show_step(step: &Step, format: Format) {
    match format {
        Format::Json => show_json(step),
        Format::Text => line(&format!(
            "  {:<10} generation {} ({})",
            step.step,
            step.generation
                .map_or("-".to_owned(), |generation| generation.to_string()),
            step.version
        )),
    }
}

fn show_verdict(verdict: &Verdict, format: Format) {
    if format == Format::Json {
        return show_json(verdict);
    }
    let reason = verdict
        .reason
        .as_deref()
        .map(|reason| format!(": {reason}"))
        .unwrap_or_default();
    let code = verdict
        .code
        .as_deref()
        .map(|code| format!(" [{code}]"))
        .unwrap_or_default();
    line(&match verdict.verdict {
        Outcome::Kept => format!("kept: version {} serves{code}{reason}", verdict.version),
        other => format!("{other}{code}{reason}"),
    });
}

fn show_json<T: serde::Serialize>(value: &T) {
    // Our own types: serialising them has no way to fail.
    line(&serde_json::to_string(value).unwrap_or_default());
}
