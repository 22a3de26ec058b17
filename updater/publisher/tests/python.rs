//! The feed is a standard TUF repository: python-tuf's client follows rotations and delegations as our own does.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::process::{Command, Stdio};

use publisher::{
    Add, Barrier, KeyRole, Promote, Rotate, Source, Validity, add, archive_name, barrier,
    channel_name, promote, rotate,
};
use serde_json::Value;
use support::{World, noise, version};

/// Reads one target with python-tuf; none if the feed has none of that name.
fn read(world: &World, name: &str) -> Option<Value> {
    let interpreter =
        std::env::var("ROLLPROXY_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/python/read_feed.py"
    );
    let feed = support::file_url(&world.place.feed);
    let output = Command::new(interpreter)
        .arg(script)
        .arg(format!("{feed}metadata"))
        .arg(format!("{feed}targets"))
        .arg(world.place.root())
        .arg(name)
        .arg(world.folder.path().join("python"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("the feed has no target") {
        return None;
    }
    assert!(output.status.success(), "{errors}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
#[ignore = "needs python-tuf (ROLLPROXY_TEST_PYTHON)"]
fn python_tuf_follows_rotations_and_reads_the_files_of_channels() {
    let world = World::released();
    let content = noise(50_000, 9);
    let archive = world.file("archive", &content);
    let channel = channel_name(staging::TARGET, "stable");
    assert_eq!(
        read(&world, &channel).unwrap()["custom"]["version"],
        "1.0.0"
    );
    for role in ["timestamp", "snapshot", "targets", "channel-stable", "root"] {
        let role: KeyRole = role.parse().unwrap();
        rotate(&world.place, &Rotate::new([role])).unwrap();
    }
    let what = Add::new(version("1.1.0"), Source::Unchecked(archive));
    add(&world.place, &what).unwrap();
    promote(&world.place, &Promote::new("stable", version("1.1.0"))).unwrap();
    let what = Barrier {
        channel: "stable".into(),
        version: version("1.0.0"),
        target: None,
        remove: false,
        validity: Validity::default(),
    };
    barrier(&world.place, &what).unwrap();
    let offer = read(&world, &channel).unwrap();
    let offer = std::fs::read(offer["target"].as_str().unwrap()).unwrap();
    let offer: Value = serde_json::from_slice(&offer).unwrap();
    assert_eq!(offer["version"], "1.1.0");
    assert_eq!(offer["barriers"][0], "1.0.0");
    let release = read(&world, &archive_name(staging::TARGET, "1.1.0")).unwrap();
    assert_eq!(release["sha256"], staging::digest::of(&content));
    assert_eq!(read(&world, &channel_name(staging::TARGET, "beta")), None);
}

#[test]
#[ignore = "needs python-tuf (ROLLPROXY_TEST_PYTHON)"]
fn python_tuf_does_not_let_a_channel_speak_for_another_either() {
    let world = World::released();
    promote(&world.place, &Promote::new("beta", version("1.0.0"))).unwrap();
    let (beta, nightly) = (
        channel_name(staging::TARGET, "beta"),
        channel_name(staging::TARGET, "nightly"),
    );
    support::resign(&world, "channel-beta", |targets| {
        let offer = targets[&beta].clone();
        targets.insert(nightly.clone(), offer.clone());
        targets.insert(archive_name(staging::TARGET, "6.6.6"), offer);
    });
    assert!(read(&world, &beta).is_some());
    assert_eq!(read(&world, &nightly), None);
    assert_eq!(read(&world, &archive_name(staging::TARGET, "6.6.6")), None);
}
