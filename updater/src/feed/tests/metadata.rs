//! Refreshing: what is trusted, what is refused, and what survives.

use std::fs;

use super::server::{Reply, Server};
use super::*;

#[tokio::test]
async fn a_release_is_found_over_files_and_over_http() {
    let world = World::with_release(b"archive").await;
    let server = Server::of(&world.place.feed).await;
    for url in [&world.url(), &server.url] {
        let (mut feed, release) = world.stable(url).await.unwrap();
        assert_eq!(release.version.to_string(), "1.0.0");
        assert_eq!(
            release.archive,
            format!("rollproxy/{}/1.0.0.tar.gz", staging::TARGET)
        );
        assert_eq!((release.length, release.notes.as_str()), (7, "about 1.0.0"));
        assert_eq!(release.sha256, staging::digest::of(b"archive"));
        assert_eq!(feed.release("beta", staging::TARGET).await.unwrap(), None);
        assert_eq!(
            feed.release("stable", "riscv64-unknown-linux-gnu")
                .await
                .unwrap(),
            None
        );
    }
    // The second time there was nothing new: it asked for what cannot be known otherwise, and for the channel's role,
    // which the client library keeps and does not read again.
    let asked: Vec<_> = server
        .seen()
        .into_iter()
        .map(|request| request.path)
        .collect();
    assert_eq!(
        asked,
        [
            "/metadata/2.root.json",
            "/metadata/timestamp.json",
            "/metadata/1.channel-stable.json"
        ]
    );
}

#[tokio::test]
async fn a_channel_follows_its_promotions() {
    let world = World::with_release(b"one").await;
    world.release("1.1.0", b"two");
    assert_eq!(
        world
            .stable(&world.url())
            .await
            .unwrap()
            .1
            .version
            .to_string(),
        "1.1.0"
    );
    world.promote("stable", "1.0.0");
    assert_eq!(
        world
            .stable(&world.url())
            .await
            .unwrap()
            .1
            .version
            .to_string(),
        "1.0.0"
    );
}

#[tokio::test]
async fn nothing_is_offered_before_a_refresh() {
    let world = World::with_release(b"x").await;
    let mut feed = world.open(&world.url()).unwrap();
    assert_eq!(
        code(feed.release("stable", staging::TARGET).await),
        "FEED_NOT_READ"
    );
}

#[tokio::test]
async fn a_feed_signed_by_others_is_refused() {
    let (world, other) = (
        World::with_release(b"x").await,
        World::with_release(b"x").await,
    );
    assert_eq!(code(world.refresh(&other.url()).await), "FEED_SIGNATURE");
    assert_eq!(code(Feed::cached(&world.home)), "none");
    // Nothing of the others' was kept: our own feed is read as ever.
    assert_eq!(code(world.refresh(&world.url()).await), "none");
}

#[tokio::test]
async fn an_older_copy_is_refused_also_when_the_cache_is_gone() {
    let world = World::with_release(b"x").await;
    let old = file_url(&world.copy("old"));
    world.release("1.1.0", b"y");
    world.refresh(&world.url()).await.unwrap();
    let error = world.refresh(&old).await.unwrap_err();
    assert!(
        matches!(&error, FeedError::Rollback { role, .. } if role == "timestamp"),
        "{error}"
    );

    store::clear(&world.home.feed(), floors::FILE).unwrap();
    assert_eq!(code(world.refresh(&old).await), "FEED_ROLLBACK");
    assert_eq!(
        Feed::cached(&world.home).unwrap().timestamp,
        None,
        "a refused feed was cached"
    );
    assert_eq!(code(world.refresh(&world.url()).await), "none");
}

#[tokio::test]
async fn expired_metadata_are_said_to_be_expired_and_a_new_signature_mends_that() {
    let long_ago = Timestamp::now() - jiff::SignedDuration::from_hours(24 * 200);
    let mut world = World::made_at(long_ago).await;
    world.release("1.0.0", b"x");
    world.now = Timestamp::now();
    let error = world.refresh(&world.url()).await.unwrap_err();
    assert!(
        matches!(&error, FeedError::Expired { role, .. } if role == "timestamp"),
        "{error}"
    );
    assert_eq!((error.code(), error.retry()), ("FEED_EXPIRED", false));

    let how = publisher::Refresh {
        validity: world.validity(),
    };
    publisher::refresh(&world.place, &how).unwrap();
    world.stable(&world.url()).await.unwrap();
}

#[tokio::test]
async fn a_feed_that_expires_while_nothing_changes_is_noticed() {
    let mut world = World::with_release(b"x").await;
    world.refresh(&world.url()).await.unwrap();
    world.now += jiff::SignedDuration::from_hours(24 * 91);
    assert_eq!(code(world.refresh(&world.url()).await), "FEED_EXPIRED");
    // What is cached can still be read: an updater of that day would work on.
    assert!(Feed::cached(&world.home).unwrap().targets.is_some());
}

