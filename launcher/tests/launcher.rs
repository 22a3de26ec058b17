//! The launcher as a process, on homes whose packages are shell scripts.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests are tests

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;

use serde_json::{Value, json};
use staging::home::Home;
use staging::{digest, selection, update_state};

const LAUNCHER: &str = env!("CARGO_BIN_EXE_rollproxy-launcher");

/// A home with packages, and the launcher's three names beside it.
struct Host {
    folder: tempfile::TempDir,
    home: Home,
}

impl Host {
    /// `selected` and `previous` as they stand in the selection.
    fn new(versions: &[&str], selected: &str, previous: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::at(folder.path().join("home"));
        home.create().unwrap();
        for name in ["rollproxy", "rollproxy-updater", "rollproxy-launcher"] {
            symlink(LAUNCHER, folder.path().join(name)).unwrap();
        }
        let host = Self { folder, home };
        for version in versions {
            host.install(version);
        }
        let selection = json!({
            "schema": 1, "serial": 5, "version": selected, "previous": previous,
            "pinned": false, "by": "job", "at": "2026-01-02T03:04:05Z",
        });
        fs::write(host.home.selection_file(), selection.to_string()).unwrap();
        host
    }

    /// A package whose programs say who they are and what they were given.
    fn install(&self, version: &str) {
        let root = self.package(version);
        fs::create_dir_all(root.join("bin")).unwrap();
        let mut files = Vec::new();
        for name in ["rollproxy", "rollproxy-updater"] {
            let path = format!("bin/{name}");
            let text = format!(
                "#!/bin/sh\necho {name} {version} pid $$\nfor arg; do echo \"<$arg>\"; done\nexit 7\n"
            );
            fs::write(root.join(&path), &text).unwrap();
            fs::set_permissions(root.join(&path), fs::Permissions::from_mode(0o555)).unwrap();
            files.push(json!({
                "path": path, "size": text.len(), "mode": "0555", "sha256": digest::of(text.as_bytes()),
            }));
        }
        let manifest = json!({
            "schema": 1, "name": "rollproxy", "version": version, "target": staging::TARGET,
            "minLauncher": "0.1.0", "protocol": {"channel": {"min": 1, "max": 1}, "state": 1},
            "entries": {"rollproxy": "bin/rollproxy", "rollproxy-updater": "bin/rollproxy-updater"},
            "files": files, "build": {"commit": "abc", "compiledVersion": "0.1.0"},
        });
        fs::write(root.join("package.json"), manifest.to_string()).unwrap();
    }

    fn package(&self, version: &str) -> PathBuf {
        self.home.packages().join(version)
    }

    fn state(&self, state: Value) {
        fs::write(self.home.update_state_file(), state.to_string()).unwrap();
    }

    fn command(&self, name: &str, args: &[&str]) -> Command {
        let mut command = Command::new(self.folder.path().join(name));
        command
            .args(args)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("ROLLPROXY_HOME", self.home.root());
        command
    }

    fn run(&self, name: &str, args: &[&str]) -> Ran {
        Ran::from(self.command(name, args).output().unwrap())
    }

    fn selected(&self) -> selection::Selection {
        selection::read(&self.home).unwrap().unwrap()
    }

    /// Every file of the home with its content.
    fn picture(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut seen = Vec::new();
        walk(self.home.root(), &mut seen);
        seen.sort();
        seen
    }
}

fn walk(folder: &Path, seen: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            seen.push((path.clone(), Vec::new()));
            walk(&path, seen);
        } else if path.is_file() {
            seen.push((path.clone(), fs::read(&path).unwrap()));
        }
    }
}

#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

#[test]
fn version_reads_selection_and_manifest_and_starts_nothing() {
    let host = Host::new(&["1.2.3"], "1.2.3", None);
    let before = host.picture();
    for (name, said) in [
        ("rollproxy-launcher", "rollproxy 1.2.3\n"),
        ("rollproxy", "rollproxy 1.2.3\n"),
        ("rollproxy-updater", "rollproxy-updater 1.2.3\n"),
    ] {
        let ran = host.run(name, &["--version"]);
        assert_eq!(
            (ran.code, ran.out.as_str(), ran.err.as_str()),
            (Some(0), said, "")
        );
    }
    let ran = host.run("rollproxy-launcher", &["--version", "--verbose"]);
    for line in [
        "rollproxy 1.2.3",
        "compiled: 0.1.0",
        "commit: abc",
        "package: /",
        "launcher: ",
    ] {
        assert!(ran.out.contains(line), "{}", ran.out);
    }
    assert_eq!(host.picture(), before, "a reading command wrote something");
}

