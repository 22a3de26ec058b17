//! Keys are replaced, and hosts that pinned the first root follow; what old keys sign is refused.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs;
use std::path::Path;

use publisher::{
    Init, KeyRole, Place, Promote, PublishError, Refresh, Rotate, Verify, init, promote, refresh,
    refresh_all, rotate, verify,
};
use staging::report::Report;
use support::{Host, World, files_of, version};

/// Every role, with the number of roots that its rotation adds.
const ROLES: [(&str, u64); 5] = [
    ("root", 1),
    ("targets", 2),
    ("snapshot", 2),
    ("timestamp", 2),
    ("channel-stable", 0),
];

fn roles(names: &[&str]) -> Rotate {
    Rotate::new(names.iter().map(|name| name.parse::<KeyRole>().unwrap()))
}

fn whole(world: &World) {
    verify(&world.place.feed, &Verify::default()).unwrap();
}

fn offers(host: &Host, expected: &str) {
    assert_eq!(host.offer("stable"), Ok(Some(expected.into())));
}

#[test]
fn every_role_gets_a_new_key_and_hosts_of_the_first_root_follow() {
    for (role, added) in ROLES {
        let world = World::released();
        let (old, silent) = (world.host("old"), world.host("silent"));
        offers(&old, "1.0.0");
        let keys = files_of(&world.place.keys);
        let rotated = rotate(&world.place, &roles(&[role])).unwrap();
        assert_eq!(rotated.root_version, 1 + added, "{role}");
        whole(&world);
        for host in [&old, &silent, &world.host("new")] {
            offers(host, "1.0.0");
        }
        let names: Vec<_> = match role {
            "root" => (1..=3).map(|number| format!("root-{number}")).collect(),
            role => vec![role.to_owned()],
        };
        for name in &names {
            let retired = world.place.keys.join(format!("{name}.pk8.retired"));
            let new = world.place.keys.join(format!("{name}.pk8"));
            let before = keys.iter().find(|(path, _)| *path == new).unwrap();
            assert_eq!(fs::read(retired).unwrap(), before.1);
            assert_ne!(fs::read(new).unwrap(), before.1);
        }
        assert_eq!(rotated.keys.len(), names.len());
        // The publisher goes on with the new keys alone, and the hosts with it.
        world.release("1.1.0");
        refresh_all(&world.place, &Refresh::default()).unwrap();
        rotate(&world.place, &roles(&[role])).unwrap();
        whole(&world);
        for host in [&old, &silent, &world.host("newest")] {
            offers(host, "1.1.0");
        }
    }
}

#[test]
fn a_stolen_folder_of_keys_is_replaced_in_one_go() {
    let world = World::new();
    let place = world
        .place
        .clone()
        .with_root_keys([world.folder.path().join("a"), world.folder.path().join("b")]);
    init(&place, &Init::default()).unwrap();
    assert!(!world.place.keys.join("root-1.pk8").exists());
    for file in ["a/root-1.pk8", "b/root-2.pk8", "a/root-3.pk8"] {
        assert!(world.folder.path().join(file).exists(), "{file}");
    }
    world.release("1.0.0");
    let old = world.host("old");
    offers(&old, "1.0.0");
    let all = ["targets", "snapshot", "timestamp", "channel-stable"];
    // Without the folders of the root's keys it is refused, and no key is made.
    let before = (world.everything(), files_of(&world.place.keys));
    let refused = rotate(&world.place, &roles(&all)).unwrap_err();
    assert!(
        matches!(&refused, PublishError::KeyMissing { role, found: 0, needed: 2, .. } if role == "root"),
        "{refused:?}"
    );
    assert!(refused.to_string().contains("--root-keys-dir"), "{refused}");
    assert_eq!((world.everything(), files_of(&world.place.keys)), before);

    let rotated = rotate(&place, &roles(&all)).unwrap();
    assert_eq!((rotated.root_version, rotated.keys.len()), (3, 4));
    world.release("1.1.0");
    whole(&world);
    offers(&old, "1.1.0");
}

#[test]
fn a_lost_key_of_the_root_is_replaced_by_the_two_that_are_left() {
    for lost in 1..=3 {
        let world = World::released();
        let old = world.host("old");
        offers(&old, "1.0.0");
        let file = format!("root-{lost}.pk8");
        fs::remove_file(world.place.keys.join(&file)).unwrap();
        let before = world.metadata("1.root.json");
        let how = Rotate {
            lost: Some(file.clone().into()),
            ..roles(&["root"])
        };
        let rotated = rotate(&world.place, &how).unwrap();
        assert_eq!(rotated.keys[0].retired, None);
        assert_eq!(rotated.keys[0].file, world.place.keys.join(&file));
        let after = world.metadata("2.root.json");
        let ids = |root: &serde_json::Value| root["signed"]["roles"]["root"]["keyids"].clone();
        let (before, after) = (ids(&before), ids(&after));
        for number in 1..=3 {
            let same = before[number - 1] == after[number - 1];
            assert_eq!(same, number != lost, "key {number} after losing {lost}");
        }
        whole(&world);
        offers(&old, "1.0.0");
        // All three can be lost one after the other.
        let next = lost % 3 + 1;
        let next = format!("root-{next}.pk8");
        fs::remove_file(world.place.keys.join(&next)).unwrap();
        let how = Rotate {
            lost: Some(world.place.keys.join(next)),
            ..roles(&["root"])
        };
        rotate(&world.place, &how).unwrap();
        offers(&old, "1.0.0");
        offers(&world.host("new"), "1.0.0");
    }
}

