//! The feed's format is not ours: another implementation reads what we publish, and we read what it publishes.

use std::fs;
use std::process::Stdio;

use serde_json::Value;

use super::server::Server;
use super::*;

/// Runs a script beside the end-to-end tests with the interpreter that has the package `tuf`; its last line is JSON.
async fn python(script: &str, arguments: &[&str]) -> Value {
    let interpreter =
        std::env::var("ROLLPROXY_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/python")
        .join(script);
    let output = tokio::process::Command::new(interpreter)
        .arg(script)
        .args(arguments)
        .env("NO_PROXY", "127.0.0.1")
        .env("no_proxy", "127.0.0.1")
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test]
#[ignore = "needs python-tuf (ROLLPROXY_TEST_PYTHON)"]
async fn python_tuf_reads_a_feed_that_we_published() {
    let world = World::with_release(b"one").await;
    world.release("1.1.0", &content(100_000));
    let server = Server::of(&world.place.feed).await;
    let read = python(
        "read_feed.py",
        &[
            &format!("{}metadata", server.url),
            &format!("{}targets", server.url),
            world.place.root().to_str().unwrap(),
            &format!("rollproxy/{}/1.1.0.tar.gz", staging::TARGET),
            world.folder.path().join("out").to_str().unwrap(),
        ],
    )
    .await;
    assert_eq!(read["sha256"], staging::digest::of(&content(100_000)));
    assert_eq!(read["custom"]["version"], "1.1.0");
}

#[tokio::test]
#[ignore = "needs python-tuf (ROLLPROXY_TEST_PYTHON)"]
async fn we_read_a_feed_that_python_tuf_published() {
    let folder = tempfile::tempdir().unwrap();
    let (archive, feed) = (folder.path().join("archive"), folder.path().join("feed"));
    fs::write(&archive, content(100_000)).unwrap();
    let made = python(
        "make_feed.py",
        &[
            feed.to_str().unwrap(),
            archive.to_str().unwrap(),
            "2.0.0",
            staging::TARGET,
            "stable",
        ],
    )
    .await;
    let home = Home::at(folder.path().join("home"));
    home.create().unwrap();
    let root = RootSource::File(made["root"].as_str().unwrap().into());
    pin_root(&home, &root, made["sha256"].as_str().unwrap())
        .await
        .unwrap();

    let settings = FeedSettings::new(&file_url(&feed)).unwrap();
    let mut feed = Feed::open(&settings, &home).unwrap();
    feed.refresh(Timestamp::now()).await.unwrap();
    let release = feed
        .release("stable", staging::TARGET)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(release.version.to_string(), "2.0.0");
    let done = feed
        .downloader()
        .download(
            &release.wanted(),
            &home.downloads(),
            PATIENCE,
            &mut |_| {},
            None,
        )
        .await
        .unwrap();
    assert_eq!(fs::read(done.path).unwrap(), content(100_000));
}
