//! Promise 2, when the supervisor changes under a job: nothing is changed on a guess about who owns the home.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use control::types::{Outcome, RolloutRequest};
use control::{Client, ControlError};
use harness::{
    Check, FileServer, Pack, Proxy, Standing, Starting, TestFeed, TestHome, Trick, by_job, until,
};
use serde_json::json;
use staging::clock;
use staging::locks::SupervisorLock;
use staging::ownership::{self, ProcessIdentity, SupervisorRecord};
use staging::report::{Exit, Failure};
use tokio::sync::Notify;

/// A home on which 1.0.0 is selected, and which follows a feed that offers a good 1.1.0.
struct World {
    feed: TestFeed,
    server: FileServer,
    home: TestHome,
    go_on: Arc<Notify>,
}

impl World {
    async fn new() -> Self {
        let feed = TestFeed::new();
        let server = FileServer::start(feed.path()).await;
        let home = TestHome::new();
        home.install_proxy("1.0.0");
        home.select("1.0.0");
        feed.pin(&home, &server.url()).await;
        Pack::faulty(&feed, &home, "1.1.0", "none").release();
        Self {
            feed,
            server,
            home,
            go_on: Arc::default(),
        }
    }

    /// A check that is in the middle of its download, and what stood when it began.
    async fn check_held(&self) -> (Check, Standing) {
        let before = self.home.standing();
        self.server
            .trick(".tar.gz", Trick::HoldAfter(100_000, self.go_on.clone()));
        let check = self.home.check_until("stage").await;
        until("the download has begun", || {
            self.home
                .downloads()
                .iter()
                .any(|(_, there)| *there == 100_000)
        })
        .await;
        (check, before)
    }

    /// Lets the download go on. The job must defer, and must not have changed anything.
    async fn assert_deferred(&self, held: (Check, Standing), parts: &[&str]) {
        let (check, before) = held;
        self.server.honest();
        self.go_on.notify_one();
        let said = check.ended().await.refused(75, "OWNERSHIP_CHANGED", parts);
        assert_eq!(
            (&said["outcome"], &said["error"]["retry"]),
            (&json!("deferred"), &json!(true))
        );
        assert_eq!(self.home.standing(), before);
        self.home.assert_tidy();
        let job = self.home.jobs().pop().unwrap();
        assert_eq!(job.step, "publish");
        assert!(job.cause.unwrap().starts_with("OWNERSHIP_CHANGED"));
        let state = self.home.state();
        assert_eq!(
            (state.next_attempt, state.failed_attempts),
            (None, 0),
            "deferred is nobody's failure"
        );
    }
}

