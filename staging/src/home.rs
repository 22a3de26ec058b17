//! Where everything of one installation lives.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::files;
use crate::report::{Exit, Report};
use crate::version::PackageVersion;

/// The longest path that fits into a socket address (`sun_path` is 108 bytes with its terminator).
const MAX_SOCKET_PATH: usize = 107;

/// The folder of one installation: `~/.rollproxy`, or `ROLLPROXY_HOME`. Holding one promises nothing about the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    root: PathBuf,
}

/// Why a home was not found, made or accepted.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// Nothing in the environment says where the home is.
    #[error(
        "no home: HOME is {home} and ROLLPROXY_HOME is not set; set ROLLPROXY_HOME to an absolute path"
    )]
    Unset {
        /// What HOME is: `not set`, or its useless value.
        home: String,
    },
    /// `ROLLPROXY_HOME` (or HOME) is not a usable absolute path.
    #[error("{variable} is {path:?}: it must be an absolute path other than /")]
    NotAbsolute {
        /// The environment variable.
        variable: &'static str,
        /// Its value.
        path: PathBuf,
    },
    /// The home does not exist yet.
    #[error("{path} does not exist: make it with `rollproxy-updater init`")]
    Missing {
        /// The home.
        path: PathBuf,
    },
    /// Somebody else owns a part of the home.
    #[error(
        "{path} belongs to uid {owner}, and this runs as uid {us}: run as the owner, or `chown {us} {path}`"
    )]
    NotOurs {
        /// The file or folder.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who we are.
        us: u32,
    },
    /// Somebody else could change a part of the home.
    #[error("{path} can be written by others (mode {mode:04o}): run `chmod go-w {path}`")]
    WritableByOthers {
        /// The file or folder.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A part of the home could not be looked at.
    #[error("looking at {path}: {source}")]
    Inspect {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A folder of the home could not be made.
    #[error("making {path}: {source}")]
    Create {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Report for HomeError {
    fn code(&self) -> &'static str {
        match self {
            HomeError::Unset { .. } => "HOME_UNSET",
            HomeError::NotAbsolute { .. } => "HOME_NOT_ABSOLUTE",
            HomeError::Missing { .. } => "HOME_MISSING",
            HomeError::NotOurs { .. } => "HOME_NOT_OURS",
            HomeError::WritableByOthers { .. } => "HOME_WRITABLE_BY_OTHERS",
            HomeError::Inspect { .. } => "HOME_INSPECT",
            HomeError::Create { .. } => "HOME_CREATE",
        }
    }
    fn exit(&self) -> Exit {
        Exit::Configuration
    }
    fn retry(&self) -> bool {
        false
    }
}

impl Home {
    /// The home that the environment names. `environment` is `std::env::var_os` in a program.
    ///
    /// # Errors
    /// [`HomeError::Unset`] and [`HomeError::NotAbsolute`]. The disk is not looked at.
    pub fn from_env(environment: &dyn Fn(&str) -> Option<OsString>) -> Result<Home, HomeError> {
        let set = |variable| environment(variable).filter(|value| !value.is_empty());
        if let Some(root) = set("ROLLPROXY_HOME") {
            let path = PathBuf::from(root);
            if !path.is_absolute() || path.parent().is_none() {
                return Err(HomeError::NotAbsolute {
                    variable: "ROLLPROXY_HOME",
                    path,
                });
            }
            return Ok(Home::at(path));
        }
        let Some(home) = set("HOME").map(PathBuf::from) else {
            return Err(HomeError::Unset {
                home: "not set".to_owned(),
            });
        };
        if !home.is_absolute() {
            return Err(HomeError::NotAbsolute {
                variable: "HOME",
                path: home,
            });
        }
        if home.parent().is_none() {
            return Err(HomeError::Unset {
                home: "/".to_owned(),
            });
        }
        Ok(Home::at(home.join(".rollproxy")))
    }

    /// The home at a path.
    pub fn at(root: impl Into<PathBuf>) -> Home {
        Home { root: root.into() }
    }

    /// The home's own folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// `config.toml`
    pub fn config_file(&self) -> PathBuf {
        self.root.join("config.toml")
    }

    /// `trust/root.json`, the pinned root of trust.
    pub fn trust_root(&self) -> PathBuf {
        self.root.join("trust/root.json")
    }

    /// `packages`
    pub fn packages(&self) -> PathBuf {
        self.root.join("packages")
    }

    /// `packages/<version>`
    pub fn package(&self, version: &PackageVersion) -> PathBuf {
        self.packages().join(version.to_string())
    }

    /// `packages/.staging`: beside the packages, so that a rename can publish.
    pub fn staging_dir(&self) -> PathBuf {
        self.root.join("packages/.staging")
    }

    /// `selection.json`
    pub fn selection_file(&self) -> PathBuf {
        self.root.join("selection.json")
    }

    /// `state`
    pub fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    /// `state/update.json`
    pub fn update_state_file(&self) -> PathBuf {
        self.root.join("state/update.json")
    }

    /// `state/node-id`
    pub fn node_id(&self) -> PathBuf {
        self.root.join("state/node-id")
    }

    /// `state/downloads`
    pub fn downloads(&self) -> PathBuf {
        self.root.join("state/downloads")
    }

    /// `state/jobs`
    pub fn jobs(&self) -> PathBuf {
        self.root.join("state/jobs")
    }

    /// `state/feed`
    pub fn feed(&self) -> PathBuf {
        self.root.join("state/feed")
    }

    /// `run`
    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }

    /// `run/supervisor.lock`
    pub fn supervisor_lock(&self) -> PathBuf {
        self.root.join("run/supervisor.lock")
    }

    /// `run/supervisor.json`
    pub fn supervisor_record(&self) -> PathBuf {
        self.root.join("run/supervisor.json")
    }

    /// `run/updater.lock`
    pub fn updater_lock(&self) -> PathBuf {
        self.root.join("run/updater.lock")
    }

    /// `run/updater.json`
    pub fn updater_record(&self) -> PathBuf {
        self.root.join("run/updater.json")
    }

    /// `run/state.lock`
    pub fn state_lock(&self) -> PathBuf {
        self.root.join("run/state.lock")
    }

    /// `run/snapshot.json`
    pub fn snapshot_file(&self) -> PathBuf {
        self.root.join("run/snapshot.json")
    }

    /// `run/control.sock`. To bind or connect use [`Home::socket_address`].
    pub fn control_socket(&self) -> PathBuf {
        self.root.join("run/control.sock")
    }

    fn folders(&self) -> [PathBuf; 8] {
        [
            self.root.join("trust"),
            self.packages(),
            self.staging_dir(),
            self.state(),
            self.downloads(),
            self.jobs(),
            self.feed(),
            self.run(),
        ]
    }

    /// Makes what is missing of the home's folders, each 0700 whatever the umask. What exists is left as it is.
    ///
    /// # Errors
    /// [`HomeError::Create`]
    pub fn create(&self) -> Result<(), HomeError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| HomeError::Create { path, source }
        };
        if let Some(parent) = self.root.parent() {
            fs::create_dir_all(parent).map_err(failed(parent))?;
        }
        for folder in std::iter::once(self.root.clone()).chain(self.folders()) {
            let made = files::create_private(&folder).map_err(failed(&folder))?;
            if let (true, Some(parent)) = (made, folder.parent()) {
                files::sync_folder(parent).map_err(failed(parent))?;
            }
        }
        Ok(())
    }

    /// Refuses a home of which anything is not ours or can be written by others.
    ///
    /// # Errors
    /// [`HomeError::Missing`], [`HomeError::NotOurs`], [`HomeError::WritableByOthers`] (each with the command that
    /// mends it), [`HomeError::Inspect`].
    pub fn check(&self) -> Result<(), HomeError> {
        if !self.inspect(&self.root)? {
            return Err(HomeError::Missing {
                path: self.root.clone(),
            });
        }
        for folder in self.folders() {
            self.inspect(&folder)?;
        }
        for file in [
            self.config_file(),
            self.trust_root(),
            self.selection_file(),
            self.update_state_file(),
            self.supervisor_lock(),
            self.supervisor_record(),
            self.updater_lock(),
            self.updater_record(),
            self.state_lock(),
            self.snapshot_file(),
        ] {
            self.inspect(&file)?;
        }
        let entries = match fs::read_dir(self.packages()) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(source) => {
                return Err(HomeError::Inspect {
                    path: self.packages(),
                    source,
                });
            }
        };
        for entry in entries {
            let entry = entry.map_err(|source| HomeError::Inspect {
                path: self.packages(),
                source,
            })?;
            self.inspect(&entry.path())?;
        }
        Ok(())
    }

    /// Says whether `path` is there; an error if it is not safely ours.
    fn inspect(&self, path: &Path) -> Result<bool, HomeError> {
        // Following links: a linked config.toml is judged by the file that would be read.
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(source) => {
                return Err(HomeError::Inspect {
                    path: path.to_owned(),
                    source,
                });
            }
        };
        let us = rustix::process::geteuid().as_raw();
        judge(path, us, metadata.uid(), metadata.mode())?;
        Ok(true)
    }

    /// An address of the control socket that can be bound or connected to however long the home's path is.
    ///
    /// # Errors
    /// [`HomeError::Inspect`] if the run folder cannot be opened.
    pub fn socket_address(&self) -> Result<SocketAddress, HomeError> {
        let path = self.control_socket();
        if path.as_os_str().as_bytes().len() <= MAX_SOCKET_PATH {
            return Ok(SocketAddress { path, folder: None });
        }
        let run = self.run();
        let folder = rustix::fs::open(
            &run,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(|error| HomeError::Inspect {
            path: run,
            source: error.into(),
        })?;
        let path = PathBuf::from(format!("/proc/self/fd/{}/control.sock", folder.as_raw_fd()));
        Ok(SocketAddress {
            path,
            folder: Some(folder),
        })
    }
}

