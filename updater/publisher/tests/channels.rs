//! Channels: a role of its own each, and what its key can and cannot do; barriers, ramps, dead ends, withdrawals.

mod support;

use std::fs;
use std::time::Duration;

use publisher::{
    Barrier, DeadEnd, Place, Promote, PublishError, Ramp, SetRamp, Validity, Verify, Withdraw, add,
    barrier, channel_name, dead_end, promote, ramp, verify, withdraw,
};
use serde_json::json;
use staging::report::Report;
use support::{World, version};

fn whole(world: &World) {
    verify(&world.place.feed, &Verify::default()).unwrap();
}

#[test]
fn each_channel_has_a_role_and_a_key_of_its_own() {
    let world = World::released();
    let first = promote(&world.place, &Promote::new("beta", version("1.0.0"))).unwrap();
    assert!(first.new_channel);
    let again = promote(&world.place, &Promote::new("beta", version("1.0.0"))).unwrap();
    assert!(!again.new_channel);
    let targets = world.metadata("4.targets.json");
    let roles = targets["signed"]["delegations"]["roles"]
        .as_array()
        .unwrap();
    let names = ["stable", "beta"];
    assert_eq!(roles.len(), names.len());
    for (role, name) in roles.iter().zip(names) {
        assert_eq!(role["name"], format!("channel-{name}"));
        assert_eq!(role["terminating"], true);
        assert_eq!(role["threshold"], 1);
        assert_eq!(role["paths"], json!([format!("rollproxy/*/{name}.json")]));
    }
    assert_ne!(roles[0]["keyids"], roles[1]["keyids"]);
    // Promotions alone leave `targets` as it is.
    assert!(!world.place.feed.join("metadata/5.targets.json").exists());
    whole(&world);
    let host = world.host("h");
    for name in names {
        assert_eq!(host.offer(name), Ok(Some("1.0.0".into())));
    }
    assert_eq!(host.offer("nightly"), Ok(None));
}

/// Writes metadata of `channel-beta` that name what is not its own, signed by its own key, into a feed that is right otherwise.
fn overreaching(what: impl Fn(&mut serde_json::Map<String, serde_json::Value>)) -> World {
    let world = World::released();
    world.release("1.1.0");
    promote(&world.place, &Promote::new("beta", version("1.0.0"))).unwrap();
    let host = world.host("before");
    assert_eq!(host.offer("stable"), Ok(Some("1.1.0".into())));
    assert_eq!(host.offer("beta"), Ok(Some("1.0.0".into())));
    // Signed by the publisher itself, from metadata that were changed in between: the key is the thief's now.
    support::resign(&world, "channel-beta", what);
    world
}

#[test]
fn a_channels_key_cannot_speak_for_another_channel() {
    let world = overreaching(|targets| {
        let (beta, stable) = (
            channel_name(staging::TARGET, "beta"),
            channel_name(staging::TARGET, "stable"),
        );
        let offer = targets[&beta].clone();
        targets.insert(stable, offer);
    });
    for name in ["before", "after"] {
        let host = world.host(name);
        assert_eq!(host.offer("stable"), Ok(Some("1.1.0".into())));
        assert_eq!(host.offer("beta"), Ok(Some("1.0.0".into())));
    }
    let refused = verify(&world.place.feed, &Verify::default()).unwrap_err();
    assert_eq!(refused.code(), "TARGET_WORDS");
    assert!(refused.to_string().contains("stable.json"), "{refused}");
}

#[test]
fn a_channels_key_cannot_bring_an_archive() {
    let evil = b"evil";
    let archive = format!("rollproxy/{}/6.6.6.tar.gz", staging::TARGET);
    let world = overreaching(|targets| {
        targets.insert(
            archive.clone(),
            json!({
                "length": evil.len(), "hashes": {"sha256": staging::digest::of(evil)},
                "custom": {"schema": 1, "version": "6.6.6"},
            }),
        );
        let offer =
            json!({"schema": 1, "version": "6.6.6", "archive": archive.clone()}).to_string();
        targets.insert(
            channel_name(staging::TARGET, "beta"),
            json!({
                "length": offer.len(), "hashes": {"sha256": staging::digest::of(offer.as_bytes())},
            }),
        );
    });
    let folder = world
        .place
        .feed
        .join("targets/rollproxy")
        .join(staging::TARGET);
    let offer = json!({"schema": 1, "version": "6.6.6", "archive": archive.clone()}).to_string();
    for (name, bytes) in [("6.6.6.tar.gz", &evil[..]), ("beta.json", offer.as_bytes())] {
        let file = format!("{}.{name}", staging::digest::of(bytes));
        fs::write(folder.join(file), bytes).unwrap();
    }
    // The offer is the channel's to make; the archive is nobody's whom hosts trust for it.
    for name in ["before", "after"] {
        assert_eq!(world.host(name).offer("beta"), Err("ARCHIVE_MISSING"));
    }
    assert!(verify(&world.place.feed, &Verify::default()).is_err());
}