fn pid(proxy: &Proxy) -> String {
    format!("pid {}", proxy.pid())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_defers_when_another_supervisor_runs_than_at_its_start() {
    let world = World::new().await;
    let first = Proxy::start(&world.home).await;
    let held = world.check_held().await;
    let was = pid(&first);
    drop(first);
    let second = Proxy::start(&world.home).await;
    let generation = second.active().generation;
    world
        .assert_deferred(
            held,
            &[&format!("was {was}"), &format!("is {}", pid(&second))],
        )
        .await;
    assert_eq!(second.active().generation, generation);
    assert!(
        second.now().rolling.last_rollout.is_none(),
        "the second was asked for a rollout"
    );
    // Run again, as the message says.
    let said = world.home.check().run().await.answered(0, "updated");
    assert!(
        said["bytes"].as_u64().unwrap() < world.feed.length_of("1.1.0"),
        "what was there came again"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_defers_when_the_supervisor_went_away() {
    let world = World::new().await;
    let first = Proxy::start(&world.home).await;
    let held = world.check_held().await;
    let was = pid(&first);
    drop(first);
    world
        .assert_deferred(held, &[&format!("was {was}"), "is nobody"])
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_began_without_a_supervisor_defers_when_one_started() {
    let world = World::new().await;
    let held = world.check_held().await;
    let started = Proxy::start(&world.home).await;
    world
        .assert_deferred(held, &["was nobody", &format!("is {}", pid(&started))])
        .await;
}

/// This process as the supervisor of a home, as far as lock and record tell.
struct Posing {
    _lock: SupervisorLock,
    record: SupervisorRecord,
}

impl Posing {
    fn new(home: &TestHome) -> Self {
        let lock = SupervisorLock::try_acquire(&home.home).unwrap();
        let posing = Self {
            _lock: lock,
            record: record(ProcessIdentity::current().unwrap()),
        };
        posing.announce(home);
        posing
    }

    fn announce(&self, home: &TestHome) {
        staging::document::write(&home.home.supervisor_record(), &self.record).unwrap();
    }
}

fn record(identity: ProcessIdentity) -> SupervisorRecord {
    SupervisorRecord {
        schema: 1,
        identity,
        version: "1.0.0".parse().unwrap(),
        executable: std::env::current_exe().unwrap(),
        listeners: Vec::new(),
        since: clock::now(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_process_with_another_nonce_is_another_supervisor() {
    let world = World::new().await;
    let mut posing = Posing::new(&world.home);
    let held = world.check_held().await;
    posing.record.identity.nonce = "another instance of the same process".into();
    posing.announce(&world.home);
    world.assert_deferred(held, &["supervisor changed"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reused_pid_is_not_taken_for_the_supervisor() {
    let world = World::new().await;
    let file = world.home.home.supervisor_record();
    // Our own pid is alive for certain, and never started then.
    let mut reused = ProcessIdentity::current().unwrap();
    reused.start_time += 1;
    let mut rebooted = ProcessIdentity::current().unwrap();
    rebooted.boot_id = "another boot".into();
    for dead in [reused.clone(), rebooted] {
        staging::document::write(&file, &record(dead)).unwrap();
        // Nobody supervises: the version waits for the next start.
        world.home.check().run().await.answered(0, "pending");
    }
    // The lock says that somebody does, and the record does not say who.
    let posing = Posing::new(&world.home);
    staging::document::write(&file, &record(reused)).unwrap();
    let before = world.home.standing();
    world
        .home
        .check()
        .run()
        .await
        .refused(75, "OWNERSHIP_UNCLEAR", &["supervisor.lock"]);
    for (text, code, part) in [
        (r#"{"schema": 2}"#, "OWNERSHIP_UNREADABLE", "schema 2"),
        ("{", "OWNERSHIP_UNREADABLE", "supervisor.json"),
    ] {
        std::fs::write(&file, text).unwrap();
        world.home.check().run().await.refused(75, code, &[part]);
        assert_eq!(
            std::fs::read_to_string(&file).unwrap(),
            text,
            "it was replaced"
        );
    }
    assert_eq!(world.home.standing(), before);
    drop(posing);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reused_pid_in_the_middle_of_a_job_defers_it() {
    let world = World::new().await;
    let mut posing = Posing::new(&world.home);
    let held = world.check_held().await;
    posing.record.identity.start_time += 1;
    posing.announce(&world.home);
    let (check, before) = held;
    world.go_on.notify_one();
    check.ended().await.refused(75, "OWNERSHIP_UNCLEAR", &[]);
    assert_eq!(world.home.standing(), before);
    world.home.assert_tidy();
}

fn refusal(answer: Result<control::types::Verdict, ControlError>) -> Failure {
    match answer {
        Err(ControlError::Refused { failure }) => failure,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_meant_for_another_supervisor_or_selection_is_refused() {
    let world = World::new().await;
    let first = Proxy::start(&world.home).await;
    let seen = first.now();
    drop(first);
    let proxy = Proxy::start(&world.home).await;
    world.home.install_faulty("1.2.0", "none");
    let rolled = || (proxy.active().generation, proxy.rolling().last_rollout);
    let before = (world.home.standing(), rolled());
    let now = proxy.now();
    let with = |nonce: &str, serial: u64| RolloutRequest {
        nonce: Some(nonce.to_owned()),
        serial: Some(serial),
        ..by_job("1.2.0")
    };
    let serial = now.selected_serial.unwrap();
    for (request, code) in [
        (with(&seen.nonce, serial), "OWNERSHIP_CHANGED"),
        (with("", serial), "OWNERSHIP_CHANGED"),
        (with(&now.nonce, serial + 1), "SERIAL_CHANGED"),
        (with(&now.nonce, serial - 1), "SERIAL_CHANGED"),
    ] {
        let failure = refusal(proxy.roll(request).await);
        assert_eq!(
            (failure.code.as_str(), failure.exit, failure.retry),
            (code, Exit::Deferred, true)
        );
        assert!(
            failure.message.contains("nothing was changed"),
            "{failure:?}"
        );
    }
    assert_eq!((world.home.standing(), rolled()), before);
    let verdict = proxy.roll(with(&now.nonce, serial)).await.unwrap();
    assert_eq!(verdict.verdict, Outcome::Kept);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_selection_that_changed_while_the_rollout_ran_is_not_written_over() {
    let world = World::new().await;
    let home = &world.home;
    let proxy = Proxy::start(home).await;
    let gate = home.folder().join("gate");
    let fault = format!("ready-when={}", gate.display());
    Pack::faulty(&world.feed, home, "1.2.0", &fault).release();
    let check = home.check_until("rollout").await;
    until("the candidate is on its way", || {
        proxy.rolling().candidate.is_some()
    })
    .await;
    // Somebody else's hand, meanwhile.
    home.select("1.0.0");
    let theirs = home.selection();
    std::fs::write(&gate, "").unwrap();
    let parts = ["1.2.0 was kept", "selection on disk is 1.0.0"];
    let said = check.ended().await;
    let said = said.refused(2, "ROLLOUT_UNVERIFIED", &parts);
    assert_eq!(said["outcome"], "unverified");
    assert_eq!(
        (&said["verdict"]["verdict"], &said["verdict"]["code"]),
        (&json!("kept"), &json!("SERIAL_CHANGED"))
    );
    assert_eq!(home.selection(), theirs);
    assert_eq!(proxy.active_version().as_deref(), Some("1.2.0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_runs_outside_any_package_is_made_one_before_anything_newer_is_tried() {
    let feed = TestFeed::new();
    let home = TestHome::new();
    feed.pin(&home, &feed.file_url()).await;
    Pack::faulty(&feed, &home, "1.1.0", "crash-before-ready").release();
    let proxy = Starting::unpackaged(&home).answering().await;
    proxy.serves().await;
    let running = proxy.now().supervisor_version.to_string();
    home.check()
        .run()
        .await
        .refused(1, "WORKER_EXITED", &["1.1.0", "selected is still nothing"]);
    assert_eq!(
        home.packages(),
        [running.as_str(), "1.1.0"],
        "a rollback has nowhere to go"
    );
    assert_eq!(home.selection(), None);

    Pack::faulty(&feed, &home, "1.2.0", "none").release();
    home.check().run().await.answered(0, "updated");
    assert_eq!(home.selected().as_deref(), Some("1.2.0"));
    let back = home
        .tool("rollproxy-launcher")
        .args(["select", &running, "--format", "json"]);
    let said = back.run().await.expect(0).json();
    assert_eq!(
        (&said["version"], &said["pinned"]),
        (&json!(running), &json!(true))
    );
    assert_eq!(proxy.active_version(), Some(running));
    home.assert_tidy();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_home_has_one_supervisor_and_the_second_says_who_it_is() {
    let world = World::new().await;
    let proxy = Proxy::start(&world.home).await;
    let mut second = Starting::selected(&world.home);
    assert_eq!(second.ended().await, Some(75));
    assert!(second.log().contains(&pid(&proxy)), "{}", second.log());
    let record = ownership::read_supervisor(&world.home.home)
        .unwrap()
        .unwrap();
    assert_eq!(i32::try_from(record.identity.pid), Ok(proxy.pid()));
    assert!(Client::new(&world.home.home).status().is_ok());
}
