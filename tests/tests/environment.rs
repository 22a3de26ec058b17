//! Promise 3, wherever it runs: no terminal, an empty environment, no home, somebody else's home, a home
//! that newer programs wrote: each command says what it found, and what to do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use harness::{
    FileServer, Finished, Pack, Proxy, TestFeed, TestHome, Tool, ask, binaries, until_some,
};
use nix::sys::signal::Signal;
use staging::home::Home;

/// A program with nothing in its environment.
fn bare(name: &str) -> Tool {
    Tool::new(binaries().path(name))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_home_every_command_that_needs_one_ends_with_78_and_says_what_to_set() {
    let commands: [(&str, &[&str]); 16] = [
        ("rollproxy-launcher", &["--version"]),
        ("rollproxy-launcher", &["serve"]),
        ("rollproxy-launcher", &["list"]),
        ("rollproxy-launcher", &["which"]),
        ("rollproxy-launcher", &["select", "1.0.0"]),
        ("rollproxy-updater", &["check"]),
        ("rollproxy-updater", &["check", "--dry-run"]),
        (
            "rollproxy-updater",
            &[
                "init",
                "--feed",
                "file:///f",
                "--root",
                "r",
                "--sha256",
                "00",
            ],
        ),
        ("rollproxy", &["serve"]),
        ("rollproxy", &["worker", "--generation", "1"]),
        ("rollproxy", &["status"]),
        ("rollproxy", &["status", "--watch"]),
        ("rollproxy", &["status", "--streams"]),
        ("rollproxy", &["drain", "1", "--now", "--yes"]),
        ("rollproxy", &["restart"]),
        ("rollproxy-updater", &["check", "--format", "json"]),
    ];
    let environments: [&[(&str, &str)]; 6] = [
        &[],
        &[("HOME", "")],
        &[("HOME", "/")],
        &[("HOME", "not/absolute")],
        &[("ROLLPROXY_HOME", "/")],
        &[("HOME", "/tmp"), ("ROLLPROXY_HOME", "not/absolute")],
    ];
    for (name, arguments) in commands {
        for environment in environments {
            let tool = environment
                .iter()
                .fold(bare(name).args(arguments), |tool, (key, value)| {
                    tool.env(*key, *value)
                });
            let said = tool.run().await;
            assert_eq!(
                said.code,
                Some(78),
                "{name} {arguments:?} {environment:?}: {said:?}"
            );
            let last = if arguments.contains(&"json") {
                said.json()["error"]["message"].as_str().unwrap().to_owned()
            } else {
                said.stderr.lines().next_back().unwrap().to_owned()
            };
            assert!(
                last.contains("HOME"),
                "{name} {arguments:?} {environment:?}: {last}"
            );
        }
    }
    assert!(!Path::new("/.rollproxy").exists());
    // What needs no home does not ask for one.
    for name in ["rollproxy", "rollproxy-updater", "rollproxy-publish"] {
        bare(name).arg("--version").run().await.expect(0);
        bare(name).arg("--help").run().await.expect(0);
    }
    let folder = tempfile::tempdir().unwrap();
    bare("rollproxy-publish")
        .arg("init")
        .arg("--feed")
        .arg(folder.path().join("feed"))
        .arg("--keys")
        .arg(folder.path().join("keys"))
        .run()
        .await
        .expect(0);
    bare("rollproxy-launcher")
        .arg("--help")
        .run()
        .await
        .expect(0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_nothing_but_home_set_everything_works() {
    let feed = TestFeed::new();
    let mut home = TestHome::new();
    let user = home.folder().join("user");
    std::fs::create_dir(&user).unwrap();
    home.home = Home::at(user.join(".rollproxy"));
    // No ROLLPROXY_HOME, no PATH, no TERM, no LANG.
    let run = |name: &str, arguments: &[&str]| {
        bare(name)
            .env("HOME", user.as_os_str())
            .args(arguments)
            .run()
    };
    let root = feed.place().root();
    let init = [
        "init",
        "--feed",
        &feed.file_url(),
        "--sha256",
        feed.root_sha256(),
        "--root",
        root.to_str().unwrap(),
    ];
    run("rollproxy-updater", &init).await.expect(0);
    feed.release("1.0.0");
    let said = run("rollproxy-updater", &["check"]).await.expect(0);
    assert!(
        said.stdout
            .lines()
            .next_back()
            .unwrap()
            .contains("1.0.0 is installed and selected"),
        "{said:?}"
    );
    assert_eq!(said.stderr, "");
    let mode = std::fs::metadata(home.home.root())
        .unwrap()
        .permissions()
        .mode()
        & 0o777;
    assert_eq!(mode, 0o700, "the home was made for everybody");
    assert_eq!(
        run("rollproxy-launcher", &["--version"])
            .await
            .expect(0)
            .stdout,
        "rollproxy 1.0.0\n"
    );

    let config = std::fs::read_to_string(home.home.config_file()).unwrap();
    std::fs::write(
        home.home.config_file(),
        format!("[server]\nlisten = [\"127.0.0.1:0\"]\n{config}"),
    )
    .unwrap();
    let mut serve = bare("rollproxy-launcher")
        .env("HOME", user.as_os_str())
        .arg("serve")
        .command()
        .spawn()
        .unwrap();
    let client = control::Client::new(&home.home);
    let status = until_some("it serves", || {
        client
            .status()
            .ok()
            .filter(|status| status.rolling.active.is_some())
    })
    .await;
    assert!(ask(status.listeners[0].parse().unwrap()).await.is_well());
    let said = run("rollproxy-launcher", &["status"]).await.expect(0);
    assert!(
        said.stdout
            .starts_with("rollproxy 1.0.0 serves on 127.0.0.1:"),
        "{said:?}"
    );
    harness::process::send(i32::try_from(serve.id().unwrap()).unwrap(), Signal::SIGTERM);
    assert_eq!(serve.wait().await.unwrap().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_home_that_others_may_write_is_refused_with_the_command_that_mends_it() {
    let feed = TestFeed::new();
    let home = TestHome::new();
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    feed.pin(&home, &feed.file_url()).await;
    Pack::faulty(&feed, &home, "1.1.0", "none").release();
    let before = home.standing();
    let all = [
        home.home.root().to_owned(),
        home.home.packages(),
        home.home.config_file(),
        home.home.trust_root(),
        home.home.run(),
    ];
    for path in all {
        let mode = std::fs::metadata(&path).unwrap().permissions();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode.mode() | 0o022)).unwrap();
        let mend = format!("chmod go-w {}", path.display());
        home.check()
            .run()
            .await
            .refused(78, "HOME_WRITABLE_BY_OTHERS", &[&mend]);
        for (name, arguments) in [
            ("rollproxy-launcher", &["select", "1.0.0"][..]),
            ("rollproxy-launcher", &["serve"]),
            ("rollproxy-updater", &["check", "--self-test"]),
        ] {
            let said = home.tool(name).args(arguments).run().await;
            let last = said.stderr.lines().next_back().unwrap();
            assert!(last.contains(&mend), "{name} {arguments:?}: {last}");
            assert_ne!(said.code, Some(0), "{name} {arguments:?}");
        }
        assert_eq!(home.standing(), before);
        // As the message says.
        let status = std::process::Command::new("chmod")
            .arg("go-w")
            .arg(&path)
            .status()
            .unwrap();
        assert!(status.success());
    }
    home.check().run().await.answered(0, "pending");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_home_whose_path_is_too_long_for_a_socket_works_all_the_same() {
    let feed = TestFeed::new();
    let mut home = TestHome::new();
    let long = home
        .folder()
        .join("long-".repeat(20))
        .join("more-".repeat(20))
        .join("home");
    home.home = Home::at(long);
    home.home.create().unwrap();
    home.configure("");
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    feed.pin(&home, &feed.file_url()).await;
    let proxy = Proxy::start(&home).await;
    let said = home
        .tool("rollproxy")
        .args(["status", "--format", "json"])
        .run()
        .await
        .expect(0)
        .json();
    assert_eq!(said["home"], home.home.root().to_str().unwrap());
    home.tool("rollproxy").arg("restart").run().await.expect(0);
    Pack::faulty(&feed, &home, "1.1.0", "none").release();
    home.check().run().await.answered(0, "updated");
    home.tool("rollproxy-launcher")
        .args(["select", "1.0.0"])
        .run()
        .await
        .expect(0);
    assert_eq!(proxy.active_version().as_deref(), Some("1.0.0"));
    assert!(ask(proxy.address).await.is_well());
    let mode = std::fs::metadata(home.home.control_socket())
        .unwrap()
        .permissions()
        .mode()
        & 0o777;
    assert_eq!(mode, 0o600);
}

/// Program, arguments and the exit code they are refused with.
type Refusals = &'static [(&'static str, &'static [&'static str], i32)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_a_newer_program_or_of_nobody_is_named_and_never_replaced() {
    let feed = TestFeed::new();
    let home = TestHome::new();
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    feed.pin(&home, &feed.file_url()).await;
    Pack::faulty(&feed, &home, "1.1.0", "none").release();
    home.check().run().await.answered(0, "pending");
    let packages = home.packages();

    let texts = [
        (
            r#"{"schema": 2, "serial": "of another shape"}"#,
            "DOCUMENT_NEWER",
            "schema 2",
        ),
        ("{ torn", "DOCUMENT_UNPARSABLE", "not replaced by itself"),
        ("", "DOCUMENT_UNPARSABLE", "not replaced by itself"),
        (r#"{"schema": 0}"#, "DOCUMENT_UNPARSABLE", "schema 0"),
    ];
    let selection: (PathBuf, Refusals) = (
        home.home.selection_file(),
        &[
            ("rollproxy-launcher", &["--version"], 69),
            ("rollproxy-launcher", &["serve"], 69),
            ("rollproxy-launcher", &["select", "1.0.0"], 1),
            ("rollproxy-updater", &["check"], 1),
            ("rollproxy-updater", &["check", "--self-test"], 1),
        ],
    );
    let state: (PathBuf, Refusals) = (
        home.home.update_state_file(),
        &[
            ("rollproxy-launcher", &["list"], 1),
            ("rollproxy-launcher", &["select", "1.0.0"], 1),
            ("rollproxy-updater", &["check"], 1),
            ("rollproxy-updater", &["check", "--self-test"], 1),
        ],
    );
    for (file, commands) in [selection, state] {
        let good = std::fs::read(&file).unwrap();
        for (text, code, part) in texts {
            std::fs::write(&file, text).unwrap();
            for (name, arguments, exit) in commands {
                let said = home.tool(name).args(*arguments).run().await;
                assert_eq!(said.code, Some(*exit), "{name} {arguments:?}: {said:?}");
                let last = said.stderr.lines().next_back().unwrap();
                for part in [code, part, file.to_str().unwrap()] {
                    assert!(
                        last.contains(part),
                        "{name} {arguments:?}: {part:?} is not in {last}"
                    );
                }
                assert_eq!(
                    std::fs::read_to_string(&file).unwrap(),
                    text,
                    "{name} {arguments:?} replaced it"
                );
            }
        }
        std::fs::write(&file, good).unwrap();
    }
    assert_eq!(home.packages(), packages);
    home.check().run().await.answered(0, "pending");
}

/// Runs a line of shell with the tools of a home in its variables.
async fn shell(home: &TestHome, line: &str) -> Finished {
    let folder = &binaries().folder;
    Tool::new("/bin/sh")
        .args(["-c", line])
        .env("ROLLPROXY_HOME", home.home.root())
        .env("PATH", format!("{}:/usr/bin:/bin", folder.display()))
        .run()
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_goes_away_is_no_failure_and_stops_no_job() {
    let feed = TestFeed::new();
    let home = TestHome::new();
    feed.pin(&home, &feed.file_url()).await;
    for minor in 0..50 {
        std::fs::create_dir(home.home.packages().join(format!("0.{minor}.0"))).unwrap();
    }
    let said = shell(&home, "rollproxy-launcher list | head -n 1")
        .await
        .expect(0);
    assert!(said.stdout.starts_with("0.49.0  unusable: "), "{said:?}");
    assert_eq!(said.stderr, "");

    // Nobody reads any of it: the release is brought all the same.
    Pack::faulty(&feed, &home, "1.0.0", "none").release();
    let mut command = home.tool("rollproxy-updater").arg("check").command();
    let mut check = command.stdout(Stdio::piped()).spawn().unwrap();
    drop(check.stdout.take());
    drop(check.stderr.take());
    assert_eq!(check.wait().await.unwrap().code(), Some(0));
    assert_eq!(home.selected().as_deref(), Some("1.0.0"));
    for line in [
        "rollproxy-updater --help | true",
        "rollproxy --help | true",
        "rollproxy-launcher --help | true",
    ] {
        assert_eq!(shell(&home, line).await.expect(0).stderr, "", "{line}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_without_a_supervisor_says_what_it_was_and_that_it_is_gone() {
    let home = TestHome::new();
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    let status = |format: &str| {
        home.tool("rollproxy")
            .args(["status", "--format", format])
            .run()
    };
    status("json")
        .await
        .refused(1, "NOT_RUNNING", &["rollproxy serve"]);
    let proxy = Proxy::start(&home).await;
    let pid = proxy.pid();
    until_some("the snapshot is written", || {
        home.home.snapshot_file().exists().then_some(())
    })
    .await;
    drop(proxy);
    let said = status("json").await.expect(1).json();
    assert_eq!(
        (&said["running"], &said["last"]["supervisorPid"]),
        (&false.into(), &pid.into())
    );
    assert_eq!(said["error"]["code"], "NOT_RUNNING");
    let said = status("text").await.expect(1);
    assert!(
        said.stdout.starts_with("The supervisor is gone."),
        "{said:?}"
    );
    assert!(said.stderr.contains("error[NOT_RUNNING]"), "{said:?}");
}

/// The user that owns nothing.
const NOBODY: u32 = 65_534;

/// A home of an ordinary user, and the programs where that user can reach them.
struct Ordinary {
    folder: tempfile::TempDir,
}

impl Ordinary {
    fn new() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("rollproxy-nobody-")
            .tempdir()
            .unwrap();
        let own = |path: &Path| std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        own(folder.path());
        for name in ["rollproxy", "rollproxy-updater", "rollproxy-launcher"] {
            let path = folder.path().join(name);
            std::fs::copy(binaries().path(name), &path).unwrap();
            own(&path);
        }
        Self { folder }
    }

    fn home(&self) -> Home {
        Home::at(self.folder.path().join("home"))
    }

    async fn run(&self, name: &str, arguments: &[&str]) -> Finished {
        let tool = Tool::new(self.folder.path().join(name))
            .args(arguments)
            .env("ROLLPROXY_HOME", self.home().root());
        let output = tool
            .command()
            .uid(NOBODY)
            .gid(NOBODY)
            .output()
            .await
            .unwrap();
        Finished {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Takes or gives the right to write anything in the home.
    fn writable(&self, writable: bool) {
        let change = if writable { "u+w" } else { "a-w" };
        let home = self.home();
        let status = std::process::Command::new("chmod")
            .args(["-R", change])
            .arg(home.root())
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// Every path of the home with its size and its time of change.
    fn picture(&self) -> Vec<(PathBuf, u64, std::time::SystemTime)> {
        let mut seen = Vec::new();
        let mut folders = vec![self.home().root().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let about = std::fs::symlink_metadata(&path).unwrap();
                seen.push((path.clone(), about.len(), about.modified().unwrap()));
                if about.is_dir() {
                    folders.push(path);
                }
            }
        }
        seen.sort();
        seen
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a second user"]
async fn an_ordinary_user_installs_updates_and_reads_and_a_read_only_home_can_be_read() {
    let feed = TestFeed::new();
    let server = FileServer::start(feed.path()).await;
    let user = Ordinary::new();
    let root = user.folder.path().join("root.json");
    std::fs::copy(feed.place().root(), &root).unwrap();
    std::fs::set_permissions(&root, PermissionsExt::from_mode(0o644)).unwrap();
    let (url, root) = (server.url(), root.to_str().unwrap().to_owned());
    user.run(
        "rollproxy-updater",
        &[
            "init",
            "--feed",
            &url,
            "--root",
            &root,
            "--sha256",
            feed.root_sha256(),
        ],
    )
    .await
    .expect(0);
    let check = ["check", "--format", "json"];
    let helper = TestHome::new();
    feed.release("1.0.0");
    user.run("rollproxy-updater", &check)
        .await
        .answered(0, "installed");
    Pack::faulty(&feed, &helper, "1.1.0", "none").release();
    user.run("rollproxy-updater", &check)
        .await
        .answered(0, "pending");
    for version in ["1.0.0", "1.1.0"] {
        let package = user.home().package(&version.parse().unwrap());
        for (path, mode) in [
            (".", 0o555),
            ("package.json", 0o444),
            ("bin", 0o555),
            ("bin/rollproxy", 0o555),
        ] {
            let about = std::fs::metadata(package.join(path)).unwrap();
            assert_eq!(
                about.permissions().mode() & 0o7777,
                mode,
                "{version}/{path}"
            );
        }
    }

    user.writable(false);
    let before = user.picture();
    let said = user
        .run("rollproxy-launcher", &["--version"])
        .await
        .expect(0);
    assert_eq!(
        (said.stdout.as_str(), said.stderr.as_str()),
        ("rollproxy 1.0.0\n", "")
    );
    let said = user.run("rollproxy-launcher", &["list"]).await.expect(0);
    assert_eq!(
        (said.stdout.as_str(), said.stderr.as_str()),
        ("1.1.0  pending\n1.0.0  selected\n", "")
    );
    user.run("rollproxy-launcher", &["which"]).await.expect(0);
    user.run("rollproxy-launcher", &["--version", "--verbose"])
        .await
        .expect(0);
    user.run("rollproxy-launcher", &["status"]).await.expect(1);
    user.run("rollproxy-updater", &["check", "--self-test"])
        .await
        .expect(0);
    // Who wants to write is told where it cannot.
    for (name, arguments) in [
        ("rollproxy-updater", &check[..]),
        (
            "rollproxy-launcher",
            &["select", "1.0.0", "--format", "json"],
        ),
    ] {
        let said = user.run(name, arguments).await;
        assert_eq!(said.code, Some(1), "{name}: {said:?}");
        let message = said.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(
            message.contains(user.home().root().to_str().unwrap()),
            "{name}: {message}"
        );
    }
    assert_eq!(user.picture(), before, "a reading command wrote something");
    user.writable(true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a second user"]
async fn a_home_of_another_user_is_refused_by_name() {
    let user = Ordinary::new();
    let feed = TestFeed::new();
    let theirs = TestHome::new();
    feed.pin(&theirs, &feed.file_url()).await;
    // Root may read it: so this process asks, as the wrong user.
    std::os::unix::fs::chown(theirs.home.packages(), Some(NOBODY), Some(NOBODY)).unwrap();
    theirs
        .check()
        .run()
        .await
        .refused(78, "HOME_NOT_OURS", &["packages", "uid 65534"]);
    drop(user);
}