#[test]
fn a_stolen_key_of_the_root_alone_signs_no_root() {
    let world = World::released();
    let old = world.host("old");
    offers(&old, "1.0.0");
    let how = Rotate {
        lost: Some("root-2.pk8".into()),
        ..roles(&["root"])
    };
    let rotated = rotate(&world.place, &how).unwrap();
    let retired = rotated.keys[0].retired.clone().unwrap();
    // The thief has the old key of the root, and the feed's folder.
    let thief = world.folder.path().join("thief");
    fs::create_dir(&thief).unwrap();
    fs::copy(retired, thief.join("root-2.pk8")).unwrap();
    let place = Place::new(&world.place.feed, &thief);
    let refused = rotate(&place, &roles(&["timestamp"])).unwrap_err();
    assert!(
        matches!(
            &refused,
            PublishError::KeyMissing {
                found: 0,
                needed: 2,
                ..
            }
        ),
        "{refused:?}"
    );
    offers(&old, "1.0.0");
}

#[test]
fn too_few_keys_of_the_root_are_refused() {
    let world = World::released();
    for file in ["root-1.pk8", "root-3.pk8"] {
        let key = world.place.keys.join(file);
        fs::rename(&key, world.folder.path().join(file)).unwrap();
    }
    let before = (world.everything(), files_of(&world.place.keys));
    for role in ["root", "targets", "snapshot", "timestamp"] {
        for lost in [None, Some("root-1.pk8".into())] {
            let how = Rotate {
                lost,
                ..roles(&[role, "root"])
            };
            let refused = rotate(&world.place, &how).unwrap_err();
            assert!(
                matches!(&refused, PublishError::KeyMissing { role, found: 1, needed: 2, .. } if role == "root"),
                "{refused:?}"
            );
            assert_eq!(refused.exit(), staging::report::Exit::Configuration);
        }
    }
    assert_eq!((world.everything(), files_of(&world.place.keys)), before);
    // In a folder of its own, one more is enough.
    let offline = world.folder.path().join("offline");
    fs::create_dir(&offline).unwrap();
    fs::rename(
        world.folder.path().join("root-3.pk8"),
        offline.join("root-3.pk8"),
    )
    .unwrap();
    let place = world.place.clone().with_root_keys([&offline]);
    rotate(&place, &roles(&["timestamp"])).unwrap();
    offers(&world.host("h"), "1.0.0");
}

#[test]
fn thresholds_that_cannot_be_are_refused() {
    for (root_keys, root_threshold) in [(3, 0), (3, 4), (1, 2)] {
        let world = World::new();
        let how = Init {
            root_keys,
            root_threshold,
            ..Init::default()
        };
        let refused = init(&world.place, &how).unwrap_err();
        assert_eq!(refused.code(), "THRESHOLD_IMPOSSIBLE");
        assert!(!world.place.feed.exists() && !world.place.keys.exists());
    }
}

#[test]
fn a_root_of_one_key_becomes_one_of_several() {
    let world = World::new();
    let how = Init {
        root_keys: 1,
        root_threshold: 1,
        ..Init::default()
    };
    init(&world.place, &how).unwrap();
    world.release("1.0.0");
    let old = world.host("old");
    offers(&old, "1.0.0");
    let how = Rotate {
        root_keys: Some(5),
        root_threshold: Some(3),
        ..roles(&["root"])
    };
    rotate(&world.place, &how).unwrap();
    let root = world.metadata("2.root.json");
    assert_eq!(root["signed"]["roles"]["root"]["threshold"], 3);
    assert_eq!(root["signatures"].as_array().unwrap().len(), 6);
    whole(&world);
    offers(&old, "1.0.0");
    let fewer = Rotate {
        root_keys: Some(2),
        root_threshold: Some(2),
        ..roles(&["root"])
    };
    rotate(&world.place, &fewer).unwrap();
    let left: Vec<_> = files_of(&world.place.keys)
        .into_iter()
        .map(|(path, _)| path.file_name().unwrap().to_str().unwrap().to_owned())
        .filter(|name| name.starts_with("root-") && name.ends_with(".pk8"))
        .collect();
    assert_eq!(left, ["root-1.pk8", "root-2.pk8"]);
    offers(&old, "1.0.0");
}

