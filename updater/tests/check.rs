//! The updater as a process: a signed feed in a folder, packages that hold this very updater, and, where a rollout is
//! asked for, a supervisor of a few lines that says what the test wants.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests are tests

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;
use std::thread::JoinHandle;

use publisher::{Add, Binaries, Init, Place, Promote, Source};
use serde_json::{Value, json};
use staging::home::Home;
use staging::journal::{self, Journal, State};
use staging::locks::{StateLock, SupervisorLock, UpdaterLock};
use staging::ownership::{ProcessIdentity, SupervisorRecord};
use staging::selection::{self, Change};
use staging::stage::StagingFolder;
use staging::version::PackageVersion;
use staging::{clock, package, update_state};

const UPDATER: &str = env!("CARGO_BIN_EXE_rollproxy-updater");

struct World {
    folder: tempfile::TempDir,
    place: Place,
    home: Home,
}

impl World {
    /// A feed with one release, and a home that follows it.
    fn new(version: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new(folder.path().join("feed"), folder.path().join("keys"));
        let made = publisher::init(&place, &Init::default()).unwrap();
        let home = Home::at(folder.path().join("home"));
        let world = Self {
            folder,
            place,
            home,
        };
        world.release(version);
        let root = made.root.display().to_string();
        let ran = world.run(&[
            "init",
            "--feed",
            &world.url(),
            "--root",
            &root,
            "--sha256",
            &made.root_sha256,
        ]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        world
    }

    fn url(&self) -> String {
        format!("file://{}", self.place.feed.display())
    }

    fn release(&self, version: &str) {
        self.publish(
            version,
            Source::Binaries(Binaries {
                entries: vec![("rollproxy-updater".to_owned(), PathBuf::from(UPDATER))],
                extra: Vec::new(),
                commit: "abc".to_owned(),
                compiled_version: "0.1.0".to_owned(),
                min_launcher: PackageVersion::new(0, 1, 0),
                level: 1,
            }),
        );
    }

    fn publish(&self, version: &str, source: Source) {
        let add = Add::new(version.parse().unwrap(), source);
        publisher::add(&self.place, &add).unwrap();
        publisher::promote(
            &self.place,
            &Promote::new("stable", version.parse().unwrap()),
        )
        .unwrap();
    }

    fn run(&self, args: &[&str]) -> Ran {
        let output = Command::new(UPDATER)
            .args(args)
            .env_clear()
            .env("ROLLPROXY_HOME", self.home.root())
            .output()
            .unwrap();
        Ran {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    fn check(&self) -> Ran {
        self.run(&["check", "--format", "json"])
    }

    fn installed(&self) -> Vec<String> {
        let installed = package::list(&self.home).unwrap();
        installed.iter().map(ToString::to_string).collect()
    }

    fn selected(&self) -> Option<String> {
        selection::read(&self.home)
            .unwrap()
            .map(|selection| selection.version.to_string())
    }

    fn pending(&self) -> Option<String> {
        let pending = update_state::read(&self.home).unwrap().pending;
        pending.map(|pending| pending.version.to_string())
    }

    /// Nothing lies in staging, and no job is without an end.
    fn assert_tidy(&self) {
        assert_eq!(fs::read_dir(self.home.staging_dir()).unwrap().count(), 0);
        assert_eq!(journal::unfinished(&self.home).unwrap(), []);
    }

    fn configure(&self, lines: &str) {
        let url = self.url();
        fs::write(
            self.home.config_file(),
            format!("[update]\nfeed = {url:?}\n{lines}\n"),
        )
        .unwrap();
    }
}

#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ran {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    fn expect(&self, code: i32, outcome: &str) -> Value {
        let said = self.json();
        assert_eq!(
            (self.code, &said["outcome"]),
            (Some(code), &json!(outcome)),
            "{self:?}"
        );
        said
    }
}

#[test]
fn a_first_install_is_selected_at_once_and_then_there_is_nothing_to_do() {
    let world = World::new("1.0.0");
    let ran = world.run(&["check", "--dry-run"]);
    assert_eq!(ran.code, Some(100), "{ran:?}");
    assert_eq!(ran.out, "1.0.0 is available (selected: nothing)\n");
    assert_eq!((world.installed().len(), world.selected()), (0, None));

    let said = world.check().expect(0, "installed");
    assert_eq!(
        (&said["version"], &said["previous"]),
        (&json!("1.0.0"), &json!(null))
    );
    assert!(said["bytes"].as_u64().unwrap() > 100_000, "{said}");
    assert_eq!(said["error"], json!(null));
    assert_eq!(
        (world.installed(), world.selected()),
        (vec!["1.0.0".to_owned()], Some("1.0.0".to_owned()))
    );
    assert_eq!(world.pending(), None);
    assert_eq!(fs::read_dir(world.home.downloads()).unwrap().count(), 0);
    world.assert_tidy();

    world.check().expect(0, "upToDate");
    assert_eq!(world.run(&["check", "--dry-run"]).code, Some(0));
    let ran = world.run(&["check"]);
    assert_eq!(
        (ran.out.as_str(), ran.err.as_str()),
        ("version 1.0.0 is already selected\n", "")
    );
}

#[test]
fn without_a_supervisor_the_next_version_waits_and_is_not_brought_twice() {
    let world = World::new("1.0.0");
    world.check().expect(0, "installed");
    world.release("1.1.0");
    let said = world.check().expect(0, "pending");
    assert!(said["bytes"].as_u64().unwrap() > 0);
    assert_eq!(
        (world.selected().as_deref(), world.pending().as_deref()),
        (Some("1.0.0"), Some("1.1.0"))
    );
    let said = world.check().expect(0, "pending");
    assert_eq!(said["bytes"], 0);
    // A person's pin stands above the feed.
    let lock = StateLock::acquire(&world.home, std::time::Duration::ZERO).unwrap();
    let change = Change {
        version: PackageVersion::new(1, 0, 0),
        pinned: true,
        by: "person".to_owned(),
    };
    selection::write(&lock, &world.home, change).unwrap();
    drop(lock);
    world.check().expect(0, "pinned");
}

#[test]
fn init_pins_only_the_root_it_was_told_and_leaves_a_configuration_alone() {
    let world = World::new("1.0.0");
    let root = world.place.root().display().to_string();
    let args = |home_feed: &str, sha256: &str| {
        [
            "init", "--feed", home_feed, "--root", &root, "--sha256", sha256,
        ]
        .map(str::to_owned)
    };
    let config = fs::read(world.home.config_file()).unwrap();
    let wrong = args(&world.url(), &"0".repeat(64));
    let ran = world.run(&wrong.each_ref().map(String::as_str));
    assert_eq!(ran.code, Some(78), "{ran:?}");
    let sha256 = staging::digest::of(&fs::read(&root).unwrap());
    let again = args("file:///elsewhere", &sha256);
    let ran = world.run(&again.each_ref().map(String::as_str));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.out.contains("left as it is; its feed is another one"),
        "{ran:?}"
    );
    assert_eq!(fs::read(world.home.config_file()).unwrap(), config);
}

