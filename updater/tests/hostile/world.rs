//! A signed feed with releases of almost no weight, and homes that follow it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use publisher::{Add, Binaries, Init, Place, Promote, Source};
use serde_json::Value;
use staging::home::Home;
use staging::journal::{self, JobRecord};
use staging::package::{self, Package};
use staging::version::PackageVersion;
use staging::{contents, launch, selection, update_state};

use super::program;

pub const UPDATER: &str = env!("CARGO_BIN_EXE_rollproxy-updater");
pub const ENTRY: &str = "rollproxy";

/// A feed, and the folder in which homes are made.
pub struct World {
    pub folder: tempfile::TempDir,
    pub place: Place,
    root_sha256: String,
}

impl World {
    pub fn new(versions: &[&str]) -> Self {
        Self::in_folder(tempfile::tempdir().unwrap(), versions)
    }

    pub fn in_folder(folder: tempfile::TempDir, versions: &[&str]) -> Self {
        let place = Place::new(folder.path().join("feed"), folder.path().join("keys"));
        let made = publisher::init(&place, &Init::default()).unwrap();
        let world = Self {
            folder,
            place,
            root_sha256: made.root_sha256,
        };
        for version in versions {
            world.release(version);
        }
        world
    }

    pub fn url(&self) -> String {
        format!("file://{}", self.place.feed.display())
    }

    /// A release with one program and two more files, one of them in every release the same.
    pub fn release(&self, version: &str) {
        self.release_with(
            version,
            program::printing(&format!("{ENTRY} {version}\n")),
            0,
        );
    }

    /// A release whose entry is `program`, and whose ballast has so many bytes that do not compress.
    pub fn release_with(&self, version: &str, program: Vec<u8>, ballast: usize) {
        self.release_as(version, program, ballast, &[]);
    }

    /// The same, with patches from earlier versions.
    pub fn release_as(&self, version: &str, program: Vec<u8>, ballast: usize, from: &[&str]) {
        let work = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = work.path().join(name);
            fs::write(&path, bytes).unwrap();
            path
        };
        let entry = file(ENTRY, &program);
        fs::set_permissions(&entry, fs::Permissions::from_mode(0o755)).unwrap();
        let mut extra = vec![
            (
                "share/licence".to_owned(),
                file("licence", b"the same in every release\n"),
            ),
            ("share/notes".to_owned(), file("notes", version.as_bytes())),
        ];
        if ballast > 0 {
            extra.push(("share/ballast".to_owned(), file("ballast", &noise(ballast))));
        }
        let source = Source::Binaries(Binaries {
            entries: vec![(ENTRY.to_owned(), entry)],
            extra,
            commit: "abc".to_owned(),
            compiled_version: "0.1.0".to_owned(),
            min_launcher: PackageVersion::new(0, 1, 0),
            level: 1,
        });
        let add = Add {
            delta_from: from.iter().map(|from| from.parse().unwrap()).collect(),
            ..Add::new(version.parse().unwrap(), source)
        };
        publisher::add(&self.place, &add).unwrap();
        let promote = Promote::new("stable", version.parse().unwrap());
        publisher::promote(&self.place, &promote).unwrap();
    }

    /// A home that follows the feed.
    pub fn home(&self, name: &str) -> Host {
        self.home_at(self.folder.path().join(name))
    }

    pub fn home_at(&self, root: PathBuf) -> Host {
        let host = Host::at(root);
        self.make(&host);
        host
    }

    pub fn make(&self, host: &Host) {
        let output = self.init(host).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// A home that an ordinary user makes and uses. Where we are root, that is somebody else, who may read the feed.
    pub fn ordinary(&self, name: &str) -> Host {
        let mut host = Host::at(self.folder.path().join(name).join("home"));
        let parent = host.home.root().parent().unwrap().to_owned();
        fs::create_dir(&parent).unwrap();
        if nix::unistd::geteuid().is_root() {
            host.user = Some(NOBODY);
            std::os::unix::fs::chown(&parent, Some(NOBODY), Some(NOBODY)).unwrap();
            let open = |path: &Path| {
                let mode = fs::metadata(path).unwrap().permissions().mode();
                let more = if path.is_dir() { 0o055 } else { 0o044 };
                fs::set_permissions(path, fs::Permissions::from_mode(mode | more)).unwrap();
            };
            open(self.folder.path());
            open(&self.place.feed);
            walk(&self.place.feed, &mut |path| open(path));
            open(&self.place.root());
            open(self.place.root().parent().unwrap());
            // Where this checkout lies, others may not look.
            host.program = self.folder.path().join("rollproxy-updater");
            if !host.program.exists() {
                fs::copy(UPDATER, &host.program).unwrap();
            }
        }
        host
    }

    pub fn init(&self, host: &Host) -> Command {
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
        host.command(&args)
    }
}

/// Bytes that do not compress, the same in every run.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..length).map(|_| next()).collect()
}