#[test]
fn a_channel_of_a_feed_of_old_moves_to_its_own_role() {
    // Before channels had roles, `targets` signed their files itself.
    let world = World::released();
    let delegated = world.metadata("1.channel-stable.json")["signed"]["targets"].clone();
    support::resign(&world, "targets", |targets| {
        for (name, about) in delegated.as_object().unwrap() {
            targets.insert(name.clone(), about.clone());
        }
    });
    support::forget_channel(&world, "stable");
    let host = world.host("h");
    assert_eq!(host.offer("stable"), Ok(Some("1.0.0".into())));
    whole(&world);
    world.release("1.1.0");
    whole(&world);
    assert_eq!(world.host("new").offer("stable"), Ok(Some("1.1.0".into())));
}

#[test]
fn a_ramp_is_set_changed_and_ended() {
    let world = World::released();
    let host = world.host("h");
    let start: jiff::Timestamp = "2030-01-01T00:00:00.5Z".parse().unwrap();
    let mut what = SetRamp {
        version: version("1.0.0"),
        target: None,
        ramp: Some(Ramp::new(start, 25, Duration::from_secs(3600)).unwrap()),
        validity: Validity::default(),
    };
    let set = ramp(&world.place, &what).unwrap();
    assert_eq!(set.archives.len(), 1);
    let read = host
        .release("stable")
        .unwrap()
        .unwrap()
        .custom
        .ramp
        .unwrap();
    assert_eq!((read.share, read.duration_ms), (25, 3_600_000));
    assert_eq!(read.start.to_string(), "2030-01-01T00:00:00Z");
    what.ramp = None;
    ramp(&world.place, &what).unwrap();
    assert_eq!(host.release("stable").unwrap().unwrap().custom.ramp, None);
    whole(&world);

    what.version = version("9.9.9");
    assert!(matches!(
        ramp(&world.place, &what),
        Err(PublishError::VersionUnknown { .. })
    ));
    assert!(Ramp::new(start, 101, Duration::ZERO).is_err());
}

#[test]
fn a_dead_end_is_said_and_taken_back() {
    let world = World::released();
    let host = world.host("h");
    let mut what = DeadEnd {
        version: version("1.0.0"),
        target: Some(staging::TARGET.into()),
        reason: Some("convert the state by hand".into()),
        validity: Validity::default(),
    };
    dead_end(&world.place, &what).unwrap();
    let read = || host.release("stable").unwrap().unwrap().custom.dead_end;
    assert_eq!(read().as_deref(), Some("convert the state by hand"));
    what.reason = None;
    dead_end(&world.place, &what).unwrap();
    assert_eq!(read(), None);
    what.reason = Some("x".repeat(501));
    assert_eq!(
        dead_end(&world.place, &what).unwrap_err().code(),
        "TEXT_TOO_LONG"
    );
    what.target = Some("riscv64-unknown-linux-gnu".into());
    what.reason = None;
    assert_eq!(
        dead_end(&world.place, &what).unwrap_err().code(),
        "VERSION_UNKNOWN"
    );
}

fn a_barrier(text: &str, remove: bool) -> Barrier {
    Barrier {
        channel: "stable".into(),
        version: version(text),
        target: None,
        remove,
        validity: Validity::default(),
    }
}