#[test]
fn what_is_not_a_good_archive_publishes_nothing() {
    let world = World::new("1.0.0");
    world.check().expect(0, "installed");
    let garbage = world.folder.path().join("garbage");
    fs::write(&garbage, "<html>not found</html>").unwrap();
    world.publish("1.1.0", Source::Unchecked(garbage));
    let said = world.check().expect(1, "failed");
    assert_eq!(said["error"]["retry"], false, "{said}");
    assert_eq!(
        (world.installed(), world.selected().as_deref()),
        (vec!["1.0.0".to_owned()], Some("1.0.0"))
    );
    assert_eq!(world.pending(), None);
    world.assert_tidy();
    let last = journal::all(&world.home).unwrap().pop().unwrap();
    assert_eq!((last.state, last.step.as_str()), (State::Ended, "stage"));
    assert!(last.cause.unwrap().contains("archive"));
    // It is the archive's fault: the next run is not put off.
    assert_eq!(update_state::read(&world.home).unwrap().next_attempt, None);
}

#[test]
fn the_hard_limit_stops_staging_and_keeps_nothing_but_the_download() {
    let world = World::new("1.0.0");
    world.configure("hard_timeout = \"1ms\"");
    let said = world.check().expect(1, "failed");
    assert_eq!(said["error"]["code"], "STAGING_OVERDUE", "{said}");
    assert_eq!((world.installed().len(), world.selected()), (0, None));
    world.assert_tidy();
    // The next run waits for its time, or for a person who does not.
    world.configure("");
    let said = world.check().expect(75, "deferred");
    assert_eq!(said["error"]["code"], "TOO_EARLY");
    let ran = world.run(&["check", "--now", "--format", "json"]);
    ran.expect(0, "installed");
    assert_eq!(update_state::read(&world.home).unwrap().next_attempt, None);
}

