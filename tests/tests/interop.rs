//! The feed's format is not ours: another implementation reads what `rollproxy-publish` made, and our updater
//! installs from what another implementation made. Needs an interpreter with the package `tuf`, named by
//! `ROLLPROXY_TEST_PYTHON`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

use harness::{FileServer, Pack, TestFeed, TestHome, Tool, binaries};
use serde_json::{Value, json};

/// Runs a script with python-tuf; its answer.
async fn python(script: &str, arguments: &[&str]) -> Value {
    let interpreter = std::env::var("ROLLPROXY_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("python")
        .join(script);
    let mut tool = Tool::new(interpreter).arg(script).args(arguments);
    for name in ["NO_PROXY", "no_proxy"] {
        tool = tool.env(name, "127.0.0.1");
    }
    tool.run().await.expect(0).json()
}

async fn publish(arguments: &[&str]) -> Value {
    let tool = Tool::new(binaries().path("rollproxy-publish")).args(["--format", "json"]);
    tool.args(arguments).run().await.expect(0).json()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs python-tuf (ROLLPROXY_TEST_PYTHON)"]
async fn python_tuf_reads_a_feed_that_rollproxy_publish_made() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let place = [
        "--feed".to_owned(),
        path("feed"),
        "--keys".to_owned(),
        path("keys"),
    ];
    let with = |first: &str, rest: &[&str]| -> Vec<String> {
        let rest = rest.iter().map(|word| (*word).to_owned());
        std::iter::once(first.to_owned())
            .chain(place.clone())
            .chain(rest)
            .collect()
    };
    let run = async |words: Vec<String>| {
        publish(&words.iter().map(String::as_str).collect::<Vec<_>>()).await
    };

    let made = run(with("init", &[])).await;
    let (feed, home) = (TestFeed::new(), TestHome::new());
    let archive = Pack::faulty(&feed, &home, "1.1.0", "none").pack();
    let added = run(with(
        "add",
        &["--version", "1.1.0", "--archive", archive.to_str().unwrap()],
    ))
    .await;
    run(with(
        "promote",
        &["--channel", "stable", "--version", "1.1.0"],
    ))
    .await;

    let server = FileServer::start(&folder.path().join("feed")).await;
    let (metadata, targets) = (
        format!("{}/metadata", server.url()),
        format!("{}/targets", server.url()),
    );
    let root = made["root"].as_str().unwrap();
    let name = format!("rollproxy/{}/1.1.0.tar.gz", staging::TARGET);
    let read = python(
        "read_feed.py",
        &[&metadata, &targets, root, &name, &path("out")],
    )
    .await;
    assert_eq!(read["sha256"], added["sha256"]);
    assert_eq!(read["custom"]["version"], "1.1.0");
    assert_eq!(
        std::fs::read(read["target"].as_str().unwrap()).unwrap(),
        std::fs::read(archive).unwrap()
    );
    let channel = format!("rollproxy/{}/stable.json", staging::TARGET);
    let read = python(
        "read_feed.py",
        &[&metadata, &targets, root, &channel, &path("channel")],
    )
    .await;
    let offer: Value =
        serde_json::from_slice(&std::fs::read(read["target"].as_str().unwrap()).unwrap()).unwrap();
    assert_eq!(
        (&offer["version"], &offer["archive"]),
        (&json!("1.1.0"), &json!(name))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs python-tuf (ROLLPROXY_TEST_PYTHON)"]
async fn our_updater_installs_from_a_feed_that_python_tuf_made() {
    let (feed, home) = (TestFeed::new(), TestHome::new());
    let archive = Pack::faulty(&feed, &home, "2.0.0", "none").pack();
    let theirs = home.folder().join("theirs");
    let arguments = [
        theirs.to_str().unwrap(),
        archive.to_str().unwrap(),
        "2.0.0",
        staging::TARGET,
        "stable",
    ];
    let made = python("make_feed.py", &arguments).await;

    let server = FileServer::start(&theirs).await;
    home.tool("rollproxy-updater")
        .args([
            "init",
            "--feed",
            &server.url(),
            "--root",
            made["root"].as_str().unwrap(),
        ])
        .args(["--sha256", made["sha256"].as_str().unwrap()])
        .run()
        .await
        .expect(0);
    let said = home.check().run().await.answered(0, "installed");
    assert_eq!(said["version"], "2.0.0");
    assert_eq!(home.selected().as_deref(), Some("2.0.0"));
    home.assert_tidy();
    home.check().run().await.answered(0, "upToDate");
}
