//! Hosts that are odd: who runs it and how, where the home lies and whose it is, and what its file system forbids.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::calls::Kind;
use super::space::Mount;
use super::tracer::{self, Next};
use super::world::{ENTRY, Host, Ran, World, walk};

/// One check as cron runs it: nothing in the environment but four words, no terminal, no stdin, stdout in a file.
fn as_cron(host: &Host, umask: &str) -> Ran {
    let folder = host.home.root().parent().unwrap();
    let (out, err) = (folder.join("out"), folder.join("err"));
    let line = format!("'{}' check", host.program.display());
    let script = format!(
        "umask {umask}; exec env -i HOME='{}' PATH=/usr/bin:/bin SHELL=/bin/sh /bin/sh -c \"{line}\" <&-",
        folder.display()
    );
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", &script])
        .current_dir("/")
        .env_clear()
        .stdin(Stdio::null())
        .stdout(File::create(&out).unwrap())
        .stderr(File::create(&err).unwrap());
    host.as_user(&mut command);
    let status = command.status().unwrap();
    Ran {
        code: status.code(),
        out: fs::read_to_string(out).unwrap(),
        err: fs::read_to_string(err).unwrap(),
    }
}

/// The modes of all that is not named after a job, by path.
fn modes(host: &Host) -> Vec<(PathBuf, u32)> {
    let mut modes = Vec::new();
    walk(host.home.root(), &mut |path| {
        if path.starts_with(host.home.jobs()) && path != host.home.jobs() {
            return;
        }
        let mode = fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
        let path = path.strip_prefix(host.home.root()).unwrap().to_owned();
        modes.push((path, mode));
    });
    modes.sort();
    modes
}

/// Without the times that a check took.
fn without_times(text: &str) -> String {
    text.split(' ')
        .map(|word| {
            if word.bytes().all(|byte| byte.is_ascii_digit()) {
                "N"
            } else {
                word
            }
        })
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn an_ordinary_user_s_cron_line_does_and_says_the_same_under_any_umask() {
    let world = World::new(&["1.0.0"]);
    let mut seen = Vec::new();
    for umask in ["022", "077", "000"] {
        let mut host = world.ordinary(umask);
        // Cron gives HOME only: the home is where it is by default.
        host.home = staging::home::Home::at(host.home.root().with_file_name(".rollproxy"));
        world.make(&host);
        let ran = as_cron(&host, umask);
        assert_eq!(
            (ran.code, ran.err.as_str()),
            (Some(0), ""),
            "{umask}: {ran:?}"
        );
        assert!(
            ran.out.contains("1.0.0 is installed and selected"),
            "{ran:?}"
        );
        host.assert_sound(umask);
        host.assert_tidy(umask);
        let modes = modes(&host);
        for (path, mode) in &modes {
            assert_eq!(mode & 0o022, 0, "{umask}: {path:?} {mode:o}");
        }
        let again = as_cron(&host, umask);
        assert_eq!(
            again.out, "version 1.0.0 is already selected\n",
            "{again:?}"
        );
        seen.push((without_times(&ran.out), modes));
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0], seen[2]);
}

#[test]
fn a_home_may_have_any_name_and_lie_behind_links() {
    let world = World::new(&["1.0.0"]);
    let folder = world.folder.path();
    let real = folder.join("real");
    fs::create_dir(&real).unwrap();
    symlink(&real, folder.join("link")).unwrap();
    symlink(folder.join("elsewhere"), folder.join("home-link")).unwrap();
    fs::create_dir(folder.join("elsewhere")).unwrap();
    fs::set_permissions(folder.join("elsewhere"), fs::Permissions::from_mode(0o700)).unwrap();
    for root in [
        folder.join("ho me'\"$(x)"),
        folder.join("h\u{f6}me-\u{5bb6}-\u{1f3e0}"),
        folder.join(OsStr::from_bytes(b"h\xff\xfeme")),
        folder.join("link/home"),
        folder.join("home-link"),
        folder.join("x".repeat(200)).join("y".repeat(200)),
    ] {
        let host = world.home_at(root.clone());
        host.check().expect(0, "installed");
        let when = root.display().to_string();
        host.assert_sound(&when);
        host.assert_tidy(&when);
        let ran = host.run(&["verify"]);
        assert_eq!(ran.code, Some(0), "{when}: {ran:?}");
        host.check().expect(0, "upToDate");
    }
}

#[test]
fn packages_may_lie_behind_a_link() {
    let world = World::new(&["1.0.0"]);
    let host = world.home("home");
    link_packages(&host, &world.folder.path().join("store"));
    host.check().expect(0, "installed");
    host.assert_sound("linked");
    host.assert_tidy("linked");
}

/// Puts the packages elsewhere and leaves a link.
fn link_packages(host: &Host, store: &Path) {
    staging::files::remove_tree(&host.home.packages()).unwrap();
    staging::files::create_private(store).unwrap();
    symlink(store, host.home.packages()).unwrap();
}

#[test]
#[ignore = "needs root to mount a tmpfs"]
fn home_and_packages_may_lie_on_other_file_systems() {
    let world = World::new(&["1.0.0"]);
    let one = Mount::new(world.folder.path().join("one"), "size=16m");
    let two = Mount::new(world.folder.path().join("two"), "size=16m");
    let host = world.home_at(one.path().join("home"));
    host.configure("reserve = \"0B\"");
    link_packages(&host, &two.path().join("store"));
    host.check().expect(0, "installed");
    world.release("1.1.0");
    host.check().expect(0, "pending");
    host.assert_sound("two file systems");
    host.assert_tidy("two file systems");
    assert_eq!(host.installed(), ["1.0.0", "1.1.0"]);
}