/// Who owns what and who may write it, judged apart from the disk.
fn judge(path: &Path, us: u32, owner: u32, mode: u32) -> Result<(), HomeError> {
    if owner != us {
        return Err(HomeError::NotOurs {
            path: path.to_owned(),
            owner,
            us,
        });
    }
    if mode & 0o022 != 0 {
        return Err(HomeError::WritableByOthers {
            path: path.to_owned(),
            mode: mode & 0o7777,
        });
    }
    Ok(())
}

/// A path to bind or connect to; keep it until that is done.
#[derive(Debug)]
pub struct SocketAddress {
    path: PathBuf,
    /// The run folder, while the path goes through its descriptor.
    folder: Option<OwnedFd>,
}

impl SocketAddress {
    /// The path for `bind` or `connect`, good for as long as this value lives.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the path goes through a descriptor of this process, and so means nothing to another.
    pub fn is_private(&self) -> bool {
        self.folder.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn env<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        move |name| {
            pairs
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
        }
    }

    #[test]
    fn the_environment_names_the_home_or_the_error_says_what_to_set() {
        let home = Home::from_env(&env(&[("HOME", "/home/ann")])).unwrap();
        assert_eq!(home.root(), Path::new("/home/ann/.rollproxy"));
        let home = Home::from_env(&env(&[
            ("HOME", "/home/ann"),
            ("ROLLPROXY_HOME", "/srv/rp"),
        ]))
        .unwrap();
        assert_eq!(home.root(), Path::new("/srv/rp"));
        let home = Home::from_env(&env(&[("HOME", "/home/ann"), ("ROLLPROXY_HOME", "")])).unwrap();
        assert_eq!(home.root(), Path::new("/home/ann/.rollproxy"));
        let bad: [&[(&str, &str)]; 6] = [
            &[],
            &[("HOME", "")],
            &[("HOME", "/")],
            &[("HOME", "ann")],
            &[("HOME", "/home/ann"), ("ROLLPROXY_HOME", "rp")],
            &[("ROLLPROXY_HOME", "/")],
        ];
        for pairs in bad {
            let error = Home::from_env(&env(pairs)).unwrap_err();
            assert_eq!(error.exit(), Exit::Configuration, "{pairs:?}");
            assert!(error.to_string().contains("HOME"), "{error}");
        }
    }

