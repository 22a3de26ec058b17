//! Downloading: whole, resumed, stopped, and everything that is not the archive.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use super::server::{Reply, Request, Server};
use super::*;

fn part(world: &World, release: &Release) -> PathBuf {
    world
        .home
        .downloads()
        .join(format!("{}.part", release.sha256))
}

async fn download(world: &World, feed: &Feed, release: &Release) -> Result<Downloaded, FeedError> {
    let folder = world.home.downloads();
    feed.downloader()
        .download(&release.wanted(), &folder, PATIENCE, &mut |_| {}, None)
        .await
}

fn is_archive(request: &Request) -> bool {
    request.path.ends_with(".tar.gz")
}

#[tokio::test]
async fn an_archive_comes_whole_with_progress_and_only_once() {
    let bytes = content(1_000_000);
    let world = World::with_release(&bytes).await;
    let server = Server::of(&world.place.feed).await;
    for url in [&world.url(), &server.url] {
        let (feed, release) = world.stable(url).await.unwrap();
        let mut seen = Vec::new();
        let folder = world.home.downloads();
        let downloader = feed.downloader();
        let done = downloader
            .download(
                &release.wanted(),
                &folder,
                PATIENCE,
                &mut |p| seen.push(p),
                None,
            )
            .await
            .unwrap();
        assert_eq!((done.resumed, done.fetched), (0, 1_000_000));
        assert_eq!(fs::read(&done.path).unwrap(), bytes);
        assert_eq!(done.path, part(&world, &release));
        assert!(
            seen.windows(2)
                .all(|pair| pair[0].received < pair[1].received)
        );
        assert_eq!(
            seen.last().unwrap(),
            &Progress {
                received: 1_000_000,
                total: 1_000_000
            }
        );

        let again = downloader
            .download(&release.wanted(), &folder, PATIENCE, &mut |_| {}, None)
            .await
            .unwrap();
        assert_eq!((again.resumed, again.fetched), (1_000_000, 0));
        fs::remove_file(done.path).unwrap();
    }
    assert_eq!(
        server
            .seen()
            .iter()
            .filter(|request| is_archive(request))
            .count(),
        1
    );
}

#[tokio::test]
async fn a_download_is_resumed_where_it_stopped() {
    let bytes = content(300_000);
    let world = World::with_release(&bytes).await;
    let server = Server::of(&world.place.feed).await;
    for url in [&world.url(), &server.url] {
        let (feed, release) = world.stable(url).await.unwrap();
        fs::write(part(&world, &release), &bytes[..200_000]).unwrap();
        let done = download(&world, &feed, &release).await.unwrap();
        assert_eq!((done.resumed, done.fetched), (200_000, 100_000));
        assert_eq!(fs::read(&done.path).unwrap(), bytes);
        fs::remove_file(done.path).unwrap();
    }
    let asked = server
        .seen()
        .into_iter()
        .filter(is_archive)
        .map(|request| request.range);
    assert_eq!(asked.collect::<Vec<_>>(), [Some(200_000)]);
}

#[tokio::test]
async fn where_ranges_do_not_work_it_starts_anew() {
    let bytes = content(300_000);
    let world = World::with_release(&bytes).await;
    let whole = bytes.clone();
    // One ignores the range, one answers another, one refuses any.
    let manners: [fn(Vec<u8>) -> Reply; 3] = [
        |whole| Reply::new(200, whole),
        |whole| Reply::new(206, whole).header("Content-Range", "bytes 0-299999/300000"),
        |_| Reply::new(416, ""),
    ];
    for answer in manners {
        let whole = whole.clone();
        let server = Server::with(&world.place.feed, move |request| {
            (is_archive(request) && request.range.is_some()).then(|| answer(whole.clone()))
        })
        .await;
        let (feed, release) = world.stable(&server.url).await.unwrap();
        fs::write(part(&world, &release), &bytes[..200_000]).unwrap();
        let done = download(&world, &feed, &release).await.unwrap();
        assert_eq!((done.resumed, done.fetched), (0, 300_000));
        assert_eq!(fs::read(&done.path).unwrap(), bytes);
        fs::remove_file(done.path).unwrap();
    }
}

#[tokio::test]
async fn what_an_earlier_run_left_is_not_trusted() {
    let bytes = content(300_000);
    let world = World::with_release(&bytes).await;
    let (feed, release) = world.stable(&world.url()).await.unwrap();
    for left in [vec![7; 200_000], vec![7; 300_000], vec![7; 400_000]] {
        fs::write(part(&world, &release), left).unwrap();
        let done = download(&world, &feed, &release).await.unwrap();
        assert_eq!((done.resumed, done.fetched), (0, 300_000));
        assert_eq!(fs::read(&done.path).unwrap(), bytes);
    }
}

#[tokio::test]
async fn an_archive_of_another_length_is_refused_by_name() {
    let bytes = content(100_000);
    let world = World::with_release(&bytes).await;
    for (length, unannounced, kept) in [
        (100_001, false, false),
        (99_999, false, false),
        (150_000, true, false),
        (60_000, true, true),
    ] {
        let server = Server::with(&world.place.feed, move |request| {
            let reply = Reply {
                unannounced,
                ..Reply::new(200, content(length))
            };
            is_archive(request).then_some(reply)
        })
        .await;
        let (feed, release) = world.stable(&server.url).await.unwrap();
        let error = download(&world, &feed, &release).await.unwrap_err();
        assert_eq!(
            (error.code(), error.retry()),
            ("ARCHIVE_LENGTH", kept),
            "{length}: {error}"
        );
        assert!(error.to_string().contains("1.0.0.tar.gz"), "{error}");
        let on_disk = fs::metadata(part(&world, &release))
            .map(|about| about.len())
            .ok();
        assert_eq!(on_disk, kept.then_some(60_000), "{length}");
    }
}

