//! The wire: what one version writes, another reads.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests are tests

use control::{By, ErrorBody, Line, Outcome, RolloutRequest, Status, Verdict};
use staging::report::Exit;

/// A status as a newer supervisor might write it: with fields that we do not know.
const STATUS: &str = r#"{
  "schema": 1, "supervisorVersion": "1.2.3", "supervisorPid": 42, "nonce": "abc",
  "listeners": ["127.0.0.1:8787"], "home": "/h", "since": "2026-01-02T03:04:05Z",
  "workerVersion": "1.2.3", "diskPackageVersion": "1.3.0", "selectedPackageVersion": "1.2.3",
  "selectedSerial": 7, "pinned": true, "validatedVersion": null, "pendingVersion": "1.3.0",
  "candidateVersion": null, "unheardOf": {"deep": [1]},
  "rolling": {
    "generation": 3,
    "active": {"generation": 3, "version": "1.2.3", "pid": 43, "since": "2026-01-02T03:04:06Z", "streams": 5, "connections": 6, "deadline": null, "mood": "good"},
    "candidate": null, "standby": null,
    "draining": [{"generation": 2, "version": "1.2.2", "pid": 41, "since": "2026-01-02T03:04:06Z", "streams": 1, "connections": 1, "deadline": "2026-01-02T07:04:06Z"}],
    "probation": {"rollout": 9, "until": "2026-01-02T03:04:36Z", "requests": 20, "local5xx": 1}, "queuedSockets": 1, "pendingTransfers": 2,
    "rejectedSockets": 3, "failedTransfers": 4, "closedSockets": 0, "returnedSockets": 5, "droppedMessages": 6,
    "lastFailure": "no", "lastFailureAt": "2026-01-02T03:04:05Z", "lastRollout": {
      "id": 9, "version": "1.2.3", "by": "job", "startedAt": "2026-01-02T03:04:05Z", "endedAt": null,
      "verdict": null, "reason": null,
      "steps": [{"rollout": 9, "step": "candidate", "generation": 3, "version": "1.2.3", "at": "2026-01-02T03:04:05Z", "detail": null}]}
  },
  "handover": {"id": 2, "from": "1.2.2", "to": "1.2.3", "by": "selection", "at": "2026-01-02T03:04:05Z", "phase": "moved", "code": null, "reason": null, "frozenMicros": 900},
  "update": {}, "budget": {}, "telemetry": {}
}"#;

#[test]
fn status_survives_a_round_trip_and_newer_fields_are_ignored() {
    let status: Status = serde_json::from_str(STATUS).unwrap();
    assert_eq!(status.rolling.active.as_ref().unwrap().streams, 5);
    assert_eq!(status.selected_serial, Some(7));
    let written = serde_json::to_string(&status).unwrap();
    assert_eq!(serde_json::from_str::<Status>(&written).unwrap(), status);

    // Written with every name of the contract, and with no other.
    let mut expected: serde_json::Value = serde_json::from_str(STATUS).unwrap();
    expected.as_object_mut().unwrap().remove("unheardOf");
    expected["rolling"]["active"]
        .as_object_mut()
        .unwrap()
        .remove("mood");
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&written).unwrap(),
        expected
    );
}

#[test]
fn an_older_status_without_our_counters_is_read_with_zeroes() {
    let status: Status = serde_json::from_str(
        r#"{"schema":1,"supervisorVersion":"0.1.0","supervisorPid":1,"nonce":"n","since":"2026-01-02T03:04:05Z"}"#,
    )
    .unwrap();
    assert_eq!(status.rolling, control::Rolling::default());
    assert_eq!(status.selected_package_version, None);
}

#[test]
fn a_request_is_bound_to_what_was_seen() {
    let status: Status = serde_json::from_str(STATUS).unwrap();
    let request = RolloutRequest {
        version: Some("1.3.0".to_owned()),
        ..RolloutRequest::new(By::Person).seen(&status)
    };
    let wire = serde_json::to_value(&request).unwrap();
    assert_eq!(
        wire,
        serde_json::json!({"version":"1.3.0","by":"person","nonce":"abc","serial":7,"job":null,"pin":null,"clearKnownBad":false,"key":null})
    );
    assert_eq!(
        serde_json::from_value::<RolloutRequest>(wire).unwrap(),
        request
    );
    // What a person types into curl.
    let typed: RolloutRequest = serde_json::from_str(r#"{"by":"person"}"#).unwrap();
    assert_eq!(typed, RolloutRequest::new(By::Person));
}

#[test]
fn lines_are_told_apart() {
    let step = r#"{"rollout":1,"step":"ready","generation":2,"version":"1.0.0","at":"2026-01-02T03:04:05Z","detail":null}"#;
    assert!(matches!(serde_json::from_str(step), Ok(Line::Step(_))));
    for (word, outcome, exit) in [
        ("kept", Outcome::Kept, Exit::Done),
        ("rolledBack", Outcome::RolledBack, Exit::RolledBack),
        ("failed", Outcome::Failed, Exit::Failed),
        ("deferred", Outcome::Deferred, Exit::Deferred),
        ("superseded", Outcome::Superseded, Exit::Deferred),
    ] {
        let line = format!(
            r#"{{"rollout":1,"verdict":"{word}","version":"1.0.0","generation":2,"code":null,"reason":null,"serial":8}}"#
        );
        let Ok(Line::Verdict(verdict)) = serde_json::from_str(&line) else {
            panic!("{line} is no verdict");
        };
        assert_eq!((verdict.verdict, verdict.exit()), (outcome, exit));
        assert_eq!(serde_json::to_string(&verdict).unwrap(), line);
        assert_eq!(outcome.word(), word);
        let again: Verdict = serde_json::from_str(&line).unwrap();
        assert_eq!(again, verdict);
    }
    let error = r#"{"error":{"code":"DRAINING_FULL","message":"no","retry":true}}"#;
    assert!(matches!(serde_json::from_str(error), Ok(Line::Error(_))));
}

#[test]
fn the_exit_code_travels_in_the_http_status() {
    for exit in [
        Exit::Failed,
        Exit::Usage,
        Exit::NoPackage,
        Exit::Deferred,
        Exit::Configuration,
    ] {
        assert_eq!(ErrorBody::exit(ErrorBody::http_status(exit)), exit);
    }
    assert_eq!(ErrorBody::exit(404), Exit::Failed);
}
