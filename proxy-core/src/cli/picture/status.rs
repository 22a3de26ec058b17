//! The whole of a supervisor at a glance.

use control::supervisor::{Handover, HandoverPhase};
use control::types::{By, Outcome, Place, PlaceName, RolloutRecord, Status};
use jiff::Timestamp;

use super::{Look, Tone, age, counted, labelled, span, table};

/// Who serves, who stands by, who drains and for how long, and what the last rollout came to.
pub fn status(status: &Status, now: Timestamp, look: Look) -> String {
    let mut lines = head(status, now, look);
    lines.push(String::new());
    lines.extend(generations(status, now, look));
    lines.push(String::new());
    lines.extend(news(status, now, look));
    lines.extend(packages(status));
    lines.extend(sockets(status));
    lines.join("\n")
}

fn head(status: &Status, now: Timestamp, look: Look) -> Vec<String> {
    let places = status.listeners.join(", ");
    let first = match &status.worker_version {
        Some(version) => {
            let serves = look.paint(Tone::Strong, &format!("rollproxy {version}"));
            format!("{serves} serves on {places}")
        }
        None => {
            let nobody = look.paint(Tone::Bad, "rollproxy: nobody serves");
            format!("{nobody} on {places}")
        }
    };
    let supervisor = format!(
        "supervisor {}, pid {}, up {}",
        status.supervisor_version,
        status.supervisor_pid,
        age(status.since, now)
    );
    vec![first, look.paint(Tone::Quiet, &supervisor)]
}

fn generations(status: &Status, now: Timestamp, look: Look) -> Vec<String> {
    let places: Vec<(PlaceName, &Place)> = status.rolling.places().collect();
    let rows: Vec<Vec<String>> = places
        .iter()
        .map(|(name, place)| {
            vec![
                format!("{} {}", place.generation, name.word()),
                place.version.to_string(),
                place.streams.to_string(),
                place.connections.to_string(),
                match place.pid {
                    0 => "-".to_owned(),
                    pid => pid.to_string(),
                },
                for_how_long(place, now),
            ]
        })
        .collect();
    if rows.is_empty() {
        return vec!["  no generation runs".to_owned()];
    }
    let heads = [
        "generation",
        "version",
        "streams",
        "connections",
        "pid",
        "for",
    ];
    let mut lines = table(&heads, &[2, 3], &rows);
    for (line, (name, _)) in lines.iter_mut().skip(1).zip(&places) {
        let tone = match name {
            PlaceName::Active => Tone::Good,
            PlaceName::Candidate | PlaceName::Standby => Tone::Notable,
            PlaceName::Draining | PlaceName::Unknown => Tone::Quiet,
        };
        *line = look.paint(tone, line);
    }
    if let Some(first) = lines.first_mut() {
        *first = look.paint(Tone::Quiet, first);
    }
    lines
}

/// Its time in its place, and what of its drain deadline is left.
fn for_how_long(place: &Place, now: Timestamp) -> String {
    let since = age(place.since, now);
    match place.deadline {
        None => since,
        Some(deadline) => format!("{since}, {} left", age(now, deadline)),
    }
}

/// What happened last, and what is about to.
fn news(status: &Status, now: Timestamp, look: Look) -> Vec<String> {
    let rolling = &status.rolling;
    let mut lines = Vec::new();
    if let Some(probation) = &rolling.probation {
        let left = age(now, probation.until);
        lines.extend(labelled(
            "probation",
            &format!(
                "rollout {} is kept in {left} if nothing goes wrong; {} so far, {}",
                probation.rollout,
                counted(probation.requests, "answer"),
                counted(probation.local_5xx, "own error"),
            ),
        ));
    }
    if let Some(rollout) = &rolling.last_rollout {
        let tone = match rollout.verdict.as_ref().map(|verdict| verdict.verdict) {
            Some(Outcome::Kept) => Tone::Good,
            Some(Outcome::Failed | Outcome::RolledBack) => Tone::Bad,
            Some(Outcome::Deferred | Outcome::Superseded) | None => Tone::Notable,
        };
        lines.extend(painted(
            labelled("rollout", &rollout_text(rollout, now)),
            tone,
            look,
        ));
    }
    if let Some(handover) = &status.handover {
        lines.extend(handover_lines(handover, now, look));
    }
    if let Some(failure) = &rolling.last_failure {
        let when = rolling
            .last_failure_at
            .map(|at| format!("{} ago: ", age(at, now)))
            .unwrap_or_default();
        lines.extend(labelled("failure", &format!("{when}{failure}")));
    }
    lines
}