#[test]
fn a_feed_that_is_away_is_tried_again_and_then_put_off() {
    let world = World::new("1.0.0");
    // A port that was free a moment ago: nobody listens.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    fs::write(
        world.home.config_file(),
        format!("[update]\nfeed = \"http://user:s3cret@127.0.0.1:{port}/\"\n"),
    )
    .unwrap();
    let ran = world.check();
    let said = ran.expect(1, "failed");
    assert_eq!(said["error"]["retry"], true, "{said}");
    assert!(!ran.out.contains("s3cret"));
    let state = update_state::read(&world.home).unwrap();
    assert!(state.next_attempt.unwrap() > clock::now());
    assert_eq!(state.failed_attempts, 1);
    // A dry run only looks, and does not wait.
    assert_eq!(world.run(&["check", "--dry-run"]).code, Some(1));
}

#[test]
fn a_second_updater_says_who_runs() {
    let world = World::new("1.0.0");
    let _held = UpdaterLock::try_acquire(&world.home).unwrap();
    let said = world.check().expect(75, "deferred");
    assert_eq!(said["error"]["code"], "LOCK_HELD");
    let message = said["error"]["message"].as_str().unwrap();
    assert!(
        message.contains(&format!("pid {}", std::process::id())),
        "{message}"
    );
}

#[test]
fn what_a_killed_job_left_is_noted_and_cleaned() {
    let world = World::new("1.0.0");
    let mut dead = ProcessIdentity::current().unwrap();
    dead.start_time += 1;
    let mut left = Journal::open(&world.home, "killed", "check", &dead).unwrap();
    left.record(State::Started, "stage", None).unwrap();
    let folder = StagingFolder::create(&world.home, "killed").unwrap();
    let path = folder.path().parent().unwrap().to_owned();
    // As a kill does it: the lock is free, the folder stays.
    let kept = world.folder.path().join("kept");
    fs::rename(&path, &kept).unwrap();
    drop(folder);
    fs::rename(&kept, &path).unwrap();
    world.check().expect(0, "installed");
    world.assert_tidy();
    let noted = journal::all(&world.home).unwrap();
    let noted = noted.iter().find(|record| record.job == "killed").unwrap();
    assert_eq!(
        (noted.state, noted.step.as_str()),
        (State::Interrupted, "stage")
    );
}

#[test]
fn the_words_of_the_command_line_and_the_environment() {
    let world = World::new("1.0.0");
    assert_eq!(world.run(&["check", "--self-test"]).code, Some(0));
    assert_eq!(world.run(&["check", "--format", "yaml"]).code, Some(64));
    assert_eq!(world.run(&[]).code, Some(64));
    assert_eq!(
        world.run(&["--version"]).out,
        concat!("rollproxy-updater ", env!("CARGO_PKG_VERSION"), "\n")
    );
    let ran = Command::new(UPDATER)
        .args(["check", "--format", "json"])
        .env_clear()
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(78));
    world.configure("hard_timeout = \"soon\"");
    assert_eq!(world.run(&["check", "--self-test"]).code, Some(1));
    let ran = world.run(&["check"]);
    assert_eq!(ran.code, Some(78), "{ran:?}");
    for part in [
        "config.toml",
        "update.hard_timeout",
        "\"soon\"",
        "allowed is",
    ] {
        assert!(ran.err.contains(part), "{ran:?}");
    }
    fs::remove_file(world.home.trust_root()).unwrap();
    assert_eq!(world.run(&["check", "--self-test"]).code, Some(1));
}

// With a supervisor: this process, as far as the home can tell.

struct Supervisor {
    _lock: SupervisorLock,
    server: JoinHandle<Vec<Value>>,
}