#[test]
fn what_cannot_be_rotated_is_named() {
    let world = World::released();
    let before = (world.everything(), files_of(&world.place.keys));
    let lost = |lost: &str| Rotate {
        lost: Some(lost.into()),
        ..roles(&["root"])
    };
    for (how, code) in [
        (roles(&["channel-beta"]), "CHANNEL_UNKNOWN"),
        (lost("root-4.pk8"), "KEY_UNKNOWN"),
        (lost("root-0.pk8"), "KEY_UNKNOWN"),
        (lost("targets.pk8"), "KEY_UNKNOWN"),
        (
            Rotate {
                lost: Some("targets.pk8".into()),
                ..roles(&["targets"])
            },
            "USAGE",
        ),
    ] {
        let refused = rotate(&world.place, &how).unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
    }
    assert!("mirrors".parse::<KeyRole>().is_err());
    assert!("channel-../x".parse::<KeyRole>().is_err());
    assert_eq!((world.everything(), files_of(&world.place.keys)), before);
}

fn copy_tree(from: &Path, to: &Path) {
    for (path, bytes) in files_of(from) {
        let to = to.join(path.strip_prefix(from).unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::write(&to, bytes).unwrap();
        fs::set_permissions(&to, fs::metadata(path).unwrap().permissions()).unwrap();
    }
}

#[test]
fn what_a_stolen_key_signs_after_its_rotation_is_refused() {
    for role in ["targets", "snapshot", "timestamp"] {
        let world = World::released();
        let host = world.host("h");
        offers(&host, "1.0.0");
        // The thief's copies: the key, and the feed as it was, in which it still signs.
        let thief = Place::new(
            world.folder.path().join("forged"),
            world.folder.path().join("thief"),
        );
        copy_tree(&world.place.feed, &thief.feed);
        copy_tree(&world.place.keys, &thief.keys);
        rotate(&world.place, &roles(&[role])).unwrap();
        offers(&host, "1.0.0");

        let forging = World {
            folder: tempfile::tempdir().unwrap(),
            place: thief.clone(),
        };
        for _ in 0..9 {
            refresh_all(&thief, &Refresh::default()).unwrap();
        }
        forging.release("6.6.6");
        // Served without the newer roots, which the host remembers, and then with them, for they cannot be forged.
        let forged = Host {
            url: support::file_url(&thief.feed),
            home: host.home.clone(),
        };
        assert_eq!(forged.offer("stable"), Err("FEED_SIGNATURE"), "{role}");
        for version in [2, 3] {
            let name = format!("metadata/{version}.root.json");
            fs::copy(world.place.feed.join(&name), thief.feed.join(&name)).unwrap();
        }
        assert_eq!(forged.offer("stable"), Err("FEED_SIGNATURE"), "{role}");
        // The publisher refuses such a folder, too.
        let refused = refresh(&thief, &Refresh::default()).unwrap_err();
        assert_eq!(refused.code(), "FEED_SIGNATURE", "{role}");
        // This thief has the other keys still, and has driven the host's versions up with them; new ones of timestamp and
        // snapshot start the host's versions anew, and it goes on with the true feed.
        rotate(&world.place, &roles(&["timestamp", "snapshot"])).unwrap();
        world.release("1.1.0");
        offers(&host, "1.1.0");
    }
}

#[test]
fn a_stolen_key_of_a_channel_is_worth_nothing_after_its_rotation() {
    let world = World::released();
    world.release("1.1.0");
    let host = world.host("h");
    offers(&host, "1.1.0");
    let stolen = fs::read(world.place.keys.join("channel-stable.pk8")).unwrap();
    rotate(&world.place, &roles(&["channel-stable"])).unwrap();
    let key = world.place.keys.join("channel-stable.pk8");
    fs::write(&key, stolen).unwrap();
    let refused = promote(&world.place, &Promote::new("stable", version("1.0.0"))).unwrap_err();
    assert!(
        matches!(&refused, PublishError::KeyMissing { role, .. } if role == "channel-stable"),
        "{refused:?}"
    );
    offers(&host, "1.1.0");
}

#[test]
fn a_host_of_the_first_root_follows_however_many_there_were_since() {
    let world = World::released();
    let old = world.host("old");
    offers(&old, "1.0.0");
    // Two roots each: more than the 32 in a row that clients of this library follow by default.
    for _ in 0..20 {
        rotate(&world.place, &roles(&["timestamp"])).unwrap();
    }
    assert!(world.place.feed.join("metadata/41.root.json").exists());
    offers(&old, "1.0.0");
    offers(&world.host("new"), "1.0.0");
}