    #[test]
    fn create_makes_a_private_tree_twice_and_check_accepts_it() {
        let folder = crate::scratch::Scratch::new();
        let home = Home::at(folder.path().join("deep/home"));
        assert!(matches!(home.check(), Err(HomeError::Missing { .. })));
        home.create().unwrap();
        home.create().unwrap();
        for path in home.folders().iter().chain([&home.root().to_owned()]) {
            let mode = fs::metadata(path).unwrap().permissions().mode() & 0o7777;
            assert_eq!(mode, 0o700, "{}", path.display());
        }
        home.check().unwrap();
    }

    #[test]
    fn anything_writable_by_others_is_refused_with_the_chmod() {
        let folder = crate::scratch::Scratch::new();
        let home = Home::at(folder.path().join("home"));
        home.create().unwrap();
        fs::create_dir(home.packages().join("1.0.0")).unwrap();
        fs::write(home.config_file(), "").unwrap();
        // Not left to the umask of whoever runs this.
        for (path, mode) in [("packages/1.0.0", 0o755), ("config.toml", 0o644)] {
            fs::set_permissions(home.root().join(path), fs::Permissions::from_mode(mode)).unwrap();
        }
        home.check().unwrap();
        for path in [
            ".",
            "trust",
            "packages",
            "packages/1.0.0",
            "config.toml",
            "run",
            "state/feed",
        ] {
            // Through its parts, for `.` and the like would stand in the message otherwise.
            let path: PathBuf = home.root().join(path).components().collect();
            let before = fs::metadata(&path).unwrap().permissions();
            for bit in [0o020, 0o002] {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o700 | bit)).unwrap();
                let error = home.check().unwrap_err();
                assert!(
                    error
                        .to_string()
                        .contains(&format!("`chmod go-w {}`", path.display())),
                    "{error}"
                );
            }
            fs::set_permissions(&path, before).unwrap();
        }
        home.check().unwrap();
    }

    #[test]
    fn another_owner_is_named() {
        let error = judge(Path::new("/srv/rp"), 1000, 0, 0o700).unwrap_err();
        assert!(
            error.to_string().contains("uid 0") && error.to_string().contains("1000"),
            "{error}"
        );
    }

    #[test]
    #[ignore = "needs a second user"]
    fn a_home_of_another_user_is_refused() {
        let folder = crate::scratch::Scratch::new();
        let home = Home::at(folder.path().join("home"));
        home.create().unwrap();
        fs::write(home.config_file(), "").unwrap();
        for path in [home.config_file(), home.packages(), home.root().to_owned()] {
            std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
            let error = home.check().unwrap_err();
            assert_eq!(error.code(), "HOME_NOT_OURS");
            assert!(
                error
                    .to_string()
                    .contains(&format!("{} belongs to uid 65534", path.display())),
                "{error}"
            );
        }
    }

    #[test]
    fn the_socket_can_be_bound_and_reached_however_long_the_path() {
        let folder = crate::scratch::Scratch::new();
        for home in [
            Home::at(folder.path().join("short")),
            Home::at(
                folder
                    .path()
                    .join("long".repeat(40))
                    .join("more".repeat(40)),
            ),
        ] {
            home.create().unwrap();
            let address = home.socket_address().unwrap();
            assert_eq!(
                address.is_private(),
                home.control_socket().as_os_str().len() > MAX_SOCKET_PATH
            );
            let listener = std::os::unix::net::UnixListener::bind(address.path()).unwrap();
            assert!(home.control_socket().exists());
            let other = home.socket_address().unwrap();
            std::os::unix::net::UnixStream::connect(other.path()).unwrap();
            listener.accept().unwrap();
        }
    }
}
