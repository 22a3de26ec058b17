//! Promise 2, when the updater itself is cut short: wherever it dies, what is selected is proven, and the
//! next run finishes or cleans.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use harness::{
    Check, FileServer, Pack, Proxy, TestFeed, TestHome, Trick, process, until, until_some,
};
use nix::sys::signal::Signal;
use serde_json::json;
use staging::journal::{JobRecord, State};

/// A home on which 1.0.0 is selected, and which follows a feed behind a server.
async fn following() -> (TestFeed, FileServer, TestHome) {
    let feed = TestFeed::new();
    let server = FileServer::start(feed.path()).await;
    let home = TestHome::new();
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    feed.pin(&home, &server.url()).await;
    (feed, server, home)
}

/// The one job of a check that is over.
fn job(home: &TestHome, number: usize) -> JobRecord {
    home.jobs().into_iter().nth(number).unwrap()
}

/// Waits until a partial download has so many bytes.
async fn downloaded(home: &TestHome, bytes: u64) {
    until(&format!("{bytes} bytes are there"), || {
        home.downloads().iter().any(|(_, there)| *there == bytes)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_the_download_the_next_run_goes_on_where_it_was() {
    let (feed, server, home) = following().await;
    Pack::faulty(&feed, &home, "1.1.0", "none").release();
    server.trick(".tar.gz", Trick::StallAfter(200_000));
    let before = home.standing();
    let check = home.check_until("stage").await;
    downloaded(&home, 200_000).await;
    check.killed().await;
    assert_eq!(home.standing(), before);
    assert_eq!(
        job(&home, 0).state,
        State::Started,
        "nobody could write its end"
    );
    assert_eq!(home.staging_leftovers().len(), 1, "nobody could clean up");

    server.honest();
    let said = home.check().run().await.answered(0, "pending");
    let interrupted = job(&home, 0);
    assert_eq!(
        (interrupted.state, interrupted.step.as_str()),
        (State::Interrupted, "stage")
    );
    assert!(interrupted.cause.unwrap().contains("process ended"));
    assert_eq!(job(&home, 1).state, State::Ended);
    home.assert_tidy();
    let length = feed.length_of("1.1.0");
    assert_eq!(
        said["bytes"],
        length - 200_000,
        "what was there was brought again"
    );
    assert_eq!(home.downloads(), []);
    assert_eq!(home.selected().as_deref(), Some("1.0.0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_while_it_tries_the_package_the_next_run_ends_what_it_had_started() {
    let (feed, _server, home) = following().await;
    Pack::faulty(&feed, &home, "1.1.0", "version-hangs").release();
    let before = home.standing();
    let check = home.check_until("stage").await;
    let pid = check.pid();
    let tried = until_some("the package's program runs", || {
        home.processes()
            .into_iter()
            .find(|other| *other != pid && runs_from_staging(*other))
    })
    .await;
    check.killed().await;
    assert!(
        process::is_alive(tried),
        "it hangs on, for who started it was killed"
    );
    assert_eq!(home.standing(), before);

    // The release is withdrawn meanwhile; what lies about is cleaned all the same.
    Pack::faulty(&feed, &home, "1.0.0", "none").release();
    home.check().run().await.answered(0, "upToDate");
    until("the program was ended", || !process::is_alive(tried)).await;
    home.assert_tidy();
    assert_eq!(job(&home, 0).state, State::Interrupted);
    assert_eq!(home.standing(), before);
}

fn runs_from_staging(pid: i32) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|program| {
        program
            .components()
            .any(|part| part.as_os_str() == ".staging")
    })
}

/// A home whose updater was killed when it had published 1.1.0 and not yet set it pending. The two
/// steps take the state lock one after the other; who gets it in between holds the updater there.
async fn killed_between_publish_and_pending() -> (TestFeed, FileServer, TestHome) {
    for _ in 0..20 {
        let (feed, server, home) = following().await;
        Pack::faulty(&feed, &home, "1.1.0", "none").release();
        let go_on = Arc::new(tokio::sync::Notify::new());
        server.trick(".tar.gz", Trick::HoldAfter(100_000, go_on.clone()));
        let check = home.check_until("stage").await;
        downloaded(&home, 100_000).await;
        let before_publish = home.state_lock();
        go_on.notify_one();
        until("it is to be published", || home.jobs()[0].step == "publish").await;
        let file = std::fs::File::open(home.home.state_lock()).unwrap();
        drop(before_publish);
        while home.packages().len() < 2 {
            std::hint::spin_loop();
        }
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
        if home.pending().is_none() {
            check.killed().await;
            return (feed, server, home);
        }
        // The updater was faster than we: its next step is done, and this home is of no use.
        drop(file);
        check.ended().await;
    }
    panic!("the moment between the two steps was never met");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_after_the_publish_the_next_run_finishes() {
    let (_feed, server, home) = killed_between_publish_and_pending().await;
    assert_eq!(home.packages(), ["1.0.0", "1.1.0"]);
    assert_eq!(home.pending(), None);
    assert_eq!(home.selected().as_deref(), Some("1.0.0"));

    server.honest();
    home.check().run().await.answered(0, "pending");
    assert_eq!(home.pending().as_deref(), Some("1.1.0"));
    assert_eq!(home.selected().as_deref(), Some("1.0.0"));
    assert_eq!(home.packages(), ["1.0.0", "1.1.0"]);
    let killed = job(&home, 0);
    assert_eq!(killed.state, State::Interrupted);
    assert!(
        ["publish", "pending"].contains(&killed.step.as_str()),
        "{}",
        killed.step
    );
    home.assert_tidy();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_while_it_waits_for_the_verdict_the_supervisor_decides_alone() {
    let (feed, _server, home) = following().await;
    let proxy = Proxy::start(&home).await;
    for (number, (version, good)) in [("1.1.0", true), ("1.2.0", false)].into_iter().enumerate() {
        let gate = home.folder().join(format!("gate-{version}"));
        let wrong = if good { "" } else { " crash-after-ready" };
        Pack::faulty(
            &feed,
            &home,
            version,
            &format!("ready-when={}{wrong}", gate.display()),
        )
        .release();
        let serving = proxy.active();
        let selection = home.selection();
        let check = home.check_until("rollout").await;
        until("the candidate is on its way", || {
            proxy.rolling().candidate.is_some()
        })
        .await;
        let waiting = job(&home, number * 2);
        assert_eq!(
            (waiting.state, waiting.version.unwrap().to_string().as_str()),
            (State::Waiting, version)
        );
        check.killed().await;
        assert_eq!(home.selection(), selection, "selected before it was proven");

        // A second run finds the rollout under way and joins it: one candidate, one verdict.
        let mut second = Check::begin(home.tool("rollproxy-updater").arg("check"));
        second.says(&format!("candidate {version}")).await;
        assert_eq!(job(&home, number * 2).state, State::Interrupted);
        std::fs::write(&gate, "").unwrap();
        let said = second.ended().await;
        assert!(!said.stdout.contains("downloading"), "{}", said.stdout);
        if good {
            said.expect(0);
            assert_eq!(proxy.active_version().as_deref(), Some(version));
            assert_eq!(home.selected().as_deref(), Some(version));
        } else {
            let said = said.expect(1);
            assert!(said.stderr.contains("error[WORKER_EXITED]"), "{said:?}");
            assert_eq!(proxy.active().generation, serving.generation);
            assert_eq!(home.selection(), selection);
            assert!(home.is_known_bad(version));
        }
        assert_eq!(
            proxy.rolling().last_rollout.unwrap().id,
            number as u64 + 1,
            "it was rolled twice"
        );
        home.assert_tidy();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_for_good_the_verdict_is_written_all_the_same() {
    let (feed, _server, home) = following().await;
    let proxy = Proxy::start(&home).await;
    let gate = home.folder().join("gate");
    Pack::faulty(
        &feed,
        &home,
        "1.1.0",
        &format!("ready-when={}", gate.display()),
    )
    .release();
    let check = home.check_until("rollout").await;
    until("the candidate is on its way", || {
        proxy.rolling().candidate.is_some()
    })
    .await;
    check.killed().await;
    std::fs::write(&gate, "").unwrap();
    until("the supervisor selected it", || {
        home.selected().as_deref() == Some("1.1.0")
    })
    .await;
    assert_eq!(home.pending(), None);
    home.check().run().await.answered(0, "upToDate");
    assert_eq!(job(&home, 0).state, State::Interrupted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_while_the_supervisor_does_not_answer_the_next_run_finishes() {
    let (feed, _server, home) = following().await;
    let proxy = Proxy::start(&home).await;
    Pack::faulty(&feed, &home, "1.1.0", "none").release();
    proxy.signal(Signal::SIGSTOP);
    let check = home.check_until("rollout").await;
    until("the supervisor is stopped", || {
        process::is_stopped(proxy.pid())
    })
    .await;
    check.killed().await;
    assert_eq!(home.selected().as_deref(), Some("1.0.0"));
    assert_eq!(home.pending().as_deref(), Some("1.1.0"));
    proxy.signal(Signal::SIGCONT);
    // The request may have been heard, or its answer come between this run's look and its own request.
    let said = home.check().run().await;
    let outcome = (said.code, said.json()["outcome"].clone());
    let fine = [(0, "updated"), (0, "upToDate"), (75, "deferred")];
    assert!(
        fine.map(|(code, word)| (Some(code), word.into()))
            .contains(&outcome),
        "{said:?}"
    );
    assert_eq!(said.json()["bytes"], 0);
    until("it is proven and selected", || {
        home.selected().as_deref() == Some("1.1.0")
    })
    .await;
    home.check().run().await.answered(0, "upToDate");
    assert_eq!(proxy.active_version().as_deref(), Some("1.1.0"));
    assert_eq!(job(&home, 0).state, State::Interrupted);
    home.assert_tidy();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn called_off_by_a_signal_it_says_so_and_ends_with_75() {
    let (feed, server, home) = following().await;
    Pack::faulty(&feed, &home, "1.1.0", "none").release();
    let before = home.standing();
    for (number, signal) in [Signal::SIGTERM, Signal::SIGINT].into_iter().enumerate() {
        server.trick(".tar.gz", Trick::StallAfter(100_000));
        let check = home.check_until("stage").await;
        // The second goes on where the first was, and stalls a hundred thousand further.
        downloaded(&home, 100_000 * (number as u64 + 1)).await;
        check.signal(signal);
        let said = check.ended().await.refused(75, "CALLED_OFF", &["signal"]);
        assert_eq!(
            (&said["outcome"], &said["error"]["retry"]),
            (&json!("deferred"), &json!(true))
        );
        let called_off = job(&home, number);
        assert_eq!(
            (called_off.state, called_off.step.as_str()),
            (State::Cancelled, "stage")
        );
        assert_eq!(home.standing(), before);
        home.assert_tidy();
        assert_eq!(
            home.state().next_attempt,
            None,
            "a signal is no failure of the feed"
        );
    }
    // While a package is tried, too: what runs of it is ended at once.
    server.honest();
    Pack::faulty(&feed, &home, "1.2.0", "version-hangs").release();
    let check = home.check_until("stage").await;
    until("the package's program runs", || {
        home.processes().into_iter().any(runs_from_staging)
    })
    .await;
    check.signal(Signal::SIGTERM);
    check.ended().await.refused(75, "CALLED_OFF", &[]);
    assert_eq!(home.processes(), Vec::<i32>::new());
    assert_eq!(home.standing(), before);
    home.assert_tidy();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn called_off_while_it_waits_the_rollout_goes_on() {
    let (feed, _server, home) = following().await;
    let proxy = Proxy::start(&home).await;
    let gate = home.folder().join("gate");
    Pack::faulty(
        &feed,
        &home,
        "1.1.0",
        &format!("ready-when={}", gate.display()),
    )
    .release();
    let check = home.check_until("rollout").await;
    until("the candidate is on its way", || {
        proxy.rolling().candidate.is_some()
    })
    .await;
    check.signal(Signal::SIGTERM);
    check.ended().await.refused(75, "CALLED_OFF", &[]);
    let called_off = job(&home, 0);
    assert_eq!(
        (called_off.state, called_off.step.as_str()),
        (State::Cancelled, "rollout")
    );
    assert_eq!(
        (home.selected().as_deref(), home.pending().as_deref()),
        (Some("1.0.0"), Some("1.1.0"))
    );
    std::fs::write(&gate, "").unwrap();
    until("the supervisor selected it", || {
        home.selected().as_deref() == Some("1.1.0")
    })
    .await;
    assert!(proxy.rolling().last_failure.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_updater_ends_with_75_and_says_who_runs() {
    let (feed, server, home) = following().await;
    Pack::faulty(&feed, &home, "1.1.0", "none").release();
    let go_on = Arc::new(tokio::sync::Notify::new());
    server.trick(".tar.gz", Trick::HoldAfter(100_000, go_on.clone()));
    let first = home.check_until("stage").await;
    let who = format!("pid {}", first.pid());
    let said = home
        .check()
        .run()
        .await
        .refused(75, "LOCK_HELD", &["an updater", &who]);
    assert_eq!(
        (&said["error"]["retry"], &said["job"]),
        (&json!(true), &json!(null))
    );
    let text = home
        .tool("rollproxy-updater")
        .arg("check")
        .run()
        .await
        .expect(75);
    let last = text.stderr.lines().next_back().unwrap();
    assert!(
        last.starts_with("error[LOCK_HELD]") && last.contains(&who),
        "{last}"
    );
    assert_eq!(home.jobs().len(), 1, "the second left a trace");
    go_on.notify_one();
    first.ended().await.answered(0, "pending");
    home.assert_tidy();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stall_meets_one_deadline_and_a_drip_the_other() {
    let (feed, server, home) = following().await;
    Pack::faulty(&feed, &home, "1.1.0", "none").release();
    let before = home.standing();
    let config = std::fs::read_to_string(home.home.config_file()).unwrap();
    let with =
        |lines: &str| std::fs::write(home.home.config_file(), format!("{config}{lines}")).unwrap();

    server.trick(".tar.gz", Trick::StallAfter(50_000));
    with("inactivity_timeout = \"1500ms\"\n");
    let said = home.check().run().await.refused(
        1,
        "STAGING_INACTIVE",
        &["1500 ms", "update.inactivity_timeout"],
    );
    assert_eq!(said["error"]["retry"], true);
    assert_eq!(home.downloads()[0].1, 50_000, "what came is kept");
    assert_eq!(home.standing(), before);
    home.assert_tidy();

    // A few bytes every twenty milliseconds: never inactive, and not to be waited for to the end.
    server.trick(".tar.gz", Trick::Drip(500, Duration::from_millis(20)));
    with("inactivity_timeout = \"5s\"\nhard_timeout = \"700ms\"\n");
    home.check().arg("--now").run().await.refused(
        1,
        "STAGING_OVERDUE",
        &["700 ms", "update.hard_timeout"],
    );
    let (_, bytes) = home.downloads()[0];
    assert!(bytes > 50_000 && bytes < feed.length_of("1.1.0"), "{bytes}");
    assert_eq!(home.standing(), before);
    home.assert_tidy();

    server.honest();
    with("");
    let said = home.check().arg("--now").run().await.answered(0, "pending");
    assert_eq!(said["bytes"], feed.length_of("1.1.0") - bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hard_limit_also_ends_a_package_that_is_tried() {
    let (feed, _server, home) = following().await;
    Pack::faulty(&feed, &home, "1.1.0", "version-hangs").release();
    let before = home.standing();
    home.configure_more("hard_timeout = \"1s\"\n");
    home.check()
        .run()
        .await
        .refused(1, "STAGING_OVERDUE", &["1000 ms"]);
    assert_eq!(home.processes(), Vec::<i32>::new());
    assert_eq!(home.standing(), before);
    home.assert_tidy();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publish_that_was_cut_off_is_finished_by_the_next_run() {
    let (feed, _server, home) = following().await;
    Pack::faulty(&feed, &home, "1.0.0", "none").release();
    let version = home.install_faulty("1.1.0", "none");
    let root: PathBuf = home.home.package(&version);
    let mode = || std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&root).unwrap()) & 0o7777;
    // As a crash between the rename and the last two steps leaves it.
    std::fs::set_permissions(&root, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    home.check().run().await.answered(0, "upToDate");
    assert_eq!(mode(), 0o555);
}
