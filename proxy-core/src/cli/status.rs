//! `rollproxy status`: a picture grasped at a glance.

use control::types::{Place, RolloutRecord, Status};
use control::{Client, ControlError};
use staging::home::Home;
use staging::report::{Exit, Failure, Format, line};

/// Shows the live status, or the last one of a supervisor that is gone.
pub fn status(format: Format) -> Result<Exit, Failure> {
    let home = super::home()?;
    match Client::new(&home).status() {
        Ok(status) => {
            line(&match format {
                Format::Json => serde_json::to_string_pretty(&status).unwrap_or_default(),
                Format::Text => picture(&status, jiff::Timestamp::now()),
            });
            Ok(Exit::Done)
        }
        Err(ControlError::NotRunning { .. }) => gone(&home, format),
        Err(error) => Err(error.into_failure()),
    }
}

/// No supervisor answers: what it was when it last wrote, and that it is gone.
fn gone(home: &Home, format: Format) -> Result<Exit, Failure> {
    let failure = ControlError::NotRunning {
        home: home.root().to_owned(),
    }
    .into_failure();
    let last = std::fs::read(home.snapshot_file())
        .ok()
        .and_then(|bytes| serde_json::from_slice::<Status>(&bytes).ok());
    match (last, format) {
        (None, _) => return Err(failure),
        (Some(last), Format::Json) => {
            let answer = serde_json::json!({ "running": false, "last": last, "error": failure });
            line(&answer.to_string());
        }
        (Some(last), Format::Text) => {
            line("The supervisor is gone. This is what it last wrote:\n");
            line(&picture(&last, jiff::Timestamp::now()));
            return Err(failure);
        }
    }
    Ok(failure.exit)
}

fn picture(status: &Status, now: jiff::Timestamp) -> String {
    let rolling = &status.rolling;
    let mut lines = vec![format!(
        "rollproxy {} on {}  (supervisor pid {}, up {})",
        status
            .worker_version
            .as_ref()
            .map_or("nobody serves".to_owned(), ToString::to_string),
        status.listeners.join(", "),
        status.supervisor_pid,
        age(status.since, now)
    )];
    let mut places: Vec<(&str, &Place)> = Vec::new();
    places.extend(rolling.active.iter().map(|place| ("active", place)));
    places.extend(rolling.candidate.iter().map(|place| ("candidate", place)));
    places.extend(rolling.standby.iter().map(|place| ("standby", place)));
    places.extend(rolling.draining.iter().map(|place| ("draining", place)));
    for (name, place) in places {
        lines.push(format!(
            "  {name:<10} generation {:<4} {:<12} pid {:<8} {:>5} streams {:>5} connections  for {}",
            place.generation,
            place.version.to_string(),
            place.pid,
            place.streams,
            place.connections,
            age(place.since, now)
        ));
    }
    lines.push(format!(
        "  sockets    {} queued, {} in transfer, {} rejected, {} offered again",
        rolling.queued_sockets,
        rolling.pending_transfers,
        rolling.rejected_sockets,
        rolling.failed_transfers
    ));
    let selected = match (&status.selected_package_version, status.pinned) {
        (Some(version), true) => format!("{version} (pinned)"),
        (Some(version), false) => version.to_string(),
        (None, _) => "none".to_owned(),
    };
    let pending = status
        .pending_version
        .as_ref()
        .map_or("none".to_owned(), ToString::to_string);
    lines.push(format!(
        "  packages   selected {selected}, pending {pending}"
    ));
    if let Some(rollout) = &rolling.last_rollout {
        lines.push(format!("  rollout    {}", rollout_line(rollout, now)));
    }
    if let Some(failure) = &rolling.last_failure {
        lines.push(format!("  failure    {failure}"));
    }
    lines.join("\n")
}

fn rollout_line(rollout: &RolloutRecord, now: jiff::Timestamp) -> String {
    let outcome = match &rollout.verdict {
        None => format!("under way for {}", age(rollout.started_at, now)),
        Some(verdict) => {
            let reason = verdict
                .reason
                .as_deref()
                .map(|reason| format!(" ({reason})"))
                .unwrap_or_default();
            let ended = rollout.ended_at.unwrap_or(rollout.started_at);
            format!("{}{reason}, {} ago", verdict.verdict, age(ended, now))
        }
    };
    format!("#{} to {}: {outcome}", rollout.id, rollout.version)
}

/// `45s`, `12m`, `3h 5m`, `2d 4h`.
fn age(since: jiff::Timestamp, now: jiff::Timestamp) -> String {
    let seconds = now.duration_since(since).as_secs().max(0);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m", seconds / 60),
        3_600..86_400 => format!("{}h {}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_short_and_never_negative() {
        let then: jiff::Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for (later, text) in [
            (0, "0s"),
            (59, "59s"),
            (61, "1m"),
            (3_700, "1h 1m"),
            (90_000, "1d 1h"),
        ] {
            let now = then + jiff::SignedDuration::from_secs(later);
            assert_eq!(age(then, now), text);
        }
        assert_eq!(age(then, then - jiff::SignedDuration::from_secs(5)), "0s");
    }
}