/// Answers one request for a rollout with `verdict`, and status afterwards if that is `kept`.
fn supervise(home: &Home, verdict: &'static str, writes: bool) -> Supervisor {
    let lock = SupervisorLock::try_acquire(home).unwrap();
    let identity = ProcessIdentity::current().unwrap();
    let record = SupervisorRecord {
        schema: 1,
        identity: identity.clone(),
        version: PackageVersion::new(1, 0, 0),
        executable: std::env::current_exe().unwrap(),
        listeners: Vec::new(),
        since: clock::now(),
    };
    lock.announce(home, &record).unwrap();
    let listener = UnixListener::bind(home.control_socket()).unwrap();
    let home = home.clone();
    let server = std::thread::spawn(move || {
        let mut asked = Vec::new();
        let requests = if verdict == "kept" { 2 } else { 1 };
        for _ in 0..requests {
            let (mut stream, _) = listener.accept().unwrap();
            let (line, body) = request(&stream);
            let answer = if line.starts_with("POST /rollouts") {
                let asked_for: Value = serde_json::from_str(&body).unwrap();
                let version = asked_for["version"].as_str().unwrap().to_owned();
                asked.push(asked_for);
                if writes {
                    keep(&home, &version);
                }
                json!({"rollout": 1, "verdict": verdict, "version": version, "generation": 2, "code": null, "reason": "as the test wants", "serial": 2})
            } else {
                let selected = selection::read(&home).unwrap().unwrap();
                json!({
                    "schema": 1, "supervisorVersion": "1.0.0", "supervisorPid": identity.pid, "nonce": identity.nonce,
                    "since": clock::now(), "selectedPackageVersion": selected.version, "selectedSerial": selected.serial,
                    "workerVersion": selected.version,
                })
            };
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{answer}\n"
            )
            .unwrap();
        }
        asked
    });
    Supervisor {
        _lock: lock,
        server,
    }
}

fn keep(home: &Home, version: &str) {
    let version: PackageVersion = version.parse().unwrap();
    let lock = StateLock::acquire(home, std::time::Duration::from_secs(10)).unwrap();
    let change = Change {
        version: version.clone(),
        pinned: false,
        by: "job".to_owned(),
    };
    selection::write(&lock, home, change).unwrap();
    update_state::modify(&lock, home, |state| state.kept(&version)).unwrap();
}

fn request(stream: &std::os::unix::net::UnixStream) -> (String, String) {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).unwrap();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if let Some(value) = line.strip_prefix("Content-Length: ") {
            length = value.trim().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (first, String::from_utf8(body).unwrap())
}

#[test]
fn the_verdict_of_the_rollout_is_the_outcome() {
    for (verdict, writes, code, outcome, error) in [
        ("kept", true, 0, "updated", None),
        ("kept", false, 2, "unverified", Some("ROLLOUT_UNVERIFIED")),
        ("failed", false, 1, "failed", Some("ROLLOUT_FAILED")),
        ("rolledBack", false, 3, "rolledBack", Some("ROLLED_BACK")),
        ("deferred", false, 75, "deferred", Some("ROLLOUT_DEFERRED")),
    ] {
        let world = World::new("1.0.0");
        world.check().expect(0, "installed");
        world.release("1.1.0");
        let supervisor = supervise(&world.home, verdict, writes);
        let said = world.check().expect(code, outcome);
        assert_eq!(said["error"]["code"].as_str(), error, "{said}");
        assert_eq!(said["verdict"]["verdict"], verdict);
        let asked = supervisor.server.join().unwrap();
        assert_eq!(
            (&asked[0]["by"], &asked[0]["serial"]),
            (&json!("job"), &json!(1))
        );
        assert_eq!(asked[0]["job"], said["job"]);
        let expected = if writes { "1.1.0" } else { "1.0.0" };
        assert_eq!(world.selected().as_deref(), Some(expected));
        assert!(world.installed().contains(&"1.1.0".to_owned()));
        world.assert_tidy();
    }
}

#[test]
fn a_supervisor_that_went_away_defers_and_the_version_stays_pending() {
    let world = World::new("1.0.0");
    world.check().expect(0, "installed");
    world.release("1.1.0");
    let supervisor = supervise(&world.home, "failed", false);
    // It lives and holds its lock, and nobody answers on its socket.
    fs::remove_file(world.home.control_socket()).unwrap();
    let said = world.check().expect(75, "deferred");
    assert_eq!(said["error"]["code"], "SUPERVISOR_GONE");
    assert_eq!(
        (world.selected().as_deref(), world.pending().as_deref()),
        (Some("1.0.0"), Some("1.1.0"))
    );
    drop(supervisor._lock);
}