#[test]
fn everything_else_becomes_the_entry_with_its_arguments() {
    let host = Host::new(&["1.2.3"], "1.2.3", None);
    for (name, entry) in [
        ("rollproxy", "rollproxy"),
        ("rollproxy-launcher", "rollproxy"),
        ("rollproxy-updater", "rollproxy-updater"),
    ] {
        let child = host
            .command(name, &["serve", "", "a b", "--version"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id();
        let ran = Ran::from(child.wait_with_output().unwrap());
        assert_eq!(
            ran.out,
            format!("{entry} 1.2.3 pid {pid}\n<serve>\n<>\n<a b>\n<--version>\n"),
            "same process, arguments untouched"
        );
        assert_eq!((ran.code, ran.err.as_str()), (Some(7), ""));
    }
}

#[test]
fn descriptors_go_through() {
    let host = Host::new(&["1.0.0"], "1.0.0", None);
    let program = host.package("1.0.0").join("bin/rollproxy");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&program, "#!/bin/sh\nread line <&7; echo \"got $line\"\n").unwrap();
    let file = host.folder.path().join("file");
    fs::write(&file, "through seven\n").unwrap();
    let script = format!("exec 7<'{}'; exec ./rollproxy run", file.display());
    let ran = Command::new("/bin/sh")
        .args(["-c", &script])
        .current_dir(host.folder.path())
        .env("ROLLPROXY_HOME", host.home.root())
        .output()
        .unwrap();
    assert_eq!(Ran::from(ran).out, "got through seven\n");
}

#[test]
fn an_unusable_package_falls_back_to_the_previous_one_with_a_warning() {
    type Break = fn(&Path);
    let breaks: [(&str, Break); 4] = [
        ("gone", |root| fs::remove_dir_all(root).unwrap()),
        ("torn manifest", |root| {
            fs::write(root.join("package.json"), "{").unwrap()
        }),
        ("not executable", |root| {
            for name in ["bin/rollproxy", "bin/rollproxy-updater"] {
                fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o444)).unwrap();
            }
        }),
        ("not a program", |root| {
            for name in ["bin/rollproxy", "bin/rollproxy-updater"] {
                fs::remove_file(root.join(name)).unwrap();
                fs::write(root.join(name), [0x7f, b'E', b'L', b'F', 0, 0, 0]).unwrap();
                fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o555)).unwrap();
            }
        }),
    ];
    for (case, break_it) in breaks {
        let host = Host::new(&["1.0.0", "1.1.0"], "1.1.0", Some("1.0.0"));
        break_it(&host.package("1.1.0"));
        for name in ["rollproxy", "rollproxy-updater"] {
            let ran = host.run(name, &["x"]);
            assert!(
                ran.out.starts_with(&format!("{name} 1.0.0 pid")),
                "{case}: {ran:?}"
            );
            assert!(
                ran.err.starts_with("warning: ") && ran.err.contains("1.0.0"),
                "{case}: {ran:?}"
            );
            assert_eq!(ran.code, Some(7));
        }
        // Choosing works although what is selected is broken.
        let ran = host.run("rollproxy", &["select", "1.0.0"]);
        assert_eq!(ran.code, Some(0), "{case}: {ran:?}");
        assert_eq!(host.selected().version.to_string(), "1.0.0");
    }
}

#[test]
fn neither_usable_is_exit_69_and_nothing_selected_too() {
    let host = Host::new(&[], "1.1.0", Some("1.0.0"));
    for args in [&["serve"][..], &["--version"], &["which"]] {
        let ran = host.run("rollproxy", args);
        assert_eq!(ran.code, Some(69), "{ran:?}");
        assert!(
            ran.err.contains("1.1.0") && ran.err.contains("1.0.0"),
            "{ran:?}"
        );
        assert!(ran.err.lines().last().unwrap().starts_with("error["));
    }
    fs::remove_file(host.home.selection_file()).unwrap();
    for args in [
        &["serve"][..],
        &["--version"],
        &["which", "--format", "json"],
    ] {
        let ran = host.run("rollproxy", args);
        assert_eq!(ran.code, Some(69), "{ran:?}");
    }
    fs::write(host.home.selection_file(), "{").unwrap();
    let ran = host.run("rollproxy", &["serve"]);
    assert_eq!(ran.code, Some(69));
    assert!(ran.err.contains("selection.json"), "{ran:?}");
    assert_eq!(fs::read(host.home.selection_file()).unwrap(), b"{");
}

#[test]
fn no_home_is_exit_78_naming_it() {
    for home in [None, Some("/"), Some("")] {
        for args in [&["--version"][..], &["serve"], &["list"]] {
            let mut command = Command::new(LAUNCHER);
            command.args(args).env_clear();
            if let Some(home) = home {
                command.env("HOME", home);
            }
            let ran = Ran::from(command.output().unwrap());
            assert_eq!(ran.code, Some(78), "{ran:?}");
            assert!(ran.err.contains("ROLLPROXY_HOME"), "{ran:?}");
        }
    }
}

