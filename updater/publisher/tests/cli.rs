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

const COMMANDS: [&str; 10] = [
    "init", "add", "promote", "ramp", "barrier", "dead-end", "withdraw", "refresh", "rotate",
    "verify",
];

#[test]
fn every_command_explains_itself_with_an_example() {
    let folder = tempfile::tempdir().unwrap();
    let mut all = vec![vec!["--help"]];
    all.extend(COMMANDS.map(|command| vec![command, "--help"]));
    for arguments in all {
        let output = publish(folder.path(), &arguments);
        assert!(output.status.success());
        assert!(
            String::from_utf8_lossy(&output.stdout).contains("Example:"),
            "{arguments:?}"
        );
    }
}

/// Runs a command that succeeds, in the one format and, on a copy, in the other; gives text and JSON.
fn both(folder: &Path, arguments: &[&str]) -> (String, Value) {
    let copy = tempfile::tempdir().unwrap();
    let copied = Command::new("cp")
        .args(["-a", ".", copy.path().to_str().unwrap()])
        .current_dir(folder)
        .status();
    assert!(copied.unwrap().success());
    let told = publish(copy.path(), &[arguments, &["--format=json"]].concat());
    assert!(told.status.success(), "{told:?}");
    let text = publish(folder, arguments);
    assert!(text.status.success(), "{text:?}");
    (String::from_utf8(text.stdout).unwrap(), json(&told))
}

#[test]
fn every_command_tells_its_outcome_in_text_and_in_json() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (text, told) = both(
        folder,
        &with_place(&["init"], &["--root-keys-dir", "a", "--root-keys-dir", "b"]),
    );
    assert!(
        text.contains("signed by 2 of 3 keys: a/root-1.pk8 b/root-2.pk8 a/root-3.pk8"),
        "{text}"
    );
    assert_eq!(told["rootThreshold"], 2);
    assert!(
        text.contains("warning: there are fewer --root-keys-dir"),
        "{text}"
    );

    std::fs::create_dir(folder.join("bin")).unwrap();
    for name in ["rollproxy", "rollproxy-updater", "rollproxy-launcher"] {
        std::fs::write(folder.join("bin").join(name), "#!/bin/sh\n").unwrap();
    }
    std::fs::write(folder.join("notes"), "Faster\nstarts\n\n").unwrap();
    let adding = |version: &'static str, more: &[&'static str]| {
        let add = with_place(&["add"], &["--version", version, "--bin-dir", "bin"]);
        both(folder, &[&add[..], &["--no-trial"], more].concat())
    };
    let tried = publish(
        folder,
        &with_place(&["add"], &["--version", "1.0.0", "--bin-dir", "bin"]),
    );
    let errors = String::from_utf8_lossy(&tried.stderr);
    assert_eq!(tried.status.code(), Some(1), "{errors}");
    assert!(errors.contains("error[ENTRY_NOT_EXECUTABLE]"), "{errors}");
    adding("1.0.0", &[]);
    let (text, told) = adding(
        "1.1.0",
        &[
            "--delta-from",
            "1.0.0",
            "--notes-file",
            "notes",
            "--share",
            "10",
            "--over",
            "24h",
        ],
    );
    assert!(text.contains("patch from 1.0.0: "), "{text}");
    assert_eq!(told["deltas"][0]["from"], "1.0.0");
    let targets = std::fs::read(folder.join("feed/metadata/3.targets.json")).unwrap();
    let targets: Value = serde_json::from_slice(&targets).unwrap();
    let archive = told["archive"].as_str().unwrap();
    let custom = &targets["signed"]["targets"][archive]["custom"];
    assert_eq!(custom["notes"], "Faster\nstarts");
    assert_eq!(custom["ramp"]["durationMs"], 86_400_000);

    let (text, told) = both(
        folder,
        &with_place(&["promote"], &["--channel", "stable", "--version", "1.1.0"]),
    );
    assert!(
        text.contains("its key is keys/channel-stable.pk8"),
        "{text}"
    );
    assert_eq!(told["newChannel"], true);
    let (text, told) = both(
        folder,
        &with_place(&["ramp"], &["--version", "1.1.0", "--off"]),
    );
    assert!(text.contains("every host takes 1.1.0"), "{text}");
    assert_eq!(told["ramp"], Value::Null);
    let (text, told) = both(
        folder,
        &with_place(
            &["ramp"],
            &[
                "--version",
                "1.1.0",
                "--share",
                "5",
                "--over",
                "7d",
                "--start",
                "2030-01-01T00:00:00Z",
            ],
        ),
    );
    assert!(
        text.starts_with(
            "5% of hosts take 1.1.0 from 2030-01-01T00:00:00Z on, all of them 7d later"
        ),
        "{text}"
    );
    assert_eq!(told["ramp"]["share"], 5);
    let (text, told) = both(
        folder,
        &with_place(&["barrier"], &["--channel", "stable", "--version", "1.1.0"]),
    );
    assert!(
        text.contains("barriers of stable for") && text.ends_with(": 1.1.0\n"),
        "{text}"
    );
    assert_eq!(told["barriers"][0]["barriers"][0], "1.1.0");
    let (text, told) = both(
        folder,
        &with_place(
            &["dead-end"],
            &["--version", "1.0.0", "--reason", "by hand"],
        ),
    );
    assert!(text.starts_with("1.0.0 is a dead end: by hand"), "{text}");
    assert_eq!(told["deadEnd"], "by hand");
    let (text, told) = both(folder, &with_place(&["refresh"], &["--all"]));
    assert!(
        text.starts_with("signed anew: channel-stable, targets, snapshot, timestamp;"),
        "{text}"
    );
    assert_eq!(told["signed"].as_array().unwrap().len(), 4);
    let (text, told) = both(
        folder,
        &with_place(
            &["rotate"],
            &[
                "--role",
                "root,targets",
                "--root-keys-dir",
                "a",
                "--root-keys-dir",
                "b",
            ],
        ),
    );
    assert!(
        text.contains("new key b/root-2.pk8; the old one is now b/root-2.pk8.retired"),
        "{text}"
    );
    assert_eq!(told["keys"].as_array().unwrap().len(), 4);
    assert!(text.contains("not rotated: channel-stable;"), "{text}");
    assert_eq!(told["channelsLeft"][0], "channel-stable");
    let (text, told) = both(
        folder,
        &["verify", "--feed", "feed", "--unpack", "--patches"],
    );
    assert!(
        text.contains("2 archives (1 unpacked), 1 patch (1 applied)"),
        "{text}"
    );
    assert_eq!(told["root"], 3);
    let (text, told) = both(
        folder,
        &with_place(&["withdraw"], &["--version", "1.1.0", "--instead", "1.0.0"]),
    );
    assert!(text.contains("stable offers 1.0.0 for "), "{text}");
    assert!(text.contains("has lost that barrier"), "{text}");
    assert_eq!(told["targets"].as_array().unwrap().len(), 2);
    std::fs::remove_file(
        folder.join("feed").join(
            told["files"][0]
                .as_str()
                .unwrap()
                .trim_start_matches("feed/"),
        ),
    )
    .unwrap();
    both(folder, &["verify", "--feed", "feed"]);
}

