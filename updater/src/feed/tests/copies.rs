//! More than one copy of a feed, and what a server may say about its files besides their bytes.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::server::{Reply, Request, Server};
use super::*;

fn is_archive(request: &Request) -> bool {
    request.path.ends_with(".tar.gz")
}

fn archives(server: &Server) -> usize {
    server.seen().iter().filter(|it| is_archive(it)).count()
}

/// The feed at `url` with these mirrors.
fn open(world: &World, url: &str, mirrors: &[&str]) -> Feed {
    let mirrors: Vec<String> = mirrors.iter().map(|url| (*url).to_owned()).collect();
    let settings = FeedSettings {
        read_timeout: PATIENCE,
        ..FeedSettings::new(url).unwrap()
    }
    .with_mirrors(&mirrors)
    .unwrap();
    Feed::open(&settings, &world.home).unwrap()
}

async fn offered(world: &World, feed: &mut Feed) -> Result<Release, FeedError> {
    feed.refresh(world.now).await?;
    let release = feed.release("stable", staging::TARGET).await?;
    Ok(release.expect("a stable release"))
}

async fn brought(
    world: &World,
    feed: &Feed,
    release: &Release,
    blocks: Option<tokio::sync::mpsc::Sender<bytes::Bytes>>,
) -> Result<Downloaded, FeedError> {
    let folder = world.home.downloads();
    feed.downloader()
        .download(&release.wanted(), &folder, PATIENCE, &mut |_| {}, blocks)
        .await
}

/// A server that serves nothing.
async fn broken(world: &World) -> Server {
    Server::with(&world.place.feed, |_| Some(Reply::new(500, ""))).await
}

#[tokio::test]
async fn a_mirror_takes_over_from_a_feed_that_fails_and_the_feed_comes_back() {
    let world = World::with_release(b"archive").await;
    let (feed, mirror) = (broken(&world).await, Server::of(&world.place.feed).await);
    let mut both = open(&world, &feed.url, &[&mirror.url]);
    let release = offered(&world, &mut both).await.unwrap();
    let asked = feed.seen().len();
    assert!(asked > 0, "the feed is asked first");
    let done = brought(&world, &both, &release, None).await.unwrap();
    assert_eq!(fs::read(done.path).unwrap(), b"archive");
    // It failed lately: the next check spares it, the one after that does not.
    let mut next = open(&world, &feed.url, &[&mirror.url]);
    offered(&world, &mut next).await.unwrap();
    assert_eq!(feed.seen().len(), asked);
    offered(&world, &mut open(&world, &feed.url, &[&mirror.url]))
        .await
        .unwrap();
    assert!(feed.seen().len() > asked);
}

#[tokio::test]
async fn a_mirror_with_an_old_copy_is_passed_over_and_never_believed() {
    let world = World::with_release(b"one").await;
    let old = world.copy("old");
    world.release("1.1.0", b"two");
    world.promote("stable", "1.1.0");
    let new = Server::of(&world.place.feed).await;
    let stale = Server::of(&old).await;
    world.stable(&new.url).await.unwrap();
    // Alone it is refused for what it is; beside a right one it costs nothing.
    let mut alone = open(&world, &stale.url, &[]);
    assert_eq!(code(offered(&world, &mut alone).await), "FEED_ROLLBACK");
    let mut both = open(&world, &stale.url, &[&new.url]);
    let release = offered(&world, &mut both).await.unwrap();
    assert_eq!(release.version.to_string(), "1.1.0");
}

#[tokio::test]
async fn the_feed_s_own_error_is_told_when_no_copy_can_be_believed() {
    let world = World::with_release(b"archive").await;
    let refusing = Server::with(&world.place.feed, |_| Some(Reply::new(403, ""))).await;
    let mut both = open(&world, &refusing.url, &[&broken(&world).await.url]);
    let error = offered(&world, &mut both).await.unwrap_err();
    assert_eq!(error.code(), "FEED_REFUSED");
    assert!(error.to_string().contains("403"), "{error}");
}