/// One home, and the updater on it.
pub struct Host {
    pub home: Home,
    /// The updater.
    pub program: PathBuf,
    /// Who runs it, if another than we.
    pub user: Option<u32>,
}

/// Somebody who is not root.
pub const NOBODY: u32 = 65534;

impl Host {
    /// Somebody's home that is yet to be made; we are root, or it is ours.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self {
            home: Home::at(root),
            program: PathBuf::from(UPDATER),
            user: None,
        }
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(args)
            .env_clear()
            .env("ROLLPROXY_HOME", self.home.root());
        self.as_user(&mut command);
        command
    }

    pub fn as_user(&self, command: &mut Command) {
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        Ran::from(self.command(args).output().unwrap())
    }

    /// Adds lines to the configuration's table of updates.
    pub fn configure(&self, lines: &str) {
        let file = self.home.config_file();
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{text}\n{lines}\n")).unwrap();
    }

    /// A check that answers in JSON.
    pub fn check(&self) -> Ran {
        Ran::from(self.check_command().output().unwrap())
    }

    pub fn check_command(&self) -> Command {
        self.command(&["check", "--now", "--format", "json"])
    }

    pub fn installed(&self) -> Vec<String> {
        let installed = package::list(&self.home).unwrap();
        installed.iter().map(ToString::to_string).collect()
    }

    pub fn selected(&self) -> Option<String> {
        let selection = selection::read(&self.home).unwrap();
        selection.map(|selection| selection.version.to_string())
    }

    pub fn pending(&self) -> Option<String> {
        let pending = update_state::read(&self.home).unwrap().pending;
        pending.map(|pending| pending.version.to_string())
    }

    pub fn jobs(&self) -> Vec<JobRecord> {
        journal::all(&self.home).unwrap()
    }

    /// Whatever a job that died left: every package that can be seen is whole, what is selected can be started, and
    /// every document can be read.
    #[track_caller]
    pub fn assert_sound(&self, when: &str) {
        for version in package::list(&self.home).unwrap() {
            let package = Package::open(&self.home, &version)
                .unwrap_or_else(|error| panic!("{when}: {version}: {error}"));
            contents::verify(&package.root, &package.manifest)
                .unwrap_or_else(|error| panic!("{when}: {version}: {error}"));
        }
        if self.selected().is_some() {
            let resolved = launch::resolve(&self.home, ENTRY)
                .unwrap_or_else(|error| panic!("{when}: {error}"));
            assert_eq!(resolved.fallback, None, "{when}");
        }
        self.jobs();
        self.pending();
    }

    /// Nothing lies about that a finished job does not need.
    #[track_caller]
    pub fn assert_tidy(&self, when: &str) {
        let home = &self.home;
        for folder in [home.staging_dir(), home.downloads()] {
            let left: Vec<_> = names(&folder);
            assert!(left.is_empty(), "{when}: {folder:?} holds {left:?}");
        }
        let mut temporary = Vec::new();
        walk(home.root(), &mut |path| {
            let name = path.file_name().unwrap().to_string_lossy();
            if name.ends_with(".tmp") || name.ends_with('~') {
                temporary.push(path.to_owned());
            }
        });
        assert!(temporary.is_empty(), "{when}: left over: {temporary:?}");
        let unfinished = journal::unfinished(home).unwrap();
        assert!(unfinished.is_empty(), "{when}: {unfinished:?}");
        for version in package::list(home).unwrap() {
            let mode = fs::metadata(home.package(&version))
                .unwrap()
                .permissions()
                .mode();
            assert_eq!(mode & 0o7777, 0o555, "{when}: {version}");
        }
    }

    /// A copy of the whole home.
    pub fn copy(&self, to: &Path) -> Self {
        copy(self.home.root(), to);
        Self::at(to)
    }
}

fn names(folder: &Path) -> Vec<std::ffi::OsString> {
    match fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| entry.unwrap().file_name()).collect(),
        Err(_) => Vec::new(),
    }
}

/// Calls `visit` for everything below a folder.
pub fn walk(folder: &Path, visit: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        visit(&path);
        if path.is_dir() && !path.is_symlink() {
            walk(&path, visit);
        }
    }
}

/// Copies a tree with its modes.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            copy(&path, &target);
        } else if kind.is_symlink() {
            symlink(fs::read_link(&path).unwrap(), target).unwrap();
        } else if kind.is_file() {
            fs::copy(&path, target).unwrap();
        }
    }
    fs::set_permissions(to, fs::metadata(from).unwrap().permissions()).unwrap();
}

/// What a command said.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ran {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    pub fn expect(&self, code: i32, outcome: &str) -> Value {
        let said = self.json();
        assert_eq!(
            (self.code, said["outcome"].as_str()),
            (Some(code), Some(outcome)),
            "{self:?}"
        );
        said
    }

    /// The code of the error that was told.
    #[track_caller]
    pub fn error(&self) -> (String, String) {
        let error = &self.json()["error"];
        let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
        (text("code"), text("message"))
    }
}
