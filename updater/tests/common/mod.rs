//! What the tests of the updater share: a signed feed in a folder, a home that follows it, and a supervisor of a few lines.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests are tests
#![allow(dead_code)] // each test file uses its part

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use publisher::{Add, Binaries, Init, Place, Promote, Source};
use serde_json::{Value, json};
use staging::home::Home;
use staging::journal;
use staging::locks::{StateLock, SupervisorLock};
use staging::ownership::{ProcessIdentity, SupervisorRecord};
use staging::selection::{self, Change};
use staging::version::PackageVersion;
use staging::{clock, package, update_state};

pub const UPDATER: &str = env!("CARGO_BIN_EXE_rollproxy-updater");

/// The updater as it is packed: without its symbols, where the machine can take them off, for packing is what tests spend their
/// time with.
pub fn packed() -> PathBuf {
    static PACKED: OnceLock<PathBuf> = OnceLock::new();
    PACKED
        .get_or_init(|| {
            let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
            let (part, stripped) = (
                folder.join(format!("updater-{}", std::process::id())),
                folder.join("rollproxy-updater"),
            );
            let strip = Command::new("strip")
                .arg("-o")
                .args([&part, &PathBuf::from(UPDATER)])
                .status();
            match strip {
                Ok(status) if status.success() => {
                    fs::rename(&part, &stripped).unwrap();
                    stripped
                }
                _ => PathBuf::from(UPDATER),
            }
        })
        .clone()
}

pub struct World {
    pub folder: tempfile::TempDir,
    pub place: Place,
    pub home: Home,
    root_sha256: String,
}

impl World {
    /// A feed with one release, and a home that follows it.
    pub fn new(version: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new(folder.path().join("feed"), folder.path().join("keys"));
        let made = publisher::init(&place, &Init::default()).unwrap();
        let home = Home::at(folder.path().join("home"));
        let world = Self {
            folder,
            place,
            home,
            root_sha256: made.root_sha256,
        };
        world.release(version);
        world.init(&world.home);
        world
    }

    /// Makes `home` follow the feed.
    pub fn init(&self, home: &Home) {
        let root = self.place.root().display().to_string();
        let url = self.url();
        let args = [
            "init",
            "--feed",
            &url,
            "--root",
            &root,
            "--sha256",
            &self.root_sha256,
        ];
        let ran = run_in(home, &args);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }

    pub fn url(&self) -> String {
        format!("file://{}", self.place.feed.display())
    }

    pub fn release(&self, version: &str) {
        self.add(version, |_| {});
        self.promote(version);
    }

    /// Adds a version that consists of this updater, as `change` wants it.
    pub fn add(&self, version: &str, change: impl FnOnce(&mut Add)) {
        let mut add = Add::new(
            version.parse().unwrap(),
            Source::Binaries(Binaries {
                entries: vec![("rollproxy-updater".to_owned(), packed())],
                extra: Vec::new(),
                commit: "abc".to_owned(),
                compiled_version: "0.1.0".to_owned(),
                min_launcher: PackageVersion::new(0, 1, 0),
                level: 1,
            }),
        );
        change(&mut add);
        publisher::add(&self.place, &add).unwrap();
    }

    pub fn promote(&self, version: &str) {
        let promote = Promote::new("stable", version.parse().unwrap());
        publisher::promote(&self.place, &promote).unwrap();
    }

    pub fn publish(&self, version: &str, source: Source) {
        self.add(version, |add| add.source = source);
        self.promote(version);
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        run_in(&self.home, args)
    }

    pub fn check(&self) -> Ran {
        self.run(&["check", "--format", "json"])
    }

    pub fn installed(&self) -> Vec<String> {
        let installed = package::list(&self.home).unwrap();
        installed.iter().map(ToString::to_string).collect()
    }

    pub fn selected(&self) -> Option<String> {
        selection::read(&self.home)
            .unwrap()
            .map(|selection| selection.version.to_string())
    }

    pub fn pending(&self) -> Option<String> {
        let pending = update_state::read(&self.home).unwrap().pending;
        pending.map(|pending| pending.version.to_string())
    }

    /// Nothing lies in staging, and no job is without an end.
    pub fn assert_tidy(&self) {
        assert_eq!(fs::read_dir(self.home.staging_dir()).unwrap().count(), 0);
        assert_eq!(journal::unfinished(&self.home).unwrap(), []);
    }

    pub fn configure(&self, lines: &str) {
        let url = self.url();
        fs::write(
            self.home.config_file(),
            format!("[update]\nfeed = {url:?}\n{lines}\n"),
        )
        .unwrap();
    }
}