#[tokio::test]
async fn an_archive_that_was_cut_or_grew_in_a_local_feed_is_refused() {
    let bytes = content(100_000);
    let world = World::with_release(&bytes).await;
    let (feed, release) = world.stable(&world.url()).await.unwrap();
    let path = world
        .place
        .feed
        .join("targets")
        .join(&release.wanted().path);
    for length in [99_999, 100_001] {
        fs::write(&path, content(length)).unwrap();
        assert_eq!(
            code(download(&world, &feed, &release).await),
            "ARCHIVE_LENGTH"
        );
    }
    fs::remove_file(path).unwrap();
    assert_eq!(
        code(download(&world, &feed, &release).await),
        "ARCHIVE_MISSING"
    );
}

#[tokio::test]
async fn other_bytes_are_removed() {
    let world = World::with_release(&content(100_000)).await;
    let server = Server::with(&world.place.feed, |request| {
        is_archive(request).then(|| Reply::new(200, vec![7; 100_000]))
    })
    .await;
    let (feed, release) = world.stable(&server.url).await.unwrap();
    let error = download(&world, &feed, &release).await.unwrap_err();
    assert_eq!((error.code(), error.retry()), ("ARCHIVE_DIGEST", false));
    assert!(!part(&world, &release).exists());
}

#[tokio::test]
async fn a_web_page_instead_of_the_archive_is_called_so() {
    let world = World::with_release(&content(100_000)).await;
    let server = Server::with(&world.place.feed, |request| {
        is_archive(request).then(|| Reply::new(200, "<html>").header("Content-Type", "text/html"))
    })
    .await;
    let (feed, release) = world.stable(&server.url).await.unwrap();
    assert_eq!(
        code(download(&world, &feed, &release).await),
        "FEED_MALFORMED"
    );
}

#[tokio::test]
async fn a_transfer_that_breaks_off_or_stalls_keeps_what_came() {
    let bytes = content(100_000);
    let world = World::with_release(&bytes).await;
    let stall = AtomicBool::new(true);
    let server = Server::with(&world.place.feed, move |request| {
        if !is_archive(request) || request.range.is_some() {
            return None;
        }
        let whole = Reply::new(200, content(100_000));
        // First it stalls; then it breaks off: less than was announced.
        Some(if stall.swap(false, Ordering::SeqCst) {
            Reply {
                stall_after: Some(40_000),
                ..whole
            }
        } else {
            Reply::new(200, content(70_000)).header("Content-Length", "100000")
        })
    })
    .await;
    let (feed, release) = world.stable(&server.url).await.unwrap();
    let folder = world.home.downloads();
    let downloader = feed.downloader();
    for expected in [40_000, 70_000] {
        let inactivity = Duration::from_millis(1500);
        let error = downloader
            .download(&release.wanted(), &folder, inactivity, &mut |_| {}, None)
            .await
            .unwrap_err();
        assert_eq!(
            (error.code(), error.retry()),
            ("FEED_UNREACHABLE", true),
            "{error}"
        );
        assert_eq!(
            fs::metadata(part(&world, &release)).unwrap().len(),
            expected
        );
        if expected == 40_000 {
            fs::remove_file(part(&world, &release)).unwrap();
        }
    }
    let done = download(&world, &feed, &release).await.unwrap();
    assert_eq!((done.resumed, done.fetched), (70_000, 30_000));
    assert_eq!(fs::read(done.path).unwrap(), bytes);
}

#[tokio::test]
async fn dropping_the_future_stops_the_transfer_and_keeps_what_came() {
    let bytes = content(100_000);
    let world = World::with_release(&bytes).await;
    let server = Server::with(&world.place.feed, |request| {
        let reply = Reply {
            stall_after: Some(40_000),
            ..Reply::new(200, content(100_000))
        };
        (is_archive(request) && request.range.is_none()).then_some(reply)
    })
    .await;
    let (feed, release) = world.stable(&server.url).await.unwrap();
    let folder = world.home.downloads();
    let (send, mut received) = tokio::sync::watch::channel(0);
    let downloader = feed.downloader();
    let mut progress = |p: Progress| send.send_modify(|count| *count = p.received);
    let wanted = release.wanted();
    tokio::select! {
        outcome = downloader.download(&wanted, &folder, PATIENCE, &mut progress, None) => panic!("it ended: {outcome:?}"),
        _ = received.wait_for(|count| *count == 40_000) => {}
    }
    assert_eq!(fs::metadata(part(&world, &release)).unwrap().len(), 40_000);
    let done = download(&world, &feed, &release).await.unwrap();
    assert_eq!((done.resumed, done.fetched), (40_000, 60_000));
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_is_named() {
    let world = World::with_release(&content(1000)).await;
    let (feed, release) = world.stable(&world.url()).await.unwrap();
    let path = part(&world, &release);
    fs::create_dir(&path).unwrap();
    assert_eq!(code(download(&world, &feed, &release).await), "FEED_STORE");
    fs::remove_dir(&path).unwrap();
    // A link there would make us write elsewhere.
    let elsewhere = world.folder.path().join("elsewhere");
    fs::write(&elsewhere, "precious").unwrap();
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    assert_eq!(code(download(&world, &feed, &release).await), "FEED_STORE");
    assert_eq!(fs::read(elsewhere).unwrap(), b"precious");
}
