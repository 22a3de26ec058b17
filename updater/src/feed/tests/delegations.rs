//! Delegated roles: in which order they are asked, and which of them is believed about what.

use std::fs;

use serde_json::json;

use super::repository::Repository;
use super::server::Server;
use super::*;

/// What `delegator` gives to a role: its name, its paths, and whether the search ends there.
type Edge<'a> = (&'a str, &'a str, &'a [&'a str], bool);

const ANY: &[&str] = &["*"];

/// A repository with these delegations, every role in its first published version.
async fn delegating(edges: &[Edge<'_>]) -> Repository {
    let mut repository = Repository::new().await;
    for (delegator, role, paths, terminating) in edges {
        repository.delegate(delegator, role, paths, *terminating);
    }
    repository
}

fn publish(repository: &mut Repository) {
    let names: Vec<_> = repository.roles.keys().cloned().collect();
    for name in names
        .iter()
        .filter(|name| !repository::ALL.contains(&name.as_str()))
    {
        repository.publish(&[name]);
    }
    repository.publish(&["targets", "snapshot", "timestamp"]);
}

/// Looks for a file; says whether it was found, and which delegated roles were read for it.
async fn look(repository: &Repository, name: &str) -> (bool, Vec<String>) {
    let server = Server::of(repository.feed()).await;
    let mut feed = repository.refresh_from(&server.url).await.unwrap();
    let before = server.seen().len();
    let found = feed.target(name).await.unwrap().is_some();
    let asked = server.seen().split_off(before).into_iter().map(|request| {
        let file = request.path.trim_start_matches("/metadata/1.").to_owned();
        file.trim_end_matches(".json").to_owned()
    });
    (found, asked.collect())
}

#[tokio::test]
async fn roles_are_asked_depth_first_in_the_order_of_their_delegators() {
    let py: &[&str] = &["*.py"];
    let graphs: [(&[Edge], &[&str]); 12] = [
        (&[("targets", "A", ANY, false)], &["A"]),
        (
            &[("targets", "A", ANY, false), ("targets", "B", ANY, false)],
            &["A", "B"],
        ),
        (
            &[
                ("targets", "A", ANY, false),
                ("targets", "B", ANY, false),
                ("B", "C", ANY, false),
            ],
            &["A", "B", "C"],
        ),
        (
            &[
                ("targets", "A", ANY, false),
                ("targets", "B", ANY, false),
                ("A", "C", ANY, false),
                ("A", "D", ANY, false),
            ],
            &["A", "C", "D", "B"],
        ),
        (
            &[
                ("targets", "A", ANY, false),
                ("targets", "B", ANY, false),
                ("A", "C", ANY, false),
                ("C", "D", ANY, false),
            ],
            &["A", "C", "D", "B"],
        ),
        // A terminating one ends the search for all but those below it.
        (
            &[
                ("targets", "A", ANY, false),
                ("targets", "B", ANY, false),
                ("A", "C", ANY, true),
                ("A", "D", ANY, false),
            ],
            &["A", "C"],
        ),
        (
            &[
                ("targets", "A", ANY, false),
                ("targets", "B", ANY, false),
                ("A", "C", ANY, true),
                ("C", "D", ANY, false),
            ],
            &["A", "C", "D"],
        ),
        // Those whose paths do not match are not asked, nor those below them.
        (
            &[
                ("targets", "A", py, false),
                ("targets", "B", ANY, false),
                ("A", "C", ANY, false),
            ],
            &["B"],
        ),
        (
            &[
                ("targets", "A", ANY, false),
                ("targets", "B", ANY, false),
                ("A", "C", py, false),
                ("C", "D", ANY, false),
            ],
            &["A", "B"],
        ),
        // A circle ends.
        (
            &[
                ("targets", "A", ANY, false),
                ("targets", "B", ANY, false),
                ("B", "C", ANY, false),
                ("C", "D", ANY, false),
                ("D", "B", ANY, false),
            ],
            &["A", "B", "C", "D"],
        ),
        (
            &[
                ("targets", "A", ANY, false),
                ("targets", "B", ANY, false),
                ("B", "C", ANY, false),
                ("A", "C", ANY, false),
            ],
            &["A", "C", "B"],
        ),
        (
            &[
                ("targets", "A", ANY, false),
                ("targets", "B", ANY, false),
                ("B", "C", ANY, false),
                ("A", "C", py, false),
            ],
            &["A", "B", "C"],
        ),
    ];
    for (edges, expected) in graphs {
        let mut repository = delegating(edges).await;
        publish(&mut repository);
        let (found, asked) = look(&repository, "nowhere").await;
        assert!(!found);
        assert_eq!(asked, expected, "{edges:?}");
    }
}

#[tokio::test]
async fn paths_are_matched_segment_by_segment() {
    let mut repository = delegating(&[
        ("targets", "A", &["*.doc", "*.md", "foo-?.tgz"], false),
        ("targets", "B", &["releases/*/*"], false),
        ("B", "C", &["releases/x/*"], false),
        ("B", "D", &["releases/y/*.zip"], false),
    ])
    .await;
    let files = [
        ("targets", "top", true, vec![]),
        ("A", "README.md", true, vec!["A"]),
        ("A", "releases/README.md", false, vec![]),
        ("A", "foo-1.tgz", true, vec!["A"]),
        ("A", "foo-alpha.tgz", false, vec![]),
        ("A", "README.MD", false, vec![]),
        ("C", "releases/x/x_v1", true, vec!["B", "C"]),
        ("D", "releases/y/y_v1.zip", true, vec!["B", "D"]),
        ("D", "releases/z/z_v1.zip", false, vec!["B"]),
    ];
    for (role, name, ..) in &files {
        repository.add(role, name, name.as_bytes(), json!(null));
    }
    publish(&mut repository);
    for (_, name, found, asked) in files {
        assert_eq!(
            look(&repository, name).await,
            (found, asked.iter().map(ToString::to_string).collect()),
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_role_is_judged_by_each_delegator_on_whose_way_it_lies() {
    let mut repository = delegating(&[
        ("targets", "left", &["left/*"], false),
        ("targets", "right", &["right/*"], false),
        ("left", "both", &["left/*"], false),
        ("right", "both", &["right/*"], false),
    ])
    .await;
    // Two delegators, a key each; only the left one's key signs.
    repository.signers.get_mut("both").unwrap().truncate(1);
    repository.add("both", "left/x", b"good", json!(null));
    repository.add("both", "right/x", b"bad", json!(null));
    publish(&mut repository);
    let mut feed = repository.refresh().await.unwrap();
    assert!(feed.target("left/x").await.unwrap().is_some());
    assert_eq!(code(feed.target("right/x").await), "FEED_SIGNATURE");
}

#[tokio::test]
async fn a_role_that_the_snapshot_does_not_name_is_not_even_asked() {
    let mut repository = delegating(&[("targets", "A", ANY, false)]).await;
    repository.add("A", "x", b"x", json!(null));
    repository.publish(&["A", "targets"]);
    repository.of("snapshot")["meta"]
        .as_object_mut()
        .unwrap()
        .remove("A.json");
    repository.publish(&["snapshot", "timestamp"]);
    assert_eq!(look(&repository, "x").await, (false, vec![]));
}

#[tokio::test]
async fn a_role_with_a_top_level_name_is_not_followed() {
    let mut repository = delegating(&[("targets", "A", ANY, false)]).await;
    let delegated = &mut repository.of("targets")["delegations"]["roles"];
    delegated[0]["name"] = "snapshot".into();
    repository.publish(&["targets", "snapshot", "timestamp"]);
    assert_eq!(look(&repository, "x").await, (false, vec![]));
}

/// The repository as a feed of ours: a channel's file by `role`, its archive by `archive_role`.
async fn offering(edges: &[Edge<'_>], role: &str, archive_role: &str) -> Repository {
    let mut repository = delegating(edges).await;
    let archive = release::archive_name(staging::TARGET, &"1.0.0".parse().unwrap());
    repository.add(
        archive_role,
        &archive,
        b"archive",
        json!({"schema": 1, "version": "1.0.0"}),
    );
    let file = json!({"schema": 1, "version": "1.0.0", "archive": archive, "barriers": ["0.9.0", "0.5.0"]});
    repository.add(
        role,
        &channel_file("stable"),
        file.to_string().as_bytes(),
        json!(null),
    );
    publish(&mut repository);
    repository
}

fn channel_file(channel: &str) -> String {
    format!("rollproxy/{}/{channel}.json", staging::TARGET)
}

const STABLE: Edge<'static> = (
    "targets",
    "channel-stable",
    &["rollproxy/*/stable.json"],
    true,
);

async fn stable(repository: &Repository) -> Result<Option<Release>, FeedError> {
    let mut feed = repository.refresh().await?;
    feed.release("stable", staging::TARGET).await
}

#[tokio::test]
async fn a_channel_is_read_from_its_own_role_and_from_targets_in_older_feeds() {
    for role in ["channel-stable", "targets"] {
        let repository = offering(&[STABLE], role, "targets").await;
        let release = stable(&repository).await.unwrap().unwrap();
        assert_eq!(release.version.to_string(), "1.0.0", "{role}");
        let barriers: Vec<_> = release.barriers.iter().map(ToString::to_string).collect();
        assert_eq!(barriers, ["0.5.0", "0.9.0"]);
    }
    let of_old = offering(&[], "targets", "targets").await;
    assert!(stable(&of_old).await.unwrap().is_some());
}

#[tokio::test]
async fn an_archive_that_a_channels_role_signed_is_not_believed() {
    // Within its paths or, by a publisher's mistake, with paths that reach archives.
    let wide: Edge = ("targets", "channel-stable", &["rollproxy/*/*"], true);
    for edge in [STABLE, wide] {
        let repository = offering(&[edge], "channel-stable", "channel-stable").await;
        assert_eq!(code(stable(&repository).await), "ARCHIVE_MISSING");
        let mut feed = repository.refresh().await.unwrap();
        let version = "1.0.0".parse().unwrap();
        assert!(
            feed.version(&version, staging::TARGET)
                .await
                .unwrap()
                .is_none()
        );
        assert!(
            feed.about(&version, staging::TARGET)
                .await
                .unwrap()
                .is_none()
        );
    }
}

#[tokio::test]
async fn another_channels_file_is_not_believed_of_a_channels_role() {
    // Within its own paths it is not even looked at for another's file.
    let beta: Edge = ("targets", "channel-beta", &["rollproxy/*/beta.json"], true);
    let repository = offering(&[beta, STABLE], "channel-beta", "targets").await;
    assert_eq!(stable(&repository).await.unwrap(), None);
    // By a publisher's mistake its paths reach it, and it is asked first.
    let wide: Edge = ("targets", "channel-beta", &["rollproxy/*/*.json"], false);
    let repository = offering(&[wide, STABLE], "channel-beta", "targets").await;
    let error = stable(&repository).await.unwrap_err();
    assert_eq!(error.code(), "CHANNEL_MALFORMED");
    assert!(error.to_string().contains("may not speak of it"), "{error}");
    // Nor does it become the other's role by delegating to that name with a key of its own.
    let below: Edge = (
        "channel-beta",
        "channel-stable",
        &["rollproxy/*/stable.json"],
        true,
    );
    let repository = offering(&[wide, below], "channel-stable", "targets").await;
    assert_eq!(code(stable(&repository).await), "CHANNEL_MALFORMED");
}

#[tokio::test]
async fn a_channels_role_is_held_to_its_key_its_date_and_its_pin() {
    let sign_with_another: fn(&mut Repository) = |repository| {
        let key = repository.new_key();
        repository
            .signers
            .insert("channel-stable".into(), vec![key]);
        repository.publish(&["channel-stable", "snapshot", "timestamp"]);
    };
    let expire: fn(&mut Repository) = |repository| {
        repository.of("channel-stable")["expires"] = repository.in_days(-1).into();
        repository.publish(&["channel-stable", "snapshot", "timestamp"]);
    };
    let mix: fn(&mut Repository) = |repository| {
        // The old file under the new version's name: each well signed, not of one feed.
        let old = fs::read(repository.feed().join("metadata/1.channel-stable.json")).unwrap();
        repository.publish(&["channel-stable", "snapshot", "timestamp"]);
        fs::write(
            repository.feed().join("metadata/2.channel-stable.json"),
            old,
        )
        .unwrap();
    };
    let lose: fn(&mut Repository) = |repository| {
        repository.publish(&["channel-stable", "snapshot", "timestamp"]);
        fs::remove_file(repository.feed().join("metadata/2.channel-stable.json")).unwrap();
    };
    for (spoil, expected) in [
        (sign_with_another, "FEED_SIGNATURE"),
        (expire, "FEED_EXPIRED"),
        (mix, "FEED_INCONSISTENT"),
        (lose, "FEED_MISSING"),
    ] {
        let mut repository = offering(&[STABLE], "channel-stable", "targets").await;
        assert!(stable(&repository).await.unwrap().is_some());
        spoil(&mut repository);
        assert_eq!(code(stable(&repository).await), expected);
    }
}

#[tokio::test]
async fn a_channels_role_neither_goes_back_nor_away_also_without_a_cache() {
    for lost in [false, true] {
        for gone in [false, true] {
            let mut repository = offering(&[STABLE], "channel-stable", "targets").await;
            repository.publish(&["channel-stable", "snapshot", "timestamp"]);
            stable(&repository).await.unwrap();
            if lost {
                store::clear(&repository.home.feed(), floors::FILE).unwrap();
            }
            if gone {
                let meta = repository.of("snapshot")["meta"].as_object_mut().unwrap();
                meta.remove("channel-stable.json");
            } else {
                repository.restart("channel-stable", 1);
                repository.publish(&["channel-stable"]);
            }
            repository.publish(&["snapshot", "timestamp"]);
            let expected = if gone && !lost {
                "FEED_INCONSISTENT"
            } else {
                "FEED_ROLLBACK"
            };
            assert_eq!(
                code(stable(&repository).await),
                expected,
                "lost {lost}, gone {gone}"
            );
        }
    }
}

#[tokio::test]
async fn role_names_are_quoted_and_stay_in_the_cache() {
    for (role, quoted) in [
        ("?", "%3F"),
        ("#", "%23"),
        ("/role", "%2Frole"),
        ("../role", "..%2Frole"),
        ("versions", "versions"),
    ] {
        let mut repository = delegating(&[("targets", role, ANY, false)]).await;
        repository.publish(&["targets"]);
        // Its file is put where a server finds it that unquotes, and where one does that does not.
        repository.of(role)["version"] = 1.into();
        let bytes = repository.signed(role);
        repository.of("snapshot")["meta"][format!("{role}.json")] = json!({"version": 1});
        repository.publish(&["snapshot", "timestamp"]);
        let server = Server::with(repository.feed(), move |request| {
            let wanted = format!("/metadata/1.{quoted}.json");
            (request.path == wanted).then(|| server::Reply::new(200, bytes.clone()))
        })
        .await;
        let mut feed = repository.refresh_from(&server.url).await.unwrap();
        assert!(feed.target("nowhere").await.unwrap().is_none(), "{role}");
        assert_eq!(
            server.seen().last().unwrap().path,
            format!("/metadata/1.{quoted}.json")
        );
        let cached = repository.home.feed().join(format!("{quoted}.json"));
        if role == "versions" {
            // Still ours: the next run reads it.
            repository.refresh_from(&server.url).await.unwrap();
        } else {
            assert!(cached.is_file(), "{role}");
        }
    }
}
