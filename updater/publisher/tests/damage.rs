//! Whatever is wrong with the files of a feed is named, and nothing is signed on top of it.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::fs;

use publisher::{Promote, PublishError, Refresh, add, promote, refresh};
use support::{World, version};

#[test]
fn a_feed_that_somebody_changed_is_not_signed_again() {
    let changes: [(&str, &str, &str, &str); 5] = [
        (
            "timestamp.json",
            "\"version\": 3",
            "\"version\": 9",
            "FEED_SIGNATURE",
        ),
        (
            "3.targets.json",
            "\"version\": 3",
            "\"version\": 9",
            "FEED_INCONSISTENT",
        ),
        (
            "3.snapshot.json",
            "\"version\": 3",
            "\"version\": 9",
            "FEED_INCONSISTENT",
        ),
        (
            "1.channel-stable.json",
            "1.0.0",
            "6.6.6",
            "FEED_INCONSISTENT",
        ),
        (
            "1.root.json",
            "\"threshold\": 2",
            "\"threshold\": 1",
            "FEED_SIGNATURE",
        ),
    ];
    for (name, from, to, code) in changes {
        let world = World::released();
        let path = world.place.feed.join("metadata").join(name);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{name}: {text}");
        fs::write(&path, text.replace(from, to)).unwrap();
        refused_as_it_is(&world, name, code);
    }
    let world = World::new();
    assert!(matches!(
        refresh(&world.place, &Refresh::default()),
        Err(PublishError::FeedMissing { .. })
    ));
}

#[test]
fn garbage_in_any_file_is_named_and_changes_nothing() {
    let huge = vec![b' '; 6_000_000];
    let garbage: [(&[u8], &str); 4] = [
        (b"", "FEED_MALFORMED"),
        (b"\xff\x00not json", "FEED_MALFORMED"),
        (b"{\"signed\":{},\"signatures\":[]}", "FEED_MALFORMED"),
        (&huge, "FEED_READ"),
    ];
    for name in [
        "1.root.json",
        "timestamp.json",
        "3.snapshot.json",
        "3.targets.json",
        "1.channel-stable.json",
    ] {
        for (bytes, code) in &garbage {
            let world = World::released();
            let path = world.place.feed.join("metadata").join(name);
            fs::write(&path, bytes).unwrap();
            // What is pinned is known to be wrong before it is looked into.
            let pinned =
                *code == "FEED_MALFORMED" && !["1.root.json", "timestamp.json"].contains(&name);
            refused_as_it_is(
                &world,
                name,
                if pinned { "FEED_INCONSISTENT" } else { code },
            );
        }
        let world = World::released();
        let path = world.place.feed.join("metadata").join(name);
        fs::remove_file(&path).unwrap();
        let code = match name {
            "timestamp.json" => "FEED_MISSING",
            _ => "FEED_INCOMPLETE",
        };
        refused_as_it_is(
            &world,
            if code == "FEED_MISSING" {
                "no feed"
            } else {
                name
            },
            code,
        );
        // A pipe in its place would wait for a writer.
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o644.into()).unwrap();
        let refused = refresh(&world.place, &Refresh::default()).unwrap_err();
        assert_eq!(
            staging::report::Report::code(&refused),
            "FEED_READ",
            "{refused}"
        );
    }
}

#[test]
fn a_channel_file_that_is_damaged_is_named() {
    let world = World::released();
    let targets = world
        .place
        .feed
        .join("targets/rollproxy")
        .join(staging::TARGET);
    let file = fs::read_dir(targets)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let file = file
        .into_iter()
        .find(|path| path.to_str().unwrap().ends_with("stable.json"))
        .unwrap();
    fs::write(&file, "{}").unwrap();
    let before = world.everything();
    let refused = promote(&world.place, &Promote::new("stable", version("1.0.0"))).unwrap_err();
    assert_eq!(staging::report::Report::code(&refused), "TARGET_DAMAGED");
    assert!(
        refused.to_string().contains(file.to_str().unwrap()),
        "{refused}"
    );
    assert_eq!(world.everything(), before);
}

/// Every command refuses the feed by that code, naming the file, and leaves it as it is.
fn refused_as_it_is(world: &World, name: &str, code: &str) {
    let before = world.everything();
    let refused = [
        refresh(&world.place, &Refresh::default()).map(drop),
        promote(&world.place, &Promote::new("stable", version("1.0.0"))).map(drop),
        add(&world.place, &world.unchecked("1.1.0", b"two")).map(drop),
        publisher::verify(&world.place.feed, &publisher::Verify::default()).map(drop),
    ];
    for refused in refused {
        let refused = refused.unwrap_err();
        assert_eq!(
            staging::report::Report::code(&refused),
            code,
            "{name}: {refused}"
        );
        assert!(refused.to_string().contains(name), "{name}: {refused}");
    }
    assert_eq!(world.everything(), before);
}