#[tokio::test]
async fn a_copy_that_breaks_off_is_left_for_the_next_which_goes_on_there() {
    let bytes = content(300_000);
    let world = World::with_release(&bytes).await;
    for ranges in [true, false] {
        let breaking = Server::with(&world.place.feed, |request| {
            is_archive(request).then(|| {
                Reply::new(200, content(300_000)[..100_000].to_vec())
                    .header("Content-Length", "300000")
            })
        })
        .await;
        let whole = bytes.clone();
        let other = Server::with(&world.place.feed, move |request| {
            (is_archive(request) && !ranges).then(|| Reply::new(200, whole.clone()))
        })
        .await;
        let mut feed = open(&world, &breaking.url, &[&other.url]);
        let release = offered(&world, &mut feed).await.unwrap();
        let (sender, mut receiver) = tokio::sync::mpsc::channel::<bytes::Bytes>(2);
        let gathered = tokio::spawn(async move {
            let mut all = Vec::new();
            while let Some(block) = receiver.recv().await {
                all.extend_from_slice(&block);
            }
            all
        });
        let done = brought(&world, &feed, &release, Some(sender))
            .await
            .unwrap();
        // Whoever unpacks meanwhile got every byte once, in order.
        assert!(gathered.await.unwrap() == bytes, "ranges: {ranges}");
        assert_eq!(fs::read(&done.path).unwrap(), bytes);
        assert_eq!(done.fetched, 300_000);
        fs::remove_file(done.path).unwrap();
        let _ = fs::remove_file(world.home.state().join("mirrors.json"));
    }
}

#[tokio::test]
async fn a_copy_that_lies_about_an_archive_is_found_out_and_the_next_try_asks_another() {
    let bytes = content(50_000);
    let world = World::with_release(&bytes).await;
    let lying = Server::with(&world.place.feed, |request| {
        is_archive(request).then(|| Reply::new(200, vec![7; 50_000]))
    })
    .await;
    let honest = Server::of(&world.place.feed).await;
    let mut feed = open(&world, &lying.url, &[&honest.url]);
    let release = offered(&world, &mut feed).await.unwrap();
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    drop(receiver);
    let error = brought(&world, &feed, &release, Some(sender)).await;
    let error = error.unwrap_err();
    assert_eq!((error.code(), error.retry()), ("ARCHIVE_DIGEST", true));
    let done = brought(&world, &feed, &release, None).await.unwrap();
    assert_eq!(fs::read(done.path).unwrap(), bytes);
    assert_eq!((archives(&lying), archives(&honest)), (1, 1));
}

#[tokio::test]
async fn the_rest_is_asked_for_only_of_the_very_same_file() {
    let bytes = content(300_000);
    let world = World::with_release(&bytes).await;
    // Breaks off after a third, and from then on serves as any server does.
    let asked = Arc::new(AtomicUsize::new(0));
    let (count, whole) = (Arc::clone(&asked), bytes.clone());
    let server = Server::with(&world.place.feed, move |request| {
        if !is_archive(request) {
            return None;
        }
        match count.fetch_add(1, Ordering::SeqCst) {
            0 => Some(
                Reply::new(200, whole[..100_000].to_vec())
                    .header("Content-Length", "300000")
                    .header("ETag", "\"state-1\""),
            ),
            // Its state is another one by now: all of it is sent, as If-Range asks.
            _ => Some(Reply::new(200, whole.clone()).header("ETag", "\"state-2\"")),
        }
    })
    .await;
    let (feed, release) = world.stable(&server.url).await.unwrap();
    brought(&world, &feed, &release, None).await.unwrap_err();
    let done = brought(&world, &feed, &release, None).await.unwrap();
    assert_eq!(fs::read(&done.path).unwrap(), bytes);
    let asked: Vec<_> = server.seen().into_iter().filter(is_archive).collect();
    assert_eq!(
        (asked[1].range, asked[1].if_range.as_deref()),
        (Some(100_000), Some("\"state-1\""))
    );
    let left: Vec<_> = fs::read_dir(world.home.downloads())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(left, [done.path], "the tag goes with what it was for");
}

#[tokio::test]
async fn a_piece_of_a_file_of_another_length_is_not_taken() {
    let bytes = content(300_000);
    let world = World::with_release(&bytes).await;
    let whole = bytes.clone();
    let server = Server::with(&world.place.feed, move |request| {
        (is_archive(request) && request.range.is_some()).then(|| {
            Reply::new(206, whole[200_000..].to_vec())
                .header("Content-Range", "bytes 200000-299999/400000")
        })
    })
    .await;
    let (feed, release) = world.stable(&server.url).await.unwrap();
    let part = world
        .home
        .downloads()
        .join(format!("{}.part", release.sha256));
    fs::write(part, &bytes[..200_000]).unwrap();
    let done = brought(&world, &feed, &release, None).await.unwrap();
    assert_eq!((done.resumed, done.fetched), (0, 300_000));
    assert_eq!(fs::read(done.path).unwrap(), bytes);
}

