//! Promise 2, the supervisor's half: what is not good never becomes active, and everyone is told why.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use control::ControlError;
use control::types::Outcome;
use fixtures::upstream::Upstream;
use harness::{
    Asked, HeldStream, Proxy, TestHome, ask, by_job, by_person, process, same_version, until,
};
use staging::report::{Exit, Failure};

/// What a failure leaves behind on disk about its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Nothing,
    Strike,
    KnownBad,
}

/// Fault, code, a part of the reason, mark.
const FAILURES: [(&str, &str, &str, Mark); 11] = [
    (
        "never-ready",
        "WORKER_NOT_READY",
        "not ready within 1.5s",
        Mark::Strike,
    ),
    (
        "never-activated",
        "WORKER_NOT_READY",
        "did not answer `activate` within 1.5s",
        Mark::Strike,
    ),
    (
        "crash-before-ready",
        "WORKER_EXITED",
        "exit code 101",
        Mark::KnownBad,
    ),
    (
        "crash-after-ready",
        "WORKER_EXITED",
        "exit code 101",
        Mark::KnownBad,
    ),
    (
        "wrong-version",
        "VERSION_MISMATCH",
        "says that it is 6.6.6",
        Mark::KnownBad,
    ),
    (
        "wrong-protocol",
        "PROTOCOL_MISMATCH",
        "speaks channel protocol 999",
        Mark::Nothing,
    ),
    (
        "close-channel",
        "WORKER_CHANNEL_CLOSED",
        "closed the channel",
        Mark::KnownBad,
    ),
    (
        "fatal-package",
        "WORKER_FATAL",
        "faulty on purpose",
        Mark::KnownBad,
    ),
    (
        "fatal-configuration",
        "WORKER_FATAL",
        "faulty on purpose",
        Mark::Nothing,
    ),
    (
        "fatal-host",
        "WORKER_FATAL",
        "faulty on purpose",
        Mark::Nothing,
    ),
    (
        "garbage never-ready",
        "WORKER_NOT_READY",
        "not ready within 1.5s",
        Mark::Strike,
    ),
];

/// A home that serves 1.0.0 and whose candidates have so long to get ready from now on.
async fn serving(upstream: &Upstream, ready_timeout: &str) -> (TestHome, Proxy) {
    let home = TestHome::new();
    home.configure_upstream(&upstream.url(), "");
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    home.configure_upstream(
        &upstream.url(),
        &format!("[rollout]\nready_timeout = \"{ready_timeout}\"\n"),
    );
    let verdict = proxy.roll(same_version()).await.unwrap();
    assert_eq!(verdict.verdict, Outcome::Kept, "{verdict:?}");
    until("the first generation has ended", || {
        proxy.rolling().draining.is_empty()
    })
    .await;
    (home, proxy)
}

