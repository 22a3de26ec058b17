//! What every TUF client has to do, whoever's metadata it reads. The cases are those of the public conformance suite, which can
//! also be run against `examples/conformance-client.rs` (tests/python/README.md); these need nothing but themselves.

use std::fs;

use serde_json::{Value, json};

use super::repository::{ALL, Repository, id};
use super::server::Server;
use super::*;

/// Position of each role in what [`Repository::trusted`] says.
const TIMESTAMP: usize = 3;

#[tokio::test]
async fn a_first_refresh_asks_in_order_and_for_nothing_twice() {
    let mut repository = Repository::unpinned();
    repository.publish(&ALL);
    repository.publish(&["root"]);
    repository.pin().await.unwrap();
    let server = Server::of(repository.feed()).await;
    repository.refresh_from(&server.url).await.unwrap();
    let asked: Vec<_> = server
        .seen()
        .into_iter()
        .map(|request| request.path)
        .collect();
    let expected = [
        "2.root.json",
        "3.root.json",
        "timestamp.json",
        "1.snapshot.json",
        "1.targets.json",
    ];
    assert_eq!(asked, expected.map(|name| format!("/metadata/{name}")));
    assert_eq!(repository.trusted(), [2, 1, 1, 1]);
}

#[tokio::test]
async fn metadata_are_kept_byte_for_byte_with_the_fields_that_nobody_knows() {
    let mut repository = Repository::new().await;
    for role in ALL {
        repository.of(role)["x-custom"] = json!({"deep": [1, "two", null]});
    }
    repository.of("root")["keys"][id(0)]["keyid_hash_algorithms"] = json!(["md5"]);
    repository.publish(&ALL);
    repository.refresh().await.unwrap();
    assert_eq!(repository.trusted(), [2; 4]);
    for (cached, file) in [
        ("root.json", "2.root.json"),
        ("timestamp.json", "timestamp.json"),
        ("snapshot.json", "2.snapshot.json"),
        ("targets.json", "2.targets.json"),
    ] {
        let published = fs::read(repository.feed().join("metadata").join(file)).unwrap();
        assert_eq!(
            fs::read(repository.home.feed().join(cached)).unwrap(),
            published
        );
    }
}

#[tokio::test]
async fn a_pinned_root_that_lost_a_field_or_its_signature_is_not_used() {
    let damages: [fn(&mut Value); 2] = [
        |root| drop(root["signed"].as_object_mut().unwrap().remove("version")),
        |root| root["signatures"][0]["sig"] = "ab".repeat(64).into(),
    ];
    for damage in damages {
        let repository = Repository::new().await;
        let mut root: Value =
            serde_json::from_slice(&fs::read(repository.home.trust_root()).unwrap()).unwrap();
        damage(&mut root);
        fs::write(repository.home.trust_root(), root.to_string()).unwrap();
        assert_eq!(code(repository.refresh().await), "ROOT_INVALID");
    }
}

/// What stays trusted when version 2 of `role` is bad: all that comes before it.
fn before(role: &str, root: u64) -> [u64; 4] {
    match role {
        "root" => [1, 0, 0, 0],
        "timestamp" => [root, 0, 0, 0],
        "snapshot" => [root, 0, 0, 2],
        _ => [root, 0, 2, 2],
    }
}

#[tokio::test]
async fn a_role_that_nobody_signed_is_refused_and_those_before_it_are_kept() {
    for role in ALL {
        let mut repository = Repository::new().await;
        repository.signers.get_mut(role).unwrap().clear();
        repository.publish(&ALL);
        let error = repository.refresh().await.unwrap_err();
        assert_eq!(error.code(), "FEED_SIGNATURE", "{role}: {error}");
        assert_eq!(repository.trusted(), before(role, 2), "{role}");
    }
}

#[tokio::test]
async fn a_file_that_holds_another_version_than_its_name_says_is_refused() {
    for (role, expected) in [
        ("root", "FEED_ROLLBACK"),
        ("snapshot", "FEED_INCONSISTENT"),
        ("targets", "FEED_INCONSISTENT"),
    ] {
        let mut repository = Repository::new().await;
        for each in ALL {
            repository.publish(&[each]);
            if each == role {
                repository.of(role)["version"] = 3.into();
                let bytes = repository.signed(role);
                repository.write(role, 2, &bytes);
            }
        }
        assert_eq!(code(repository.refresh().await), expected, "{role}");
        assert_eq!(repository.trusted(), before(role, 2), "{role}");
    }
}

#[tokio::test]
async fn metadata_of_another_type_are_refused() {
    for role in ALL {
        let mut repository = Repository::new().await;
        let other = if role == "root" { "snapshot" } else { "root" };
        repository.of(role)["_type"] = other.into();
        repository.publish(&ALL);
        assert_eq!(code(repository.refresh().await), "FEED_MALFORMED", "{role}");
        assert_eq!(repository.trusted(), before(role, 2), "{role}");
    }
}

