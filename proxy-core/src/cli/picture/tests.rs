use control::types::{Held, Status, Streams};
use jiff::Timestamp;

use super::*;

const NOW: &str = "2026-01-02T12:00:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

/// A supervisor in the middle of everything.
fn busy() -> serde_json::Value {
    serde_json::from_str(include_str!("tests/busy.json")).unwrap()
}

fn drawn(status: serde_json::Value) -> String {
    let status: Status = serde_json::from_value(status).unwrap();
    super::status(&status, now(), Look::default())
}

/// The words of a picture, without colours' escapes.
fn uncoloured(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\x1b[") {
        plain.push_str(before);
        rest = after.split_once('m').unwrap().1;
    }
    plain + rest
}

#[test]
fn a_probation_with_everything_around_it() {
    let picture = drawn(busy());
    assert_eq!(picture + "\n", include_str!("tests/busy.txt"));
}

#[test]
fn colours_change_no_word() {
    let status: Status = serde_json::from_value(busy()).unwrap();
    let plain = super::status(&status, now(), Look::default());
    let coloured = super::status(&status, now(), Look { colour: true });
    assert_ne!(plain, coloured);
    assert_eq!(uncoloured(&coloured), plain);
}

#[test]
fn a_calm_supervisor_takes_few_lines() {
    let mut status = busy();
    let rolling = status["rolling"].as_object_mut().unwrap();
    for gone in ["standby", "probation", "lastFailure", "lastFailureAt"] {
        rolling.remove(gone);
    }
    rolling["draining"] = serde_json::json!([]);
    rolling["lastRollout"] = serde_json::json!({
        "id": 3, "version": "1.1.0", "by": "person", "startedAt": "2026-01-02T11:00:00Z", "endedAt": "2026-01-02T11:00:31Z",
        "steps": [], "reason": null,
        "verdict": {"rollout": 3, "verdict": "kept", "version": "1.1.0", "generation": 7, "code": null, "reason": null, "serial": 8}
    });
    status["pinned"] = false.into();
    status["pendingVersion"] = serde_json::Value::Null;
    status["update"] = serde_json::json!({});
    assert_eq!(drawn(status) + "\n", include_str!("tests/calm.txt"));
}

#[test]
fn nobody_serving_and_a_rollback_are_told_in_the_first_and_the_rollouts_line() {
    let mut status = busy();
    status["workerVersion"] = serde_json::Value::Null;
    let rolling = status["rolling"].as_object_mut().unwrap();
    for gone in [
        "active",
        "standby",
        "probation",
        "lastFailure",
        "lastFailureAt",
    ] {
        rolling.remove(gone);
    }
    rolling["draining"] = serde_json::json!([]);
    rolling["candidate"] =
        serde_json::json!({"generation": 8, "version": "1.0.0", "pid": 0, "since": NOW});
    rolling["lastRollout"]["endedAt"] = "2026-01-02T11:59:52Z".into();
    rolling["lastRollout"]["verdict"] = serde_json::json!({
        "rollout": 3, "verdict": "rolledBack", "version": "1.1.0", "generation": 7, "code": "LOCAL_ERRORS",
        "reason": "12 % of its 214 answers were its own errors", "serial": null
    });
    assert_eq!(drawn(status) + "\n", include_str!("tests/nobody.txt"));
}

#[test]
fn a_supervisor_that_did_not_move_is_told_and_one_that_did_is_not() {
    let handover = |phase: &str| {
        let mut status = busy();
        status["handover"] = serde_json::json!({
            "id": 1, "from": "1.0.0", "to": "1.1.0", "by": "selection", "at": "2026-01-02T11:59:00Z", "phase": phase,
            "code": "HANDOVER_FAILED", "reason": "it cannot be started"
        });
        drawn(status)
    };
    for (phase, told) in [
        ("failed", "failed 1m ago"),
        ("deferred", "deferred 1m ago"),
        ("checking", "being tried for 1m"),
        ("sometimeLater", "under way for 1m"),
    ] {
        let line = format!("  supervisor its move to 1.1.0: {told} [HANDOVER_FAILED]: it");
        let picture = handover(phase);
        assert!(picture.contains(&line), "{line} in\n{picture}");
    }
    assert_eq!(handover("moved"), drawn(busy()));
}

fn held(more: serde_json::Value) -> Held {
    let mut held = serde_json::json!({
        "generation": 4, "version": "0.9.0", "place": "draining", "total": 5, "streams": [
            {"client": "127.0.0.1:51234", "route": "/v1/messages", "ageMs": 7_380_000, "bytesIn": 1_240, "bytesOut": 3_400_000},
            {"client": "[::1]:9", "route": "/v1/realtime", "kind": "webSocket", "ageMs": 65_000, "bytesIn": 999, "bytesOut": 99_960_000},
            {"client": "unix", "route": "/odd\u{1b}[2J", "kind": "sometimeLater", "ageMs": 999, "bytesIn": 0, "bytesOut": 999_600}
        ], "unknown": null
    });
    let all = held.as_object_mut().unwrap();
    all.extend(more.as_object().unwrap().clone());
    serde_json::from_value(held).unwrap()
}

#[test]
fn what_holds_a_generation_is_a_table_that_says_when_it_is_not_all() {
    let streams = Streams {
        generations: vec![
            held(serde_json::json!({})),
            held(
                serde_json::json!({"generation": 5, "total": 0, "streams": [], "place": "standby"}),
            ),
            held(
                serde_json::json!({"generation": 6, "total": 1, "streams": [], "unknown": "its worker did not answer within 2s; one of an older version never does"}),
            ),
        ],
    };
    assert_eq!(
        super::streams(&streams, Look::default()) + "\n",
        include_str!("tests/streams.txt")
    );
    let none = super::streams(&Streams::default(), Look::default());
    assert_eq!(none, "no generation runs");
}

#[test]
fn an_age_is_short_and_never_negative() {
    let then = now();
    for (later, text) in [
        (0, "0s"),
        (59, "59s"),
        (61, "1m"),
        (3_700, "1h 1m"),
        (90_000, "1d 1h"),
    ] {
        let later = then + jiff::SignedDuration::from_secs(later);
        assert_eq!(age(then, later), text);
    }
    assert_eq!(age(then, then - jiff::SignedDuration::from_secs(5)), "0s");
}

#[test]
fn bytes_have_two_digits_and_a_unit() {
    for (count, text) in [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (9_949, "9.9 kB"),
        (9_951, "10 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (u64::MAX, "18447 PB"),
    ] {
        assert_eq!(bytes(count), text);
    }
}

#[test]
fn a_long_word_sticks_out_and_the_rest_is_wrapped() {
    let lines = labelled("x", &format!("{} b c", "a".repeat(90)));
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[1], format!("{}b c", " ".repeat(13)));
    assert_eq!(labelled("x", ""), ["  x          "]);
}
