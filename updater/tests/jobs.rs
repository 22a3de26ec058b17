//! What jobs leave behind, take up again, and take from each other: as processes, on one home or two.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests are tests

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use common::{Does, Ran, Supervisor, UPDATER, World, supervise};
use publisher::Source;
use serde_json::{Value, json};
use staging::home::Home;
use staging::journal::{Journal, State};
use staging::ownership::ProcessIdentity;
use staging::update_state;
use staging::version::PackageVersion;
use staging::{clock, files};

fn v(text: &str) -> PackageVersion {
    text.parse().unwrap()
}

#[test]
fn fifty_checks_at_once_end_well_or_say_who_runs() {
    let world = World::new("1.0.0");
    let checks: Vec<_> = (0..50)
        .map(|_| {
            Command::new(UPDATER)
                .args(["check", "--format", "json"])
                .env_clear()
                .env("ROLLPROXY_HOME", world.home.root())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let pids: Vec<String> = checks
        .iter()
        .map(|child| format!("pid {}", child.id()))
        .collect();
    let mut installed = 0;
    for child in checks {
        let ran = Ran::from(child.wait_with_output().unwrap());
        let said = ran.json();
        match (ran.code, said["outcome"].as_str().unwrap()) {
            (Some(0), "installed") => installed += 1,
            (Some(0), "upToDate") => {}
            (Some(75), "deferred") => {
                assert_eq!(said["error"]["code"], "LOCK_HELD", "{ran:?}");
                let message = said["error"]["message"].as_str().unwrap();
                let named = pids.iter().any(|pid| message.contains(pid.as_str()));
                assert!(named || message.contains("not said who"), "{message}");
            }
            _ => panic!("{ran:?}"),
        }
    }
    assert_eq!(installed, 1);
    world.assert_tidy();
    assert_eq!(
        (world.installed(), world.selected().as_deref()),
        (vec!["1.0.0".to_owned()], Some("1.0.0"))
    );
    assert_eq!(world.run(&["verify"]).code, Some(0));
    world.check().expect(0, "upToDate");
}

#[test]
fn two_homes_of_one_feed_do_not_meet() {
    let world = World::new("1.0.0");
    let other = Home::at(world.folder.path().join("other"));
    world.init(&other);
    std::thread::scope(|scope| {
        let one = scope.spawn(|| world.check());
        let two = scope.spawn(|| common::run_in(&other, &["check", "--format", "json"]));
        one.join().unwrap().expect(0, "installed");
        two.join().unwrap().expect(0, "installed");
    });
    world.assert_tidy();
    assert_eq!(common::run_in(&other, &["verify"]).code, Some(0));
}

#[test]
fn an_interrupted_job_is_told_by_the_next_run_and_never_replayed() {
    let world = World::new("1.0.0");
    let mut dead = ProcessIdentity::current().unwrap();
    dead.start_time += 1;
    let mut left = Journal::open(&world.home, "killed", "check", &dead).unwrap();
    // About another version than the feed offers: whoever replayed it would go for that.
    left.set_version(&v("7.7.7"));
    left.record(State::Started, "stage", None).unwrap();

    let told = |said: &Value| {
        assert_eq!(said["interrupted"][0]["job"], "killed", "{said}");
        assert_eq!(said["interrupted"][0]["step"], "stage");
        assert_eq!(said["interrupted"][0]["version"], "7.7.7");
    };
    // A dry run tells it and leaves it for the run that ends it.
    told(
        &world
            .run(&["check", "--dry-run", "--format", "json"])
            .expect(100, "available"),
    );
    let ran = world.run(&["check", "--dry-run"]);
    assert!(
        ran.out
            .contains("job killed was interrupted at its step \"stage\" (7.7.7)"),
        "{ran:?}"
    );
    let said = world.check().expect(0, "installed");
    told(&said);
    assert_eq!(said["version"], "1.0.0");
    assert_eq!(
        world.check().expect(0, "upToDate")["interrupted"],
        json!([])
    );
    let history = world.run(&["history", "--format", "json"]).json();
    let killed = history["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .find(|job| job["job"] == "killed")
        .unwrap();
    assert_eq!(
        (&killed["state"], &killed["running"]),
        (&json!("interrupted"), &json!(false))
    );
}

#[test]
fn a_supervisor_that_dies_after_it_acknowledged_leaves_the_version_pending() {
    let world = World::new("1.0.0");
    world.check().expect(0, "installed");
    world.release("1.1.0");
    let does = Does {
        verdict: None,
        writes: false,
        marks: false,
    };
    let supervisor = Supervisor::that(&world.home, does);
    let ran = world.check();
    let said = ran.json();
    assert_ne!(ran.code, Some(0), "{ran:?}");
    assert_ne!(said["outcome"], "updated");
    assert_eq!(said["verdict"], Value::Null);
    supervisor.stop();
    // Whoever supervises next rolls to it; and the next check asks again.
    assert_eq!(
        (world.selected().as_deref(), world.pending().as_deref()),
        (Some("1.0.0"), Some("1.1.0"))
    );
    let supervisor = supervise(&world.home, "kept", true);
    let said = world
        .run(&["check", "--now", "--format", "json"])
        .expect(0, "updated");
    assert_eq!(said["bytes"], 0);
    assert_eq!(supervisor.stop()[0]["version"], "1.1.0");
}

#[test]
fn an_update_that_fails_its_probation_is_tried_once_remembered_and_said() {
    let world = World::new("1.0.0");
    world.check().expect(0, "installed");
    world.release("1.1.0");
    let does = Does {
        verdict: Some("rolledBack"),
        writes: false,
        marks: true,
    };
    let supervisor = Supervisor::that(&world.home, does);
    world.check().expect(3, "rolledBack");
    for _ in 0..3 {
        world.check().expect(0, "knownBad");
    }
    let ran = world.run(&["check"]);
    assert!(
        ran.out.contains("1.1.0 is known bad here (answered 5xx)"),
        "{ran:?}"
    );
    assert_eq!(
        world.run(&["check", "--now", "--format", "json"]).json()["outcome"],
        "knownBad"
    );
    assert_eq!(supervisor.stop().len(), 1, "it was asked for once");
    // The next release is another matter.
    world.release("1.1.1");
    let supervisor = supervise(&world.home, "kept", true);
    world.check().expect(0, "updated");
    supervisor.stop();
}

#[test]
fn a_selected_package_that_is_damaged_or_gone_is_brought_again() {
    let world = World::new("1.0.0");
    world.check().expect(0, "installed");
    let root = world.home.package(&v("1.0.0"));
    let damages: [fn(&std::path::Path); 3] = [
        |root| files::remove_tree(root).unwrap(),
        |root| fs::remove_file(open(root).join("package.json")).unwrap(),
        |root| {
            let program = open(&root.join("bin")).join("rollproxy-updater");
            fs::remove_file(&program).unwrap();
            fs::write(&program, "short").unwrap();
        },
    ];
    for damage in damages {
        damage(&root);
        assert_ne!(world.run(&["verify", "1.0.0"]).code, Some(0));
        let dry = world.run(&["check", "--dry-run", "--format", "json"]);
        dry.expect(100, "available");
        let ran = world.check();
        let said = ran.expect(0, "repaired");
        assert!(
            said["bytes"].as_u64().unwrap() > 0 && ran.err.contains("brought again"),
            "{ran:?}"
        );
        assert_eq!(world.run(&["verify", "1.0.0"]).code, Some(0));
        assert_eq!(
            (world.selected().as_deref(), world.pending()),
            (Some("1.0.0"), None)
        );
        world.assert_tidy();
    }
    world.check().expect(0, "upToDate");
    // Other bytes of the same length: seen by who looks at every byte, which --now does.
    let program = open(&root.join("bin")).join("rollproxy-updater");
    let mut bytes = fs::read(&program).unwrap();
    bytes[5000] ^= 1;
    fs::remove_file(&program).unwrap();
    fs::write(&program, bytes).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o555)).unwrap();
    world.check().expect(0, "upToDate");
    world
        .run(&["check", "--now", "--format", "json"])
        .expect(0, "repaired");
}

/// A folder of a package, made writable.
fn open(folder: &std::path::Path) -> std::path::PathBuf {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    folder.to_owned()
}

#[test]
fn a_damaged_selection_with_another_offer_is_repaired_first_and_then_updated() {
    let world = World::new("1.0.0");
    world.check().expect(0, "installed");
    world.release("1.1.0");
    files::remove_tree(&world.home.package(&v("1.0.0"))).unwrap();
    let supervisor = supervise(&world.home, "kept", true);
    world.check().expect(0, "repaired");
    world.check().expect(0, "updated");
    assert_eq!(supervisor.stop().len(), 1);
    assert_eq!(world.run(&["verify"]).code, Some(0));
}

#[test]
fn a_pending_package_that_is_damaged_is_brought_again_too() {
    let world = World::new("1.0.0");
    world.check().expect(0, "installed");
    world.release("1.1.0");
    world.check().expect(0, "pending");
    let root = world.home.package(&v("1.1.0"));
    fs::remove_file(open(&root).join("package.json")).unwrap();
    let said = world.check().expect(0, "pending");
    assert!(said["bytes"].as_u64().unwrap() > 0);
    assert_eq!(world.run(&["verify"]).code, Some(0));
}

#[test]
fn a_package_that_needs_a_newer_launcher_is_here_and_says_how() {
    let world = World::new("1.0.0");
    world.check().expect(0, "installed");
    world.add("1.1.0", |add| {
        let Source::Binaries(binaries) = &mut add.source else {
            panic!("packed here");
        };
        binaries.min_launcher = v("99.0.0");
    });
    world.promote("1.1.0");
    let check = |launcher: Option<&str>| {
        let mut command = Command::new(UPDATER);
        command
            .args(["check", "--format", "json"])
            .env_clear()
            .env("ROLLPROXY_HOME", world.home.root());
        if let Some(launcher) = launcher {
            command.env("ROLLPROXY_LAUNCHER", launcher);
        }
        Ran::from(command.output().unwrap())
    };
    for bytes_come in [true, false] {
        let ran = check(Some("0.1.0"));
        let said = ran.expect(1, "failed");
        assert_eq!(
            (&said["error"]["code"], &said["error"]["retry"]),
            (&json!("LAUNCHER_TOO_OLD"), &json!(false))
        );
        let message = said["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("needs launcher 99.0.0, and 0.1.0 started this")
                && message.contains("rollproxy-launcher install"),
            "{message}"
        );
        assert_eq!((world.installed().len(), world.pending()), (2, None));
        assert_eq!(said["bytes"].as_u64().unwrap() > 0, bytes_come);
    }
    // One that does not say what it is, is not judged.
    check(None).expect(0, "pending");
}

#[test]
fn gc_removes_what_nothing_names_and_says_what_it_gave_back() {
    let world = World::new("1.0.0");
    world.check().expect(0, "installed");
    for version in ["1.1.0", "1.2.0", "1.3.0", "1.4.0", "1.5.0"] {
        world.release(version);
        let supervisor = supervise(&world.home, "kept", true);
        let said = world.check().expect(0, "updated");
        supervisor.stop();
        // Selected, selected before, what the supervisor says that it is, and at most three besides.
        assert_eq!(said["collected"]["removed"], json!([]));
    }
    assert_eq!(
        world.installed(),
        ["1.0.0", "1.1.0", "1.2.0", "1.3.0", "1.4.0", "1.5.0"]
    );
    let dry = world
        .run(&["gc", "--keep", "1", "--dry-run", "--format", "json"])
        .json();
    let versions = |said: &Value| -> Vec<String> {
        let removed = said["removed"].as_array().unwrap();
        removed
            .iter()
            .map(|package| package["version"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(versions(&dry), ["1.2.0", "1.1.0", "1.0.0"]);
    assert_eq!(world.installed().len(), 6, "a dry run removes nothing");
    let stale = world
        .home
        .downloads()
        .join(format!("{}.part", "0".repeat(64)));
    fs::write(&stale, "half").unwrap();
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(8 * 86_400);
    fs::File::options()
        .write(true)
        .open(&stale)
        .unwrap()
        .set_modified(old)
        .unwrap();
    let fresh = world
        .home
        .downloads()
        .join(format!("{}.part", "1".repeat(64)));
    fs::write(&fresh, "half").unwrap();
    let ran = world.run(&["gc", "--keep", "1"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for part in [
        "removed 1.0.0 (",
        "1.5.0 stays: selected",
        "1.4.0 stays: selected before",
        "3 packages gave back",
        "1 stale downloads",
    ] {
        assert!(ran.out.contains(part), "{ran:?} lacks {part}");
    }
    assert_eq!(world.installed(), ["1.3.0", "1.4.0", "1.5.0"]);
    assert!(!stale.exists() && fresh.exists());
    // And after an update that is kept, as the configuration says.
    world.configure("keep = 0");
    world.release("1.6.0");
    let supervisor = supervise(&world.home, "kept", true);
    let said = world.check().expect(0, "updated");
    supervisor.stop();
    let collected = &said["collected"];
    assert_eq!(versions(collected), ["1.4.0", "1.3.0"]);
    assert!(collected["bytes"].as_u64().unwrap() > 0, "{said}");
    assert_eq!(world.installed(), ["1.5.0", "1.6.0"]);
    world.assert_tidy();
    assert_eq!(world.run(&["verify"]).code, Some(0));
}

#[test]
fn gc_spares_what_a_supervisor_needs_and_removes_nothing_if_it_does_not_say() {
    let world = World::new("1.0.0");
    world.check().expect(0, "installed");
    for version in ["1.1.0", "1.2.0"] {
        world.release(version);
        let supervisor = supervise(&world.home, "kept", true);
        world.check().expect(0, "updated");
        supervisor.stop();
    }
    let supervisor = supervise(&world.home, "kept", true);
    let said = world.run(&["gc", "--keep", "0", "--format", "json"]).json();
    assert_eq!(
        said["removed"],
        json!([]),
        "the supervisor says that it is 1.0.0"
    );
    // It lives, and does not answer.
    let socket = world.home.control_socket();
    let aside = world.home.run().join("aside.sock");
    fs::rename(&socket, &aside).unwrap();
    let ran = world.run(&["gc", "--keep", "0", "--format", "json"]);
    assert_eq!(ran.code, Some(75), "{ran:?}");
    assert_eq!(ran.json()["error"]["code"], "SUPERVISOR_UNREADABLE");
    assert_eq!(world.installed().len(), 3);
    fs::rename(&aside, &socket).unwrap();
    supervisor.stop();
    let said = world.run(&["gc", "--keep", "0", "--format", "json"]).json();
    assert_eq!(said["removed"][0]["version"], "1.0.0", "{said}");
    assert_eq!(world.installed(), ["1.1.0", "1.2.0"]);
}

#[test]
fn a_wait_that_the_feed_asked_for_is_kept_between_runs() {
    let world = World::new("1.0.0");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut text = Vec::new();
            while !text.ends_with(b"\r\n\r\n") {
                let mut block = [0; 1024];
                let count = stream.read(&mut block).unwrap();
                text.extend_from_slice(&block[..count]);
            }
            stream.write_all(b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 7200\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
        }
    });
    fs::write(
        world.home.config_file(),
        format!("[update]\nfeed = {url:?}\n"),
    )
    .unwrap();
    world.check().expect(1, "failed");
    let next = update_state::read(&world.home)
        .unwrap()
        .next_attempt
        .unwrap();
    let ahead = next.duration_since(clock::now()).as_secs();
    assert!((7100..=7200).contains(&ahead), "{ahead}");
    let said = world.check().expect(75, "deferred");
    assert_eq!(said["error"]["code"], "TOO_EARLY");
}
