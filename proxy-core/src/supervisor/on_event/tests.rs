use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

const NOW: &str = "2026-01-02T12:00:00Z";

fn verdict(outcome: Outcome) -> Verdict {
    Verdict {
        rollout: 3,
        verdict: outcome,
        version: "1.1.0".parse().unwrap(),
        generation: Some(7),
        code: None,
        reason: None,
        serial: Some(8),
    }
}

fn json(notice: &Notice) -> serde_json::Value {
    serde_json::to_value(notice).unwrap()
}

#[test]
fn each_verdict_is_told_by_its_kind() {
    for (outcome, event, word) in [
        (Outcome::Kept, "kept", "kept"),
        (Outcome::RolledBack, "rolledBack", "rolledBack"),
        (Outcome::Failed, "failed", "failed"),
        (Outcome::Deferred, "refused", "deferred"),
        (Outcome::Superseded, "refused", "superseded"),
    ] {
        let notice = Notice::of_verdict(&verdict(outcome), Some(By::Job), at(NOW));
        assert_eq!(
            json(&notice),
            serde_json::json!({
                "schema": 1, "event": event, "at": NOW, "rollout": 3, "verdict": word,
                "version": "1.1.0", "generation": 7, "by": "job", "missed": 0
            })
        );
    }
    let failed = Verdict {
        code: Some("WORKER_EXITED".into()),
        reason: Some("it ended".into()),
        ..verdict(Outcome::Failed)
    };
    let told = json(&Notice::of_verdict(&failed, None, at(NOW)));
    assert_eq!(told["code"], "WORKER_EXITED");
    assert_eq!(told["reason"], "it ended");
}

#[test]
fn a_refusal_is_told_with_its_code_and_what_was_wanted() {
    let failure = Failure::new(
        "KNOWN_BAD",
        "x".repeat(2_000),
        staging::report::Exit::Failed,
        false,
    );
    let told = json(&Notice::of_refusal(
        &failure,
        Some("1.2.0"),
        By::Signal,
        at(NOW),
    ));
    assert_eq!(
        (&told["event"], &told["code"], &told["version"], &told["by"]),
        (
            &"refused".into(),
            &"KNOWN_BAD".into(),
            &"1.2.0".into(),
            &"signal".into()
        )
    );
    assert_eq!(told["reason"].as_str().unwrap().len(), 1_000);
    let nonsense = Notice::of_refusal(&failure, Some("latest"), By::Person, at(NOW));
    assert_eq!(json(&nonsense).get("version"), None);
}

#[test]
fn the_oldest_event_gives_way_and_is_counted() {
    let mut backlog = Backlog::default();
    for rollout in 0..20 {
        let mut verdict = verdict(Outcome::Kept);
        verdict.rollout = rollout;
        backlog.push(Notice::of_verdict(&verdict, None, at(NOW)));
    }
    let first = backlog.pop().unwrap();
    assert_eq!((first.rollout, first.missed), (Some(4), 4));
    let second = backlog.pop().unwrap();
    assert_eq!((second.rollout, second.missed), (Some(5), 0));
    let carried: Backlog = serde_json::from_str(&serde_json::to_string(&backlog).unwrap()).unwrap();
    assert_eq!(carried, backlog);
    assert_eq!(std::iter::from_fn(|| backlog.pop()).count(), 14);
}

#[test]
fn a_feeds_end_is_told_soon_daily_and_at_once_when_it_comes() {
    let mut told = FeedTold::default();
    let expires = at("2026-01-09T12:00:00Z");
    let mut look = |now: &str| told.look(expires, at(now)).is_some();
    assert!(!look("2026-01-02T11:59:59Z"));
    assert!(look("2026-01-02T12:00:00Z"));
    assert!(!look("2026-01-03T11:59:59Z"));
    assert!(look("2026-01-03T12:00:00Z"));
    assert!(look("2026-01-09T11:59:59Z"));
    assert!(look("2026-01-09T12:00:00Z"), "expired");
    assert!(!look("2026-01-10T11:59:59Z"));
    assert!(look("2026-01-10T12:00:00Z"));
    // Signed anew, and near its end once more.
    assert!(
        told.look(at("2026-03-01T00:00:00Z"), at("2026-01-10T13:00:00Z"))
            .is_none()
    );
    let notice = told
        .look(at("2026-01-12T00:00:00Z"), at("2026-01-10T14:00:00Z"))
        .unwrap();
    assert_eq!(json(&notice)["feedExpires"], "2026-01-12T00:00:00Z");
    assert!(
        json(&notice)["reason"]
            .as_str()
            .unwrap()
            .contains("within seven days")
    );
}

#[test]
fn the_expiry_is_found_in_the_updaters_own_file() {
    let file =
        br#"{"signatures":[],"signed":{"_type":"timestamp","expires":"2026-01-12T00:00:00Z"}}"#;
    assert_eq!(expiry(file), Some(at("2026-01-12T00:00:00Z")));
    for nonsense in [&b""[..], b"{}", b"[]", br#"{"signed":{"expires":"soon"}}"#] {
        assert_eq!(expiry(nonsense), None);
    }
}
