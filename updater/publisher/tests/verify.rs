//! `verify`: what is wrong with a feed is named by its file.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use publisher::{Promote, Verify, Withdraw, add, promote, verify, withdraw};
use staging::report::{Exit, Report};
use support::{World, noise, version};

/// 1.0.0 and, with a patch from it, 1.1.0, which stable offers; both can be unpacked.
fn released() -> World {
    let world = World::initialised();
    let program = noise(60_000, 7);
    add(&world.place, &world.real("1.0.0", &program)).unwrap();
    let mut what = world.real("1.1.0", &[&program[..], b"changed"].concat());
    what.delta_from = vec![version("1.0.0")];
    let added = add(&world.place, &what).unwrap();
    assert_eq!((added.deltas.len(), added.skipped_deltas.len()), (1, 0));
    promote(&world.place, &Promote::new("stable", version("1.1.0"))).unwrap();
    world
}

fn thorough() -> Verify {
    Verify {
        unpack: true,
        patches: true,
        ..Verify::default()
    }
}

/// The one file of the feed whose name ends so.
fn file(world: &World, end: &str) -> PathBuf {
    let mut all = world.everything().into_iter().map(|(path, _)| path);
    all.find(|path| path.to_str().unwrap().ends_with(end))
        .unwrap()
}

fn refused(world: &World, how: &Verify, code: &str, path: &Path) {
    let refused = verify(&world.place.feed, how).unwrap_err();
    assert_eq!(refused.code(), code, "{refused}");
    assert_eq!(refused.exit(), Exit::Failed);
    assert!(
        refused.to_string().contains(path.to_str().unwrap()),
        "{refused}"
    );
}

#[test]
fn a_whole_feed_is_verified_to_its_last_patch() {
    let world = released();
    let before = world.everything();
    let verified = verify(&world.place.feed, &thorough()).unwrap();
    assert_eq!(
        (
            verified.archives,
            verified.unpacked,
            verified.patches,
            verified.applied
        ),
        (2, 1, 1, 1)
    );
    assert_eq!(verified.channels.len(), 1);
    assert_eq!(verified.channels[0].version, "1.1.0");
    assert!(verified.warnings.is_empty());
    assert_eq!(world.everything(), before, "verifying wrote something");
    let quick = verify(&world.place.feed, &Verify::default()).unwrap();
    assert_eq!((quick.unpacked, quick.applied), (0, 0));
}

#[test]
fn a_feed_that_is_not_the_expected_one_is_told() {
    let world = released();
    let mut how = Verify {
        root_sha256: Some(
            staging::digest::of(&fs::read(world.place.root()).unwrap()).to_uppercase(),
        ),
        ..Verify::default()
    };
    verify(&world.place.feed, &how).unwrap();
    how.root_sha256 = Some("0".repeat(64));
    refused(&world, &how, "ROOT_MISMATCH", &world.place.root());
    // What people download to pin is the first root.
    let root = world.place.feed.join("metadata/root.json");
    fs::write(&root, "{}").unwrap();
    refused(&world, &Verify::default(), "FEED_INCONSISTENT", &root);
    // A root that hosts would never come to.
    let world = released();
    let folder = world.place.feed.join("metadata");
    fs::copy(folder.join("1.root.json"), folder.join("3.root.json")).unwrap();
    refused(
        &world,
        &Verify::default(),
        "FEED_INCOMPLETE",
        &folder.join("2.root.json"),
    );
}

#[test]
fn what_expires_is_said_before_and_after() {
    let world = released();
    let at = |days: i64| jiff::Timestamp::now() + jiff::SignedDuration::from_hours(24 * days);
    let how = |days| Verify {
        now: at(days),
        ..Verify::default()
    };
    // A timestamp that cron signs for a week each day never has fewer than six days left.
    let quiet = verify(&world.place.feed, &how(84)).unwrap();
    assert!(quiet.warnings.is_empty(), "{:?}", quiet.warnings);
    let soon = verify(&world.place.feed, &how(86)).unwrap();
    assert_eq!(soon.warnings.len(), 4, "{:?}", soon.warnings);
    refused(
        &world,
        &how(91),
        "FEED_EXPIRED",
        &world.place.feed.join("metadata/timestamp.json"),
    );
    refused(
        &world,
        &how(3651),
        "FEED_EXPIRED",
        &world.place.feed.join("metadata/1.root.json"),
    );
}

#[test]
fn a_target_that_is_missing_or_damaged_is_named() {
    for end in [
        "1.0.0.tar.gz",
        "1.1.0.tar.gz",
        ".stable.json",
        "1.1.0.from-1.0.0.patch",
    ] {
        for damage in ["missing", "short", "other"] {
            let world = released();
            let path = file(&world, end);
            let mut bytes = fs::read(&path).unwrap();
            match damage {
                "missing" => fs::remove_file(&path).unwrap(),
                "short" => fs::write(&path, &bytes[1..]).unwrap(),
                _ => {
                    bytes[10] ^= 1;
                    fs::write(&path, bytes).unwrap();
                }
            }
            refused(&world, &Verify::default(), "TARGET_DAMAGED", &path);
        }
    }
}

#[test]
fn an_archive_that_hosts_would_refuse_is_found_by_unpacking() {
    let world = World::released();
    verify(&world.place.feed, &Verify::default()).unwrap();
    let refused = verify(&world.place.feed, &thorough()).unwrap_err();
    assert!(refused.to_string().contains("1.0.0.tar.gz"), "{refused}");
    // Of another version than the feed says: signed, whole, and wrong.
    let world = released();
    let archive = file(&world, "1.1.0.tar.gz");
    let mut what = world.unchecked("1.2.0", &fs::read(archive).unwrap());
    what.notes = "wrong".into();
    add(&world.place, &what).unwrap();
    promote(&world.place, &Promote::new("stable", version("1.2.0"))).unwrap();
    let refused = verify(&world.place.feed, &thorough()).unwrap_err();
    assert_eq!(refused.code(), "ARCHIVE_MISMATCH");
}

#[test]
fn a_patch_that_makes_something_else_is_found_by_applying_it() {
    let world = released();
    let targets = format!("rollproxy/{}", staging::TARGET);
    let archive = format!("{targets}/1.1.0.tar.gz");
    for (field, value) in [
        ("contentSha256", "0".repeat(64)),
        ("fromManifest", "1".repeat(64)),
    ] {
        support::resign(&world, "targets", |targets| {
            targets[&archive]["custom"]["deltas"][0][field] = value.clone().into();
        });
        verify(&world.place.feed, &Verify::default()).unwrap();
        let patch = file(&world, "1.1.0.from-1.0.0.patch");
        refused(&world, &thorough(), "TARGET_DAMAGED", &patch);
    }
    support::resign(&world, "targets", |targets| {
        targets[&archive]["custom"]["deltas"][0]["length"] = 1.into();
    });
    let refused = verify(&world.place.feed, &Verify::default()).unwrap_err();
    assert_eq!(refused.code(), "TARGET_WORDS");
}

#[test]
fn a_patch_from_a_withdrawn_version_is_left_alone() {
    let world = released();
    let what = Withdraw {
        version: version("1.0.0"),
        target: None,
        instead: None,
        validity: publisher::Validity::default(),
    };
    withdraw(&world.place, &what).unwrap();
    let verified = verify(&world.place.feed, &thorough()).unwrap();
    assert_eq!((verified.patches, verified.applied), (1, 0));
}
