//! Patches beside an archive.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs;

use publisher::{Add, Promote, PublishError, Source, Verify, add, patch_name, promote, verify};
use support::{World, noise, version};

fn from(mut what: Add, versions: &[&str]) -> Add {
    what.delta_from = versions.iter().map(|text| version(text)).collect();
    what
}

#[test]
fn a_patch_is_a_target_of_its_own_and_hosts_are_told_of_it() {
    let world = World::initialised();
    let program = noise(80_000, 3);
    add(&world.place, &world.real("1.0.0", &program)).unwrap();
    let changed = [&program[..], b"changed"].concat();
    let what = from(world.real("1.1.0", &changed), &["1.0.0", "1.0.0"]);
    let added = add(&world.place, &what).unwrap();
    assert_eq!(added.deltas.len(), 1);
    let delta = &added.deltas[0];
    assert_eq!(delta.target, patch_name(staging::TARGET, "1.1.0", "1.0.0"));
    assert!(delta.length * 10 < added.length, "{delta:?}");
    let targets = world.metadata("3.targets.json")["signed"]["targets"].clone();
    assert_eq!(targets[&delta.target]["length"], delta.length);
    assert_eq!(targets[&delta.target]["hashes"]["sha256"], delta.sha256);
    let file = world
        .place
        .feed
        .join("targets/rollproxy")
        .join(staging::TARGET)
        .join(format!("{}.1.1.0.from-1.0.0.patch", delta.sha256));
    assert_eq!(
        staging::digest::of_file(&file).unwrap(),
        (delta.length, delta.sha256.clone())
    );
    let old = &targets[format!("rollproxy/{}/1.0.0.tar.gz", staging::TARGET)]["custom"];
    assert_eq!(delta.from_manifest, old["manifest"]);

    promote(&world.place, &Promote::new("stable", version("1.1.0"))).unwrap();
    let release = world.host("h").release("stable").unwrap().unwrap();
    assert_eq!(release.custom.deltas.len(), 1);
    assert_eq!(release.custom.deltas[0].target, delta.target);
    let about = &targets[&added.archive]["custom"]["manifest"];
    assert_eq!(release.custom.manifest.as_deref(), about.as_str());
}

#[test]
fn patches_can_be_added_to_an_archive_that_is_there() {
    let world = World::initialised();
    let program = noise(40_000, 5);
    for (text, more) in [("1.0.0", "a"), ("1.1.0", "b"), ("1.2.0", "c")] {
        let content = [&program[..], more.as_bytes()].concat();
        add(&world.place, &world.real(text, &content)).unwrap();
    }
    let again = |versions: &[&str]| {
        let archive = world.everything().into_iter().map(|(path, _)| path);
        let archive = archive
            .into_iter()
            .find(|path| path.to_str().unwrap().ends_with(".1.2.0.tar.gz"));
        let what = Add::new(version("1.2.0"), Source::Archive(archive.unwrap()));
        add(&world.place, &from(what, versions)).unwrap()
    };
    let one = again(&["1.0.0"]);
    assert_eq!((one.already, one.deltas.len()), (false, 1));
    let two = again(&["1.0.0", "1.1.0"]);
    assert_eq!((two.already, two.deltas.len()), (false, 1));
    assert!(again(&["1.1.0", "1.0.0"]).already);
    let how = Verify {
        patches: true,
        ..Verify::default()
    };
    assert_eq!(verify(&world.place.feed, &how).unwrap().applied, 2);
}

#[test]
fn a_patch_from_what_is_not_there_changes_nothing() {
    let world = World::initialised();
    let old = add(&world.place, &world.real("1.0.0", b"x")).unwrap();
    let before = world.everything();
    for (versions, code) in [
        (["0.9.0"], "VERSION_UNKNOWN"),
        (["1.1.0"], "DELTA_FROM_ITSELF"),
    ] {
        let what = from(world.real("1.1.0", b"y"), &versions);
        let refused = add(&world.place, &what).unwrap_err();
        assert_eq!(staging::report::Report::code(&refused), code);
        assert_eq!(world.everything(), before);
    }
    fs::write(&old.path, "damaged").unwrap();
    let before = world.everything();
    let what = from(world.real("1.1.0", b"y"), &["1.0.0"]);
    let refused = add(&world.place, &what).unwrap_err();
    assert!(
        matches!(refused, PublishError::TargetDamaged { .. }),
        "{refused}"
    );
    assert_eq!(world.everything(), before);
}

#[test]
fn every_archive_says_the_digest_of_its_manifest() {
    let world = World::initialised();
    let packed = add(&world.place, &world.real("1.0.0", b"x")).unwrap();
    let elsewhere = World::initialised();
    let archive = elsewhere.file("a.tar.gz", &fs::read(&packed.path).unwrap());
    let what = Add::new(version("1.0.0"), Source::Archive(archive));
    add(&elsewhere.place, &what).unwrap();
    let said = |world: &World| {
        world.metadata("2.targets.json")["signed"]["targets"][&packed.archive]["custom"]["manifest"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert!(staging::digest::is_digest(&said(&world)));
    assert_eq!(said(&world), said(&elsewhere));
}
