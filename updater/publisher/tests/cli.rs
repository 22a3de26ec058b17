//! The program: words, outcomes, exit codes.

// Helpers of tests are tests.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn publish(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rollproxy-publish"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

const PLACE: [&str; 4] = ["--feed", "feed", "--keys", "keys"];

fn with_place<'a>(before: &[&'a str], after: &[&'a str]) -> Vec<&'a str> {
    [before, &PLACE, after].concat()
}

#[test]
fn a_release_from_the_first_key_to_the_channel() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let made = publish(folder, &with_place(&["init"], &["--format", "json"]));
    assert!(made.status.success(), "{made:?}");
    let root = std::fs::read(folder.join("feed/metadata/1.root.json")).unwrap();
    assert_eq!(json(&made)["rootSha256"], staging::digest::of(&root));

    std::fs::write(folder.join("any"), "bytes").unwrap();
    let add = with_place(
        &["--format=json", "add"],
        &["--version", "1.0.0", "--archive", "any"],
    );
    let refused = publish(folder, &add);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(json(&refused)["error"]["retry"], false);

    let added = publish(folder, &[&add[..], &["--unchecked"]].concat());
    assert_eq!(json(&added)["already"], false, "{added:?}");
    let promoted = publish(
        folder,
        &with_place(&["promote"], &["--channel", "stable", "--version", "1.0.0"]),
    );
    assert!(promoted.status.success());
    assert!(
        String::from_utf8_lossy(&promoted.stdout)
            .starts_with("stable offers 1.0.0; the feed expires 2")
    );
    let refreshed = publish(
        folder,
        &with_place(&["refresh"], &["--format", "json", "--expires-days", "7"]),
    );
    assert_eq!(json(&refreshed)["timestamp"], 4);
}

#[test]
fn failures_have_codes_and_exits() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let cases: [(&[&str], i32, &str); 5] = [
        (
            &["refresh", "--feed", "feed", "--keys", "keys"],
            1,
            "error[FEED_MISSING]",
        ),
        (
            &["init", "--feed", "feed", "--keys", "feed/keys"],
            78,
            "error[KEYS_INSIDE_FEED]",
        ),
        (&["init", "--feed", "feed"], 64, "--keys"),
        (
            &[
                "add",
                "--feed",
                "feed",
                "--keys",
                "keys",
                "--version",
                "v1",
                "--archive",
                "x",
            ],
            64,
            "no package version",
        ),
        (&["launch"], 64, "launch"),
    ];
    for (arguments, exit, text) in cases {
        let output = publish(folder, arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(exit), "{arguments:?}: {errors}");
        assert!(errors.contains(text), "{arguments:?}: {errors}");
    }
    assert_eq!(
        std::fs::read_dir(folder).unwrap().count(),
        0,
        "a refused command left something behind"
    );
}

#[test]
fn a_keys_folder_that_others_can_change_is_refused_until_it_is_mended() {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let keys = folder.join("keys");
    let set = |mode| std::fs::set_permissions(&keys, Permissions::from_mode(mode)).unwrap();
    let refused = |command: &str, mode: &str| {
        let output = publish(folder, &with_place(&[command], &["--format", "json"]));
        assert_eq!(output.status.code(), Some(78), "{command}: {output:?}");
        let error = &json(&output)["error"];
        assert_eq!(error["code"], "KEYS_EXPOSED");
        let message = error["message"].as_str().unwrap();
        for part in [mode, "`chmod go-w keys`"] {
            assert!(message.contains(part), "{message}");
        }
    };
    std::fs::create_dir(&keys).unwrap();
    set(0o770);
    refused("init", "0770");
    assert_eq!(std::fs::read_dir(&keys).unwrap().count(), 0);
    assert!(!folder.join("feed").exists());

    set(0o755);
    assert!(
        publish(folder, &with_place(&["init"], &[]))
            .status
            .success()
    );
    let served = || std::fs::read(folder.join("feed/metadata/timestamp.json")).unwrap();
    let before = served();
    for (mode, shown) in [(0o720, "0720"), (0o702, "0702"), (0o1777, "1777")] {
        set(mode);
        refused("refresh", shown);
        assert_eq!(served(), before);
    }
    let mended = std::process::Command::new("chmod")
        .args(["go-w", "keys"])
        .current_dir(folder)
        .status();
    assert!(mended.unwrap().success());
    assert!(
        publish(folder, &with_place(&["refresh"], &[]))
            .status
            .success()
    );
}

#[test]
fn every_command_explains_itself_with_an_example() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [
        &["--help"][..],
        &["init", "--help"],
        &["add", "--help"],
        &["promote", "--help"],
        &["refresh", "--help"],
    ] {
        let output = publish(folder.path(), arguments);
        assert!(output.status.success());
        assert!(
            String::from_utf8_lossy(&output.stdout).contains("Example:"),
            "{arguments:?}"
        );
    }
}