#[test]
#[ignore = "needs root to mount a tmpfs"]
fn a_file_system_that_starts_no_programs_is_named() {
    let world = World::new(&["1.0.0"]);
    let mount = Mount::new(world.folder.path().join("noexec"), "size=16m,noexec");
    let host = world.home_at(mount.path().join("home"));
    host.configure("reserve = \"0B\"");
    let ran = host.check();
    ran.expect(1, "failed");
    let (code, message) = ran.error();
    assert_eq!(code, "STAGING_NOEXEC", "{message}");
    for part in [
        "noexec",
        "ROLLPROXY_HOME",
        &host.home.packages().display().to_string(),
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!((host.selected(), host.installed().len()), (None, 0));
    mount.remount("exec");
    host.check().expect(0, "installed");
    host.assert_tidy("with exec");
}

#[test]
#[ignore = "needs root to mount a tmpfs"]
fn a_read_only_file_system_is_named_and_what_only_reads_works() {
    let world = World::new(&["1.0.0"]);
    let mount = Mount::new(world.folder.path().join("readonly"), "size=16m");
    let host = world.home_at(mount.path().join("home"));
    host.configure("reserve = \"0B\"");
    host.check().expect(0, "installed");
    mount.remount("ro");
    read_only(&host);
    mount.remount("rw");
    host.check().expect(0, "upToDate");
}

#[test]
fn a_home_that_its_user_cannot_write_is_named_and_what_only_reads_works() {
    let world = World::new(&["1.0.0"]);
    let host = world.ordinary("user");
    world.make(&host);
    host.check().expect(0, "installed");
    let folders = |mode: u32| {
        for folder in [
            host.home.root().to_owned(),
            host.home.packages(),
            host.home.state(),
            host.home.jobs(),
            host.home.feed(),
            host.home.downloads(),
            host.home.run(),
        ] {
            fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    folders(0o500);
    read_only(&host);
    folders(0o700);
    host.check().expect(0, "upToDate");
}

/// A check says what cannot be written; reading commands read.
fn read_only(host: &Host) {
    let ran = host.check();
    assert!(matches!(ran.code, Some(1 | 78)), "{ran:?}");
    let (code, message) = ran.error();
    let home = host.home.root().display().to_string();
    assert!(message.contains(&home), "{code} {message}");
    println!("{code}: {message}");
    for args in [
        &["history"][..],
        &["verify"],
        &["hold"],
        &["check", "--self-test"],
        &["gc", "--dry-run"],
    ] {
        let ran = host.run(args);
        assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
    }
    assert_eq!(host.selected().as_deref(), Some("1.0.0"));
}

#[test]
fn a_home_that_others_can_write_is_refused_with_what_mends_it() {
    let world = World::new(&["1.0.0"]);
    let host = world.ordinary("user");
    world.make(&host);
    for path in [
        host.home.root().to_owned(),
        host.home.packages(),
        host.home.state(),
    ] {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        let ran = host.check();
        ran.expect(78, "failed");
        let (code, message) = ran.error();
        assert_eq!(code, "HOME_WRITABLE_BY_OTHERS");
        assert!(
            message.contains(&format!("chmod go-w {}", path.display())),
            "{message}"
        );
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    }
    host.check().expect(0, "installed");
}

#[test]
#[ignore = "needs root to give a home to somebody else"]
fn a_home_of_somebody_else_is_refused_whoever_runs() {
    let world = World::new(&["1.0.0"]);
    let theirs = world.ordinary("user");
    world.make(&theirs);
    let mut as_root = Host::at(theirs.home.root());
    as_root.program.clone_from(&theirs.program);
    let ran = as_root.check();
    ran.expect(78, "failed");
    let (code, message) = ran.error();
    assert_eq!(code, "HOME_NOT_OURS");
    assert!(
        message.contains("uid 65534") && message.contains("chown 0"),
        "{message}"
    );
    assert_eq!(theirs.installed(), [""; 0]);
    theirs.check().expect(0, "installed");
}

#[test]
fn a_program_that_somebody_holds_open_for_writing_is_waited_for_and_then_named() {
    let world = World::new(&["1.0.0"]);
    for held_long in [false, true] {
        let host = world.home(&format!("home-{held_long}"));
        let (let_go, wait) = std::sync::mpsc::channel::<()>();
        let mut holder = None;
        let mut wait = Some(wait);
        let trace = tracer::run(&host.check_command(), host.home.root(), &mut |_, call| {
            let is_entry = call.path.file_name() == Some(OsStr::new(ENTRY));
            if is_entry && call.kind == Kind::Write && holder.is_none() {
                let file = File::options().write(true).open(&call.path).unwrap();
                let wait = wait.take().unwrap();
                holder = Some(std::thread::spawn(move || {
                    // Long enough to be met, short enough to be waited for; or until the job has ended.
                    let patience = if held_long { 60_000 } else { 500 };
                    let _ = wait.recv_timeout(std::time::Duration::from_millis(patience));
                    drop(file);
                }));
            }
            Next::Go
        });
        drop(let_go);
        holder.expect("the entry was written").join().unwrap();
        let ran = Ran {
            code: trace.code,
            out: trace.out,
            err: trace.err,
        };
        if held_long {
            ran.expect(1, "failed");
            let (code, message) = ran.error();
            assert_eq!(code, "ENTRY_BUSY", "{message}");
            assert!(message.contains("held open for writing"), "{message}");
            assert_eq!(ran.json()["error"]["retry"], true);
            assert_eq!(host.selected(), None);
            host.check().expect(0, "installed");
        } else {
            ran.expect(0, "installed");
        }
        host.assert_tidy("busy");
    }
}