#[test]
fn select_without_a_supervisor_pins_at_once_and_latest_unpins() {
    let host = Host::new(&["1.0.0", "1.1.0", "1.2.0"], "1.1.0", Some("1.0.0"));
    host.state(json!({
        "schema": 1, "floor": "1.1.0",
        "pending": {"version": "1.2.0", "job": "j", "at": "2026-01-02T03:04:05Z"},
    }));
    let ran = host.run("rollproxy", &["select", "1.0.0", "--format", "json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let said = ran.json();
    assert_eq!(
        (&said["version"], &said["pinned"]),
        (&json!("1.0.0"), &json!(true))
    );
    let now = host.selected();
    assert_eq!(
        (now.version.to_string().as_str(), now.pinned, now.serial),
        ("1.0.0", true, 6)
    );
    assert_eq!(now.previous.unwrap().to_string(), "1.1.0");
    assert_eq!(update_state::read(&host.home).unwrap().pending, None);

    let ran = host.run("rollproxy", &["select", "latest"]);
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (Some(0), "selected 1.1.0, not pinned\n")
    );
    let now = host.selected();
    assert_eq!(
        (now.version.to_string().as_str(), now.pinned, now.serial),
        ("1.1.0", false, 7)
    );
}

#[test]
fn a_known_bad_version_is_warned_about_and_its_mark_is_cleared() {
    let host = Host::new(&["1.0.0", "1.1.0"], "1.0.0", None);
    let bad = json!({"d": {"version": "1.1.0", "cause": "crashed with SIGSEGV", "at": "2026-01-02T03:04:05Z"}});
    host.state(json!({
        "schema": 1, "floor": "1.1.0", "knownBad": bad, "archives": {"1.1.0": "d"},
    }));
    // `latest` passes it over.
    let ran = host.run("rollproxy", &["select", "latest"]);
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (Some(0), "selected 1.0.0, not pinned\n")
    );
    assert!(
        host.run("rollproxy", &["list"])
            .out
            .contains("known bad: crashed with SIGSEGV")
    );

    let ran = host.run("rollproxy", &["select", "1.1.0"]);
    assert_eq!(ran.code, Some(0));
    assert!(
        ran.err.contains("warning") && ran.err.contains("SIGSEGV"),
        "{ran:?}"
    );
    assert!(update_state::read(&host.home).unwrap().known_bad.is_empty());
    assert_eq!(host.selected().version.to_string(), "1.1.0");
}

#[test]
fn what_cannot_be_selected_changes_nothing() {
    let host = Host::new(&["1.0.0", "1.1.0"], "1.0.0", None);
    let program = host.package("1.1.0").join("bin/rollproxy-updater");
    let mut text = fs::read(&program).unwrap();
    text[0] ^= 1;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(&program, text).unwrap();
    let before = host.picture();
    for (which, code, part) in [
        ("1.1.0", 69, "rollproxy-updater"),
        ("9.9.9", 69, "installed: 1.0.0, 1.1.0"),
        ("v1.0.0", 64, "v1.0.0"),
        ("1.0", 64, "MAJOR.MINOR.PATCH"),
        ("../1.0.0", 64, "../1.0.0"),
    ] {
        let ran = host.run("rollproxy", &["select", which]);
        assert_eq!(ran.code, Some(code), "{ran:?}");
        assert!(ran.err.contains(part), "{ran:?}");
        let ran = host.run("rollproxy", &["select", which, "--format", "json"]);
        assert!(ran.json()["error"]["code"].is_string());
    }
    assert_eq!(host.run("rollproxy", &["select"]).code, Some(64));
    assert_eq!(host.picture(), before);
}