fn refusal(answer: Result<control::types::Verdict, ControlError>) -> Failure {
    match answer {
        Err(ControlError::Refused { failure }) => failure,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_candidate_that_fails_leaves_the_active_untouched_and_says_why() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, "1500ms").await;
    let (active, selection) = (proxy.active(), home.selection());
    let held = HeldStream::open(proxy.address, &upstream).await;

    for (number, (fault, code, reason, mark)) in FAILURES.into_iter().enumerate() {
        let version = format!("2.{number}.0");
        home.install_faulty(&version, fault);
        home.set_pending(&version);
        let format = if number % 2 == 0 { "json" } else { "text" };
        let restart = home
            .tool("rollproxy")
            .args(["restart", "--to", &version, "--format", format]);
        let told = restart.run().await.expect(1);
        if format == "json" {
            let verdict = told.json();
            assert_eq!(verdict["verdict"], "failed", "{fault}: {verdict}");
            assert_eq!(verdict["code"], code, "{fault}");
            assert!(
                verdict["reason"].as_str().unwrap().contains(reason),
                "{fault}: {verdict}"
            );
        } else {
            let last = told.stdout.lines().next_back().unwrap();
            assert!(last.starts_with("failed"), "{fault}: {last}");
            assert!(
                last.contains(code) && last.contains(reason),
                "{fault}: {last}"
            );
        }
        let rolling = proxy.rolling();
        let failure = rolling.last_failure.unwrap();
        for part in [code, reason, &version] {
            assert!(failure.contains(part), "{fault}: {failure}");
        }
        let now = rolling.active.unwrap();
        assert_eq!(
            (now.generation, now.pid),
            (active.generation, active.pid),
            "{fault}"
        );
        assert_eq!(rolling.candidate, None, "{fault}");
        assert_eq!(home.selection(), selection, "{fault}");

        let state = home.state();
        let strikes = state
            .not_ready
            .get(&format!("archive-of-{version}"))
            .copied()
            .unwrap_or(0);
        let found = match (home.is_known_bad(&version), strikes) {
            (true, _) => Mark::KnownBad,
            (false, 1) => Mark::Strike,
            (false, 0) => Mark::Nothing,
            (false, more) => panic!("{fault}: {more} strikes at once"),
        };
        assert_eq!(found, mark, "{fault}");
        let pending = (mark != Mark::KnownBad).then_some(version);
        assert_eq!(
            home.pending(),
            pending,
            "{fault}: a bad version is not tried again by itself"
        );
        until("nothing is left of the candidate", || {
            home.processes().len() == 2
        })
        .await;
    }
    held.finish(&upstream).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_times_not_ready_is_known_bad_for_jobs_and_a_person_may_still_try() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, "300ms").await;
    home.install_faulty("1.1.0", "never-ready");
    home.set_pending("1.1.0");
    for strike in 1..=3 {
        assert!(!home.is_known_bad("1.1.0"), "before strike {strike}");
        assert_eq!(
            home.pending().as_deref(),
            Some("1.1.0"),
            "before strike {strike}"
        );
        let verdict = proxy.roll(by_job("1.1.0")).await.unwrap();
        assert_eq!(verdict.code.as_deref(), Some("WORKER_NOT_READY"));
    }
    assert!(home.is_known_bad("1.1.0"));
    assert_eq!(home.pending(), None);
    let before = proxy.now().rolling.last_rollout.unwrap().id;
    let refused = refusal(proxy.roll(by_job("1.1.0")).await);
    assert_eq!(
        (refused.code.as_str(), refused.retry),
        ("KNOWN_BAD", false),
        "{refused:?}"
    );
    assert_eq!(
        proxy.now().rolling.last_rollout.unwrap().id,
        before,
        "nothing was begun"
    );
    let verdict = proxy.roll(by_person("1.1.0")).await.unwrap();
    assert_eq!(verdict.code.as_deref(), Some("WORKER_NOT_READY"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_selection_that_somebody_else_changed_meanwhile_is_not_overwritten_and_the_command_says_so()
 {
    let home = TestHome::new();
    let ready = home.folder().join("ready");
    home.install_proxy("1.0.0");
    home.install_faulty("1.1.0", &format!("ready-when={}", ready.display()));
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    let restart = home
        .tool("rollproxy")
        .args(["restart", "--to", "1.1.0", "--format", "json"]);
    let told = tokio::spawn(restart.run());
    until("1.1.0 is the candidate", || {
        proxy.rolling().candidate.is_some()
    })
    .await;
    home.select("1.0.0");
    let selection = home.selection();
    std::fs::write(&ready, "").unwrap();
    let verdict = told.await.unwrap().expect(2).json();
    assert_eq!(
        (&verdict["verdict"], &verdict["code"]),
        (&"kept".into(), &"SERIAL_CHANGED".into())
    );
    assert_eq!(home.selection(), selection);
    assert_eq!(proxy.active_version().as_deref(), Some("1.1.0"));
}

/// Packed on this host: no archive stands for it, its manifest does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_that_came_from_no_archive_is_known_bad_too() {
    let upstream = Upstream::start().await.unwrap();
    let (home, proxy) = serving(&upstream, "5s").await;
    home.install_faulty("1.1.0", "crash-before-ready");
    let verdict = proxy.roll(by_job("1.1.0")).await.unwrap();
    assert_eq!(verdict.code.as_deref(), Some("WORKER_EXITED"));
    assert_eq!(refusal(proxy.roll(by_job("1.1.0")).await).code, "KNOWN_BAD");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_restarts_250_ms_apart_are_both_kept() {
    let upstream = Upstream::start().await.unwrap();
    let home = TestHome::new();
    home.configure_upstream(&upstream.url(), "");
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    let (first, serial) = (proxy.active(), home.selection().unwrap().serial);
    let held = HeldStream::open(proxy.address, &upstream).await;
    let restart = |to: &[&str]| {
        let tool = home
            .tool("rollproxy")
            .args(["restart", "--format", "json"])
            .args(to);
        tokio::spawn(tool.run())
    };
    for to in [&[][..], &["--to", "1.0.0"]] {
        let one = restart(to);
        tokio::time::sleep(Duration::from_millis(250)).await;
        let other = restart(to);
        for told in [one.await.unwrap(), other.await.unwrap()] {
            assert_eq!(told.expect(0).json()["verdict"], "kept");
        }
    }
    let active = proxy.active();
    assert!(active.generation > first.generation);
    assert!(ask(proxy.address).await.is_well());
    assert_eq!(
        home.selection().unwrap().serial,
        serial,
        "what is selected did not change"
    );
    held.finish(&upstream).await;
    until("only the last one is left", || {
        proxy.rolling().draining.is_empty()
    })
    .await;
    assert_eq!(proxy.active().pid, active.pid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn generations_drain_side_by_side_up_to_the_cap_and_nothing_is_killed_for_a_rollout() {
    let upstream = Upstream::start().await.unwrap();
    let home = TestHome::new();
    home.configure_upstream(&upstream.url(), "[rollout]\ndrain_cap = 3\n");
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    let mut held = Vec::new();
    for roll in 1..=3 {
        held.push(HeldStream::open(proxy.address, &upstream).await);
        let verdict = proxy.roll(same_version()).await.unwrap();
        assert_eq!(verdict.verdict, Outcome::Kept);
        assert_eq!(proxy.rolling().draining.len(), roll);
    }
    held.push(HeldStream::open(proxy.address, &upstream).await);
    let before = proxy.rolling();

    let refused = refusal(proxy.roll(same_version()).await);
    assert_eq!(
        (refused.code.as_str(), refused.exit),
        ("TOO_MANY_DRAINING", Exit::Deferred)
    );
    let told = home.tool("rollproxy").arg("restart").run().await.expect(75);
    assert!(
        told.stderr.contains("error[TOO_MANY_DRAINING]"),
        "{}",
        told.stderr
    );
    let after = proxy.rolling();
    let pids = |places: &[control::types::Place]| places.iter().map(|p| p.pid).collect::<Vec<_>>();
    assert_eq!(pids(&after.draining), pids(&before.draining));
    assert_eq!(after.active.unwrap().pid, before.active.unwrap().pid);

    held.swap_remove(0).finish(&upstream).await;
    until("one generation has drained", || {
        proxy.rolling().draining.len() == 2
    })
    .await;
    assert_eq!(
        proxy.roll(same_version()).await.unwrap().verdict,
        Outcome::Kept
    );
    for held in held {
        held.finish(&upstream).await;
    }
    until("all have drained", || proxy.rolling().draining.is_empty()).await;
    assert!(!proxy.log().contains("is killed"), "{}", proxy.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_ends_a_rollout_that_is_under_way_and_a_job_waits_its_turn() {
    let upstream = Upstream::start().await.unwrap();
    let home = TestHome::new();
    home.configure_upstream(&upstream.url(), "");
    home.install_proxy("1.0.0");
    home.install_faulty(
        "1.1.0",
        &format!("ready-when={}", home.folder().join("never").display()),
    );
    home.install_faulty("1.2.0", "");
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    let held = HeldStream::open(proxy.address, &upstream).await;

    let restart = home
        .tool("rollproxy")
        .args(["restart", "--to", "1.1.0", "--format", "json"]);
    let first = tokio::spawn(restart.run());
    until("1.1.0 is the candidate", || {
        proxy
            .now()
            .candidate_version
            .is_some_and(|version| version.to_string() == "1.1.0")
    })
    .await;
    let candidate = proxy.rolling().candidate.unwrap();

    let refused = refusal(proxy.roll(by_job("1.2.0")).await);
    assert_eq!(
        (refused.code.as_str(), refused.exit),
        ("ROLLOUT_IN_PROGRESS", Exit::Deferred)
    );
    assert!(refused.retry);
    let joined = [
        proxy.roll_begun(by_job("1.1.0")).await,
        proxy.roll_begun(by_person("1.1.0")).await,
    ];
    let now = proxy.rolling();
    assert_eq!(
        now.candidate.unwrap().pid,
        candidate.pid,
        "nothing new was begun"
    );

    let told = home
        .tool("rollproxy")
        .args(["restart", "--to", "1.2.0"])
        .run()
        .await
        .expect(0);
    assert!(
        told.stdout.contains("kept: version 1.2.0 serves"),
        "{}",
        told.stdout
    );
    let superseded = first.await.unwrap().expect(75).json();
    assert_eq!(superseded["verdict"], "superseded");
    let reason = superseded["reason"].as_str().unwrap();
    assert!(reason.contains("1.2.0"), "{reason}");
    for verdict in joined {
        let verdict = verdict.await.unwrap().unwrap();
        assert_eq!(verdict.verdict, Outcome::Superseded);
        assert_eq!(serde_json::json!(verdict.rollout), superseded["rollout"]);
    }
    assert_eq!(home.selected().as_deref(), Some("1.2.0"));
    assert!(!home.is_known_bad("1.1.0") && home.state().not_ready.is_empty());
    until("the superseded candidate is gone", || {
        !process::is_alive(i32::try_from(candidate.pid).unwrap())
    })
    .await;
    assert_eq!(ask(proxy.address).await, Asked::by_faulty());
    held.finish(&upstream).await;
}
