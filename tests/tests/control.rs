//! Promise 3: nobody has to read logs. What the control socket and the commands say, in text, JSON and
//! exit codes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::fs::PermissionsExt;

use control::types::{By, Outcome, RolloutRequest};
use fixtures::wire::Wire;
use harness::{Proxy, TestHome, by_person, same_version, until, until_some};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

/// A home that serves 1.0.0, and 1.1.0, whose worker gets ready once the file is there.
async fn serving() -> (TestHome, Proxy, std::path::PathBuf) {
    let home = TestHome::new();
    let ready = home.folder().join("ready");
    home.install_proxy("1.0.0");
    home.install_faulty("1.1.0", &format!("ready-when={}", ready.display()));
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    (home, proxy, ready)
}

/// As `curl --unix-socket` does it: knows nothing of our client.
async fn raw(home: &TestHome, request: &str, body: &str) -> Wire<UnixStream> {
    let mut stream = UnixStream::connect(home.home.control_socket())
        .await
        .unwrap();
    let length = body.len();
    let head = format!("{request} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(head.as_bytes()).await.unwrap();
    Wire::new(stream)
}

async fn answer(home: &TestHome, request: &str, body: &str) -> (u16, Value) {
    let mut wire = raw(home, request, body).await;
    let head = wire.head().await.unwrap().unwrap();
    let body = wire.body(head.answer_framing()).await.unwrap();
    (
        head.status().unwrap(),
        serde_json::from_slice(&body).unwrap(),
    )
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    keys
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_has_every_field_during_a_rollout_and_events_tell_its_changes() {
    let (home, proxy, ready) = serving().await;
    let mode = home
        .home
        .control_socket()
        .metadata()
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut events = raw(&home, "GET /status/events", "").await;
    let mut framing = events.head().await.unwrap().unwrap().answer_framing();

    let verdict = proxy.roll_begun(by_person("1.1.0")).await;
    until("the candidate runs", || {
        proxy.rolling().candidate.is_some_and(|place| place.pid > 0)
    })
    .await;
    let (code, status) = answer(&home, "GET /status", "").await;
    assert_eq!(code, 200);
    for key in [
        "schema",
        "supervisorVersion",
        "supervisorPid",
        "nonce",
        "listeners",
        "home",
        "since",
        "workerVersion",
        "diskPackageVersion",
        "selectedPackageVersion",
        "selectedSerial",
        "pinned",
        "validatedVersion",
        "pendingVersion",
        "candidateVersion",
        "rolling",
        "update",
        "budget",
        "telemetry",
    ] {
        assert!(keys(&status).contains(&key), "{key} in {status:#}");
    }
    let versions = [
        "supervisorVersion",
        "workerVersion",
        "selectedPackageVersion",
        "diskPackageVersion",
        "candidateVersion",
    ];
    assert_eq!(
        versions.map(|key| status[key].as_str().unwrap()),
        ["1.0.0", "1.0.0", "1.0.0", "1.1.0", "1.1.0"]
    );
    let rolling = &status["rolling"];
    for key in [
        "generation",
        "active",
        "candidate",
        "standby",
        "draining",
        "queuedSockets",
        "pendingTransfers",
        "rejectedSockets",
        "failedTransfers",
        "returnedSockets",
        "droppedMessages",
        "lastFailure",
        "lastRollout",
    ] {
        assert!(keys(rolling).contains(&key), "{key} in {rolling:#}");
    }
    assert_eq!(
        (
            &rolling["generation"],
            &rolling["standby"],
            &rolling["draining"]
        ),
        (&json!(1), &Value::Null, &json!([]))
    );
    for (place, generation) in [(&rolling["active"], 1), (&rolling["candidate"], 2)] {
        for key in ["generation", "version", "pid", "since", "streams"] {
            assert!(keys(place).contains(&key), "{key} in {place:#}");
        }
        assert_eq!(place["generation"], generation);
        let since: jiff::Timestamp = place["since"].as_str().unwrap().parse().unwrap();
        assert!(since <= jiff::Timestamp::now());
    }
    assert_eq!(
        (
            &rolling["lastRollout"]["id"],
            &rolling["lastRollout"]["verdict"]
        ),
        (&json!(1), &Value::Null)
    );
    let picture = home
        .tool("rollproxy")
        .arg("status")
        .run()
        .await
        .expect(0)
        .stdout;
    for part in [
        "  1 active ",
        "  2 candidate ",
        "#1 to 1.1.0 by a person: under way",
    ] {
        assert!(picture.contains(part), "{part:?} in\n{picture}");
    }

    std::fs::write(&ready, "").unwrap();
    assert_eq!(verdict.await.unwrap().unwrap().verdict, Outcome::Kept);
    let mut seen = String::new();
    while !seen.contains(r#""verdict":"kept""#) {
        let piece = tokio::time::timeout(harness::PATIENCE, events.piece(&mut framing)).await;
        match piece.expect("an event").unwrap() {
            fixtures::wire::Piece::Data(data) => seen.push_str(&String::from_utf8_lossy(&data)),
            fixtures::wire::Piece::End => panic!("the events ended: {seen}"),
        }
    }
    assert!(seen.starts_with("event: status\ndata: {"), "{seen}");
    let (code, status) = answer(&home, "GET /status", "").await;
    assert_eq!(
        (
            code,
            &status["workerVersion"],
            &status["rolling"]["generation"]
        ),
        (200, &json!("1.1.0"), &json!(2))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_tells_its_steps_and_its_verdict_a_line_each() {
    let (home, _proxy, ready) = serving().await;
    std::fs::write(&ready, "").unwrap();
    let told = home
        .tool("rollproxy")
        .args(["restart", "--to", "1.1.0", "--format", "json"])
        .run()
        .await
        .expect(0);
    let lines: Vec<Value> = told
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (verdict, steps) = lines.split_last().unwrap();
    let names: Vec<&str> = steps
        .iter()
        .map(|step| step["step"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["candidate", "ready", "activated", "draining"]);
    for step in steps {
        assert_eq!(step["rollout"], 1, "{step}");
        step["at"]
            .as_str()
            .unwrap()
            .parse::<jiff::Timestamp>()
            .unwrap();
    }
    let about: Vec<(u64, &str)> = steps
        .iter()
        .map(|step| {
            let version = step["version"].as_str().unwrap();
            (step["generation"].as_u64().unwrap(), version)
        })
        .collect();
    let (new, former) = ((2, "1.1.0"), (1, "1.0.0"));
    assert_eq!(about, [new, new, new, former]);
    assert_eq!(
        (
            &verdict["verdict"],
            &verdict["generation"],
            &verdict["version"]
        ),
        (&json!("kept"), &json!(2), &json!("1.1.0"))
    );
    assert_eq!(verdict["serial"], json!(home.selection().unwrap().serial));

    let told = home
        .tool("rollproxy")
        .args(["restart", "--to", "1.0.0"])
        .run()
        .await
        .expect(0);
    let words: Vec<&str> = told
        .stdout
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(
        words,
        ["candidate", "ready", "activated", "draining", "kept:"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_stream_is_no_verdict_and_the_rollout_can_be_asked_for_by_its_number() {
    let (home, proxy, ready) = serving().await;
    let mut wire = raw(
        &home,
        "POST /rollouts",
        r#"{"version":"1.1.0","by":"person"}"#,
    )
    .await;
    let head = wire.head().await.unwrap().unwrap();
    assert_eq!(head.status(), Some(200));
    let mut framing = head.answer_framing();
    let fixtures::wire::Piece::Data(line) = wire.piece(&mut framing).await.unwrap() else {
        panic!("no first step");
    };
    let step: Value = serde_json::from_slice(&line).unwrap();
    assert_eq!(
        (&step["step"], &step["rollout"]),
        (&json!("candidate"), &json!(1))
    );
    drop(wire);
    let (_, record) = answer(&home, "GET /rollouts/1", "").await;
    assert_eq!(
        (&record["id"], &record["verdict"], &record["endedAt"]),
        (&json!(1), &Value::Null, &Value::Null)
    );
    std::fs::write(&ready, "").unwrap();
    let record = until_some("the verdict", || {
        proxy
            .client()
            .rollout(1)
            .ok()
            .filter(|r| r.verdict.is_some())
    })
    .await;
    assert_eq!(record.verdict.unwrap().verdict, Outcome::Kept);
    assert_eq!(record.steps.len(), 4, "{:?}", record.steps);
    assert!(record.ended_at.unwrap() >= record.started_at);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_refused_says_why_and_changes_nothing() {
    let (home, proxy, _ready) = serving().await;
    let before = proxy.now();
    let other_nonce = json!({"by": "person", "nonce": "somebody-else"}).to_string();
    let other_serial = json!({"by": "person", "serial": 4711}).to_string();
    for (request, body, http, code) in [
        ("GET /nothing", "", 404, "NOT_FOUND"),
        ("POST /status", "", 404, "NOT_FOUND"),
        ("GET /rollouts/99", "", 404, "NOT_FOUND"),
        ("GET /rollouts/first", "", 400, "BAD_REQUEST"),
        ("POST /rollouts", "", 400, "BAD_REQUEST"),
        ("POST /rollouts", r#"{"by":"cat"}"#, 400, "BAD_REQUEST"),
        (
            "POST /rollouts",
            r#"{"by":"person","version":"9.9.9"}"#,
            424,
            "NOT_INSTALLED",
        ),
        ("POST /rollouts", &other_nonce, 409, "OWNERSHIP_CHANGED"),
        ("POST /rollouts", &other_serial, 409, "SERIAL_CHANGED"),
    ] {
        let (status, answer) = answer(&home, request, body).await;
        let error = &answer["error"];
        assert_eq!(
            (status, &error["code"]),
            (http, &json!(code)),
            "{request} {body}: {answer}"
        );
        assert!(!error["message"].as_str().unwrap().is_empty());
        assert!(error["retry"].is_boolean());
    }
    let huge = format!(r#"{{"by":"person","job":"{}"}}"#, "x".repeat(70_000));
    assert_eq!(answer(&home, "POST /rollouts", &huge).await.0, 400);
    for (version, exit, code) in [
        ("9.9.9", 69, "NOT_INSTALLED"),
        ("latest", 64, "VERSION_INVALID"),
    ] {
        let told = home
            .tool("rollproxy")
            .args(["restart", "--to", version])
            .run()
            .await
            .expect(exit);
        assert!(
            told.stderr.contains(&format!("error[{code}]")),
            "{}",
            told.stderr
        );
        let told = home
            .tool("rollproxy")
            .args(["restart", "--format", "json", "--to", version])
            .run()
            .await
            .expect(exit);
        assert_eq!(told.json()["error"]["code"], code);
    }
    let after = proxy.now();
    assert_eq!(
        (after.rolling.last_rollout, after.rolling.generation),
        (None, before.rolling.generation)
    );
    assert_eq!(
        proxy
            .roll(RolloutRequest::new(By::Person).seen(&before))
            .await
            .unwrap()
            .verdict,
        Outcome::Kept
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_supervisor_the_commands_say_so_and_show_what_it_last_was() {
    let (home, mut proxy, _ready) = serving().await;
    assert_eq!(
        proxy.roll(same_version()).await.unwrap().verdict,
        Outcome::Kept
    );
    let json = home
        .tool("rollproxy")
        .args(["status", "--format", "json"])
        .run()
        .await
        .expect(0)
        .json();
    assert_eq!(
        (&json["rolling"]["generation"], &json["supervisorPid"]),
        (&json!(2), &json!(proxy.pid()))
    );
    until("the rollout is in the snapshot", || {
        std::fs::read_to_string(home.home.snapshot_file())
            .is_ok_and(|text| text.contains(r#""verdict": "kept""#))
    })
    .await;
    proxy.signal(Signal::SIGKILL);
    proxy.ended().await;
    for format in ["text", "json"] {
        let told = home
            .tool("rollproxy")
            .args(["status", "--format", format])
            .run()
            .await
            .expect(1);
        if format == "json" {
            let json = told.json();
            assert_eq!(
                (&json["running"], &json["error"]["code"]),
                (&json!(false), &json!("NOT_RUNNING"))
            );
            assert_eq!(
                json["last"]["rolling"]["lastRollout"]["verdict"]["verdict"],
                "kept"
            );
        } else {
            assert!(
                told.stdout.contains("is gone") && told.stdout.contains("  2 active "),
                "{}",
                told.stdout
            );
        }
        let told = home
            .tool("rollproxy")
            .args(["restart", "--format", format])
            .run()
            .await
            .expect(1);
        assert!(told.text().contains("NOT_RUNNING"), "{}", told.text());
    }
    let never = TestHome::new();
    let told = never.tool("rollproxy").arg("status").run().await.expect(1);
    assert!(
        told.stderr.contains("error[NOT_RUNNING]"),
        "{}",
        told.stderr
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_says_what_of_the_new_configuration_it_did_not_take() {
    let (home, proxy, _ready) = serving().await;
    let text = std::fs::read_to_string(home.home.config_file()).unwrap();
    let typo = format!("{text}\n[[route]]\npath = \"/v1/*\"\n");
    std::fs::write(home.home.config_file(), typo).unwrap();
    let told = home.tool("rollproxy").arg("restart").run().await.expect(0);
    assert!(told.stdout.contains("route"), "{}", told.text());
    std::fs::write(home.home.config_file(), text).unwrap();
    let told = home.tool("rollproxy").arg("restart").run().await.expect(0);
    assert!(told.stdout.ends_with("serves\n"), "{}", told.text());
    drop(proxy);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_configuration_shows_no_secret_and_the_port_shows_no_nonce() {
    let (home, proxy, _ready) = serving().await;
    let good = std::fs::read_to_string(home.home.config_file()).unwrap();
    for bad in [
        "[upstreams.x]\nurl = \"https://me:hidden-word@api.example\"\n",
        "[upstreams.x]\nurl = \"https://api.example?key=hidden-word\"\n",
        "[upstreams.x\nurl = \"https://hidden-word\"\n",
        "[upstreams.x]\nurl = hidden-word\n",
    ] {
        std::fs::write(home.home.config_file(), format!("{good}{bad}")).unwrap();
        let told = home.tool("rollproxy").arg("restart").run().await.expect(78);
        assert!(!told.text().contains("hidden-word"), "{}", told.text());
        assert!(
            told.stderr
                .lines()
                .last()
                .unwrap()
                .contains("error[CONFIG_"),
            "{}",
            told.text()
        );
        let before = proxy.last_failure();
        proxy.signal(Signal::SIGHUP);
        until("the failure is told", || {
            proxy
                .now()
                .rolling
                .last_failure
                .is_some_and(|now| now != before)
        })
        .await;
        assert!(!proxy.last_failure().contains("hidden-word"));
        assert_eq!(proxy.last_failure().lines().count(), 1);
    }
    let shown = until_some("the port shows the failure", || {
        let snapshot = std::fs::read_to_string(home.home.snapshot_file()).ok()?;
        snapshot.contains("CONFIG_SYNTAX").then_some(())
    });
    shown.await;
    let (status, value) = fixtures::client::get_json(proxy.address, "/status")
        .await
        .unwrap();
    assert_eq!(status, 200);
    let text = value.to_string();
    assert!(
        text.contains("CONFIG_SYNTAX") && !text.contains("hidden-word"),
        "{text}"
    );
    assert!(!text.contains(&proxy.now().nonce), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_configuration_that_is_no_file_is_refused_and_stops_nobody() {
    let (home, proxy, _ready) = serving().await;
    let file = home.home.config_file();
    std::fs::remove_file(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let told = home.tool("rollproxy").arg("restart").run().await.expect(78);
    assert!(
        told.stderr.contains("not a regular file"),
        "{}",
        told.text()
    );
    assert!(harness::ask(proxy.address).await.is_well());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_request_made_again_is_the_same_rollout_and_another_nonce_is_told_nothing() {
    let (home, proxy, ready) = serving().await;
    std::fs::write(&ready, "").unwrap();
    let nonce = proxy.now().nonce;
    let request = |key: &str| json!({"by": "person", "nonce": nonce, "key": key}).to_string();
    let last_line = |body: String| {
        let home = &home;
        async move {
            let mut wire = raw(home, "POST /rollouts", &body).await;
            let head = wire.head().await.unwrap().unwrap();
            let lines = wire.body(head.answer_framing()).await.unwrap();
            let text = String::from_utf8(lines).unwrap();
            serde_json::from_str::<Value>(text.trim().lines().last().unwrap()).unwrap()
        }
    };
    let first = last_line(request("a")).await;
    assert_eq!(
        (&first["verdict"], &first["rollout"]),
        (&json!("kept"), &json!(1))
    );
    assert_eq!(
        last_line(request("a")).await,
        first,
        "also when it has ended"
    );
    assert_eq!(last_line(request("b")).await["rollout"], 2);
    assert_eq!(proxy.active().generation, 3);

    let own = format!("GET /rollouts/1?nonce={nonce}");
    assert_eq!(answer(&home, &own, "").await.1["id"], 1);
    let (status, refused) = answer(&home, "GET /rollouts/1?nonce=former", "").await;
    assert_eq!(
        (status, &refused["error"]["code"]),
        (409, &json!("OWNERSHIP_CHANGED"))
    );
}
