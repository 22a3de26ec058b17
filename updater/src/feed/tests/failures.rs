//! What a network, a server, a publisher or a clock does wrong: each refused by name, and nothing lost by it.

use std::fs;

use serde_json::json;

use super::repository::{ALL, Repository};
use super::server::{Reply, Request, Server};
use super::*;

const YEAR: i64 = 24 * 365;

fn is_archive(request: &Request) -> bool {
    request.path.ends_with(".tar.gz")
}

async fn download(world: &World, feed: &Feed, release: &Release) -> Result<Downloaded, FeedError> {
    let folder = world.home.downloads();
    feed.downloader()
        .download(&release.wanted(), &folder, PATIENCE, &mut |_| {}, None)
        .await
}

#[tokio::test]
async fn every_status_has_its_code_for_metadata_and_for_archives() {
    let world = World::with_release(b"archive").await;
    for (status, metadata, archive, retry) in [
        (400, "FEED_REFUSED", "FEED_REFUSED", false),
        (401, "FEED_REFUSED", "FEED_REFUSED", false),
        (403, "FEED_REFUSED", "FEED_REFUSED", false),
        (404, "FEED_MISSING", "ARCHIVE_MISSING", false),
        (410, "FEED_MISSING", "ARCHIVE_MISSING", false),
        (416, "FEED_REFUSED", "FEED_REFUSED", false),
        (429, "FEED_UNREACHABLE", "FEED_UNREACHABLE", true),
        (500, "FEED_UNREACHABLE", "FEED_UNREACHABLE", true),
        (502, "FEED_UNREACHABLE", "FEED_UNREACHABLE", true),
    ] {
        let server = Server::with(&world.place.feed, move |request| {
            request
                .path
                .ends_with("timestamp.json")
                .then(|| Reply::new(status, "no"))
        })
        .await;
        let error = world.refresh(&server.url).await.unwrap_err();
        assert_eq!(
            (error.code(), error.retry()),
            (metadata, retry),
            "{status}: {error}"
        );

        let server = Server::with(&world.place.feed, move |request| {
            is_archive(request).then(|| Reply::new(status, "no"))
        })
        .await;
        let (feed, release) = world.stable(&server.url).await.unwrap();
        let error = download(&world, &feed, &release).await.unwrap_err();
        assert_eq!(
            (error.code(), error.retry()),
            (archive, retry),
            "{status}: {error}"
        );
        assert!(!error.to_string().contains("s3cret"));
    }
    // What it was before is what it is still.
    world.stable(&world.url()).await.unwrap();
}

#[tokio::test]
async fn a_channel_file_that_is_not_there_or_not_what_was_signed_is_refused() {
    let world = World::with_release(b"archive").await;
    for (reply, expected) in [
        (Reply::new(404, ""), "FEED_MISSING"),
        (Reply::new(200, "{}"), "FEED_INCONSISTENT"),
        (Reply::new(200, "<html>"), "FEED_MALFORMED"),
        (Reply::new(200, vec![b' '; 100_000]), "FEED_MALFORMED"),
    ] {
        let server = Server::with(&world.place.feed, move |request| {
            request.path.ends_with("stable.json").then_some(())?;
            request.path.starts_with("/targets/").then(|| reply.clone())
        })
        .await;
        assert_eq!(code(world.stable(&server.url).await), expected);
    }
    world.stable(&world.url()).await.unwrap();
}

#[tokio::test]
async fn metadata_that_never_end_are_cut_off() {
    let world = World::with_release(b"archive").await;
    for file in [
        "2.root.json",
        "timestamp.json",
        "snapshot.json",
        "targets.json",
    ] {
        let server = Server::with(&world.place.feed, move |request| {
            let endless = Reply {
                unannounced: true,
                // More than the client reads of any: it is gone before the server has sent all.
                ..Reply::new(200, vec![b' '; 8_000_000])
            };
            request.path.ends_with(file).then_some(endless)
        })
        .await;
        let home = Home::at(world.folder.path().join(file));
        home.create().unwrap();
        fs::copy(world.home.trust_root(), home.trust_root()).unwrap();
        let mut feed = Feed::open(&FeedSettings::new(&server.url).unwrap(), &home).unwrap();
        let error = feed.refresh(world.now).await.unwrap_err();
        assert!(
            matches!(error, FeedError::Oversized { .. }),
            "{file}: {error}"
        );
    }
}