#[tokio::test]
async fn an_archive_that_somebody_packed_on_the_way_is_refused_by_name() {
    let world = World::with_release(b"archive").await;
    let server = Server::with(&world.place.feed, |request| {
        is_archive(request).then(|| Reply::new(200, "packed").header("Content-Encoding", "gzip"))
    })
    .await;
    let (feed, release) = world.stable(&server.url).await.unwrap();
    let error = brought(&world, &feed, &release, None).await.unwrap_err();
    assert_eq!(error.code(), "FEED_ENCODED");
    assert!(error.to_string().contains("Content-Encoding"), "{error}");
}

#[tokio::test]
async fn a_server_that_asks_for_patience_is_heard() {
    let world = World::with_release(b"archive").await;
    for (status, header, seconds) in [
        (429, "7200", Some(7200)),
        (503, "1", Some(1)),
        (503, "99999999", Some(86_400)),
        (503, "later", None),
    ] {
        let server = Server::with(&world.place.feed, move |_| {
            Some(Reply::new(status, "").header("Retry-After", header))
        })
        .await;
        let error = world.refresh(&server.url).await.unwrap_err();
        let asked = error.retry_after().map(|wait| wait.as_secs());
        assert_eq!((asked, error.retry()), (seconds, true), "{header}");
    }
}

#[tokio::test]
async fn a_file_of_certificates_that_is_none_is_named() {
    let world = World::with_release(b"archive").await;
    let file = world.folder.path().join("ca.pem");
    let at = |file: &std::path::Path| {
        FeedSettings::new("https://feeds.example/")
            .unwrap()
            .with_ca_file(Some(file.to_owned()))
    };
    let mut said = vec![at(&file).unwrap_err()];
    fs::write(&file, "not a certificate").unwrap();
    said.push(at(&file).unwrap_err());
    for error in said {
        assert_eq!(error.exit(), staging::report::Exit::Configuration);
        assert!(error.to_string().contains("ca.pem"), "{error}");
        assert!(error.to_string().contains("update.ca_file"), "{error}");
    }
}

/// A feed and two mirrors, the first two of which send an archive of another length, announced or not.
#[tokio::test]
async fn copies_that_send_another_file_are_passed_over_and_the_good_one_is_asked() {
    let bytes = content(200_000);
    let world = World::with_release(&bytes).await;
    for announced in [true, false] {
        let other = move |request: &Request| {
            is_archive(request).then(|| Reply {
                unannounced: !announced,
                ..Reply::new(200, vec![7; 300_000])
            })
        };
        let (first, second) = (
            Server::with(&world.place.feed, other).await,
            Server::with(&world.place.feed, other).await,
        );
        let good = Server::of(&world.place.feed).await;
        let mut feed = open(&world, &first.url, &[&second.url, &good.url]);
        let release = offered(&world, &mut feed).await.unwrap();
        // Whoever takes the blocks as they come cannot give them back: then it takes a try for each liar.
        let (blocks, mut taken) = tokio::sync::mpsc::channel(1024);
        let error = brought(&world, &feed, &release, Some(blocks)).await.err();
        let mut came = Vec::new();
        while let Ok(block) = taken.try_recv() {
            came.extend_from_slice(&block);
        }
        match error {
            None => assert!(announced && came == bytes),
            Some(error) => assert!(!announced && error.retry(), "{error}"),
        }
        let done = brought(&world, &feed, &release, None).await.unwrap();
        assert_eq!(fs::read(&done.path).unwrap(), bytes);
        fs::remove_file(done.path).unwrap();
    }
}

#[tokio::test]
async fn where_every_copy_sends_another_file_that_is_said_and_nothing_is_left() {
    let world = World::with_release(&content(200_000)).await;
    for announced in [true, false] {
        let other = move |request: &Request| {
            is_archive(request).then(|| Reply {
                unannounced: !announced,
                ..Reply::new(200, vec![7; 300_000])
            })
        };
        let (first, second) = (
            Server::with(&world.place.feed, other).await,
            Server::with(&world.place.feed, other).await,
        );
        let mut feed = open(&world, &first.url, &[&second.url]);
        let release = offered(&world, &mut feed).await.unwrap();
        let error = brought(&world, &feed, &release, None).await.unwrap_err();
        assert!(
            matches!(
                error,
                FeedError::ArchiveLength { .. } | FeedError::ArchiveDigest { .. }
            ),
            "{error}"
        );
        let part = world
            .home
            .downloads()
            .join(format!("{}.part", release.sha256));
        assert!(!part.exists());
    }
}
