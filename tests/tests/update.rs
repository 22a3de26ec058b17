//! Promise 2 and 3, the straight way: a release that is good is brought, rolled to and selected; one that
//! is not is tried once; and the updater always says which.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::time::Duration;

use harness::{
    Asked, FileServer, Finished, Pack, Proxy, Terminal, TestFeed, TestHome, Trick, ask,
    same_version, until,
};
use serde_json::{Value, json};

/// A home that serves 1.0.0 and follows a feed behind a server.
async fn serving() -> (TestFeed, FileServer, TestHome, Proxy) {
    let feed = TestFeed::new();
    let server = FileServer::start(feed.path()).await;
    let home = TestHome::new();
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    feed.pin(&home, &server.url()).await;
    let proxy = Proxy::start(&home).await;
    (feed, server, home, proxy)
}

/// How many archives were asked for.
fn archives_asked(server: &FileServer) -> usize {
    server
        .seen()
        .iter()
        .filter(|path| path.contains(".tar.gz"))
        .count()
}

async fn text(home: &TestHome) -> Finished {
    home.tool("rollproxy-updater").arg("check").run().await
}

/// What a person reads in a pipe: lines, without a bar or colours.
#[track_caller]
fn assert_plain(said: &Finished) {
    assert_eq!(said.stderr, "");
    assert!(!said.stdout.contains(['\r', '\u{1b}']), "{:?}", said.stdout);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_install_is_selected_at_once_and_every_later_one_by_its_verdict() {
    let feed = TestFeed::new();
    let server = FileServer::start(feed.path()).await;
    let home = TestHome::new();
    feed.pin(&home, &server.url()).await;
    feed.release("1.0.0");
    let dry = || home.check().arg("--dry-run");
    dry().run().await.answered(100, "available");
    assert_eq!(
        (home.packages(), archives_asked(&server)),
        (vec![], 0),
        "a dry run changed something"
    );

    let said = text(&home).await.expect(0);
    assert_plain(&said);
    let last = said.stdout.lines().next_back().unwrap();
    assert_eq!(
        last,
        "1.0.0 is installed and selected; start it with `rollproxy serve`"
    );
    assert_eq!(
        (home.selected().as_deref(), home.pending()),
        (Some("1.0.0"), None)
    );
    dry().run().await.answered(0, "upToDate");
    home.check().run().await.answered(0, "upToDate");

    let proxy = Proxy::start(&home).await;
    assert_eq!(proxy.active_version().as_deref(), Some("1.0.0"));
    feed.release("1.1.0");
    dry().run().await.answered(100, "available");
    let said = home.check().run().await.answered(0, "updated");
    assert_eq!(
        (&said["version"], &said["previous"]),
        (&json!("1.1.0"), &json!("1.0.0"))
    );
    assert_eq!(
        (&said["verdict"]["verdict"], &said["error"]),
        (&json!("kept"), &Value::Null)
    );
    assert_eq!(said["bytes"], feed.length_of("1.1.0"));
    assert_eq!(proxy.active_version().as_deref(), Some("1.1.0"));
    let selection = home.selection().unwrap();
    assert_eq!(
        (
            selection.version.to_string().as_str(),
            selection.by.as_str()
        ),
        ("1.1.0", "job")
    );
    assert_eq!((selection.serial, selection.pinned), (2, false));
    assert_eq!(
        said["verdict"]["serial"], 2,
        "the supervisor wrote it, and said so"
    );
    let state = home.state();
    assert_eq!(
        (state.pending, state.floor.unwrap().to_string()),
        (None, "1.1.0".to_owned())
    );
    assert!(ask(proxy.address).await.is_well());

    // Once more, for people.
    Pack::faulty(&feed, &home, "1.2.0", "none").release();
    let said = text(&home).await.expect(0);
    assert_plain(&said);
    let last = said.stdout.lines().next_back().unwrap();
    assert_eq!(
        last, "1.2.0 is active and selected (before: 1.1.0)",
        "{}",
        said.stdout
    );
    for step in [
        "downloading 1.2.0",
        "1.2.0 is validated",
        "ready 1.2.0",
        "activated 1.2.0",
    ] {
        assert!(said.stdout.contains(step), "{step}: {}", said.stdout);
    }
    assert_eq!(ask(proxy.address).await, Asked::by_faulty());
    dry().run().await.answered(0, "upToDate");
    let before = archives_asked(&server);
    let said = text(&home).await.expect(0);
    assert_eq!(said.stdout, "version 1.2.0 is already selected\n");
    assert_plain(&said);
    assert_eq!(archives_asked(&server), before);
    home.assert_tidy();
    assert_eq!(home.downloads(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_supervisor_a_release_waits_and_the_next_start_rolls_to_it() {
    let feed = TestFeed::new();
    let home = TestHome::new();
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    feed.pin(&home, &feed.file_url()).await;
    Pack::proxy(&feed, "1.1.0").release();
    home.check().run().await.answered(0, "pending");
    let again = home.check().run().await.answered(0, "pending");
    assert_eq!(again["bytes"], 0, "it was brought twice");
    assert_eq!(
        (home.selected().as_deref(), home.pending().as_deref()),
        (Some("1.0.0"), Some("1.1.0"))
    );

    let proxy = Proxy::start(&home).await;
    until("the pending version is selected", || {
        home.selected().as_deref() == Some("1.1.0")
    })
    .await;
    let rolling = proxy.rolling();
    let active = rolling.active.unwrap();
    assert_eq!(
        (active.version.to_string().as_str(), active.generation),
        ("1.1.0", 2),
        "1.0.0 served first"
    );
    assert_eq!(
        rolling.last_rollout.unwrap().by,
        control::types::By::Pending
    );
    until("the supervisor has followed", || {
        proxy
            .status()
            .is_some_and(|status| status.supervisor_version.to_string() == "1.1.0")
    })
    .await;
    assert_eq!(home.pending(), None);
    home.check().run().await.answered(0, "upToDate");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_are_ordered_as_versions_and_a_feed_that_goes_back_is_not_followed() {
    let feed = TestFeed::new();
    let home = TestHome::new();
    home.install_faulty("1.9.0", "none");
    home.select("1.9.0");
    feed.pin(&home, &feed.file_url()).await;
    let release = |version: &str| Pack::faulty(&feed, &home, version, "none").release();
    for (version, outcome) in [
        ("1.8.0", "older"),
        ("1.9.0-rc.1", "older"),
        ("1.10.0-rc.1", "pending"),
        ("1.10.0", "pending"),
    ] {
        release(version);
        let said = home.check().run().await.answered(0, outcome);
        assert_eq!(said["version"], version);
    }
    assert_eq!(home.pending().as_deref(), Some("1.10.0"));
    // Once it was kept, not even a person's step back makes the feed's step back acceptable.
    home.select("1.10.0");
    staging::update_state::modify(&home.state_lock(), &home.home, |state| {
        state.kept(&"1.10.0".parse().unwrap());
    })
    .unwrap();
    home.select("1.9.0");
    release("1.9.5");
    home.check().run().await.answered(0, "belowFloor");
    let said = text(&home).await.expect(0);
    assert!(
        said.stdout
            .contains("1.9.5, below 1.10.0 which was kept before"),
        "{}",
        said.stdout
    );
    assert_eq!(home.selected().as_deref(), Some("1.9.0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_is_broken_is_tried_once_and_leaves_everything_as_it_was() {
    let (feed, server, home, proxy) = serving().await;
    let active = proxy.active();
    let selection = home.selection();
    for (version, fault, code, part) in [
        (
            "1.1.0",
            "crash-before-ready",
            "WORKER_EXITED",
            "exit code 101",
        ),
        (
            "1.2.0",
            "wrong-version",
            "VERSION_MISMATCH",
            "says that it is 6.6.6",
        ),
    ] {
        Pack::faulty(&feed, &home, version, fault).release();
        let said =
            home.check()
                .run()
                .await
                .refused(1, code, &[version, part, "selected is still 1.0.0"]);
        assert_eq!(
            (&said["outcome"], &said["verdict"]["verdict"]),
            (&json!("failed"), &json!("failed"))
        );
        assert_eq!(said["error"]["retry"], false);
        assert_eq!(home.selection(), selection);
        assert_eq!((home.is_known_bad(version), home.pending()), (true, None));
        let now = proxy.active();
        assert_eq!(
            (now.generation, now.pid),
            (active.generation, active.pid),
            "the active worker was touched"
        );
        home.assert_tidy();

        let (asked, rollouts) = (archives_asked(&server), rollouts(&proxy));
        let said = home.check().run().await.answered(0, "knownBad");
        assert_eq!(
            (&said["version"], &said["verdict"]),
            (&json!(version), &Value::Null)
        );
        let said = text(&home).await.expect(0);
        assert!(
            said.stdout
                .contains(&format!("version {version} is known bad here")),
            "{}",
            said.stdout
        );
        assert!(said.stdout.contains(part), "{}", said.stdout);
        home.check()
            .arg("--dry-run")
            .run()
            .await
            .answered(0, "knownBad");
        assert_eq!(
            (archives_asked(&server), self::rollouts(&proxy)),
            (asked, rollouts),
            "it was tried again"
        );
    }
    // In text the last line tells it, too.
    Pack::faulty(&feed, &home, "1.3.0", "close-channel").release();
    let said = text(&home).await.expect(1);
    let last = said.stderr.lines().next_back().unwrap();
    assert!(
        last.starts_with("error[WORKER_CHANNEL_CLOSED]: the rollout of 1.3.0 failed"),
        "{last}"
    );
    assert!(last.ends_with("(trying again will not help)"), "{last}");
    // The next good one is taken.
    Pack::faulty(&feed, &home, "1.4.0", "none").release();
    home.check().run().await.answered(0, "updated");
}

/// How many rollouts there were.
fn rollouts(proxy: &Proxy) -> u64 {
    proxy.now().rolling.last_rollout.unwrap().id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_is_not_ready_in_time_is_tried_three_times() {
    let (feed, server, home, proxy) = serving().await;
    home.configure_more("[rollout]\nready_timeout = \"300ms\"\n");
    proxy.roll(same_version()).await.unwrap();
    let active = proxy.active();
    Pack::faulty(&feed, &home, "1.1.0", "never-ready").release();
    for time in 1..=3 {
        assert!(
            !home.is_known_bad("1.1.0"),
            "known bad before it was tried {time} times"
        );
        home.check().run().await.refused(
            1,
            "WORKER_NOT_READY",
            &["1.1.0", "not ready within 300ms"],
        );
        assert_eq!(archives_asked(&server), 1, "it was brought again");
        assert_eq!(home.selected().as_deref(), Some("1.0.0"));
        assert_eq!(proxy.active().generation, active.generation);
    }
    assert!(home.is_known_bad("1.1.0"));
    home.check().run().await.answered(0, "knownBad");
    home.assert_tidy();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_feed_says_about_the_way_to_a_release_is_followed() {
    let (feed, home) = (TestFeed::new(), TestHome::new());
    home.install_faulty("1.0.0", "none");
    home.select("1.0.0");
    feed.pin(&home, &feed.file_url()).await;
    let pack = |version: &str| Pack::faulty(&feed, &home, version, "none");

    let before = home.standing();
    pack("2.0.0")
        .with(|add| add.minimum_version = Some("1.5.0".parse().unwrap()))
        .release();
    home.check().run().await.refused(
        1,
        "BELOW_MINIMUM",
        &["2.0.0", "from 1.5.0 on", "1.0.0 runs here"],
    );
    home.check()
        .arg("--dry-run")
        .run()
        .await
        .refused(1, "BELOW_MINIMUM", &[]);
    assert_eq!(home.standing(), before);

    // A step between; it turns out to be the end of the road.
    pack("1.5.0")
        .with(|add| add.dead_end = Some("migrate\u{7} the disk by hand".into()))
        .release();
    home.check().run().await.answered(0, "pending");
    home.select("1.5.0");
    // What is selected does not stay pending: the next check settles that.
    home.check().run().await.answered(0, "upToDate");
    let before = home.standing();
    pack("2.1.0")
        .with(|add| add.minimum_version = Some("1.5.0".parse().unwrap()))
        .release();
    for check in [home.check(), home.check().arg("--dry-run")] {
        let parts = [
            "2.1.0 is offered",
            "leads on from 1.5.0",
            "migrate the disk by hand",
        ];
        check.run().await.refused(1, "DEAD_END", &parts);
    }
    assert_eq!(home.standing(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_in_the_url_are_used_and_never_shown_or_written_down() {
    let feed = TestFeed::new();
    let server = FileServer::start(feed.path()).await;
    let home = TestHome::new();
    let url = server.url().replace("http://", "http://ann:s3cret@");
    feed.pin(&home, &url).await;
    Pack::faulty(&feed, &home, "1.0.0", "none").release();
    let said = text(&home).await.expect(0);
    assert!(!said.text().contains("s3cret"), "{}", said.text());

    drop(server);
    let said = home
        .check()
        .run()
        .await
        .refused(1, "FEED_UNREACHABLE", &["http://***@127.0.0.1:"]);
    assert!(
        !said.to_string().contains("s3cret") && !said.to_string().contains("ann:"),
        "{said}"
    );
    let said = home
        .tool("rollproxy-updater")
        .args(["check", "--now"])
        .run()
        .await
        .expect(1);
    assert!(!said.text().contains("s3cret"), "{}", said.text());
    // Its own configuration is the one place that knows it.
    let mut knowing = Vec::new();
    search(home.home.root(), b"s3cret", &mut knowing);
    assert_eq!(knowing, [home.home.config_file()]);
}

/// The files below `folder` that hold `bytes`.
fn search(folder: &Path, bytes: &[u8], found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let about = std::fs::symlink_metadata(&path).unwrap();
        if about.is_dir() {
            search(&path, bytes, found);
        } else if about.is_file() {
            let content = std::fs::read(&path).unwrap();
            if content.windows(bytes.len()).any(|window| window == bytes) {
                found.push(path);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_feed_that_drips_is_left_when_the_time_is_over() {
    let feed = TestFeed::new();
    let server = FileServer::start(feed.path()).await;
    let home = TestHome::new();
    feed.release("1.0.0");
    // A byte a second: to the end it would take many minutes, and no single read would be late.
    let drip = Trick::Drip(1, Duration::from_secs(1));
    let secret = server.url().replace("http://", "http://someone:hidden@");

    server.trick("root.json", drip.clone());
    home.configure("");
    let init = |url: String| {
        home.tool("rollproxy-updater")
            .args(["init", "--format", "json", "--feed", &url])
            .args(["--sha256", feed.root_sha256()])
            .args(["--root", &format!("{url}/metadata/root.json")])
    };
    let limited = format!("[update]\nfeed = \"{secret}\"\ninactivity_timeout = \"1500ms\"\n");
    home.configure(&limited);
    let slow = |said: Finished| {
        let said = said.refused(
            1,
            "FEED_SLOW",
            &[
                server.url().strip_prefix("http://").unwrap(),
                "1.5s",
                "update.inactivity_timeout",
            ],
        );
        assert_eq!(said["error"]["retry"], true);
        assert!(!said.to_string().contains("hidden"), "{said}");
    };
    slow(init(secret.clone()).run().await);
    assert!(!home.home.trust_root().exists());

    server.honest();
    init(secret.clone()).run().await.expect(0);
    server.trick("timestamp.json", drip);
    slow(home.check().run().await);
    assert_eq!((home.packages(), home.selected()), (vec![], None));
    assert_eq!(
        home.state().failed_attempts,
        1,
        "it counts as a passing failure"
    );
    server.honest();
    // What is staged now is not the subject: a busy machine may take its time.
    home.configure(&format!("[update]\nfeed = \"{secret}\"\n"));
    home.check()
        .arg("--now")
        .run()
        .await
        .answered(0, "installed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_torn_update_state_is_named_before_the_feed_is_asked_and_never_replaced() {
    let feed = TestFeed::new();
    let home = TestHome::new();
    feed.pin(&home, &feed.file_url()).await;
    std::fs::remove_dir_all(feed.path()).unwrap();
    let state = home.home.update_state_file();
    std::fs::write(&state, "{ torn").unwrap();
    let said = home.check().run().await;
    // Marks, holds and floors stand in it: without them nothing may be decided.
    said.refused(1, "DOCUMENT_UNPARSABLE", &[state.to_str().unwrap()]);
    assert_eq!(std::fs::read(&state).unwrap(), b"{ torn");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_sees_how_fast_a_download_is_and_what_is_left_and_a_pipe_does_not() {
    let feed = TestFeed::new();
    let server = FileServer::start(feed.path()).await;
    let home = TestHome::new();
    feed.release("1.0.0");
    feed.pin(&home, &server.url()).await;
    server.trick(
        ".tar.gz",
        Trick::Drip(256 * 1024, Duration::from_millis(30)),
    );
    let check = home
        .tool("rollproxy-updater")
        .arg("check")
        .env("TERM", "xterm");
    let mut terminal = Terminal::run(&check);
    // The rate; how much there is in all; and what is left.
    until("the bar moves", || {
        let screen = terminal.screen();
        screen.contains("downloading") && screen.contains("MiB/s") && screen.contains('s')
    })
    .await;
    assert_eq!(terminal.ended().await, Some(0));

    feed.release("1.1.0");
    let piped = check.run().await.expect(0);
    for text in [piped.stdout, piped.stderr] {
        assert!(!text.contains("MiB/s") && !text.contains('\x1b'), "{text}");
    }
}