#[tokio::test]
async fn a_clock_a_year_off_either_way_loses_nothing() {
    let mut world = World::with_release(b"archive").await;
    let right = world.now;
    world.stable(&world.url()).await.unwrap();
    let before = Feed::cached(&world.home).unwrap();
    world.now = right + jiff::SignedDuration::from_hours(YEAR);
    let error = world.refresh(&world.url()).await.unwrap_err();
    assert_eq!((error.code(), error.retry()), ("FEED_EXPIRED", false));
    assert!(error.to_string().contains("clock"), "{error}");
    world.now = right - jiff::SignedDuration::from_hours(YEAR);
    world.stable(&world.url()).await.unwrap();
    world.now = right;
    world.stable(&world.url()).await.unwrap();
    assert_eq!(Feed::cached(&world.home).unwrap(), before);
}

#[tokio::test]
async fn a_root_that_expired_is_refused_unless_a_later_one_has_not() {
    let mut repository = Repository::new().await;
    repository.of("root")["expires"] = repository.in_days(-1).into();
    repository.publish(&["root"]);
    let error = repository.refresh().await.unwrap_err();
    assert!(
        matches!(&error, FeedError::Expired { role, .. } if role == "root"),
        "{error}"
    );
    // The next one mends it: those between are asked for their signatures only.
    repository.of("root")["expires"] = repository.in_days(5).into();
    repository.publish(&["root"]);
    repository.refresh().await.unwrap();
    assert_eq!(repository.trusted()[0], 3);
}

#[tokio::test]
async fn a_new_root_needs_two_of_three_keys() {
    let mut repository = Repository::unpinned();
    let keys = repository.new_keys(3);
    repository.hand("root", &keys, 2);
    repository.publish(&ALL);
    repository.pin().await.unwrap();
    repository.refresh().await.unwrap();
    repository.signers.insert("root".into(), keys[..1].to_vec());
    repository.publish(&["root"]);
    let error = repository.refresh().await.unwrap_err();
    assert_eq!(error.code(), "FEED_SIGNATURE");
    assert!(error.to_string().contains("2.root.json"), "{error}");
    repository.restart("root", 2);
    repository.signers.insert("root".into(), keys[1..].to_vec());
    repository.publish(&["root"]);
    repository.refresh().await.unwrap();
}

