//! Promise 2, the updater's half: what is not provably the release that was signed for is refused by
//! name, and leaves nothing behind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;

use fixtures::archives::{Hostile, good};
use harness::{FileServer, Finished, Pack, Standing, TestFeed, TestHome, Trick, signed_for, tiny};
use serde_json::{Value, json};

/// A home on which 1.0.0 is selected, and which follows a feed at `url`.
async fn following(feed: &TestFeed, url: &str) -> TestHome {
    let home = TestHome::new();
    home.install_faulty("1.0.0", "none");
    home.select("1.0.0");
    feed.pin(&home, url).await;
    home
}

/// A check that does not wait for the time that an earlier failure set.
async fn check(home: &TestHome) -> Finished {
    home.check().arg("--now").run().await
}

/// Nothing is published, selected or pending that was not before, and nothing lies about.
#[track_caller]
fn assert_untouched(home: &TestHome, before: &Standing) {
    assert_eq!(home.standing(), *before);
    home.assert_tidy();
}

/// What is wrong, the code it is refused with, a part of the message.
const HOSTILE: [(Hostile, &str, &str); 30] = [
    (
        Hostile::ParentPath,
        "ARCHIVE_ENTRY_PATH",
        "\"../escaped\" has a part `..`",
    ),
    (
        Hostile::ParentInside,
        "ARCHIVE_ENTRY_PATH",
        "\"bin/../../escaped\" has a part `..`",
    ),
    (
        Hostile::AbsolutePath,
        "ARCHIVE_ENTRY_PATH",
        "\"/tmp/rollproxy-fixture-escaped\" is absolute",
    ),
    (
        Hostile::LongNameEscape,
        "ARCHIVE_ENTRY_KIND",
        "\"././@LongLink\" is an extension header",
    ),
    (
        Hostile::PaxEscape,
        "ARCHIVE_ENTRY_KIND",
        "\"pax\" is an extension header",
    ),
    (
        Hostile::SymlinkOut,
        "ARCHIVE_ENTRY_KIND",
        "\"lib\" is a symbolic link",
    ),
    (
        Hostile::SymlinkThenThrough,
        "ARCHIVE_ENTRY_KIND",
        "\"lib\" is a symbolic link",
    ),
    (
        Hostile::SymlinkInside,
        "ARCHIVE_ENTRY_KIND",
        "\"lib\" is a symbolic link",
    ),
    (
        Hostile::HardLink,
        "ARCHIVE_ENTRY_KIND",
        "\"lib\" is a hard link",
    ),
    (
        Hostile::Device,
        "ARCHIVE_ENTRY_KIND",
        "\"null\" is a device",
    ),
    (Hostile::Fifo, "ARCHIVE_ENTRY_KIND", "\"pipe\" is a fifo"),
    (
        Hostile::Setuid,
        "ARCHIVE_ENTRY_MODE",
        "\"bin/rollproxy-updater\" has mode 4555",
    ),
    (
        Hostile::Duplicate,
        "ARCHIVE_ENTRY_DUPLICATE",
        "\"bin/rollproxy\" comes twice",
    ),
    (
        Hostile::CaseTwin,
        "ARCHIVE_ENTRY_CASE",
        "\"BIN/ROLLPROXY\" differs from \"bin/rollproxy\"",
    ),
    (
        Hostile::Unnamed,
        "ARCHIVE_ENTRY_UNLISTED",
        "\"surprise\" is not in its manifest",
    ),
    (
        Hostile::Missing,
        "ARCHIVE_ENTRY_MISSING",
        "lacks \"bin/rollproxy-updater\"",
    ),
    (
        Hostile::FlippedBit,
        "ARCHIVE_ENTRY_DIGEST",
        "\"bin/rollproxy-updater\" has sha256",
    ),
    (
        Hostile::Longer,
        "ARCHIVE_ENTRY_SIZE",
        "\"bin/rollproxy-updater\" has 8 bytes, its manifest says 7",
    ),
    (
        Hostile::Shorter,
        "ARCHIVE_ENTRY_SIZE",
        "\"bin/rollproxy-updater\" has 6 bytes, its manifest says 7",
    ),
    (
        Hostile::WritableByAll,
        "ARCHIVE_ENTRY_MODE",
        "\"bin/rollproxy-updater\" has mode 0777",
    ),
    (
        Hostile::ManifestLast,
        "ARCHIVE_FIRST_ENTRY",
        "begins with \"bin/rollproxy\"",
    ),
    (
        Hostile::NoManifest,
        "ARCHIVE_FIRST_ENTRY",
        "begins with \"bin/rollproxy\"",
    ),
    (Hostile::EmptyName, "ARCHIVE_ENTRY_PATH", "\"\" is empty"),
    (
        Hostile::Bomb,
        "ARCHIVE_ENTRY_UNLISTED",
        "\"zeros\" is not in its manifest",
    ),
    (
        Hostile::TooManyFiles,
        "ARCHIVE_ENTRY_UNLISTED",
        "\"f/0\" is not in its manifest",
    ),
    (Hostile::Truncated, "ARCHIVE_TRUNCATED", "truncated"),
    (Hostile::NoChecksum, "ARCHIVE_TRUNCATED", "truncated"),
    (
        Hostile::TrailingGarbage,
        "ARCHIVE_TRAILING",
        "extra bytes after the end of the gzip",
    ),
    (Hostile::Html, "ARCHIVE_CORRUPT", "no gzipped tar"),
    (Hostile::Empty, "ARCHIVE_TRUNCATED", "truncated"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_with_one_thing_wrong_is_refused_for_that_thing() {
    let all: Vec<Hostile> = HOSTILE.iter().map(|(hostile, ..)| *hostile).collect();
    assert_eq!(all, Hostile::ALL, "each once, in order");
    let feed = TestFeed::new();
    let home = following(&feed, &feed.file_url()).await;
    let before = home.standing();
    for (number, (hostile, code, part)) in HOSTILE.into_iter().enumerate() {
        let version = format!("2.{number}.0");
        feed.release_bytes(&version, &hostile.archive(&tiny(&version)).unwrap());
        let said = check(&home).await.refused(1, code, &[part]);
        assert_eq!(
            said["error"]["retry"], false,
            "{hostile:?}: the archive will not change"
        );
        assert_eq!(said["outcome"], "failed", "{hostile:?}");
        assert_untouched(&home, &before);
        let job = home.jobs().pop().unwrap();
        assert_eq!(job.step, "stage", "{hostile:?}");
        assert!(job.cause.unwrap().starts_with(code), "{hostile:?}");
    }
    // What they tried to write outside is not there.
    for escaped in [
        Path::new("/tmp/rollproxy-fixture-escaped"),
        &home.folder().join("escaped"),
    ] {
        assert!(!escaped.exists(), "{}", escaped.display());
    }
    let inside = std::fs::read_dir(home.home.packages()).unwrap().count();
    assert_eq!(inside, 2, "1.0.0 and the empty staging folder");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manifest_that_breaks_a_rule_is_refused_before_anything_is_written() {
    type Break = fn(&mut Value);
    let breaks: [(&str, &str, Break); 8] = [
        ("MANIFEST_INVALID", "`..`", |it| {
            it["files"][1]["path"] = json!("../evil")
        }),
        ("MANIFEST_INVALID", "absolute", |it| {
            it["files"][1]["path"] = json!("/etc/evil")
        }),
        ("MANIFEST_INVALID", "\"4555\"", |it| {
            it["files"][1]["mode"] = json!("4555")
        }),
        ("MANIFEST_INVALID", "only in case", |it| {
            it["files"][1]["path"] = json!("Bin/rollproxy")
        }),
        ("MANIFEST_NEWER", "schema 2", |it| it["schema"] = json!(2)),
        ("MANIFEST_UNPARSABLE", "files", |it| {
            drop(it.as_object_mut().unwrap().remove("files"))
        }),
        ("ARCHIVE_TOO_MUCH", "bytes, at most", |it| {
            it["files"][1]["size"] = json!(4_u64 << 30)
        }),
        ("ARCHIVE_TOO_MUCH", "files, at most", |it| {
            let file = it["files"][1].clone();
            let more = (0..2_000).map(|number| {
                let mut file = file.clone();
                file["path"] = json!(format!("share/{number}"));
                file
            });
            it["files"].as_array_mut().unwrap().extend(more);
        }),
    ];
    let feed = TestFeed::new();
    let home = following(&feed, &feed.file_url()).await;
    let before = home.standing();
    for (number, (code, part, break_it)) in breaks.into_iter().enumerate() {
        let version = format!("2.{number}.0");
        let files = tiny(&version).into_iter().skip(1).collect();
        let broken = signed_for(&version, files, break_it);
        feed.release_bytes(&version, &good(&broken).unwrap());
        check(&home).await.refused(1, code, &[part]);
        assert_untouched(&home, &before);
    }
}

/// The first 64 bytes of a program for another processor than this one.
fn foreign_program(home: &TestHome) -> std::path::PathBuf {
    let mut header = vec![0_u8; 64];
    header[..6].copy_from_slice(b"\x7fELF\x02\x01");
    header[16] = 3;
    header[18] = if cfg!(target_arch = "x86_64") {
        183
    } else {
        62
    };
    let path = home.folder().join("foreign");
    std::fs::write(&path, header).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_package_that_cannot_run_here_is_refused_by_name() {
    let feed = TestFeed::new();
    let home = following(&feed, &feed.file_url()).await;
    home.configure_more("entry_timeout = \"400ms\"\n");
    let before = home.standing();
    let foreign = if cfg!(target_arch = "x86_64") {
        "aarch64"
    } else {
        "x86_64"
    };
    let script = home.folder().join("script");
    std::fs::write(&script, "#!/bin/sh\necho rollproxy 2.2.0\n").unwrap();

    let faulty = |version: &str, fault: &str| Pack::faulty(&feed, &home, version, fault);
    let entry = "entry rollproxy of package";
    let cases = [
        (
            faulty("2.0.0", "none").target(&format!("{foreign}-unknown-linux-gnu")),
            "TARGET_MISMATCH",
            vec!["package 2.0.0", foreign, staging::TARGET],
        ),
        (
            faulty("2.1.0", "none").program(&foreign_program(&home)),
            "ENTRY_NOT_EXECUTABLE",
            vec![entry, "2.1.0", foreign],
        ),
        (
            faulty("2.2.0", "none").program(&script),
            "ENTRY_NOT_EXECUTABLE",
            vec![entry, "no ELF program"],
        ),
        (
            faulty("2.3.0", "version-exits-1"),
            "ENTRY_FAILED",
            vec![entry, "2.3.0", "--version", "exit status: 1"],
        ),
        (
            faulty("2.4.0", "version-lies"),
            "VERSION_MISMATCH",
            vec![entry, "2.4.0", "rollproxy 6.6.6"],
        ),
        (
            faulty("2.5.0", "version-hangs"),
            "ENTRY_TIMED_OUT",
            vec![entry, "2.5.0", "--version", "0.4 s"],
        ),
    ];
    for (pack, code, parts) in cases {
        pack.release();
        check(&home).await.refused(1, code, &parts);
        assert_untouched(&home, &before);
        assert_eq!(
            home.processes(),
            Vec::<i32>::new(),
            "{code}: something still runs"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_that_promise_another_version_than_the_archive_is_are_refused() {
    let feed = TestFeed::new();
    let home = following(&feed, &feed.file_url()).await;
    let before = home.standing();
    let archive = Pack::faulty(&feed, &home, "1.2.0", "none").pack();
    feed.release_archive("9.9.0", &archive);
    let said = check(&home)
        .await
        .refused(1, "VERSION_MISMATCH", &["1.2.0", "9.9.0"]);
    assert_eq!(said["version"], "9.9.0");
    assert_untouched(&home, &before);
    // The same bytes under their own name are a good release.
    feed.release_archive("1.2.0", &archive);
    check(&home).await.answered(0, "pending");
    assert_eq!(home.pending().as_deref(), Some("1.2.0"));
}

/// A good release of 1.1.0 behind a server that can misbehave.
async fn served() -> (TestFeed, FileServer, TestHome) {
    let feed = TestFeed::new();
    let server = FileServer::start(feed.path()).await;
    let home = following(&feed, &server.url()).await;
    Pack::faulty(&feed, &home, "1.1.0", "none").release();
    (feed, server, home)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_that_brings_other_bytes_than_were_signed_for_is_refused() {
    let (feed, server, home) = served().await;
    let before = home.standing();
    let archive = std::fs::read(feed.archive_of("1.1.0")).unwrap();
    let mut flipped = archive.clone();
    flipped[archive.len() / 2] ^= 1;
    let longer = [archive.as_slice(), b"!"].concat();
    let page = b"<!DOCTYPE html><html><body>Sign in to the network</body></html>".to_vec();
    let signed = archive.len().to_string();
    let cases = [
        (
            Trick::Replace(flipped),
            "ARCHIVE_DIGEST",
            vec!["1.1.0.tar.gz", "was signed for"],
        ),
        (
            Trick::Replace(longer),
            "ARCHIVE_LENGTH",
            vec!["1.1.0.tar.gz", &signed],
        ),
        (
            Trick::Replace(page),
            "ARCHIVE_LENGTH",
            vec!["1.1.0.tar.gz has 63 bytes", &signed],
        ),
        (
            Trick::Replace(Vec::new()),
            "ARCHIVE_LENGTH",
            vec!["1.1.0.tar.gz has 0 bytes", &signed],
        ),
        (Trick::Status(404), "ARCHIVE_MISSING", vec!["1.1.0.tar.gz"]),
        (
            Trick::Status(403),
            "FEED_REFUSED",
            vec!["403", "1.1.0.tar.gz", "credentials"],
        ),
    ];
    for (trick, code, parts) in cases {
        server.trick(".tar.gz", trick);
        let said = check(&home).await.refused(1, code, &parts);
        assert_eq!(said["error"]["retry"], false, "{code}");
        assert_untouched(&home, &before);
        let kept: u64 = home.downloads().iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(kept, 0, "{code}: bytes of a wrong archive were kept");
    }
    server.honest();
    check(&home).await.answered(0, "pending");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_truncated_transfer_is_tried_again_then_put_off_and_what_came_is_kept() {
    let (feed, server, home) = served().await;
    let before = home.standing();
    let length = feed.length_of("1.1.0");
    server.trick(".tar.gz", Trick::CutAfter(100_000));
    let said = check(&home)
        .await
        .refused(1, "FEED_UNREACHABLE", &["1.1.0.tar.gz", "broke off"]);
    assert_eq!(said["error"]["retry"], true);
    let asked = server
        .seen()
        .iter()
        .filter(|path| path.contains(".tar.gz"))
        .count();
    assert_eq!(asked, 3, "tried again inside the run");
    assert_untouched(&home, &before);
    // Three transfers of a hundred thousand bytes: each went on where the last broke off.
    let parts = home.downloads();
    assert_eq!(parts.len(), 1);
    assert_eq!(parts[0].1, 300_000);
    let state = home.state();
    assert!(state.next_attempt.is_some());
    assert_eq!(state.failed_attempts, 1);

    server.honest();
    home.check()
        .run()
        .await
        .refused(75, "TOO_EARLY", &["--now"]);
    let said = check(&home).await.answered(0, "pending");
    assert_eq!(
        said["bytes"],
        length - 300_000,
        "what came before came again"
    );
    assert_eq!(home.downloads(), []);
}

/// Metadata with one digit of their signature changed.
fn forged(path: &Path) -> Vec<u8> {
    let mut metadata: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let signature = metadata["signatures"][0]["sig"].as_str().unwrap();
    let first = if signature.starts_with('0') { "1" } else { "0" };
    metadata["signatures"][0]["sig"] = json!(format!("{first}{}", &signature[1..]));
    metadata.to_string().into_bytes()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_that_the_pinned_root_does_not_vouch_for_are_refused() {
    let (feed, server, home) = served().await;
    let before = home.standing();
    let timestamp = feed.path().join("metadata/timestamp.json");

    // Another publisher's feed, whole and well signed by its own keys.
    let other = TestFeed::new();
    Pack::faulty(&other, &home, "6.6.6", "none").release();
    let theirs = std::fs::read(other.path().join("metadata/timestamp.json")).unwrap();
    // The right keys, and one word changed after they signed.
    let mut later: Value = serde_json::from_slice(&std::fs::read(&timestamp).unwrap()).unwrap();
    later["signed"]["version"] = json!(later["signed"]["version"].as_u64().unwrap() + 1);

    for bytes in [theirs, forged(&timestamp), later.to_string().into_bytes()] {
        server.trick("timestamp.json", Trick::Replace(bytes));
        let said =
            check(&home)
                .await
                .refused(1, "FEED_SIGNATURE", &["timestamp.json", "pinned root"]);
        assert_eq!(said["error"]["retry"], false);
        assert_eq!(
            said["version"],
            Value::Null,
            "an unsigned promise was believed"
        );
        assert_untouched(&home, &before);
    }
    server.honest();
    let targets: Vec<u8> = b"{\"signatures\":[],\"signed\":{}}".to_vec();
    server.trick("targets.json", Trick::Replace(targets));
    check(&home)
        .await
        .refused(1, "FEED_INCONSISTENT", &["targets.json"]);
    assert_untouched(&home, &before);
    assert!(
        !server.seen().iter().any(|path| path.contains(".tar.gz")),
        "an archive was asked for"
    );
    server.honest();
    check(&home).await.answered(0, "pending");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_root_of_trust_is_pinned_once_and_by_its_digest() {
    let (feed, other, home) = (TestFeed::new(), TestFeed::new(), TestHome::new());
    let init = |feed: &TestFeed, sha256: &str| {
        home.tool("rollproxy-updater")
            .args([
                "init",
                "--format",
                "json",
                "--feed",
                &feed.file_url(),
                "--sha256",
                sha256,
                "--root",
            ])
            .arg(feed.place().root())
    };
    init(&feed, other.root_sha256()).run().await.refused(
        78,
        "ROOT_MISMATCH",
        &[feed.root_sha256(), other.root_sha256()],
    );
    assert!(!home.home.trust_root().exists());
    init(&feed, feed.root_sha256()).run().await.expect(0);
    let pinned = std::fs::read(home.home.trust_root()).unwrap();
    init(&feed, feed.root_sha256()).run().await.expect(0);
    init(&other, other.root_sha256()).run().await.refused(
        78,
        "ROOT_ALREADY_PINNED",
        &["trust/root.json"],
    );
    assert_eq!(std::fs::read(home.home.trust_root()).unwrap(), pinned);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_is_published_once_and_other_bytes_under_its_name_are_refused() {
    let feed = TestFeed::new();
    let home = following(&feed, &feed.file_url()).await;
    // Somebody packed 1.1.0 here; the feed has another 1.1.0.
    home.install_faulty("1.1.0", "crash-before-ready");
    Pack::faulty(&feed, &home, "1.1.0", "none").release();
    let before = home.standing();
    check(&home).await.refused(
        1,
        "PUBLISHED_DIFFERENT",
        &["version 1.1.0", "packages/1.1.0"],
    );
    assert_untouched(&home, &before);
}