#[test]
fn a_folder_of_keys_that_is_not_attached_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert!(
        publish(folder, &with_place(&["init"], &[]))
            .status
            .success()
    );
    let refresh = ["refresh", "--feed", "feed", "--keys", "nowhere"];
    let output = publish(folder, &refresh);
    assert_eq!(output.status.code(), Some(78));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("error[KEYS_FOLDER_MISSING]") && errors.contains("nowhere"),
        "{errors}"
    );
}

#[test]
fn verify_exits_1_and_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert!(
        publish(folder, &with_place(&["init"], &[]))
            .status
            .success()
    );
    std::fs::remove_file(folder.join("feed/metadata/1.targets.json")).unwrap();
    let output = publish(folder, &["verify", "--feed", "feed"]);
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("error[FEED_INCOMPLETE]: feed/metadata/1.targets.json is missing"),
        "{errors}"
    );
}

#[test]
fn words_that_make_no_sense_are_a_matter_of_usage() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert!(
        publish(folder, &with_place(&["init"], &[]))
            .status
            .success()
    );
    let before = std::fs::read_dir(folder.join("feed/metadata"))
        .unwrap()
        .count();
    let cases: [&[&str]; 12] = [
        &["ramp", "--version", "1.0.0"],
        &["ramp", "--version", "1.0.0", "--share", "10"],
        &[
            "ramp",
            "--version",
            "1.0.0",
            "--share",
            "101",
            "--over",
            "1h",
        ],
        &[
            "ramp",
            "--version",
            "1.0.0",
            "--share",
            "10",
            "--over",
            "soon",
        ],
        &[
            "ramp",
            "--version",
            "1.0.0",
            "--off",
            "--share",
            "10",
            "--over",
            "1h",
        ],
        &["dead-end", "--version", "1.0.0"],
        &["rotate", "--role", "mirrors"],
        &["rotate", "--role", ""],
        &["rotate", "--role", "targets", "--lost", "targets.pk8"],
        &["rotate", "--role", "root", "--lost", "root-9.pk8"],
        &["withdraw", "--version", "1.0.0", "--instead", "1.0.0"],
        &["promote", "--channel", "../x", "--version", "1.0.0"],
    ];
    for case in cases {
        let output = publish(folder, &with_place(case, &[]));
        assert_eq!(output.status.code(), Some(64), "{case:?}: {output:?}");
    }
    let after = std::fs::read_dir(folder.join("feed/metadata"))
        .unwrap()
        .count();
    assert_eq!(before, after);
}
