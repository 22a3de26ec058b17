//! The updater as a process: a signed feed in a folder, packages that hold this very updater, and, where a rollout is
//! asked for, a supervisor of a few lines that says what the test wants.

mod common;

use std::fs;
use std::process::Command;

use common::{UPDATER, World, supervise};
use publisher::Source;
use serde_json::json;
use staging::journal::{self, Journal, State};
use staging::locks::{StateLock, UpdaterLock};
use staging::ownership::ProcessIdentity;
use staging::selection::{self, Change};
use staging::stage::StagingFolder;
use staging::version::PackageVersion;
use staging::{clock, update_state};

#[test]
fn a_first_install_is_selected_at_once_and_then_there_is_nothing_to_do() {
    let world = World::new("1.0.0");
    let ran = world.run(&["check", "--dry-run"]);
    assert_eq!(ran.code, Some(100), "{ran:?}");
    assert!(
        ran.out
            .starts_with("1.0.0 is available (selected: nothing)\nsize: "),
        "{ran:?}"
    );
    assert_eq!((world.installed().len(), world.selected()), (0, None));

    let said = world.check().expect(0, "installed");
    assert_eq!(
        (&said["version"], &said["previous"]),
        (&json!("1.0.0"), &json!(null))
    );
    assert!(said["bytes"].as_u64().unwrap() > 100_000, "{said}");
    assert_eq!(said["error"], json!(null));
    assert_eq!(
        (world.installed(), world.selected()),
        (vec!["1.0.0".to_owned()], Some("1.0.0".to_owned()))
    );
    assert_eq!(world.pending(), None);
    assert_eq!(fs::read_dir(world.home.downloads()).unwrap().count(), 0);
    world.assert_tidy();

    world.check().expect(0, "upToDate");
    assert_eq!(world.run(&["check", "--dry-run"]).code, Some(0));
    let ran = world.run(&["check"]);
    assert_eq!(
        (ran.out.as_str(), ran.err.as_str()),
        ("version 1.0.0 is already selected\n", "")
    );
}

#[test]
fn without_a_supervisor_the_next_version_waits_and_is_not_brought_twice() {
    let world = World::new("1.0.0");
    world.check().expect(0, "installed");
    world.release("1.1.0");
    let said = world.check().expect(0, "pending");
    assert!(said["bytes"].as_u64().unwrap() > 0);
    assert_eq!(
        (world.selected().as_deref(), world.pending().as_deref()),
        (Some("1.0.0"), Some("1.1.0"))
    );
    let said = world.check().expect(0, "pending");
    assert_eq!(said["bytes"], 0);
    // A person's pin stands above the feed.
    let lock = StateLock::acquire(&world.home, std::time::Duration::ZERO).unwrap();
    let change = Change {
        version: PackageVersion::new(1, 0, 0),
        pinned: true,
        by: "person".to_owned(),
    };
    selection::write(&lock, &world.home, change).unwrap();
    drop(lock);
    world.check().expect(0, "pinned");
}

#[test]
fn init_pins_only_the_root_it_was_told_and_leaves_a_configuration_alone() {
    let world = World::new("1.0.0");
    let root = world.place.root().display().to_string();
    let args = |home_feed: &str, sha256: &str| {
        [
            "init", "--feed", home_feed, "--root", &root, "--sha256", sha256,
        ]
        .map(str::to_owned)
    };
    let config = fs::read(world.home.config_file()).unwrap();
    let wrong = args(&world.url(), &"0".repeat(64));
    let ran = world.run(&wrong.each_ref().map(String::as_str));
    assert_eq!(ran.code, Some(78), "{ran:?}");
    let sha256 = staging::digest::of(&fs::read(&root).unwrap());
    let again = args("file:///elsewhere", &sha256);
    let ran = world.run(&again.each_ref().map(String::as_str));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.out.contains("left as it is; its feed is another one"),
        "{ran:?}"
    );
    assert_eq!(fs::read(world.home.config_file()).unwrap(), config);
}

#[test]
fn what_is_not_a_good_archive_publishes_nothing() {
    let world = World::new("1.0.0");
    world.check().expect(0, "installed");
    let garbage = world.folder.path().join("garbage");
    fs::write(&garbage, "<html>not found</html>").unwrap();
    world.publish("1.1.0", Source::Unchecked(garbage));
    let said = world.check().expect(1, "failed");
    assert_eq!(said["error"]["retry"], false, "{said}");
    assert_eq!(
        (world.installed(), world.selected().as_deref()),
        (vec!["1.0.0".to_owned()], Some("1.0.0"))
    );
    assert_eq!(world.pending(), None);
    world.assert_tidy();
    let last = journal::all(&world.home).unwrap().pop().unwrap();
    assert_eq!((last.state, last.step.as_str()), (State::Ended, "stage"));
    assert!(last.cause.unwrap().contains("archive"));
    // It is the archive's fault: the next run is not put off.
    assert_eq!(update_state::read(&world.home).unwrap().next_attempt, None);
}

#[test]
fn the_hard_limit_stops_staging_and_keeps_nothing_but_the_download() {
    let world = World::new("1.0.0");
    world.configure("hard_timeout = \"1ms\"");
    let said = world.check().expect(1, "failed");
    assert_eq!(said["error"]["code"], "STAGING_OVERDUE", "{said}");
    assert_eq!((world.installed().len(), world.selected()), (0, None));
    world.assert_tidy();
    // The next run waits for its time, or for a person who does not.
    world.configure("");
    let said = world.check().expect(75, "deferred");
    assert_eq!(said["error"]["code"], "TOO_EARLY");
    let ran = world.run(&["check", "--now", "--format", "json"]);
    ran.expect(0, "installed");
    assert_eq!(update_state::read(&world.home).unwrap().next_attempt, None);
}