#[tokio::test]
async fn metadata_that_are_not_there_are_named() {
    for (role, file) in [
        ("timestamp", "timestamp.json"),
        ("snapshot", "2.snapshot.json"),
        ("targets", "2.targets.json"),
    ] {
        let mut repository = Repository::new().await;
        repository.publish(&ALL);
        fs::remove_file(repository.feed().join("metadata").join(file)).unwrap();
        let error = repository.refresh().await.unwrap_err();
        assert_eq!(error.code(), "FEED_MISSING", "{file}");
        assert!(error.to_string().contains(file), "{error}");
        assert_eq!(repository.trusted(), before(role, 2), "{file}");
    }
}

#[tokio::test]
async fn digests_of_metadata_are_optional_and_hold_where_they_are() {
    let mut repository = Repository::new().await;
    repository.digests = true;
    repository.publish(&ALL);
    repository.refresh().await.unwrap();
    assert_eq!(repository.trusted(), [2; 4]);
    for role in ["snapshot", "targets"] {
        let mut repository = Repository::new().await;
        repository.digests = true;
        for each in &ALL[1..] {
            repository.publish(&[each]);
            if each == &role {
                // The same version, as well signed, with other bytes.
                let file = repository.feed().join(format!("metadata/2.{role}.json"));
                repository.of(role)["x-other"] = 1.into();
                fs::write(file, repository.signed(role)).unwrap();
            }
        }
        assert_eq!(
            code(repository.refresh().await),
            "FEED_INCONSISTENT",
            "{role}"
        );
        assert_eq!(repository.trusted(), before(role, 1), "{role}");
    }
}

#[tokio::test]
async fn a_timestamp_that_changes_under_its_version_is_not_taken() {
    let mut repository = Repository::new().await;
    repository.refresh().await.unwrap();
    let kept = fs::read(repository.home.feed().join("timestamp.json")).unwrap();
    repository.of("timestamp")["meta"]["snapshot.json"]["version"] = 100.into();
    repository.restart("timestamp", 1);
    repository.publish(&["timestamp"]);
    repository.refresh().await.unwrap();
    assert_eq!(
        fs::read(repository.home.feed().join("timestamp.json")).unwrap(),
        kept
    );
}

#[tokio::test]
async fn what_has_expired_is_refused_role_by_role() {
    for role in ALL {
        let mut repository = Repository::new().await;
        repository.refresh().await.unwrap();
        repository.of(role)["expires"] = repository.in_days(-1).into();
        repository.publish(&ALL);
        let error = repository.refresh().await.unwrap_err();
        assert!(
            matches!(&error, FeedError::Expired { role: expired, .. } if expired == role),
            "{role}: {error}"
        );
        // A root is taken before it is asked for its date. Of the others nothing expired is kept.
        let trusted = repository.trusted();
        assert_eq!(trusted[0], 2, "{role}");
        let position = ALL.iter().position(|each| *each == role).unwrap();
        assert!(
            role == "root" || trusted[position] < 2,
            "{role}: {trusted:?}"
        );
    }
}

#[tokio::test]
async fn expired_local_metadata_are_no_hindrance_to_newer_ones() {
    for role in ["root", "timestamp"] {
        let mut repository = Repository::unpinned();
        repository.of(role)["expires"] = repository.in_days(5).into();
        repository.publish(&ALL);
        repository.pin().await.unwrap();
        repository.refresh().await.unwrap();
        repository.now += jiff::SignedDuration::from_hours(24 * 6);
        assert_eq!(code(repository.refresh().await), "FEED_EXPIRED", "{role}");
        repository.of(role)["expires"] = repository.in_days(5).into();
        repository.publish(&[role]);
        repository.refresh().await.unwrap();
    }
}

#[tokio::test]
async fn an_expired_timestamp_still_forbids_an_older_one() {
    let mut repository = Repository::unpinned();
    repository.publish(&ALL);
    repository.publish(&["timestamp"]);
    repository.of("timestamp")["expires"] = repository.in_days(5).into();
    repository.publish(&["timestamp"]);
    repository.pin().await.unwrap();
    repository.refresh().await.unwrap();
    repository.now += jiff::SignedDuration::from_hours(24 * 6);
    repository.of("timestamp")["expires"] = repository.in_days(90).into();
    repository.restart("timestamp", 2);
    repository.publish(&["timestamp"]);
    assert_eq!(code(repository.refresh().await), "FEED_ROLLBACK");
    assert_eq!(repository.trusted()[TIMESTAMP], 3);
}

