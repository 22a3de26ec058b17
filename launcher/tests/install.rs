//! `install`: a launcher in place as a whole, under three names, whatever runs from there.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests are tests

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use staging::digest;

const LAUNCHER: &str = env!("CARGO_BIN_EXE_rollproxy-launcher");

struct World {
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn bin(&self) -> PathBuf {
        self.path("bin")
    }

    fn run(&self, program: &Path, args: &[&str]) -> Output {
        Command::new(program)
            .args(args)
            .env_clear()
            .env("HOME", self.folder.path())
            .env("PATH", format!("/usr/bin:{}", self.bin().display()))
            .env("ROLLPROXY_HOME", self.path("home"))
            .output()
            .unwrap()
    }

    fn install(&self, more: &[&str]) -> Output {
        let bin = self.bin();
        let mut args = vec!["install", "--dir", bin.to_str().unwrap()];
        args.extend(more);
        self.run(Path::new(LAUNCHER), &args)
    }

    /// A package that holds this launcher, with `tail` appended so that it is told from others, and selects it.
    fn select(&self, version: &str, tail: &[u8]) -> PathBuf {
        let root = self.path("home/packages").join(version);
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::set_permissions(self.path("home"), fs::Permissions::from_mode(0o700)).unwrap();
        let mut bytes = fs::read(LAUNCHER).unwrap();
        bytes.extend_from_slice(tail);
        let program = root.join("bin/rollproxy-launcher");
        fs::write(&program, &bytes).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o555)).unwrap();
        let manifest = json!({
            "schema": 1, "name": "rollproxy", "version": version, "target": staging::TARGET,
            "minLauncher": "0.1.0", "protocol": {"channel": {"min": 1, "max": 1}, "state": 1},
            "entries": {"rollproxy-launcher": "bin/rollproxy-launcher"},
            "files": [{
                "path": "bin/rollproxy-launcher", "size": bytes.len(), "mode": "0555",
                "sha256": digest::of(&bytes),
            }],
            "build": {"commit": "abc", "compiledVersion": "0.1.0"},
        });
        fs::write(root.join("package.json"), manifest.to_string()).unwrap();
        let selection = json!({
            "schema": 1, "serial": 1, "version": version,
            "pinned": false, "by": "job", "at": "2026-01-02T03:04:05Z",
        });
        fs::write(self.path("home/selection.json"), selection.to_string()).unwrap();
        program
    }
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn assert_refused(output: &Output, part: &str) {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("error[INSTALL_") && said.contains(part),
        "{said}"
    );
}

#[test]
fn a_launcher_and_its_names_are_put_in_place_and_the_second_time_nothing_changes() {
    let world = World::new();
    let said = json_of(&world.install(&["--format", "json"]));
    assert_eq!(
        (&said["outcome"], &said["inPath"], &said["before"]),
        (&json!("installed"), &json!(true), &json!(null))
    );
    let there = world.bin().join("rollproxy-launcher");
    assert_eq!(fs::read(&there).unwrap(), fs::read(LAUNCHER).unwrap());
    assert_eq!(fs::metadata(&there).unwrap().mode() & 0o7777, 0o755);
    for name in ["rollproxy", "rollproxy-updater"] {
        let link = fs::read_link(world.bin().join(name)).unwrap();
        assert_eq!(link, Path::new("rollproxy-launcher"));
    }
    let inode = fs::metadata(&there).unwrap().ino();
    let said = json_of(&world.install(&["--format", "json"]));
    assert_eq!(said["outcome"], "already");
    assert_eq!(fs::metadata(&there).unwrap().ino(), inode);
    assert_eq!(fs::read_dir(world.bin()).unwrap().count(), 3, "litter");
}