#[test]
fn a_feed_that_is_away_is_tried_again_and_then_put_off() {
    let world = World::new("1.0.0");
    // A port that was free a moment ago: nobody listens.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    fs::write(
        world.home.config_file(),
        format!("[update]\nfeed = \"http://user:s3cret@127.0.0.1:{port}/\"\n"),
    )
    .unwrap();
    let ran = world.check();
    let said = ran.expect(1, "failed");
    assert_eq!(said["error"]["retry"], true, "{said}");
    assert!(!ran.out.contains("s3cret"));
    let state = update_state::read(&world.home).unwrap();
    assert!(state.next_attempt.unwrap() > clock::now());
    assert_eq!(state.failed_attempts, 1);
    // A dry run only looks, and does not wait.
    assert_eq!(world.run(&["check", "--dry-run"]).code, Some(1));
}

#[test]
fn a_second_updater_says_who_runs() {
    let world = World::new("1.0.0");
    let _held = UpdaterLock::try_acquire(&world.home).unwrap();
    let said = world.check().expect(75, "deferred");
    assert_eq!(said["error"]["code"], "LOCK_HELD");
    let message = said["error"]["message"].as_str().unwrap();
    assert!(
        message.contains(&format!("pid {}", std::process::id())),
        "{message}"
    );
}

#[test]
fn what_a_killed_job_left_is_noted_and_cleaned() {
    let world = World::new("1.0.0");
    let mut dead = ProcessIdentity::current().unwrap();
    dead.start_time += 1;
    let mut left = Journal::open(&world.home, "killed", "check", &dead).unwrap();
    left.record(State::Started, "stage", None).unwrap();
    let folder = StagingFolder::create(&world.home, "killed").unwrap();
    let path = folder.path().parent().unwrap().to_owned();
    // As a kill does it: the lock is free, the folder stays.
    let kept = world.folder.path().join("kept");
    fs::rename(&path, &kept).unwrap();
    drop(folder);
    fs::rename(&kept, &path).unwrap();
    world.check().expect(0, "installed");
    world.assert_tidy();
    let noted = journal::all(&world.home).unwrap();
    let noted = noted.iter().find(|record| record.job == "killed").unwrap();
    assert_eq!(
        (noted.state, noted.step.as_str()),
        (State::Interrupted, "stage")
    );
}

#[test]
fn the_words_of_the_command_line_and_the_environment() {
    let world = World::new("1.0.0");
    assert_eq!(world.run(&["check", "--self-test"]).code, Some(0));
    assert_eq!(world.run(&["check", "--format", "yaml"]).code, Some(64));
    assert_eq!(world.run(&[]).code, Some(64));
    assert_eq!(
        world.run(&["--version"]).out,
        concat!("rollproxy-updater ", env!("CARGO_PKG_VERSION"), "\n")
    );
    let ran = Command::new(UPDATER)
        .args(["check", "--format", "json"])
        .env_clear()
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(78));
    world.configure("hard_timeout = \"soon\"");
    assert_eq!(world.run(&["check", "--self-test"]).code, Some(1));
    let ran = world.run(&["check"]);
    assert_eq!(ran.code, Some(78), "{ran:?}");
    for part in [
        "config.toml",
        "update.hard_timeout",
        "\"soon\"",
        "allowed is",
    ] {
        assert!(ran.err.contains(part), "{ran:?}");
    }
    fs::remove_file(world.home.trust_root()).unwrap();
    assert_eq!(world.run(&["check", "--self-test"]).code, Some(1));
}

#[test]
fn the_verdict_of_the_rollout_is_the_outcome() {
    for (verdict, writes, code, outcome, error) in [
        ("kept", true, 0, "updated", None),
        ("kept", false, 2, "unverified", Some("ROLLOUT_UNVERIFIED")),
        ("failed", false, 1, "failed", Some("ROLLOUT_FAILED")),
        ("rolledBack", false, 3, "rolledBack", Some("ROLLED_BACK")),
        ("deferred", false, 75, "deferred", Some("ROLLOUT_DEFERRED")),
    ] {
        let world = World::new("1.0.0");
        world.check().expect(0, "installed");
        world.release("1.1.0");
        let supervisor = supervise(&world.home, verdict, writes);
        let said = world.check().expect(code, outcome);
        assert_eq!(said["error"]["code"].as_str(), error, "{said}");
        assert_eq!(said["verdict"]["verdict"], verdict);
        let asked = supervisor.stop();
        assert_eq!(
            (&asked[0]["by"], &asked[0]["serial"]),
            (&json!("job"), &json!(1))
        );
        assert_eq!(asked[0]["job"], said["job"]);
        let expected = if writes { "1.1.0" } else { "1.0.0" };
        assert_eq!(world.selected().as_deref(), Some(expected));
        assert!(world.installed().contains(&"1.1.0".to_owned()));
        world.assert_tidy();
    }
}

#[test]
fn a_supervisor_that_went_away_defers_and_the_version_stays_pending() {
    let world = World::new("1.0.0");
    world.check().expect(0, "installed");
    world.release("1.1.0");
    let supervisor = supervise(&world.home, "failed", false);
    // It lives and holds its lock, and nobody answers on its socket.
    fs::remove_file(world.home.control_socket()).unwrap();
    let said = world.check().expect(75, "deferred");
    assert_eq!(said["error"]["code"], "SUPERVISOR_GONE");
    assert_eq!(
        (world.selected().as_deref(), world.pending().as_deref()),
        (Some("1.0.0"), Some("1.1.0"))
    );
    supervisor.stop();
}
