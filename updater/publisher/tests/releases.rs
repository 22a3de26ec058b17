//! Making a feed, adding to it and promoting, as a library.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use publisher::{
    Add, Binaries, Init, Place, Promote, PublishError, Refresh, Source, Validity, add, init,
    promote, refresh, refresh_all,
};
use serde_json::Value;
use support::{World, version};

fn unchecked(world: &World, text: &str, content: &[u8]) -> Add {
    world.unchecked(text, content)
}

#[test]
fn a_new_feed_has_four_roles_private_keys_and_expiries_in_whole_seconds() {
    let world = World::new();
    let made = init(&world.place, &Init::default()).unwrap();
    let bytes = fs::read(&made.root).unwrap();
    assert_eq!(made.root_sha256, staging::digest::of(&bytes));
    assert_eq!(
        bytes,
        fs::read(world.place.feed.join("metadata/root.json")).unwrap()
    );

    let root = world.metadata("1.root.json");
    assert_eq!(root["signed"]["consistent_snapshot"], true);
    let roles = root["signed"]["roles"].as_object().unwrap();
    assert_eq!(roles.len(), 4);
    let mut ids: Vec<_> = roles
        .values()
        .flat_map(|role| role["keyids"].as_array().unwrap())
        .collect();
    ids.sort_unstable_by_key(|id| id.as_str());
    ids.dedup();
    assert_eq!(ids.len(), 6, "roles share a key");
    assert_eq!(roles["root"]["threshold"], 2);
    assert_eq!(roles["root"]["keyids"].as_array().unwrap().len(), 3);
    assert_eq!(root["signatures"].as_array().unwrap().len(), 3);

    for name in [
        "1.root.json",
        "1.targets.json",
        "1.snapshot.json",
        "timestamp.json",
    ] {
        let expires = world.metadata(name)["signed"]["expires"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(
            expires.ends_with('Z') && !expires.contains('.'),
            "{name}: {expires}"
        );
    }
    assert_eq!(
        fs::metadata(&world.place.keys)
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o700
    );
    let mut keys = 0;
    for entry in fs::read_dir(&world.place.keys).unwrap() {
        assert_eq!(
            entry.unwrap().metadata().unwrap().permissions().mode() & 0o077,
            0
        );
        keys += 1;
    }
    assert_eq!(keys, 7, "six keys and the lock");
    assert!(matches!(
        init(&world.place, &Init::default()),
        Err(PublishError::FeedExists { .. })
    ));
}

#[test]
fn a_version_is_packed_signed_and_promoted() {
    let world = World::initialised();
    let binaries = Binaries {
        extra: vec![("share/notes.txt".into(), world.file("notes.txt", b"hello"))],
        commit: "abc123".into(),
        ..Binaries::in_folder(&world.binaries("b", b""), "0.1.0").unwrap()
    };
    let what = Add {
        notes: "faster".into(),
        minimum_version: Some(version("1.0.0")),
        ..Add::new(version("1.4.2"), Source::Binaries(binaries))
    };
    let added = add(&world.place, &what).unwrap();
    assert_eq!(
        added.archive,
        format!("rollproxy/{}/1.4.2.tar.gz", staging::TARGET)
    );
    let (length, sha256) = staging::digest::of_file(&added.path).unwrap();
    assert_eq!((added.length, &added.sha256), (length, &sha256));

    let target = world.metadata("2.targets.json")["signed"]["targets"][&added.archive].clone();
    assert_eq!(target["hashes"]["sha256"], sha256);
    assert_eq!(target["custom"]["version"], "1.4.2");
    assert_eq!(target["custom"]["minimumVersion"], "1.0.0");

    let promoted = promote(&world.place, &Promote::new("stable", version("1.4.2"))).unwrap();
    assert_eq!(
        (promoted.before, promoted.archive),
        (None, added.archive.clone())
    );
    let channel = &world.metadata("1.channel-stable.json")["signed"]["targets"]
        [format!("rollproxy/{}/stable.json", staging::TARGET)];
    let hash = channel["hashes"]["sha256"].as_str().unwrap();
    let file = world.place.feed.join(format!(
        "targets/rollproxy/{}/{hash}.stable.json",
        staging::TARGET
    ));
    let offer: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert_eq!(
        offer,
        serde_json::json!({"schema": 1, "version": "1.4.2", "archive": added.archive, "notes": "faster"})
    );

    // The archive is what a host would accept, so it may also come from elsewhere.
    let elsewhere = world.file("elsewhere.tar.gz", &fs::read(&added.path).unwrap());
    let again = add(
        &world.place,
        &Add::new(version("1.4.2"), Source::Archive(elsewhere)),
    )
    .unwrap();
    assert!(again.already);
}

#[test]
fn an_archive_that_hosts_would_refuse_is_refused_here_already() {
    let world = World::initialised();
    let binaries = Binaries::in_folder(&world.binaries("b", b""), "0.1.0").unwrap();
    let added = add(
        &world.place,
        &Add::new(version("1.0.0"), Source::Binaries(binaries)),
    )
    .unwrap();
    let before = world.everything();
    let whole = fs::read(&added.path).unwrap();

    let other = add(
        &world.place,
        &Add::new(version("9.9.0"), Source::Archive(added.path.clone())),
    );
    assert!(matches!(
        other,
        Err(PublishError::ArchiveMismatch {
            what: "version",
            ..
        })
    ));
    let elsewhere = Add {
        target: "aarch64-unknown-linux-musl".into(),
        ..Add::new(version("1.0.0"), Source::Archive(added.path.clone()))
    };
    assert!(matches!(
        add(&world.place, &elsewhere),
        Err(PublishError::ArchiveMismatch { what: "target", .. })
    ));
    for bytes in [&whole[..whole.len() / 2], b"no archive", b""] {
        let archive = world.file("bad.tar.gz", bytes);
        let refused = add(
            &world.place,
            &Add::new(version("1.1.0"), Source::Archive(archive)),
        );
        assert!(matches!(refused, Err(PublishError::Archive { .. })));
    }
    assert_eq!(
        world.everything(),
        before,
        "a refused archive left something behind"
    );
}

#[test]
fn a_published_version_never_changes() {
    let world = World::initialised();
    add(&world.place, &unchecked(&world, "1.0.0", b"one")).unwrap();
    let before = world.everything();
    assert!(
        add(&world.place, &unchecked(&world, "1.0.0", b"one"))
            .unwrap()
            .already
    );
    let refused = add(&world.place, &unchecked(&world, "1.0.0", b"two"));
    assert!(matches!(refused, Err(PublishError::VersionExists { .. })));
    assert_eq!(world.everything(), before);
}

#[test]
fn a_lost_archive_comes_back_by_adding_it_again() {
    let world = World::initialised();
    let added = add(&world.place, &unchecked(&world, "1.0.0", b"one")).unwrap();
    fs::remove_file(&added.path).unwrap();
    assert!(
        !add(&world.place, &unchecked(&world, "1.0.0", b"one"))
            .unwrap()
            .already
    );
    assert_eq!(fs::read(added.path).unwrap(), b"one");
}

#[test]
fn only_what_was_added_can_be_promoted() {
    let world = World::initialised();
    add(&world.place, &unchecked(&world, "1.0.0", b"one")).unwrap();
    let before = world.everything();
    let unknown = promote(&world.place, &Promote::new("stable", version("1.0.1")));
    assert!(matches!(unknown, Err(PublishError::VersionUnknown { .. })));
    let elsewhere = Promote {
        target: "aarch64-unknown-linux-gnu".into(),
        ..Promote::new("stable", version("1.0.0"))
    };
    assert!(matches!(
        promote(&world.place, &elsewhere),
        Err(PublishError::VersionUnknown { .. })
    ));
    let strange = promote(&world.place, &Promote::new("../stable", version("1.0.0")));
    assert!(matches!(strange, Err(PublishError::Name { .. })));
    assert_eq!(world.everything(), before);

    promote(&world.place, &Promote::new("stable", version("1.0.0"))).unwrap();
    add(&world.place, &unchecked(&world, "1.1.0", b"two")).unwrap();
    let next = promote(&world.place, &Promote::new("stable", version("1.1.0"))).unwrap();
    assert_eq!(next.before.as_deref(), Some("1.0.0"));
}

#[test]
fn every_change_raises_the_versions_and_overwrites_nothing_numbered() {
    let world = World::initialised();
    let numbered = |world: &World| {
        let mut all = world.everything();
        all.retain(|(path, _)| path.file_name().unwrap() != "timestamp.json");
        all
    };
    let before = numbered(&world);
    // A publisher that was killed before its timestamp left files that nothing refers to.
    fs::write(
        world.place.feed.join("metadata/7.targets.json"),
        "left behind",
    )
    .unwrap();
    let refreshed = refresh_all(&world.place, &Refresh::default()).unwrap();
    assert_eq!(
        (refreshed.targets, refreshed.snapshot, refreshed.timestamp),
        (8, 2, 2)
    );
    let after = numbered(&world);
    assert!(before.iter().all(|file| after.contains(file)));
    assert_eq!(
        fs::read(world.place.feed.join("metadata/7.targets.json")).unwrap(),
        b"left behind"
    );
}

#[test]
fn an_init_that_was_cut_short_is_completed_by_the_next() {
    let world = World::initialised();
    fs::remove_file(world.place.feed.join("metadata/timestamp.json")).unwrap();
    let made = init(&world.place, &Init::default()).unwrap();
    assert_eq!(
        made.root_sha256,
        staging::digest::of(&fs::read(made.root).unwrap())
    );
    add(&world.place, &unchecked(&world, "1.0.0", b"one")).unwrap();
}

#[test]
fn without_the_right_keys_nothing_is_signed() {
    for key in ["targets", "snapshot", "timestamp", "channel-stable"] {
        let world = World::released();
        let before = world.everything();
        fs::remove_file(world.place.keys.join(format!("{key}.pk8"))).unwrap();
        let refused = refresh_all(&world.place, &Refresh::default()).unwrap_err();
        assert!(
            matches!(&refused, PublishError::KeyMissing { role, found: 0, needed: 1, .. } if role == key),
            "{refused:?}"
        );
        assert!(refused.to_string().contains(&format!("{key}.pk8")));
        assert_eq!(world.everything(), before);
    }
    // The root's keys are needed for a new root only, so they may be kept elsewhere.
    let world = World::released();
    for number in 1..=3 {
        fs::remove_file(world.place.keys.join(format!("root-{number}.pk8"))).unwrap();
    }
    refresh_all(&world.place, &Refresh::default()).unwrap();
    // Another feed's keys are no keys.
    let other = World::initialised();
    let mixed = Place::new(&world.place.feed, &other.place.keys);
    assert!(matches!(
        refresh(&mixed, &Refresh::default()),
        Err(PublishError::KeyMissing { .. })
    ));
}

#[test]
fn each_command_takes_the_keys_of_its_roles_only() {
    let world = World::released();
    add(&world.place, &unchecked(&world, "1.1.0", b"two")).unwrap();
    let only = |name: &str, roles: &[&str]| {
        let keys = world.folder.path().join(name);
        fs::create_dir(&keys).unwrap();
        for role in roles {
            let file = format!("{role}.pk8");
            fs::copy(world.place.keys.join(&file), keys.join(&file)).unwrap();
        }
        Place::new(&world.place.feed, keys)
    };
    let cron = only("cron", &["timestamp"]);
    assert_eq!(
        refresh(&cron, &Refresh::default()).unwrap().signed,
        ["timestamp"]
    );
    let promoting = only("promoting", &["channel-stable", "snapshot", "timestamp"]);
    promote(&promoting, &Promote::new("stable", version("1.1.0"))).unwrap();
    let before = (world.everything(), support::files_of(&promoting.keys));
    // A new channel is the business of `targets`, and so is an archive.
    let refused = [
        promote(&promoting, &Promote::new("beta", version("1.1.0"))).map(drop),
        add(&promoting, &unchecked(&world, "1.2.0", b"three")).map(drop),
    ];
    for refused in refused {
        assert!(
            matches!(&refused, Err(PublishError::KeyMissing { role, .. }) if role == "targets"),
            "{refused:?}"
        );
    }
    let after = (world.everything(), support::files_of(&promoting.keys));
    assert_eq!(after, before, "a refused command left something behind");
    assert_eq!(world.host("h").offer("stable"), Ok(Some("1.1.0".into())));
}

#[test]
fn exposed_keys_and_keys_inside_the_feed_are_refused() {
    let world = World::initialised();
    let key = world.place.keys.join("timestamp.pk8");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let error = refresh(&world.place, &Refresh::default()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains(&format!("chmod 600 {}", key.display())),
        "{error}"
    );

    let inside = World::new();
    let place = Place::new(&inside.place.feed, inside.place.feed.join("targets/keys"));
    assert!(matches!(
        init(&place, &Init::default()),
        Err(PublishError::KeysInsideFeed { .. })
    ));
    assert!(!inside.place.feed.exists(), "a refused init made folders");
}

#[test]
fn two_publishers_at_once_lose_nothing() {
    let world = World::initialised();
    let adding: Vec<_> = ["1.0.0", "1.1.0", "1.2.0", "1.3.0"]
        .map(|text| {
            let (place, what) = (
                world.place.clone(),
                unchecked(&world, text, text.as_bytes()),
            );
            std::thread::spawn(move || add(&place, &what).map(drop))
        })
        .into_iter()
        .collect();
    for thread in adding {
        thread.join().unwrap().unwrap();
    }
    let targets = world.metadata("5.targets.json")["signed"]["targets"]
        .as_object()
        .unwrap()
        .len();
    assert_eq!(targets, 4);
}

#[test]
fn a_refresh_signs_what_expires_soon_where_its_keys_are_and_says_what_it_could_not() {
    let world = World::released();
    let cron = Place::new(&world.place.feed, world.folder.path().join("cron"));
    fs::create_dir(&cron.keys).unwrap();
    fs::copy(
        world.place.keys.join("timestamp.pk8"),
        cron.keys.join("timestamp.pk8"),
    )
    .unwrap();
    let after = |days: i64| {
        let now = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(24 * days);
        Refresh {
            validity: Validity { now, days: 7 },
        }
    };
    let names = |all: &[publisher::Waiting]| -> Vec<String> {
        all.iter().map(|waiting| waiting.role.clone()).collect()
    };
    // Long before: the timestamp only, whoever does it.
    for place in [&cron, &world.place] {
        let done = refresh(place, &after(1)).unwrap();
        assert_eq!(done.signed, ["timestamp"]);
        assert!(done.waiting.is_empty());
    }
    // Near the end of the others: said where their keys are not, done where they are.
    let done = refresh(&cron, &after(65)).unwrap();
    assert_eq!(done.signed, ["timestamp"]);
    assert_eq!(
        names(&done.waiting),
        ["snapshot", "targets", "channel-stable"]
    );
    let done = refresh(&world.place, &after(65)).unwrap();
    assert_eq!(
        done.signed,
        ["channel-stable", "targets", "snapshot", "timestamp"]
    );
    let held = |name: &str| {
        let expires = world.metadata(name)["signed"]["expires"].clone();
        let expires: jiff::Timestamp = expires.as_str().unwrap().parse().unwrap();
        (expires.as_second() - after(65).validity.now.as_second() + 60) / 86_400
    };
    assert_eq!(held("timestamp.json"), 7);
    assert_eq!(held(&format!("{}.targets.json", done.targets)), 90);
    // Past their end: a timestamp alone helps nobody, so the command fails and cron tells somebody.
    let before = world.everything();
    let refused = refresh(&cron, &after(65 + 91)).unwrap_err();
    assert!(
        matches!(&refused, PublishError::ExpiredElsewhere { role, .. } if role == "snapshot"),
        "{refused}"
    );
    assert_eq!(world.everything(), before);
    refresh(&world.place, &after(65 + 91)).unwrap();
    // The root expires, too, and is no matter of `refresh`.
    let done = refresh_all(&world.place, &after(3640)).unwrap();
    assert_eq!(names(&done.waiting), ["root"]);
}
