//! What the publisher refuses before any host has to.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

use harness::{TestFeed, Tool, binaries};

/// `rollproxy-publish add` of these programs as 1.1.0.
fn add(feed: &TestFeed, programs: &Path) -> Tool {
    Tool::new(binaries().path("rollproxy-publish"))
        .args(["--format", "json", "add", "--version", "1.1.0"])
        .arg("--feed")
        .arg(feed.path())
        .arg("--keys")
        .arg(&feed.place().keys)
        .arg("--bin-dir")
        .arg(programs)
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
}

#[tokio::test]
async fn a_version_is_tried_before_it_is_signed_as_a_host_would_try_it() {
    let feed = TestFeed::new();
    let folder = tempfile::tempdir().unwrap();
    for (name, program) in binaries().entries() {
        std::fs::copy(program, folder.path().join(name)).unwrap();
    }
    // The folder of an installed launcher looks like one of programs: `rollproxy` there is the launcher.
    let rollproxy = folder.path().join("rollproxy");
    std::fs::copy(binaries().path("rollproxy-launcher"), &rollproxy).unwrap();
    let refused = add(&feed, folder.path()).run().await.expect(1).json();
    let why = refused["error"]["message"].as_str().unwrap();
    assert!(why.contains("entry rollproxy of package 1.1.0"), "{why}");

    // An updater that could not take the next update.
    std::fs::copy(binaries().path("rollproxy"), &rollproxy).unwrap();
    let updater = folder.path().join("rollproxy-updater");
    std::fs::copy(binaries().path("faulty-worker"), &updater).unwrap();
    let refused = add(&feed, folder.path()).run().await.expect(1).json();
    assert!(
        refused["error"]["message"]
            .as_str()
            .unwrap()
            .contains("rollproxy-updater")
    );
    assert!(!std::fs::exists(feed.path().join("targets/rollproxy")).unwrap());

    std::fs::copy(binaries().path("rollproxy-updater"), &updater).unwrap();
    let added = add(&feed, folder.path()).run().await.expect(0).json();
    assert_eq!(added["version"], "1.1.0", "{added}");
}