#[tokio::test]
async fn files_of_two_states_of_a_feed_are_not_mixed() {
    let world = World::with_release(b"one").await;
    let old = world.copy("old");
    world.release("1.1.0", b"two");
    let names = |folder: &Path, role: &str| -> Vec<String> {
        let mut found: Vec<(u64, String)> = fs::read_dir(folder.join("metadata"))
            .unwrap()
            .filter_map(|entry| {
                let name = entry.unwrap().file_name().into_string().unwrap();
                let (version, rest) = name.split_once('.')?;
                (rest == format!("{role}.json"))
                    .then(|| Some((version.parse().ok()?, name.clone())))?
            })
            .collect();
        found.sort();
        found.into_iter().map(|(_, name)| name).collect()
    };
    for role in ["snapshot", "targets", "channel-stable"] {
        let mixed = world.copy(&format!("mixed-{role}"));
        let (new, before) = (names(&mixed, role), names(&old, role));
        let from = old.join("metadata").join(before.last().unwrap());
        let to = mixed.join("metadata").join(new.last().unwrap());
        assert_ne!(fs::read(&from).unwrap(), fs::read(&to).unwrap(), "{role}");
        fs::copy(from, to).unwrap();
        let home = Home::at(world.folder.path().join(format!("home-{role}")));
        home.create().unwrap();
        fs::copy(world.home.trust_root(), home.trust_root()).unwrap();
        let settings = FeedSettings::new(&file_url(&mixed)).unwrap();
        let mut feed = Feed::open(&settings, &home).unwrap();
        let outcome = match feed.refresh(world.now).await {
            Ok(()) => feed.release("stable", staging::TARGET).await.map(drop),
            Err(error) => Err(error),
        };
        let error = outcome.unwrap_err();
        assert_eq!(error.code(), "FEED_INCONSISTENT", "{role}");
        assert!(
            error.to_string().contains("does not belong to the rest"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_feed_that_is_held_still_is_found_out_when_it_expires() {
    let mut world = World::with_release(b"one").await;
    let frozen = file_url(&world.copy("frozen"));
    world.refresh(&frozen).await.unwrap();
    world.now += jiff::SignedDuration::from_hours(24 * 89);
    world.refresh(&frozen).await.unwrap();
    world.now += jiff::SignedDuration::from_hours(48);
    let error = world.refresh(&frozen).await.unwrap_err();
    assert!(
        matches!(&error, FeedError::Expired { role, .. } if role == "timestamp"),
        "{error}"
    );
}

#[tokio::test]
async fn a_cache_that_was_cut_anywhere_is_read_anew() {
    let world = World::with_release(b"archive").await;
    world.stable(&world.url()).await.unwrap();
    let mut files = vec![world.home.feed()];
    let mut cached = Vec::new();
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(
                fs::read_dir(path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else if !path.ends_with(floors::FILE) {
            cached.push(path);
        }
    }
    assert!(cached.len() >= 6, "{cached:?}");
    for path in cached {
        let whole = fs::read(&path).unwrap();
        for length in [0, 1, whole.len() / 2, whole.len() - 1] {
            fs::write(&path, &whole[..length]).unwrap();
            let (_, release) = world.stable(&world.url()).await.unwrap();
            assert_eq!(
                release.version.to_string(),
                "1.0.0",
                "{path:?} of {length} bytes"
            );
        }
    }
}

#[tokio::test]
async fn credentials_stay_with_the_host_they_are_for() {
    let world = World::with_release(b"archive").await;
    let elsewhere = Server::of(&world.place.feed).await;
    let to = elsewhere.url.clone();
    let feed = Server::with(&world.place.feed, move |request| {
        let to = format!("{to}{}", request.path.trim_start_matches('/'));
        Some(Reply::new(307, "").header("Location", to))
    })
    .await;
    let with = feed.url.replace("http://", "http://ann:s3cret@");
    let (found, release) = world.stable(&with).await.unwrap();
    download(&world, &found, &release).await.unwrap();
    assert!(
        feed.seen()
            .iter()
            .all(|request| request.authorization.is_some())
    );
    assert!(!elsewhere.seen().is_empty());
    for request in elsewhere.seen() {
        assert!(
            request.authorization.is_none() && !request.head.contains("s3cret"),
            "{}",
            request.head
        );
    }
    // Nor are they in anything that was written down.
    let mut paths = vec![world.home.root().to_owned()];
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(
                fs::read_dir(path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else {
            let bytes = fs::read(&path).unwrap();
            assert!(
                !String::from_utf8_lossy(&bytes).contains("s3cret"),
                "{path:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_mirror_is_not_sent_the_feeds_credentials() {
    let world = World::with_release(b"archive").await;
    let feed = Server::with(&world.place.feed, |_| Some(Reply::new(500, ""))).await;
    let mirror = Server::of(&world.place.feed).await;
    let with = feed.url.replace("http://", "http://ann:s3cret@");
    let settings = FeedSettings::new(&with)
        .unwrap()
        .with_mirrors(std::slice::from_ref(&mirror.url))
        .unwrap();
    let mut both = Feed::open(&settings, &world.home).unwrap();
    both.refresh(world.now).await.unwrap();
    let release = both
        .release("stable", staging::TARGET)
        .await
        .unwrap()
        .unwrap();
    download(&world, &both, &release).await.unwrap();
    assert!(
        feed.seen()
            .iter()
            .all(|request| request.authorization.is_some())
    );
    assert!(mirror.seen().len() > 3);
    for request in mirror.seen() {
        assert!(!request.head.contains("s3cret") && request.authorization.is_none());
    }
    let state = fs::read_to_string(world.home.state().join("mirrors.json")).unwrap();
    assert!(
        !state.contains("s3cret") && !state.contains("ann"),
        "{state}"
    );
}

#[tokio::test]
async fn a_redirect_that_carries_credentials_of_its_own_does_not_show_them() {
    let world = World::with_release(b"archive").await;
    let elsewhere = Server::with(&world.place.feed, |_| Some(Reply::new(403, ""))).await;
    let to = elsewhere.url.replace("http://", "http://bob:hunter2@");
    let server = Server::with(&world.place.feed, move |request| {
        let to = format!("{to}{}?token=hunter2", request.path.trim_start_matches('/'));
        Some(Reply::new(302, "").header("Location", to))
    })
    .await;
    let error = world.refresh(&server.url).await.unwrap_err();
    assert_eq!(error.code(), "FEED_REFUSED");
    assert!(
        !format!("{error} {error:?}").contains("hunter2"),
        "{error:?}"
    );
}

#[tokio::test]
async fn odd_metadata_of_the_right_signers_are_refused_and_not_a_crash() {
    let odd = [
        json!(-1),
        json!("1"),
        json!(1.5),
        json!(null),
        json!({}),
        json!(18_446_744_073_709_551_615_u64),
    ];
    for role in ALL {
        for version in &odd {
            let mut repository = Repository::new().await;
            repository.publish(&ALL);
            repository.of(role)["version"] = version.clone();
            let signed = if version.is_f64() {
                // Canonical JSON knows no fractions: nobody can sign this.
                repository.roles[role].to_string().into_bytes()
            } else {
                repository.signed(role)
            };
            repository.write(role, 2, &signed);
            if role != "timestamp" {
                repository.publish(&["timestamp"]);
            }
            let outcome = repository.refresh().await;
            // The largest number there is may be a timestamp's: nothing above names another.
            if role != "timestamp" || !version.is_u64() {
                assert!(outcome.is_err(), "{role} {version}");
            }
        }
    }
}
