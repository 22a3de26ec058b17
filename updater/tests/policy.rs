//! When a check updates, and when it only says why not: as a process, against a signed feed.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests are tests

mod common;

use std::time::Duration;

use common::{World, supervise};
use jiff::{SignedDuration, Timestamp};
use publisher::{Barrier, DeadEnd, Ramp, Source, Validity, Withdraw};
use serde_json::{Value, json};
use staging::locks::StateLock;
use staging::{clock, update_state};

/// 1.0.0 is selected, and 1.1.0 on offer.
fn offered() -> World {
    let world = World::new("1.0.0");
    world.check().expect(0, "installed");
    world.release("1.1.0");
    world
}

fn at(said: &Value) -> Timestamp {
    said["offer"]["at"].as_str().unwrap().parse().unwrap()
}

#[test]
fn a_hold_holds_checks_and_says_until_when() {
    let world = offered();
    let ran = world.run(&["hold", "24h"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let until: Timestamp = world.run(&["hold", "--format", "json"]).json()["holdUntil"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let day = SignedDuration::from_hours(24);
    assert!(
        until > clock::now() + day - SignedDuration::from_mins(5),
        "{until}"
    );

    let said = world.check().expect(0, "held");
    assert_eq!(said["holdUntil"], json!(until));
    assert_eq!(at(&said), until);
    assert_eq!(
        (world.selected().as_deref(), world.pending()),
        (Some("1.0.0"), None)
    );
    assert_eq!(world.installed(), ["1.0.0"]);
    // Nor does a person who only does not want to wait for the feed; the hold is a person's word too.
    world
        .run(&["check", "--now", "--format", "json"])
        .expect(0, "held");
    let ran = world.run(&["check", "--dry-run"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for part in [
        "1.1.0 is available (selected: 1.0.0)",
        "size: ",
        "updates are held until",
        "hold off",
    ] {
        assert!(ran.out.contains(part), "{ran:?} lacks {part}");
    }

    assert_eq!(world.run(&["hold", "off"]).out, "updates are not held\n");
    assert_eq!(world.run(&["check", "--dry-run"]).code, Some(100));
    world.check().expect(0, "pending");
}

#[test]
fn a_hold_is_said_also_when_there_is_nothing_to_hold() {
    let world = World::new("1.0.0");
    world.run(&["hold", "2h"]);
    // Nothing is selected and nothing runs: a person waits for the first version.
    world.check().expect(0, "installed");
    let ran = world.run(&["check"]);
    assert!(
        ran.out.contains("already selected") && ran.out.contains("held until"),
        "{ran:?}"
    );
    assert_eq!(world.run(&["hold", "91d"]).code, Some(64));
}

#[test]
fn a_closed_window_is_waited_for_and_its_opening_said() {
    let world = offered();
    // One that is open tomorrow at this time, but not now: the hour that begins in two hours.
    let from = clock::now() + SignedDuration::from_hours(2);
    let to = from + SignedDuration::from_hours(1);
    let hours = format!("{}-{}", from.strftime("%H:00"), to.strftime("%H:00"));
    world.configure(&format!("windows = [{hours:?}]"));
    let said = world.check().expect(0, "window");
    let opens = at(&said);
    let ahead = opens.duration_since(clock::now());
    assert!(
        ahead > SignedDuration::ZERO && ahead <= SignedDuration::from_hours(2),
        "{ahead:?}"
    );
    assert_eq!(world.installed(), ["1.0.0"]);
    let ran = world.run(&["check", "--dry-run"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.out.contains("outside the update windows") && ran.out.contains(&opens.to_string()),
        "{ran:?}"
    );
    // A person does not wait.
    assert_eq!(world.run(&["check", "--dry-run", "--now"]).code, Some(100));
    world.configure("windows = [\"00:00-24:00\"]");
    world.check().expect(0, "pending");
}

#[test]
fn a_ramp_is_waited_for_and_the_turn_is_this_host_s_own() {
    let world = World::new("1.0.0");
    world.check().expect(0, "installed");
    let start = clock::now();
    let ramp = Ramp {
        start,
        share: 0,
        duration_ms: 1000 * 3_600_000,
    };
    world.add("1.1.0", |add| add.ramp = Some(ramp));
    world.promote("1.1.0");
    let said = world.check().expect(0, "notYet");
    let turn = at(&said);
    assert!(
        turn > start && turn <= start + SignedDuration::from_hours(1000),
        "{turn}"
    );
    // It is the same at every look, and another host has its own.
    assert_eq!(at(&world.check().expect(0, "notYet")), turn);
    let other = staging::home::Home::at(world.folder.path().join("other"));
    world.init(&other);
    let lock = StateLock::acquire(&other, std::time::Duration::ZERO).unwrap();
    let change = staging::selection::Change {
        version: "1.0.0".parse().unwrap(),
        pinned: false,
        by: "job".to_owned(),
    };
    std::fs::create_dir(other.package(&change.version)).unwrap();
    staging::selection::write(&lock, &other, change).unwrap();
    drop(lock);
    let ran = common::run_in(&other, &["check", "--dry-run", "--format", "json"]);
    assert_ne!(ran.json()["offer"]["at"], said["offer"]["at"], "{ran:?}");
    // The number of the host is nowhere in what is said.
    let id = std::fs::read_to_string(world.home.node_id()).unwrap();
    assert!(!said.to_string().contains(id.trim()));
    world
        .run(&["check", "--now", "--format", "json"])
        .expect(0, "pending");
}

#[test]
fn the_lowest_barrier_above_what_runs_is_taken_first() {
    let world = World::new("1.0.0");
    world.check().expect(0, "installed");
    for version in ["1.2.0", "1.10.0", "1.11.0"] {
        world.release(version);
    }
    for version in ["1.10.0", "1.2.0"] {
        let barrier = Barrier {
            channel: "stable".to_owned(),
            version: version.parse().unwrap(),
            target: None,
            remove: false,
            validity: Validity::default(),
        };
        publisher::barrier(&world.place, &barrier).unwrap();
    }
    for (step, channel) in [
        ("1.2.0", json!("1.11.0")),
        ("1.10.0", json!("1.11.0")),
        ("1.11.0", Value::Null),
    ] {
        let supervisor = supervise(&world.home, "kept", true);
        let said = world.check().expect(0, "updated");
        assert_eq!(
            (&said["version"], &said["offer"]["channelVersion"]),
            (&json!(step), &channel)
        );
        assert_eq!(world.selected().as_deref(), Some(step));
        assert_eq!(supervisor.stop()[0]["version"], step);
    }
    world.check().expect(0, "upToDate");
}

#[test]
fn a_barrier_that_failed_here_is_said_to_need_a_person() {
    let world = World::new("1.0.0");
    world.check().expect(0, "installed");
    for version in ["1.2.0", "1.3.0"] {
        world.release(version);
    }
    let barrier = Barrier {
        channel: "stable".to_owned(),
        version: "1.2.0".parse().unwrap(),
        target: None,
        remove: false,
        validity: Validity::default(),
    };
    publisher::barrier(&world.place, &barrier).unwrap();
    world.check().expect(0, "pending");
    let lock = StateLock::acquire(&world.home, Duration::from_secs(5)).unwrap();
    update_state::modify(&lock, &world.home, |state| {
        let version = "1.2.0".parse().unwrap();
        let digest = state.archives[&version].clone();
        state.mark_bad(&digest, &version, "crashed", clock::now());
        state.pending = None;
    })
    .unwrap();
    drop(lock);
    let said = world.check().expect(1, "failed");
    assert_eq!(said["error"]["code"], "BARRIER_KNOWN_BAD", "{said}");
    let message = said["error"]["message"].as_str().unwrap();
    for part in ["1.3.0", "rollproxy select 1.2.0"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_version_that_was_withdrawn_while_it_waited_waits_no_more() {
    let world = World::new("1.0.0");
    world.check().expect(0, "installed");
    world.release("1.1.0");
    world.check().expect(0, "pending");
    assert_eq!(world.pending().as_deref(), Some("1.1.0"));
    let withdraw = Withdraw {
        version: "1.1.0".parse().unwrap(),
        target: None,
        instead: Some("1.0.0".parse().unwrap()),
        validity: Validity::default(),
    };
    publisher::withdraw(&world.place, &withdraw).unwrap();
    assert_eq!(world.run(&["check", "--dry-run"]).code, Some(0));
    assert_eq!(world.pending().as_deref(), Some("1.1.0"));
    world.check().expect(0, "withdrawn");
    assert_eq!(world.pending(), None);
    world.check().expect(0, "upToDate");
}

#[test]
fn a_dead_end_and_a_minimum_are_said_every_time() {
    let world = World::new("1.0.0");
    world.check().expect(0, "installed");
    world.add("2.0.0", |add| {
        add.minimum_version = Some("1.5.0".parse().unwrap())
    });
    world.promote("2.0.0");
    for _ in 0..2 {
        let said = world.check().expect(1, "failed");
        assert_eq!(said["error"]["code"], "BELOW_MINIMUM");
    }
    let dead_end = DeadEnd {
        version: "1.0.0".parse().unwrap(),
        target: None,
        reason: Some("the disk format changes".to_owned()),
        validity: Validity::default(),
    };
    publisher::dead_end(&world.place, &dead_end).unwrap();
    let said = world.check().expect(1, "failed");
    assert_eq!(said["error"]["code"], "DEAD_END");
    assert!(
        said["error"]["message"]
            .as_str()
            .unwrap()
            .contains("the disk format changes")
    );
}

#[test]
fn a_dry_run_says_version_size_notes_and_when_in_text_and_json() {
    let world = World::new("1.0.0");
    world.check().expect(0, "installed");
    world.add("1.1.0", |add| {
        add.notes = "Fixes the clock.\nNeeds nothing.".to_owned()
    });
    world.promote("1.1.0");
    let ran = world.run(&["check", "--dry-run"]);
    assert_eq!(ran.code, Some(100), "{ran:?}");
    for part in [
        "1.1.0 is available (selected: 1.0.0)\n",
        "size: ",
        "notes: Fixes the clock.\nnotes: Needs nothing.\n",
        "a check takes it now\n",
    ] {
        assert!(ran.out.contains(part), "{ran:?} lacks {part}");
    }
    let ran = world.run(&["check", "--dry-run", "--format", "json"]);
    let said = ran.expect(100, "available");
    assert_eq!(said["version"], "1.1.0");
    assert_eq!(said["offer"]["notes"], "Fixes the clock.\nNeeds nothing.");
    assert!(said["offer"]["size"].as_u64().unwrap() > 100_000, "{said}");
    assert_eq!(said["offer"]["patch"], Value::Null);
    assert!(at(&said).duration_since(clock::now()).abs() < SignedDuration::from_mins(5));
    assert_eq!((world.installed().len(), world.pending()), (1, None));
}

#[test]
fn a_dry_run_says_what_a_patch_would_need_and_the_check_takes_it() {
    let world = World::new("1.0.0");
    world.check().expect(0, "installed");
    world.add("1.1.0", |add| {
        add.delta_from = vec!["1.0.0".parse().unwrap()]
    });
    world.promote("1.1.0");
    let said = world
        .run(&["check", "--dry-run", "--format", "json"])
        .expect(100, "available");
    let patch = &said["offer"]["patch"];
    assert_eq!(patch["from"], "1.0.0", "{said}");
    let (size, whole) = (
        patch["size"].as_u64().unwrap(),
        said["offer"]["size"].as_u64().unwrap(),
    );
    assert!(size < whole / 10, "{size} of {whole}");
    let ran = world.run(&["check", "--dry-run"]);
    assert!(
        ran.out.contains(&format!(
            "{whole} bytes, or {size} with the patch from 1.0.0"
        )),
        "{ran:?}"
    );
    let said = world.check().expect(0, "pending");
    assert_eq!(
        (&said["deltaFrom"], said["bytes"].as_u64()),
        (&json!("1.0.0"), Some(size))
    );
    assert_eq!(said["savedBytes"].as_u64(), Some(whole - size));
    // Without patches, if the configuration says so.
    world.configure("delta = false");
    world.add("1.2.0", |add| {
        add.delta_from = vec!["1.1.0".parse().unwrap()]
    });
    world.promote("1.2.0");
    let said = world.check().expect(0, "pending");
    assert_eq!(
        (&said["deltaFrom"], &said["savedBytes"]),
        (&Value::Null, &json!(0))
    );
}

#[test]
fn versions_are_ordered_as_semver_orders_them() {
    // What is selected, what is offered, and what comes of it.
    for (selected, offered, outcome) in [
        ("1.9.0", "1.10.0", "pending"),
        ("1.10.0", "1.9.0", "belowFloor"),
        ("1.5.0-rc.1", "1.5.0", "pending"),
        ("1.5.0", "1.5.0-rc.1", "belowFloor"),
        ("1.0.0-beta.2", "1.0.0-beta.10", "pending"),
        ("1.0.0-beta.10", "1.0.0-beta.2", "belowFloor"),
    ] {
        let world = World::new(selected);
        world.check().expect(0, "installed");
        // As the supervisor does when a rollout to it was kept.
        common::keep(&world.home, selected);
        world.release(offered);
        let said = world.check().expect(0, outcome);
        assert_eq!(said["version"], offered, "{selected}");
    }
    // Neither a `v` nor build metadata is a version: not for who publishes, and not in what a home holds.
    let world = World::new("1.0.0");
    for bad in ["v1.1.0", "1.1.0+build.7"] {
        let ran = world.run(&["verify", bad]);
        assert_eq!(ran.code, Some(64), "{bad}: {ran:?}");
        std::fs::create_dir(world.home.packages().join(bad)).unwrap();
    }
    assert_eq!(world.installed(), Vec::<String>::new());
    world.check().expect(0, "installed");
}

#[test]
fn what_was_refused_is_not_brought_again_and_said_again() {
    let world = World::new("1.0.0");
    world.check().expect(0, "installed");
    let garbage = world.folder.path().join("garbage");
    std::fs::write(&garbage, "no archive".repeat(1000)).unwrap();
    world.publish("1.1.0", Source::Unchecked(garbage));
    let first = world.check().expect(1, "failed");
    let code = &first["error"]["code"];
    assert_eq!(
        update_state::read(&world.home)
            .unwrap()
            .refused
            .unwrap()
            .version
            .to_string(),
        "1.1.0"
    );
    // The bytes are not asked for again: nothing serves them any more, and nobody notices.
    let targets = world.place.feed.join("targets");
    let aside = world.folder.path().join("aside");
    let archive = archive_of(&targets, "1.1.0");
    std::fs::rename(&archive, &aside).unwrap();
    for _ in 0..2 {
        let again = world.check().expect(1, "failed");
        assert_eq!(&again["error"]["code"], code);
        assert_eq!(
            (&again["error"]["retry"], &again["job"]),
            (&json!(false), &Value::Null)
        );
        let message = again["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("--now") && message.contains("1.1.0"),
            "{message}"
        );
    }
    // A person has it tried again.
    std::fs::rename(&aside, &archive).unwrap();
    let said = world
        .run(&["check", "--now", "--format", "json"])
        .expect(1, "failed");
    assert!(said["job"].is_string(), "{said}");
    // Another archive is judged anew.
    world.release("1.2.0");
    world.check().expect(0, "pending");
}

/// The archive's file, whatever its digest.
fn archive_of(targets: &std::path::Path, version: &str) -> std::path::PathBuf {
    let folder = targets.join("rollproxy").join(staging::TARGET);
    let end = format!("{version}.tar.gz");
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_string_lossy().ends_with(&end))
        .unwrap()
}
