//! `rollproxy restart`: a rollout, its steps as they happen, its verdict as the exit code.

use control::Client;
use control::supervisor::{Handover, HandoverPhase, HandoverRequest};
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

/// The supervisor itself goes on as another program: the selected version, or the one named.
pub fn supervisor(to: Option<String>, format: Format) -> Result<Exit, Failure> {
    let home = super::home()?;
    let client = Client::connect(&home).map_err(control::ControlError::into_failure)?;
    let before = client
        .status()
        .map_err(control::ControlError::into_failure)?;
    let begun = client
        .hand_over(&HandoverRequest {
            version: to,
            by: By::Person,
            nonce: Some(before.nonce),
        })
        .map_err(control::ControlError::into_failure)?;
    if format == Format::Text {
        line(&format!(
            "  the supervisor goes on as {} (it is {})",
            begun.to, begun.from
        ));
    }
    let after = match client.await_handover(&begun) {
        Ok(after) => after,
        // It may have moved: "failed, nothing changed" would be a guess.
        Err(error) => {
            return Err(Failure {
                exit: Exit::Unverified,
                ..error.into_failure()
            });
        }
    };
    let ended = after.handover.filter(|last| last.id == begun.id);
    match ended {
        Some(Handover {
            phase: HandoverPhase::Failed | HandoverPhase::Deferred,
            ..
        }) => {}
        // As announced; or started anew, which leaves no record.
        _ if after.supervisor_version == begun.to
            && after.supervisor_pid == before.supervisor_pid => {}
        _ => {
            let found = after.supervisor_version;
            return Err(Failure::new(
                "NOT_VERIFIED",
                format!(
                    "the supervisor was to go on as {}, and the status read again says {found}; see `rollproxy status`",
                    begun.to
                ),
                Exit::Unverified,
                true,
            ));
        }
    }
    let Some(ended) = ended else {
        if format == Format::Text {
            line(&format!(
                "moved: the supervisor was started anew as {}",
                begun.to
            ));
        }
        return Ok(Exit::Done);
    };
    if format == Format::Json {
        show_json(&ended);
    } else {
        let code = ended.code.as_deref().map(|code| format!(" [{code}]"));
        let reason = ended.reason.as_deref().map(|reason| format!(": {reason}"));
        let more = format!("{}{}", code.unwrap_or_default(), reason.unwrap_or_default());
        line(&match ended.phase {
            HandoverPhase::Moved => {
                let millis = ended.frozen_micros.unwrap_or(0) as f64 / 1000.0;
                format!(
                    "moved: the supervisor is {}, pid {} as before; for {millis:.1} ms it heard nobody",
                    ended.to, after.supervisor_pid
                )
            }
            HandoverPhase::Deferred => format!("deferred{more}"),
            _ => format!("failed{more}"),
        });
    }
    Ok(ended.phase.exit().unwrap_or(Exit::Unverified))
}

/// Whether the supervisor could go on as another program now. Changes nothing.
pub fn check(to: Option<&str>, format: Format) -> Result<Exit, Failure> {
    let home = super::home()?;
    let client = Client::connect(&home).map_err(control::ControlError::into_failure)?;
    let preflight = client
        .preflight(to)
        .map_err(control::ControlError::into_failure)?;
    if format == Format::Json {
        show_json(&preflight);
    } else {
        for condition in &preflight.conditions {
            let holds = match condition.holds {
                Some(true) => "yes",
                Some(false) => "no",
                None => "unknown",
            };
            line(&format!(
                "  {holds:<8} {:<10} {}",
                condition.name, condition.detail
            ));
        }
        line(&match preflight.settled {
            true => format!(
                "settled: the supervisor could go on as {} now",
                preflight.to
            ),
            false => format!(
                "not settled: the supervisor would not go on as {} now",
                preflight.to
            ),
        });
    }
    Ok(match preflight.settled {
        true => Exit::Done,
        false => Exit::Deferred,
    })
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
            "  {:<10} generation {} ({}){}",
            step.step,
            step.generation
                .map_or("-".to_owned(), |generation| generation.to_string()),
            step.version,
            (step.detail.as_ref()).map_or(String::new(), |detail| format!(": {detail}"))
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