#[test]
fn list_and_which_say_what_is_there() {
    let host = Host::new(&["1.0.0", "1.10.0", "1.9.0"], "1.10.0", Some("1.9.0"));
    let ran = host.run("rollproxy-launcher", &["list"]);
    assert_eq!(ran.out, "1.10.0  selected\n1.9.0  previous\n1.0.0\n");
    let rows = host.run("rollproxy", &["list", "--format", "json"]).json();
    assert_eq!(rows["packages"][0]["version"], "1.10.0");
    assert_eq!(rows["packages"][0]["selected"], true);
    let ran = host.run("rollproxy", &["which", "rollproxy-updater"]);
    let path = host.package("1.10.0").join("bin/rollproxy-updater");
    assert_eq!(ran.out, format!("{}\n", path.display()));
    let said = host.run("rollproxy", &["which", "--format=json"]).json();
    assert_eq!(
        (&said["version"], &said["fallback"]),
        (&json!("1.10.0"), &json!(null))
    );
    assert_eq!(host.run("rollproxy", &["which", "nonsense"]).code, Some(69));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let host = Host::new(&["1.0.0"], "1.0.0", None);
    for version in 0..40 {
        fs::create_dir_all(host.package(&format!("0.0.{version}"))).unwrap();
    }
    let mut child = host
        .command("rollproxy", &["list"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
}

// With a supervisor: a peer on the control socket that answers what the test says.

fn serve(home: &Home, answers: Vec<String>) -> JoinHandle<Vec<String>> {
    let listener = UnixListener::bind(home.control_socket()).unwrap();
    std::thread::spawn(move || {
        let mut bodies = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
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
            bodies.push(format!("{}{}", first, String::from_utf8(body).unwrap()));
            stream.write_all(answer.as_bytes()).unwrap();
        }
        bodies
    })
}

fn status(selected: &str, worker: &str, pinned: bool) -> String {
    let body = json!({
        "schema": 1, "supervisorVersion": "1.0.0", "supervisorPid": 1, "nonce": "n0nce", "since": "2026-01-02T03:04:05Z",
        "selectedPackageVersion": selected, "selectedSerial": 5, "workerVersion": worker, "pinned": pinned,
    })
    .to_string();
    format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn rollout(verdict: &str, code: Option<&str>) -> String {
    let step = json!({"rollout": 3, "step": "ready", "generation": 8, "version": "1.1.0", "at": "2026-01-02T03:04:05Z", "detail": null});
    let verdict = json!({"rollout": 3, "verdict": verdict, "version": "1.1.0", "generation": 8, "code": code, "reason": code.map(|_| "it never was"), "serial": 6});
    format!("HTTP/1.1 200 OK\r\n\r\n{step}\n{verdict}\n")
}

#[test]
fn with_a_supervisor_the_rollouts_outcome_is_the_commands() {
    let before = || status("1.0.0", "1.0.0", false);
    let cases = [
        ("kept", None, Some(status("1.1.0", "1.1.0", true)), 0, ""),
        (
            "kept",
            None,
            Some(status("1.0.0", "1.1.0", true)),
            2,
            "SELECTION_UNVERIFIED",
        ),
        (
            "kept",
            None,
            Some(status("1.1.0", "1.1.0", false)),
            2,
            "SELECTION_UNVERIFIED",
        ),
        (
            "failed",
            Some("WORKER_NOT_READY"),
            None,
            1,
            "WORKER_NOT_READY",
        ),
        ("rolledBack", Some("PROBATION"), None, 3, "PROBATION"),
        ("deferred", None, None, 75, "ROLLOUT_NOT_KEPT"),
        ("superseded", None, None, 75, "ROLLOUT_NOT_KEPT"),
    ];
    for (verdict, code, after, exit, said) in cases {
        let host = Host::new(&["1.0.0", "1.1.0"], "1.0.0", None);
        let selection = fs::read(host.home.selection_file()).unwrap();
        let mut answers = vec![before(), rollout(verdict, code)];
        answers.extend(after);
        let server = serve(&host.home, answers);
        let ran = host.run("rollproxy", &["select", "1.1.0"]);
        assert_eq!(ran.code, Some(exit), "{verdict}: {ran:?}");
        assert!(
            ran.out.starts_with("ready 1.1.0 (generation 8)\n"),
            "{ran:?}"
        );
        assert!(ran.err.contains(said), "{ran:?}");
        let requests = server.join().unwrap();
        let mut asked: Value =
            serde_json::from_str(requests[1].split_once('\n').unwrap().1).unwrap();
        // What makes it the same request when it is asked again: another one each time.
        let key = asked.as_object_mut().unwrap().remove("key");
        assert!(key.is_some_and(|key| key.as_str().is_some_and(|key| !key.is_empty())));
        assert_eq!(
            asked,
            json!({"version": "1.1.0", "by": "person", "nonce": "n0nce", "serial": 5, "job": null, "pin": true, "clearKnownBad": false})
        );
        // The selection is the supervisor's to write.
        assert_eq!(fs::read(host.home.selection_file()).unwrap(), selection);
    }
}

#[test]
fn selecting_what_is_selected_asks_for_no_rollout() {
    let host = Host::new(&["1.0.0"], "1.0.0", None);
    let server = serve(&host.home, vec![status("1.0.0", "1.0.0", true)]);
    let ran = host.run("rollproxy", &["select", "1.0.0"]);
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (Some(0), "selected 1.0.0, pinned\n")
    );
    assert_eq!(server.join().unwrap().len(), 1);
}