pub fn run_in(home: &Home, args: &[&str]) -> Ran {
    let output = Command::new(UPDATER)
        .args(args)
        .env_clear()
        .env("ROLLPROXY_HOME", home.root())
        .output()
        .unwrap();
    Ran::from(output)
}

impl From<std::process::Output> for Ran {
    fn from(output: std::process::Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    pub fn expect(&self, code: i32, outcome: &str) -> Value {
        let said = self.json();
        assert_eq!(
            (self.code, &said["outcome"]),
            (Some(code), &json!(outcome)),
            "{self:?}"
        );
        said
    }
}

// With a supervisor: this process, as far as the home can tell.

/// What the supervisor does about a request for a rollout.
#[derive(Debug, Clone, Copy)]
pub struct Does {
    /// The verdict it gives; none = it begins the rollout, says so, and is gone.
    pub verdict: Option<&'static str>,
    /// Whether it selects the version.
    pub writes: bool,
    /// Whether it marks the version's archive known bad.
    pub marks: bool,
}

pub struct Supervisor {
    _lock: SupervisorLock,
    home: Home,
    stop: Arc<AtomicBool>,
    server: JoinHandle<Vec<Value>>,
}

/// Gives `verdict` on requests for a rollout, and a status that shows what is selected.
pub fn supervise(home: &Home, verdict: &'static str, writes: bool) -> Supervisor {
    let does = Does {
        verdict: Some(verdict),
        writes,
        marks: false,
    };
    Supervisor::that(home, does)
}

impl Supervisor {
    /// A supervisor that does this about every request for a rollout.
    pub fn that(home: &Home, does: Does) -> Self {
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
        let stop = Arc::new(AtomicBool::new(false));
        let (within, stopped) = (home.clone(), Arc::clone(&stop));
        let server = std::thread::spawn(move || {
            let mut asked = Vec::new();
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
                let stream = stream.unwrap();
                let (line, body) = request(&stream);
                if line.starts_with("POST /rollouts") {
                    let asked_for: Value = serde_json::from_str(&body).unwrap();
                    let begun = rollout(&within, does, &asked_for);
                    answer(stream, &begun);
                    asked.push(asked_for);
                    if does.verdict.is_none() {
                        // Gone, as far as anybody can see who asks again.
                        fs::remove_file(within.control_socket()).unwrap();
                    }
                } else {
                    answer(stream, &status(&within, &identity));
                }
            }
            asked
        });
        Self {
            _lock: lock,
            home: home.clone(),
            stop,
            server,
        }
    }

    /// Ends it. Gives back what it was asked for.
    pub fn stop(self) -> Vec<Value> {
        self.stop.store(true, Ordering::SeqCst);
        // This process lives on, and is no supervisor any more.
        fs::remove_file(self.home.supervisor_record()).unwrap();
        // Wakes whoever accepts. Whose socket was removed waits for nobody any more, and is left behind.
        match UnixStream::connect(self.home.control_socket()) {
            Ok(_) => {
                let asked = self.server.join().unwrap();
                fs::remove_file(self.home.control_socket()).unwrap();
                asked
            }
            Err(_) => Vec::new(),
        }
    }
}

fn answer(mut stream: UnixStream, answer: &Value) {
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{answer}\n"
    )
    .unwrap();
}

fn rollout(home: &Home, does: Does, asked: &Value) -> Value {
    let version = asked["version"].as_str().unwrap().to_owned();
    let Some(verdict) = does.verdict else {
        return json!({"rollout": 1, "step": "accepted", "version": version, "at": clock::now()});
    };
    if does.writes {
        keep(home, &version);
    }
    if does.marks {
        let version: PackageVersion = version.parse().unwrap();
        let lock = StateLock::acquire(home, std::time::Duration::from_secs(10)).unwrap();
        update_state::modify(&lock, home, |state| {
            let digest = state.archives[&version].clone();
            state.mark_bad(&digest, &version, "answered 5xx", clock::now());
            state.pending = None;
        })
        .unwrap();
    }
    json!({"rollout": 1, "verdict": verdict, "version": version, "generation": 2, "code": null, "reason": "as the test wants", "serial": 2})
}

fn status(home: &Home, identity: &ProcessIdentity) -> Value {
    let selected = selection::read(home).unwrap().unwrap();
    json!({
        "schema": 1, "supervisorVersion": "1.0.0", "supervisorPid": identity.pid, "nonce": identity.nonce,
        "since": clock::now(), "selectedPackageVersion": selected.version, "selectedSerial": selected.serial,
        "workerVersion": selected.version,
    })
}

pub fn keep(home: &Home, version: &str) {
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