#[tokio::test]
async fn a_clock_that_steps_back_is_no_reason_to_refuse() {
    let mut world = World::with_release(b"x").await;
    world.refresh(&world.url()).await.unwrap();
    world.now -= jiff::SignedDuration::from_hours(24 * 365 * 20);
    world.stable(&world.url()).await.unwrap();
}

#[tokio::test]
async fn damaged_files_are_named() {
    for (name, expected) in [
        ("timestamp.json", "FEED_MALFORMED"),
        ("3.snapshot.json", "FEED_INCONSISTENT"),
        ("3.targets.json", "FEED_INCONSISTENT"),
    ] {
        let world = World::with_release(b"x").await;
        let path = world.place.feed.join("metadata").join(name);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        let error = world.refresh(&world.url()).await.unwrap_err();
        assert_eq!(error.code(), expected, "{name}");
        assert!(error.to_string().contains(name), "{error}");
        fs::write(&path, whole).unwrap();
        assert_eq!(code(world.refresh(&world.url()).await), "none", "{name}");
    }
}

#[tokio::test]
async fn a_changed_byte_breaks_the_signature() {
    let world = World::with_release(b"x").await;
    let path = world.place.feed.join("metadata/timestamp.json");
    let changed = fs::read_to_string(&path)
        .unwrap()
        .replace("\"version\": 3", "\"version\": 9");
    fs::write(&path, changed).unwrap();
    assert_eq!(code(world.refresh(&world.url()).await), "FEED_SIGNATURE");
}

