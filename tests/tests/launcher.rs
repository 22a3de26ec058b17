//! A host is never stranded: what is selected is started by any of the launcher's names, what cannot be
//! started is passed over with a warning, and a person's choice stands above everything.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use harness::{Asked, Pack, Proxy, Starting, TestFeed, TestHome, Tool, ask, binaries};
use serde_json::{Value, json};

/// The launcher under one of its names.
fn link(home: &TestHome, name: &str) -> PathBuf {
    let link = home.folder().join(name);
    if !link.exists() {
        std::os::unix::fs::symlink(binaries().path("rollproxy-launcher"), &link).unwrap();
    }
    link
}

fn by_name(home: &TestHome, name: &str) -> Tool {
    Tool::new(link(home, name)).env("ROLLPROXY_HOME", home.home.root())
}

fn select(home: &TestHome, which: &str) -> Tool {
    by_name(home, "rollproxy").args(["select", which, "--format", "json"])
}

fn pinned(home: &TestHome) -> (String, bool) {
    let selection = home.selection().unwrap();
    (selection.version.to_string(), selection.pinned)
}

/// Makes the programs of a published package something that cannot be started.
fn break_programs(home: &TestHome, version: &str) {
    let bin = home.home.package(&version.parse().unwrap()).join("bin");
    for program in std::fs::read_dir(bin).unwrap() {
        let path = program.unwrap().path();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        let torn = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, &torn[..torn.len().min(100)]).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o555)).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_names_start_three_things_as_the_same_process_with_the_same_arguments() {
    let home = TestHome::new();
    home.install("1.4.2");
    home.select("1.4.2");
    let package = home.home.package(&"1.4.2".parse().unwrap());

    let mut command = Command::new(link(&home, "rollproxy"));
    let proxy = Starting::run(&home, command.arg("serve")).answering().await;
    // Answering is only believed of the pid that was started.
    let seen = |what: &str| std::fs::read_link(format!("/proc/{}/{what}", proxy.pid())).unwrap();
    assert_eq!(seen("exe"), package.join("bin/rollproxy"));
    let words = std::fs::read(format!("/proc/{}/cmdline", proxy.pid())).unwrap();
    assert!(
        words.ends_with(b"\0serve\0"),
        "{}",
        String::from_utf8_lossy(&words)
    );
    proxy.serves().await;
    assert!(ask(proxy.address).await.is_well());

    let status = by_name(&home, "rollproxy")
        .args(["status", "--format", "json"])
        .run()
        .await;
    assert_eq!(status.expect(0).json()["supervisorVersion"], "1.4.2");
    let updater = |argument: &str| by_name(&home, "rollproxy-updater").arg(argument).run();
    assert!(
        updater("--help")
            .await
            .expect(0)
            .stdout
            .contains("check --dry-run")
    );
    updater("nonsense").await.expect(64);
    for (name, said) in [
        ("rollproxy", "rollproxy 1.4.2\n"),
        ("rollproxy-updater", "rollproxy-updater 1.4.2\n"),
        ("rollproxy-launcher", "rollproxy 1.4.2\n"),
    ] {
        let told = by_name(&home, name).arg("--version").run().await.expect(0);
        assert_eq!((told.stdout.as_str(), told.stderr.as_str()), (said, ""));
    }
    let verbose = by_name(&home, "rollproxy")
        .args(["--version", "--verbose"])
        .run()
        .await
        .expect(0);
    for line in [
        "rollproxy 1.4.2",
        "compiled: 0.",
        &format!("package: {}", package.display()),
    ] {
        assert!(verbose.stdout.contains(line), "{line}: {}", verbose.stdout);
    }
    let which = by_name(&home, "rollproxy")
        .args(["which", "rollproxy-updater"])
        .run()
        .await
        .expect(0);
    assert_eq!(
        which.stdout,
        format!("{}\n", package.join("bin/rollproxy-updater").display())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_selected_package_that_cannot_start_is_passed_over_and_the_status_says_what_really_runs()
{
    let home = TestHome::new();
    home.install_proxy("1.0.0");
    home.install_proxy("1.1.0");
    home.select("1.0.0");
    home.select("1.1.0");
    break_programs(&home, "1.1.0");
    let proxy = Proxy::start(&home).await;
    let log = proxy.log();
    assert!(
        log.contains("warning: ")
            && log.contains("1.1.0")
            && log.contains("starting 1.0.0 instead"),
        "{log}"
    );
    let now = proxy.now();
    assert_eq!(now.supervisor_version.to_string(), "1.0.0");
    assert_eq!(now.worker_version.unwrap().to_string(), "1.0.0");
    assert_eq!(now.selected_package_version.unwrap().to_string(), "1.1.0");
    assert!(ask(proxy.address).await.is_well());

    // Choosing does not depend on the broken one.
    let said = select(&home, "1.0.0").run().await.expect(0).json();
    assert_eq!(
        (&said["version"], &said["pinned"]),
        (&json!("1.0.0"), &json!(true))
    );
    assert_eq!(pinned(&home), ("1.0.0".into(), true));
    select(&home, "1.1.0").run().await.refused(
        69,
        "FILE_SIZE",
        &["package 1.1.0 is damaged", "bin/rollproxy"],
    );
    assert_eq!(pinned(&home), ("1.0.0".into(), true));
    drop(proxy);

    break_programs(&home, "1.0.0");
    let mut neither = Starting::selected(&home);
    assert_eq!(neither.ended().await, Some(69));
    assert!(
        neither.log().contains("error[NO_USABLE_PACKAGE]"),
        "{}",
        neither.log()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_updater_falls_back_so_that_the_next_release_still_comes() {
    let feed = TestFeed::new();
    let home = TestHome::new();
    home.install("1.0.0");
    home.install("1.1.0");
    home.select("1.0.0");
    home.select("1.1.0");
    feed.pin(&home, &feed.file_url()).await;
    break_programs(&home, "1.1.0");
    Pack::faulty(&feed, &home, "1.2.0", "none").release();
    let said = by_name(&home, "rollproxy-updater")
        .args(["check", "--format", "json"])
        .run()
        .await;
    said.answered(0, "pending");
    assert!(
        said.stderr.starts_with("warning: ") && said.stderr.contains("starting 1.0.0 instead"),
        "{}",
        said.stderr
    );
    assert_eq!(home.pending().as_deref(), Some("1.2.0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_persons_choice_is_rolled_to_and_pinned_and_jobs_leave_it_alone() {
    let feed = TestFeed::new();
    let home = TestHome::new();
    home.install_proxy("1.0.0");
    home.install_faulty("1.1.0", "none");
    home.install_faulty("1.2.0", "crash-before-ready");
    home.select("1.0.0");
    feed.pin(&home, &feed.file_url()).await;
    let proxy = Proxy::start(&home).await;

    let said = select(&home, "1.1.0").run().await.expect(0).json();
    assert_eq!(
        (&said["outcome"], &said["previous"]),
        (&json!("selected"), &json!("1.0.0"))
    );
    assert_eq!(said["verdict"]["verdict"], "kept");
    assert_eq!(pinned(&home), ("1.1.0".into(), true));
    assert_eq!(home.selection().unwrap().by, "person");
    assert_eq!(ask(proxy.address).await, Asked::by_faulty());
    Pack::faulty(&feed, &home, "1.3.0", "none").release();
    home.check().run().await.answered(0, "pinned");
    home.check()
        .arg("--dry-run")
        .run()
        .await
        .answered(0, "pinned");
    assert_eq!(proxy.active_version().as_deref(), Some("1.1.0"));

    // What does not come up leaves selection and pin.
    let stands = || (home.selection(), proxy.active().generation);
    let before = stands();
    let said = select(&home, "1.2.0").run().await.refused(
        1,
        "WORKER_EXITED",
        &["1.2.0", "selected is still 1.1.0"],
    );
    assert_eq!(said["error"]["retry"], false);
    let text = by_name(&home, "rollproxy")
        .args(["select", "1.2.0"])
        .run()
        .await
        .expect(1);
    let last = text.stderr.lines().next_back().unwrap();
    assert!(
        last.starts_with("error[WORKER_EXITED]: the rollout of 1.2.0 failed: "),
        "{last}"
    );
    assert_eq!(stands(), before);
    select(&home, "7.7.7").run().await.refused(
        69,
        "NOT_INSTALLED",
        &["7.7.7", "1.0.0, 1.1.0, 1.2.0"],
    );
    select(&home, "v1.0.0")
        .run()
        .await
        .refused(64, "VERSION_INVALID", &["v1.0.0"]);
    assert_eq!(stands(), before);

    // What runs already needs no rollout to lose its pin.
    let said = select(&home, "latest").run().await.expect(0).json();
    assert_eq!(
        (&said["version"], &said["pinned"]),
        (&json!("1.1.0"), &json!(false))
    );
    assert_eq!(pinned(&home), ("1.1.0".into(), false));
    assert_eq!(proxy.active().generation, before.1);
    home.check().run().await.answered(0, "updated");
    assert_eq!(pinned(&home), ("1.3.0".into(), false));

    // Back, and forth again: the highest that was kept.
    select(&home, "1.0.0").run().await.expect(0);
    assert_eq!(pinned(&home), ("1.0.0".into(), true));
    home.check().run().await.answered(0, "pinned");
    select(&home, "latest").run().await.expect(0);
    assert_eq!(pinned(&home), ("1.3.0".into(), false));
    assert_eq!(proxy.active_version().as_deref(), Some("1.3.0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_known_bad_version_is_a_persons_to_try_again() {
    let feed = TestFeed::new();
    let home = TestHome::new();
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    feed.pin(&home, &feed.file_url()).await;
    let proxy = Proxy::start(&home).await;
    home.tell("crash-before-ready");
    Pack::faulty(
        &feed,
        &home,
        "1.1.0",
        &format!("told-by={}", home.told_file().display()),
    )
    .release();
    home.check()
        .run()
        .await
        .refused(1, "WORKER_EXITED", &["1.1.0"]);
    assert!(home.is_known_bad("1.1.0"));
    let list = by_name(&home, "rollproxy")
        .arg("list")
        .run()
        .await
        .expect(0);
    assert!(
        list.stdout.starts_with("1.1.0  known bad: "),
        "{}",
        list.stdout
    );
    select(&home, "latest").run().await.expect(0);
    assert_eq!(
        pinned(&home),
        ("1.0.0".into(), false),
        "`latest` is not the known-bad one"
    );

    // Still broken: warned about, tried, and still known bad.
    let said = select(&home, "1.1.0").run().await;
    said.refused(1, "WORKER_EXITED", &["1.1.0"]);
    assert!(
        said.stderr.contains("warning: 1.1.0 is known bad here"),
        "{}",
        said.stderr
    );
    assert!(home.is_known_bad("1.1.0"));
    assert_eq!(pinned(&home), ("1.0.0".into(), false));

    // Whatever was wrong with the host is mended.
    home.tell("");
    let said = select(&home, "1.1.0").run().await.expect(0);
    assert!(
        said.stderr.contains("warning: 1.1.0 is known bad here"),
        "{}",
        said.stderr
    );
    assert_eq!(said.json()["verdict"]["verdict"], "kept");
    assert!(!home.is_known_bad("1.1.0"), "the mark stayed");
    assert_eq!(pinned(&home), ("1.1.0".into(), true));
    assert_eq!(proxy.active_version().as_deref(), Some("1.1.0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_supervisor_a_choice_is_written_at_once_and_started_next() {
    let feed = TestFeed::new();
    let home = TestHome::new();
    home.install_proxy("1.0.0");
    home.install_proxy("1.1.0");
    home.select("1.1.0");
    feed.pin(&home, &feed.file_url()).await;
    Pack::faulty(&feed, &home, "1.2.0", "none").release();
    home.check().run().await.answered(0, "pending");
    let said = select(&home, "1.0.0").run().await.expect(0).json();
    assert_eq!(
        (&said["verdict"], &said["previous"]),
        (&Value::Null, &json!("1.1.0"))
    );
    assert_eq!(
        (pinned(&home), home.pending()),
        (("1.0.0".into(), true), None)
    );
    let proxy = Proxy::start(&home).await;
    assert_eq!(proxy.active_version().as_deref(), Some("1.0.0"));
    assert!(
        proxy.now().rolling.last_rollout.is_none(),
        "it rolled to what was pending before the choice"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_advice_about_a_broken_selection_leads_out_of_it() {
    let home = TestHome::new();
    home.install_proxy("1.0.0");
    home.install_proxy("1.1.0");
    home.select("1.1.0");
    let file = home.home.selection_file();
    std::fs::write(&file, "{ torn").unwrap();

    for arguments in [&["serve"][..], &["select", "1.0.0"]] {
        let said = by_name(&home, "rollproxy-launcher")
            .args(arguments.iter().copied())
            .run()
            .await;
        assert_ne!(said.code, Some(0));
        for part in [
            file.to_str().unwrap(),
            "move the file away",
            "`rollproxy-launcher select VERSION`",
            "`rollproxy-launcher list`",
        ] {
            assert!(said.stderr.contains(part), "{arguments:?}: {}", said.stderr);
        }
    }

    let list = || by_name(&home, "rollproxy-launcher").arg("list");
    let said = list().run().await.expect(0);
    assert_eq!(said.stdout, "1.1.0\n1.0.0\n");
    assert!(said.stderr.starts_with("warning: "), "{}", said.stderr);
    assert!(
        said.stderr.contains(file.to_str().unwrap()),
        "{}",
        said.stderr
    );
    let said = list().args(["--format", "json"]).run().await.expect(0);
    let said = said.json();
    assert_eq!(said["selectionError"]["code"], "DOCUMENT_UNPARSABLE");
    assert_eq!(said["packages"][0]["version"], "1.1.0");
    assert_eq!(std::fs::read(&file).unwrap(), b"{ torn");

    std::fs::rename(&file, file.with_extension("away")).unwrap();
    select(&home, "1.0.0").run().await.expect(0);
    assert_eq!(pinned(&home), ("1.0.0".into(), true));
    let said = list().args(["--format", "json"]).run().await.expect(0);
    assert_eq!(
        (said.stderr.as_str(), &said.json()["selectionError"]),
        ("", &Value::Null)
    );
}