/// The supervisor's own move to another version, unless it has moved: then the head says what it is.
fn handover_lines(handover: &Handover, now: Timestamp, look: Look) -> Vec<String> {
    let (what, tone) = match handover.phase {
        HandoverPhase::Moved => return Vec::new(),
        HandoverPhase::Failed => ("failed", Tone::Bad),
        HandoverPhase::Deferred => ("deferred", Tone::Notable),
        HandoverPhase::Waiting => ("waiting", Tone::Notable),
        HandoverPhase::Checking => ("being tried", Tone::Notable),
        HandoverPhase::Pausing => ("waiting until nothing is in flight", Tone::Notable),
        HandoverPhase::Unknown => ("under way", Tone::Notable),
    };
    let since = age(handover.at, now);
    let when = match handover.phase.exit() {
        Some(_) => format!("{since} ago"),
        None => format!("for {since}"),
    };
    let (code, reason) = (&handover.code, &handover.reason);
    let code = code.as_deref().map(|code| format!(" [{code}]"));
    let reason = reason.as_deref().map(|reason| format!(": {reason}"));
    let text = format!(
        "its move to {}: {what} {when}{}{}",
        handover.to,
        code.unwrap_or_default(),
        reason.unwrap_or_default()
    );
    painted(labelled("supervisor", &text), tone, look)
}

fn painted(lines: Vec<String>, tone: Tone, look: Look) -> Vec<String> {
    lines
        .into_iter()
        .map(|line| look.paint(tone, &line))
        .collect()
}

fn rollout_text(rollout: &RolloutRecord, now: Timestamp) -> String {
    let what = format!(
        "#{} to {} by {}",
        rollout.id,
        rollout.version,
        who(rollout.by)
    );
    let Some(verdict) = &rollout.verdict else {
        let at = rollout
            .steps
            .last()
            .map(|step| format!(", at \"{}\"", step.step))
            .unwrap_or_default();
        let since = age(rollout.started_at, now);
        return format!("{what}: under way for {since}{at}");
    };
    let ended = rollout.ended_at.unwrap_or(rollout.started_at);
    let took = span(ended.duration_since(rollout.started_at).as_secs());
    let code = verdict
        .code
        .as_deref()
        .map(|code| format!(" [{code}]"))
        .unwrap_or_default();
    let reason = verdict
        .reason
        .as_deref()
        .map(|reason| format!(": {reason}"))
        .unwrap_or_default();
    format!(
        "{what}: {} {} ago, after {took}{code}{reason}",
        verdict.verdict,
        age(ended, now)
    )
}

fn who(by: By) -> &'static str {
    match by {
        By::Person => "a person",
        By::Job => "the updater",
        By::Signal => "a signal",
        By::Recovery => "the supervisor (recovery)",
        By::Pending => "the supervisor (pending)",
        By::Selection => "the supervisor (selected)",
    }
}

fn packages(status: &Status) -> Vec<String> {
    let none = || "none".to_owned();
    let selected = match &status.selected_package_version {
        Some(version) if status.pinned => format!("{version} (pinned)"),
        Some(version) => version.to_string(),
        None => none(),
    };
    let pending = status
        .pending_version
        .as_ref()
        .map_or_else(none, ToString::to_string);
    let bad: Vec<&str> = status.update["knownBad"]
        .as_array()
        .map(|all| all.iter().filter_map(|one| one.as_str()).collect())
        .unwrap_or_default();
    let bad = match bad.is_empty() {
        true => String::new(),
        false => format!(", known bad {}", bad.join(" and ")),
    };
    let held = match status.update["holdUntil"].as_str() {
        Some(until) => format!(", updates held until {until}"),
        None => String::new(),
    };
    let job = &status.update["lastJob"];
    let interrupted = match (job["state"].as_str(), job["job"].as_str()) {
        (Some("interrupted"), Some(name)) => {
            format!(", job {name} was interrupted at {}", job["step"])
        }
        _ => String::new(),
    };
    labelled(
        "packages",
        &format!("selected {selected}, pending {pending}{bad}{held}{interrupted}"),
    )
}

fn sockets(status: &Status) -> Vec<String> {
    let rolling = &status.rolling;
    labelled(
        "sockets",
        &format!(
            "{} queued, {} in transfer, {} rejected, {} offered again, {} returned",
            rolling.queued_sockets,
            rolling.pending_transfers,
            rolling.rejected_sockets,
            rolling.failed_transfers,
            rolling.returned_sockets
        ),
    )
}