#[tokio::test]
async fn no_role_goes_back_with_or_without_digests_and_without_a_cache() {
    for digests in [false, true] {
        for lost in [false, true] {
            for role in ["timestamp", "snapshot", "targets"] {
                let mut repository = Repository::new().await;
                repository.digests = digests;
                repository.publish(&ALL[1..]);
                repository.refresh().await.unwrap();
                if lost {
                    store::clear(&repository.home.feed(), floors::FILE).unwrap();
                }
                repository.restart(role, 1);
                let from = ALL.iter().position(|each| *each == role).unwrap();
                repository.publish(&ALL[from..]);
                let outcome = code(repository.refresh().await);
                assert_eq!(outcome, "FEED_ROLLBACK", "{role}, {digests}, {lost}");
                let expected = if lost { [1, 0, 0, 0] } else { [1, 2, 2, 2] };
                let mut trusted = repository.trusted();
                // A newer timestamp that leads to a refused snapshot may be kept: it forbids nothing that is good.
                if trusted[TIMESTAMP] == 3 {
                    trusted[TIMESTAMP] = expected[TIMESTAMP];
                }
                assert_eq!(trusted, expected, "{role}, {digests}, {lost}");
            }
        }
    }
}

#[tokio::test]
async fn new_keys_bring_a_feed_back_from_versions_far_ahead() {
    for (role, rotated) in [
        ("timestamp", vec!["timestamp"]),
        ("snapshot", vec!["snapshot", "timestamp"]),
        ("targets", vec!["snapshot"]),
    ] {
        let mut repository = Repository::new().await;
        repository.restart(role, 100);
        repository.publish(&ALL[1..]);
        repository.refresh().await.unwrap();
        let position = ALL.iter().position(|each| *each == role).unwrap();
        assert_eq!(repository.trusted()[position], 100);
        for role in rotated {
            let key = repository.new_key();
            repository.hand(role, &[key], 1);
        }
        repository.restart(role, 1);
        repository.publish(&ALL);
        repository.refresh().await.unwrap();
        assert_eq!(repository.trusted()[position], 1, "{role}");
    }
}

#[tokio::test]
async fn a_threshold_is_met_by_different_keys_only() {
    for role in ["timestamp", "snapshot", "targets"] {
        let mut repository = Repository::new().await;
        let keys = repository.new_keys(3);
        repository.hand(role, &keys, 2);
        repository.signers.insert(role.into(), vec![keys[0]]);
        repository.publish(&ALL);
        assert_eq!(
            code(repository.refresh().await),
            "FEED_SIGNATURE",
            "one of two: {role}"
        );

        // The same signature twice is not two, and makes the file invalid even where one is enough.
        repository
            .signers
            .insert(role.into(), vec![keys[0], keys[0]]);
        repository.publish(&ALL);
        assert_eq!(
            code(repository.refresh().await),
            "FEED_SIGNATURE",
            "twice: {role}"
        );

        repository
            .signers
            .insert(role.into(), vec![keys[2], keys[1]]);
        repository.publish(&ALL);
        repository.refresh().await.unwrap();
        repository.hand(role, &keys[..2], 3);
        repository.publish(&ALL);
        assert_eq!(
            code(repository.refresh().await),
            "FEED_SIGNATURE",
            "too few keys: {role}"
        );
    }
}

#[tokio::test]
async fn a_wrong_or_empty_signature_beside_enough_good_ones_is_ignored() {
    for bad in ["ab".repeat(64), String::new(), "no hex".into()] {
        let mut repository = Repository::new().await;
        let other = repository.new_key();
        let keys = [3, other];
        repository.hand("timestamp", &keys, 1);
        repository.publish(&["root"]);
        repository.publish(&["timestamp"]);
        let mut signed: Value = serde_json::from_slice(&repository.signed("timestamp")).unwrap();
        signed["signatures"][0]["sig"] = bad.clone().into();
        repository.write("timestamp", 2, signed.to_string().as_bytes());
        repository.refresh().await.unwrap();
        assert_eq!(repository.trusted()[TIMESTAMP], 2, "{bad:?}");
    }
}

/// Keys, threshold and signers of one root.
type Root<'a> = (&'a [usize], usize, &'a [usize]);