#[test]
fn barriers_stay_through_promotions_in_the_order_of_versions() {
    let world = World::released();
    for text in ["1.9.0", "1.10.0", "2.0.0"] {
        world.release(text);
    }
    for text in ["1.10.0", "1.9.0", "1.10.0"] {
        barrier(&world.place, &a_barrier(text, false)).unwrap();
    }
    world.release("2.1.0");
    let again = promote(&world.place, &Promote::new("stable", version("2.1.0"))).unwrap();
    assert_eq!(again.barriers, ["1.9.0", "1.10.0"]);
    whole(&world);
    let left = barrier(&world.place, &a_barrier("1.9.0", true)).unwrap();
    assert_eq!(left.barriers[0].barriers, ["1.10.0"]);
    // What is not there cannot be a barrier, nor what is not offered yet.
    for (text, code) in [("1.11.0", "VERSION_UNKNOWN"), ("3.0.0", "BARRIER_AHEAD")] {
        if code == "BARRIER_AHEAD" {
            add(&world.place, &world.unchecked(text, b"three")).unwrap();
        }
        let refused = barrier(&world.place, &a_barrier(text, false)).unwrap_err();
        assert_eq!(refused.code(), code);
    }
    let nowhere = Barrier {
        channel: "beta".into(),
        ..a_barrier("1.10.0", false)
    };
    assert_eq!(
        barrier(&world.place, &nowhere).unwrap_err().code(),
        "CHANNEL_UNKNOWN"
    );
}

fn a_withdrawal(text: &str, instead: Option<&str>) -> Withdraw {
    Withdraw {
        version: version(text),
        target: None,
        instead: instead.map(version),
        validity: Validity::default(),
    }
}

#[test]
fn a_withdrawn_version_is_offered_by_no_channel() {
    let world = World::released();
    world.release("1.1.0");
    barrier(&world.place, &a_barrier("1.1.0", false)).unwrap();
    promote(&world.place, &Promote::new("beta", version("1.0.0"))).unwrap();
    let host = world.host("h");
    assert_eq!(host.offer("stable"), Ok(Some("1.1.0".into())));
    let gone = withdraw(&world.place, &a_withdrawal("1.1.0", Some("1.0.0"))).unwrap();
    assert_eq!(gone.targets.len(), 1);
    assert_eq!(gone.channels.len(), 1);
    assert!(gone.channels[0].barrier_removed);
    assert!(gone.files[0].exists());
    whole(&world);
    assert_eq!(host.offer("stable"), Ok(Some("1.0.0".into())));
    fs::remove_file(&gone.files[0]).unwrap();
    whole(&world);

    // Without another version to offer, a channel has no release; a new host and an old one read that alike.
    let gone = withdraw(&world.place, &a_withdrawal("1.0.0", None)).unwrap();
    assert_eq!(gone.channels.len(), 2);
    whole(&world);
    for host in [&host, &world.host("new")] {
        assert_eq!(host.offer("stable"), Ok(None));
        assert_eq!(host.offer("beta"), Ok(None));
    }
    world.release("1.2.0");
    assert_eq!(host.offer("stable"), Ok(Some("1.2.0".into())));
}

#[test]
fn a_withdrawn_number_is_not_free_again() {
    let world = World::released();
    world.release("1.1.0");
    withdraw(&world.place, &a_withdrawal("1.1.0", None)).unwrap();
    let refused = add(&world.place, &world.unchecked("1.1.0", b"other")).unwrap_err();
    assert_eq!(refused.code(), "VERSION_EXISTS");
    // The very same archive may come back.
    let back = add(&world.place, &world.unchecked("1.1.0", b"1.1.0")).unwrap();
    assert!(!back.already);
    promote(&world.place, &Promote::new("stable", version("1.1.0"))).unwrap();
    whole(&world);
    assert_eq!(world.host("h").offer("stable"), Ok(Some("1.1.0".into())));
}

#[test]
fn a_withdrawal_that_leads_nowhere_changes_nothing() {
    let world = World::released();
    let before = world.everything();
    for (what, code) in [
        (a_withdrawal("9.9.9", None), "VERSION_UNKNOWN"),
        (a_withdrawal("1.0.0", Some("9.9.9")), "VERSION_UNKNOWN"),
        (a_withdrawal("1.0.0", Some("1.0.0")), "INSTEAD_OF_ITSELF"),
    ] {
        assert_eq!(withdraw(&world.place, &what).unwrap_err().code(), code);
    }
    let keys = world.folder.path().join("few");
    fs::create_dir(&keys).unwrap();
    for role in ["targets", "snapshot", "timestamp"] {
        let file = format!("{role}.pk8");
        fs::copy(world.place.keys.join(&file), keys.join(&file)).unwrap();
    }
    let few = Place::new(&world.place.feed, keys);
    let refused = withdraw(&few, &a_withdrawal("1.0.0", None)).unwrap_err();
    assert!(
        matches!(&refused, PublishError::KeyMissing { role, .. } if role == "channel-stable"),
        "{refused:?}"
    );
    assert_eq!(world.everything(), before);
}