#[tokio::test]
async fn a_web_page_is_called_a_web_page() {
    let world = World::with_release(b"x").await;
    for kind in ["text/html; charset=utf-8", "application/octet-stream"] {
        let server = Server::with(&world.place.feed, move |_| {
            Some(
                Reply::new(200, "\n<!doctype html><title>Please log in</title>")
                    .header("Content-Type", kind),
            )
        })
        .await;
        let error = world.refresh(&server.url).await.unwrap_err();
        assert_eq!((error.code(), error.retry()), ("FEED_MALFORMED", true));
        assert!(
            error.to_string().contains("captive portal") && !error.to_string().contains("log in"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn answers_are_bounded_announced_or_not() {
    let world = World::with_release(b"x").await;
    for unannounced in [false, true] {
        let server = Server::with(&world.place.feed, move |request| {
            let reply = Reply {
                unannounced,
                ..Reply::new(200, vec![b' '; 100_000])
            };
            request.path.ends_with("timestamp.json").then_some(reply)
        })
        .await;
        let error = world.refresh(&server.url).await.unwrap_err();
        assert!(
            matches!(error, FeedError::Oversized { limit: 16_384, .. }),
            "{error}"
        );
    }
}

#[tokio::test]
async fn troubles_of_the_moment_are_told_from_lasting_ones() {
    let world = World::with_release(b"x").await;
    for (status, expected, retry) in [
        (503, "FEED_UNREACHABLE", true),
        (429, "FEED_UNREACHABLE", true),
        (401, "FEED_REFUSED", false),
    ] {
        let server = Server::with(&world.place.feed, move |_| Some(Reply::new(status, "no"))).await;
        let error = world.refresh(&server.url).await.unwrap_err();
        assert_eq!((error.code(), error.retry()), (expected, retry), "{status}");
    }
    // Bound, so that nobody else gets the port, but not listening.
    let silent = tokio::net::TcpSocket::new_v4().unwrap();
    silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let error = world.refresh(&url).await.unwrap_err();
    assert_eq!((error.code(), error.retry()), ("FEED_UNREACHABLE", true));
    assert!(error.to_string().contains("refused"), "{error}");
    let empty = file_url(world.folder.path());
    assert_eq!(code(world.refresh(&empty).await), "FEED_MISSING");
}

#[tokio::test]
async fn a_server_that_says_nothing_is_given_up() {
    let world = World::with_release(b"x").await;
    let server = Server::with(&world.place.feed, |_| {
        Some(Reply {
            stall_after: Some(1),
            ..Reply::new(200, "{}")
        })
    })
    .await;
    let settings = FeedSettings {
        read_timeout: Duration::from_millis(50),
        ..FeedSettings::new(&server.url).unwrap()
    };
    let mut feed = Feed::open(&settings, &world.home).unwrap();
    let error = feed.refresh(world.now).await.unwrap_err();
    assert_eq!(
        (error.code(), error.retry()),
        ("FEED_UNREACHABLE", true),
        "{error}"
    );
}

#[tokio::test]
async fn a_store_that_forbids_what_is_not_there_still_serves_a_feed() {
    let world = World::with_release(b"x").await;
    let server = Server::with(&world.place.feed, |request| {
        request
            .path
            .ends_with("2.root.json")
            .then(|| Reply::new(403, "<Error>AccessDenied</Error>"))
    })
    .await;
    world.stable(&server.url).await.unwrap();
}

#[tokio::test]
async fn redirects_are_followed_but_not_for_ever() {
    let world = World::with_release(b"x").await;
    let real = Server::of(&world.place.feed).await;
    let to = real.url.clone();
    let moved = Server::with(&world.place.feed, move |request| {
        let to = format!("{}{}", to, request.path.trim_start_matches('/'));
        Some(Reply::new(302, "").header("Location", to))
    })
    .await;
    world.stable(&moved.url).await.unwrap();

    let circle = Server::with(&world.place.feed, |request| {
        Some(Reply::new(302, "").header("Location", request.path.clone()))
    })
    .await;
    let error = world.refresh(&circle.url).await.unwrap_err();
    assert_eq!(
        (error.code(), error.retry()),
        ("FEED_REFUSED", false),
        "{error}"
    );
    assert!(circle.seen().len() < 10);
}

#[tokio::test]
async fn credentials_are_sent_and_never_shown() {
    let world = World::with_release(b"x").await;
    let server = Server::with(&world.place.feed, |request| {
        request.authorization.is_none().then(|| Reply::new(401, ""))
    })
    .await;
    let with = server.url.replace("http://", "http://ann:s3cret@");
    world.stable(&with).await.unwrap();
    for path in ["no/such/feed/", ""] {
        let server = Server::with(&world.place.feed, |_| Some(Reply::new(403, ""))).await;
        let url = format!(
            "{}{path}",
            server.url.replace("http://", "http://ann:s3cret@")
        );
        // Everybody answers the next root with 403; the timestamp then is the one that is refused.
        let error = world.refresh(&url).await.unwrap_err();
        assert_eq!(error.code(), "FEED_REFUSED");
        assert!(
            !format!("{error} {error:?}").contains("s3cret"),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_damaged_cache_is_rebuilt_from_the_pinned_root() {
    let world = World::with_release(b"x").await;
    world.stable(&world.url()).await.unwrap();
    let damage: [&[u8]; 4] = [b"", b"{\"signed\":", b"\xff\xfe\x00", b"{}"];
    for bytes in damage {
        for name in [
            "root.json",
            "timestamp.json",
            "snapshot.json",
            "targets.json",
            "root_history/1.root.json",
            "root_history/2.root.json",
        ] {
            fs::write(world.home.feed().join(name), bytes).unwrap();
        }
        assert_eq!(code(Feed::cached(&world.home)), "FEED_CACHE");
        world.stable(&world.url()).await.unwrap();
        fs::remove_file(world.home.feed().join("root_history/2.root.json")).unwrap();
        let cached = Feed::cached(&world.home).unwrap();
        assert_eq!(
            (cached.root, cached.timestamp, cached.targets),
            (1, Some(3), Some(3))
        );
    }
}

#[tokio::test]
async fn a_damaged_record_of_versions_is_an_error_and_not_replaced() {
    let world = World::with_release(b"x").await;
    world.refresh(&world.url()).await.unwrap();
    let path = world.home.feed().join(floors::FILE);
    fs::write(&path, "{").unwrap();
    for error in [
        world.open(&world.url()).unwrap_err(),
        Feed::cached(&world.home).unwrap_err(),
    ] {
        assert_eq!(error.code(), "FEED_STORE");
        assert!(error.to_string().contains(floors::FILE), "{error}");
    }
    assert_eq!(fs::read(&path).unwrap(), b"{");
}

#[tokio::test]
async fn a_cache_that_cannot_be_written_is_an_error() {
    // A folder in the file's place fails for every user, root included.
    for name in ["timestamp.json", "root.json"] {
        let world = World::with_release(b"x").await;
        let path = world.home.feed().join(name);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("in the way"), "").unwrap();
        let error = world.refresh(&world.url()).await.unwrap_err();
        assert_eq!(error.code(), "FEED_STORE", "{name}: {error}");
        assert!(error.to_string().contains(name), "{error}");
        fs::remove_dir_all(path).unwrap();
        world.refresh(&world.url()).await.unwrap();
    }
}

#[tokio::test]
async fn an_empty_cache_is_readable_and_a_full_one_says_what_it_holds() {
    let world = World::with_release(b"x").await;
    assert_eq!(Feed::cached(&world.home).unwrap().timestamp, None);
    world.stable(&world.url()).await.unwrap();
    let cached = Feed::cached(&world.home).unwrap();
    assert_eq!(
        (
            cached.root,
            cached.timestamp,
            cached.snapshot,
            cached.targets
        ),
        (1, Some(3), Some(3), Some(3))
    );
}

#[tokio::test]
async fn whoever_reads_while_a_publisher_works_meets_a_whole_feed() {
    let world = World::with_release(b"x").await;
    let place = world.place.clone();
    let how = publisher::Refresh {
        validity: world.validity(),
    };
    let publishing = std::thread::spawn(move || {
        for _ in 0..40 {
            publisher::refresh(&place, &how).unwrap();
        }
    });
    let mut reads = 0;
    while !publishing.is_finished() || reads == 0 {
        world.stable(&world.url()).await.unwrap();
        reads += 1;
    }
    publishing.join().unwrap();
    world.stable(&world.url()).await.unwrap();
    assert_eq!(Feed::cached(&world.home).unwrap().timestamp, Some(43));
}