/// Reads a chain of roots; says which the host ends with.
async fn chain(roots: &[Root<'_>]) -> (u64, &'static str) {
    let mut repository = Repository::unpinned();
    let ours = repository.new_keys(10);
    let named = |numbers: &[usize]| -> Vec<_> { numbers.iter().map(|n| ours[*n]).collect() };
    for (keys, threshold, signers) in roots {
        repository.hand("root", &named(keys), *threshold);
        repository.signers.insert("root".into(), named(signers));
        repository.publish(&["root"]);
    }
    repository.publish(&ALL[1..]);
    repository.pin().await.unwrap();
    let outcome = code(repository.refresh().await);
    (repository.trusted()[0], outcome)
}

#[tokio::test]
async fn roots_follow_each_other_when_the_old_and_the_new_keys_agree() {
    let five: &[usize] = &[0, 1, 2, 3, 4];
    let chains: [&[Root]; 9] = [
        &[(&[1], 1, &[1]), (&[2], 1, &[2, 1]), (&[2], 1, &[2])],
        // Signatures that nobody asked for do no harm.
        &[
            (&[1], 1, &[3, 1, 4]),
            (&[2], 1, &[3, 2, 1, 4]),
            (&[2], 1, &[3, 2, 4]),
        ],
        &[
            (five, 3, &[0, 2, 4]),
            (five, 3, &[0, 4, 1]),
            (five, 3, &[0, 1, 3]),
        ],
        &[(five, 3, &[0, 2, 4]), (&[0, 1, 3, 4, 5], 3, &[0, 4, 1])],
        &[
            (five, 3, &[0, 2, 4]),
            (&[0, 1, 3, 4, 5], 3, &[0, 2, 4, 5]),
            (&[0, 1, 3, 4, 5], 3, &[0, 4, 5]),
        ],
        &[
            (five, 3, &[0, 2, 4]),
            (&[5, 6, 7, 8, 9], 3, &[0, 2, 4, 5, 6, 7]),
            (&[5, 6, 7, 8, 9], 3, &[5, 6, 7]),
        ],
        &[(&[1, 2, 3], 1, &[1]), (&[1, 2, 3], 2, &[1, 2])],
        &[
            (&[1, 2, 3], 2, &[1, 2]),
            (&[1, 2, 3], 1, &[1, 2]),
            (&[1, 2, 3], 1, &[1]),
        ],
        &[(&[1], 1, &[1]), (&[1, 2], 2, &[1, 2])],
    ];
    for roots in chains {
        assert_eq!(
            chain(roots).await,
            (roots.len() as u64, "none"),
            "{roots:?}"
        );
    }
}

#[tokio::test]
async fn a_root_without_enough_old_or_new_keys_is_refused() {
    let five: &[usize] = &[0, 1, 2, 3, 4];
    let chains: [[Root; 2]; 6] = [
        [(&[1], 1, &[1]), (&[2], 1, &[2, 3, 4])],
        [(&[1], 1, &[1]), (&[2], 1, &[1, 3, 4])],
        [(five, 3, &[0, 2, 4]), (&[0, 1, 3, 4, 5], 3, &[0, 2, 4])],
        [(five, 3, &[0, 2, 4]), (&[0, 1, 3, 4, 5], 3, &[0, 4, 5])],
        [(&[1, 2, 3], 1, &[1]), (&[1, 2, 3], 2, &[2])],
        [(&[1, 2, 3], 2, &[1, 2]), (&[1, 2, 3], 1, &[1])],
    ];
    for roots in chains {
        assert_eq!(chain(&roots).await, (1, "FEED_SIGNATURE"), "{roots:?}");
    }
}

#[tokio::test]
async fn other_roles_take_any_of_their_keys_and_no_others() {
    let five: &[usize] = &[0, 1, 3, 4, 5];
    let all: &[usize] = &[0, 1, 2, 3, 4];
    let cases: [(Root, bool); 8] = [
        ((&[2], 1, &[2]), true),
        ((&[1], 1, &[3, 1, 4]), true),
        ((&[2], 1, &[1, 3, 4]), false),
        ((five, 3, &[0, 2, 4]), false),
        ((five, 3, &[0, 4]), false),
        ((all, 3, &[0, 2, 4]), true),
        ((all, 3, &[1, 2, 3]), true),
        ((all, 3, &[2, 3, 4]), true),
    ];
    for role in &ALL[1..] {
        for ((keys, threshold, signers), good) in cases {
            let mut repository = Repository::new().await;
            let ours = repository.new_keys(10);
            let named =
                |numbers: &[usize]| -> Vec<_> { numbers.iter().map(|n| ours[*n]).collect() };
            repository.hand(role, &named(keys), threshold);
            repository.signers.insert((*role).into(), named(signers));
            repository.publish(&ALL);
            let expected = if good { "none" } else { "FEED_SIGNATURE" };
            assert_eq!(
                code(repository.refresh().await),
                expected,
                "{role} {keys:?} {signers:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_threshold_of_nothing_is_never_met() {
    let mut repository = Repository::new().await;
    repository.hand("timestamp", &[3], 0);
    repository.signers.insert("timestamp".into(), vec![]);
    repository.publish(&ALL);
    assert_eq!(code(repository.refresh().await), "FEED_MALFORMED");
    assert_eq!(repository.trusted()[TIMESTAMP], 0);
}
