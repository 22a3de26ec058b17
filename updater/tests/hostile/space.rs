//! Disks that are full, and limits on what a process may write: each at every stage, and then there is room again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::tracer::{self, Next};
use super::world::{Host, Ran, World};

/// A small file system that goes with this value.
pub struct Mount(PathBuf);

impl Mount {
    pub fn new(path: PathBuf, options: &str) -> Self {
        fs::create_dir_all(&path).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "none"])
            .arg(&path)
            .status()
            .unwrap();
        assert!(mounted.success(), "mounting a tmpfs needs root");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn remount(&self, options: &str) {
        let mounted = Command::new("mount")
            .args(["-o", &format!("remount,{options}")])
            .arg(&self.0)
            .status()
            .unwrap();
        assert!(mounted.success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Leaves not a byte free.
fn fill_bytes(folder: &Path) {
    let mut file = File::create(folder.join("filler")).unwrap();
    while file.write_all(&[7; 4096]).is_ok() {}
}

/// Leaves not a name free.
fn fill_names(folder: &Path) {
    let folder = folder.join("filler");
    let _ = fs::create_dir(&folder);
    for number in 0.. {
        if File::create(folder.join(number.to_string())).is_err() {
            return;
        }
    }
}

fn empty(folder: &Path) {
    let filler = folder.join("filler");
    let _ = fs::remove_file(&filler);
    staging::files::remove_tree(&filler).unwrap();
}

/// Fills the file system before every `stride`-th call of a first install. What was said, by the step that the job had
/// reached.
fn full_while_installing(
    options: &str,
    fill: fn(&Path),
    stride: usize,
) -> BTreeMap<String, String> {
    let world = World::new(&["1.0.0"]);
    let mount = Mount::new(world.folder.path().join("small"), options);
    let template = world.home("template");
    template.configure("reserve = \"0B\"");
    let mut said = BTreeMap::new();
    for n in (0..).step_by(stride) {
        let host = template.copy(&mount.path().join("home"));
        let mut when = None;
        let trace = tracer::run(
            &host.check_command(),
            host.home.root(),
            &mut |point, call| {
                if point == n {
                    when = Some(format!("point {n}, before {:?} {:?}", call.kind, call.path));
                    fill(mount.path());
                }
                Next::Go
            },
        );
        let Some(when) = when else {
            return said;
        };
        let ran = Ran {
            code: trace.code,
            out: trace.out,
            err: trace.err,
        };
        host.assert_sound(&when);
        let selected = host.selected();
        match ran.code {
            Some(0) => assert_eq!(selected.as_deref(), Some("1.0.0"), "{when} {ran:?}"),
            Some(1) => {
                let (code, message) = ran.error();
                assert!(
                    message.contains("No space left") || code == "NO_SPACE",
                    "{when}: {ran:?}"
                );
                assert_eq!(ran.json()["error"]["retry"], true, "{when}: {ran:?}");
                let step = host.jobs().pop().map(|job| job.step);
                said.insert(step.unwrap_or_default(), message);
            }
            // What was done cannot be written down.
            Some(2) => assert_eq!(selected.as_deref(), Some("1.0.0"), "{when} {ran:?}"),
            _ => panic!("{when}: {ran:?}"),
        }
        empty(mount.path());
        let again = host.check();
        assert_eq!(again.code, Some(0), "{when}: {again:?}");
        assert_eq!(host.selected().as_deref(), Some("1.0.0"), "{when}");
        host.assert_sound(&when);
        host.assert_tidy(&when);
        staging::files::remove_tree(host.home.root()).unwrap();
    }
    said
}

/// Before the journal (metadata, lock, node id), and each step in it.
#[track_caller]
fn assert_every_stage(said: &BTreeMap<String, String>) {
    let steps: BTreeSet<&str> = said.keys().map(String::as_str).collect();
    for step in ["", "begin", "stage", "publish", "pending"] {
        assert!(steps.contains(step), "{step:?} is missing: {said:#?}");
    }
}

#[test]
#[ignore = "needs root to mount a tmpfs"]
fn a_disk_that_fills_up_at_any_stage_is_named_and_recovered_from() {
    let said = full_while_installing("size=3m", fill_bytes, 2);
    assert_every_stage(&said);
}

#[test]
#[ignore = "needs root to mount a tmpfs"]
fn a_disk_without_names_left_is_named_and_recovered_from() {
    let said = full_while_installing("size=8m,nr_inodes=300", fill_names, 5);
    assert_every_stage(&said);
}

#[test]
#[ignore = "needs root to mount a tmpfs"]
fn a_disk_below_its_reserve_is_left_alone_and_named() {
    let world = World::new(&["1.0.0"]);
    let mount = Mount::new(world.folder.path().join("small"), "size=8m");
    let host = world.home_at(mount.path().join("home"));
    let ran = host.check();
    ran.expect(1, "failed");
    let (code, message) = ran.error();
    assert_eq!(code, "NO_SPACE");
    assert!(message.contains("update.reserve"), "{message}");
    assert!(host.installed().is_empty());
    host.configure("reserve = \"1MiB\"");
    host.check().expect(0, "installed");
}

/// Runs a check under a limit on the length of files, as a quota or `ulimit -f` sets it.
fn limited(host: &Host, blocks: usize, trap: &str) -> Ran {
    let check = host.check_command();
    let mut command = Command::new("/bin/sh");
    command
        .args([
            "-c",
            &format!("{trap} ulimit -f {blocks}; exec \"$@\""),
            "sh",
        ])
        .arg(check.get_program())
        .args(check.get_args())
        .env_clear()
        .env("ROLLPROXY_HOME", host.home.root());
    Ran::from(command.output().unwrap())
}

#[test]
fn a_limit_on_the_length_of_files_is_named_or_kills_and_is_recovered_from() {
    let world = World::new(&[]);
    let program = super::program::printing("rollproxy 1.0.0\n");
    world.release_with("1.0.0", program, 200_000);
    for trap in ["trap '' XFSZ;", ""] {
        for blocks in [0, 1, 4, 16, 100] {
            let host = world.home(&format!("home-{}-{blocks}", trap.len()));
            let when = format!("{blocks} blocks {trap}");
            let ran = limited(&host, blocks, trap);
            host.assert_sound(&when);
            assert_eq!(host.selected(), None, "{when}: {ran:?}");
            if !trap.is_empty() {
                ran.expect(1, "failed");
                let (_, message) = ran.error();
                assert!(message.contains("File too large"), "{when}: {message}");
            }
            host.check().expect(0, "installed");
            host.assert_tidy(&when);
        }
    }
}