#[test]
fn without_a_folder_it_goes_where_one_stands_in_path_and_else_below_home() {
    let world = World::new();
    // A folder in PATH where programs were built is not where one is installed.
    fs::create_dir(world.bin()).unwrap();
    for name in ["rollproxy-launcher", "rollproxy"] {
        fs::copy(LAUNCHER, world.bin().join(name)).unwrap();
    }
    let output = world.run(Path::new(LAUNCHER), &["install"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(world.path(".local/bin/rollproxy-launcher").is_file());
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("is not in PATH"), "{said}");

    fs::remove_file(world.bin().join("rollproxy")).unwrap();
    fs::write(
        world.bin().join("rollproxy-launcher"),
        "#!/bin/sh\nexit 1\n",
    )
    .unwrap();
    let output = world.run(Path::new(LAUNCHER), &["install"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let there = world.bin().join("rollproxy-launcher");
    assert_eq!(fs::read(there).unwrap(), fs::read(LAUNCHER).unwrap());
}

#[test]
fn the_selected_package_s_launcher_is_installed_also_over_one_that_runs() {
    let world = World::new();
    world.install(&[]);
    let installed = world.bin().join("rollproxy-launcher");
    // Whoever runs from the old file keeps it as it was: held open here as an execution holds it.
    let mut held = fs::File::open(&installed).unwrap();
    world.select("1.5.0", b"another build");
    let said = json_of(&world.run(&installed, &["install", "--format", "json"]));
    assert_eq!(said["outcome"], "installed", "{said}");
    let now = fs::read(&installed).unwrap();
    assert!(now.ends_with(b"another build"));
    let mut kept = Vec::new();
    held.read_to_end(&mut kept).unwrap();
    assert!(
        kept == fs::read(LAUNCHER).unwrap(),
        "the old file was written to"
    );
}

#[test]
fn a_package_s_own_launcher_installs_itself_if_it_is_what_its_manifest_names() {
    let world = World::new();
    let program = world.select("1.5.0", b"good");
    let bin = world.bin();
    let args = ["install", "--dir", bin.to_str().unwrap()];
    assert_eq!(world.run(&program, &args).status.code(), Some(0));
    let installed = bin.join("rollproxy-launcher");
    let good = fs::read(&installed).unwrap();

    let mut damaged = good.clone();
    damaged.extend_from_slice(b"changed");
    fs::remove_file(&program).unwrap();
    fs::write(&program, damaged).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o555)).unwrap();
    assert_refused(&world.run(&program, &args), "damaged");
    assert_eq!(fs::read(&installed).unwrap(), good);
}

#[test]
fn what_is_not_ours_or_newer_is_left_alone_unless_forced() {
    let world = World::new();
    fs::create_dir(world.bin()).unwrap();
    let other = world.bin().join("rollproxy");
    fs::write(&other, "somebody's").unwrap();
    assert_refused(&world.install(&[]), "something else");
    assert_eq!(fs::read_dir(world.bin()).unwrap().count(), 1);
    fs::remove_file(&other).unwrap();
    symlink("/bin/true", &other).unwrap();
    assert_refused(&world.install(&[]), "something else");
    assert_eq!(world.install(&["--force"]).status.code(), Some(0));

    let newer = "#!/bin/sh\necho rollproxy 9.0.0\necho 'launcher: 99.0.0 (abc)'\n";
    let there = world.bin().join("rollproxy-launcher");
    fs::write(&there, newer).unwrap();
    assert_refused(&world.install(&[]), "99.0.0");
    assert_eq!(fs::read_to_string(&there).unwrap(), newer);
    let said = json_of(&world.install(&["--force", "--format=json"]));
    assert_eq!(said["before"], "99.0.0");
}

#[test]
fn a_folder_that_cannot_be_written_is_named_and_misuse_is_64() {
    let world = World::new();
    fs::write(world.path("file"), "").unwrap();
    let below = world.path("file/bin");
    let output = world.run(
        Path::new(LAUNCHER),
        &["install", "--dir", below.to_str().unwrap()],
    );
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for args in [
        &["install", "x"][..],
        &["install", "--dir"],
        &["install", "--nonsense"],
    ] {
        let output = world.run(Path::new(LAUNCHER), args);
        assert_eq!(output.status.code(), Some(64), "{args:?}");
    }
}

#[test]
fn what_is_started_learns_the_launcher_s_version_and_keeps_its_environment() {
    let world = World::new();
    let program = world.select("1.5.0", b"");
    let root = program.parent().unwrap().parent().unwrap();
    let script = "#!/bin/sh\necho \"$ROLLPROXY_LAUNCHER,$MINE\"\n";
    fs::write(root.join("bin/rollproxy"), script).unwrap();
    fs::set_permissions(
        root.join("bin/rollproxy"),
        fs::Permissions::from_mode(0o555),
    )
    .unwrap();
    let path = root.join("package.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    manifest["entries"]["rollproxy"] = json!("bin/rollproxy");
    manifest["files"].as_array_mut().unwrap().push(json!({
        "path": "bin/rollproxy", "size": script.len(), "mode": "0555",
        "sha256": digest::of(script.as_bytes()),
    }));
    fs::write(path, manifest.to_string()).unwrap();
    let output = Command::new(LAUNCHER)
        .arg("serve")
        .env("ROLLPROXY_HOME", world.path("home"))
        .env("ROLLPROXY_LAUNCHER", "77.0.0")
        .env("MINE", "kept")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, format!("{},kept\n", env!("CARGO_PKG_VERSION")));
}
