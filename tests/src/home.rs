//! A home in a temporary folder, with packages made of the programs under test.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use staging::home::Home;
use staging::locks::StateLock;
use staging::pack::{Plan, pack_folder};
use staging::publish::publish;
use staging::selection::{self, Change, Selection};
use staging::stage::StagingFolder;
use staging::update_state::{self, UpdateState};
use staging::version::PackageVersion;

use crate::{Tool, binaries};

/// A home that ends with the test, and so does every process that was started for it.
pub struct TestHome {
    folder: tempfile::TempDir,
    faults: AtomicU32,
    /// The home.
    pub home: Home,
}

impl TestHome {
    /// An empty home, its configuration listening on a free port of loopback.
    pub fn new() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("rollproxy-test-")
            .tempdir()
            .unwrap();
        let home = Home::at(folder.path().join("home"));
        home.create().unwrap();
        let test = Self {
            folder,
            faults: AtomicU32::new(0),
            home,
        };
        test.configure("");
        test
    }

    /// The temporary folder around the home.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Writes `config.toml`: a free port, then `more`. Unless `more` says otherwise a rollout is kept at once,
    /// without a probation.
    pub fn configure(&self, more: &str) {
        let at_once = "[rollout]\nprobation = \"0\"\n";
        let more = match more {
            _ if more.contains("probation = ") => more.to_owned(),
            _ if more.contains("[rollout]\n") => more.replacen("[rollout]\n", at_once, 1),
            _ => format!("{more}{at_once}"),
        };
        let text = format!("[server]\nlisten = [\"127.0.0.1:0\"]\n{more}");
        std::fs::write(self.home.config_file(), text).unwrap();
    }

    /// Writes `config.toml` so that Anthropic's routes go to `upstream`, then `more`.
    pub fn configure_upstream(&self, upstream: &str, more: &str) {
        self.configure(&format!(
            "[upstreams.anthropic]\nurl = \"{upstream}\"\n[upstreams.openai]\nurl = \"{upstream}\"\n{more}"
        ));
    }

    /// Publishes a package of the programs under test as `version`.
    pub fn install(&self, version: &str) -> PackageVersion {
        self.install_with(version, binaries().entries(), Vec::new())
    }

    /// Publishes a package that holds `rollproxy` alone: all that a supervisor's test needs, and
    /// half the bytes.
    pub fn install_proxy(&self, version: &str) -> PackageVersion {
        let rollproxy = ("rollproxy".to_owned(), binaries().path("rollproxy"));
        self.install_with(version, vec![rollproxy], Vec::new())
    }

    /// Publishes a package that holds nothing but the faulty worker as its `rollproxy`.
    pub fn install_faulty(&self, version: &str, fault: &str) -> PackageVersion {
        let rollproxy = ("rollproxy".to_owned(), binaries().path("faulty-worker"));
        let extra = vec![("share/fault".to_owned(), self.fault_file(fault))];
        self.install_with(version, vec![rollproxy], extra)
    }

    /// Publishes a package whose `rollproxy` is the faulty supervisor, with a real one beside it.
    pub fn install_faulty_supervisor(&self, version: &str, fault: &str) -> PackageVersion {
        let programs = [
            ("rollproxy", "faulty-supervisor"),
            ("rollproxy-real", "rollproxy"),
        ];
        let programs = programs.map(|(entry, name)| (entry.to_owned(), binaries().path(name)));
        let extra = vec![("share/fault".to_owned(), self.fault_file(fault))];
        self.install_with(version, programs.to_vec(), extra)
    }

    /// Publishes a package whose `rollproxy` is this text.
    pub fn install_script(&self, version: &str, text: &str) -> PackageVersion {
        let rollproxy = ("rollproxy".to_owned(), self.fault_file(text));
        self.install_with(version, vec![rollproxy], Vec::new())
    }

    /// A file that tells the faulty worker what to do.
    pub fn fault_file(&self, fault: &str) -> PathBuf {
        let name = format!("fault-{}", self.faults.fetch_add(1, Ordering::Relaxed));
        let path = self.folder.path().join(name);
        std::fs::write(&path, fault).unwrap();
        path
    }

    /// Where the fault `told-by=<this path>` looks for what to do, each time a worker starts.
    pub fn told_file(&self) -> PathBuf {
        self.folder.path().join("told")
    }

    /// Tells every worker that starts from now on, and has the fault `told-by`, what to do.
    pub fn tell(&self, fault: &str) {
        std::fs::write(self.told_file(), fault).unwrap();
    }

    fn install_with(
        &self,
        version: &str,
        binaries: Vec<(String, PathBuf)>,
        extra: Vec<(String, PathBuf)>,
    ) -> PackageVersion {
        let version: PackageVersion = version.parse().unwrap();
        let staged = StagingFolder::create(&self.home, "install").unwrap();
        let manifest = pack_folder(&plan(&version, binaries, extra), staged.path()).unwrap();
        publish(&self.state_lock(), &self.home, staged, &manifest).unwrap();
        version
    }

    /// Sets an installed version pending, as a job does before it asks for the rollout.
    pub fn set_pending(&self, version: &str) {
        let version: PackageVersion = version.parse().unwrap();
        let digest = format!("archive-of-{version}");
        update_state::set_pending(&self.state_lock(), &self.home, &version, "test", &digest)
            .unwrap();
    }

    /// Whether a version carries the mark of a bad one.
    pub fn is_known_bad(&self, version: &str) -> bool {
        self.state()
            .known_bad
            .values()
            .any(|bad| bad.version.to_string() == version)
    }

    /// The pending version.
    pub fn pending(&self) -> Option<String> {
        self.state()
            .pending
            .map(|pending| pending.version.to_string())
    }

    /// Selects an installed version, as a first install does.
    pub fn select(&self, version: &str) {
        let change = Change {
            version: version.parse().unwrap(),
            pinned: false,
            by: "test".into(),
        };
        selection::write(&self.state_lock(), &self.home, change).unwrap();
    }

    /// The state lock, as a job holds it.
    pub fn state_lock(&self) -> StateLock {
        StateLock::acquire(&self.home, Duration::from_secs(30)).unwrap()
    }

    /// The selection on disk.
    pub fn selection(&self) -> Option<Selection> {
        selection::read(&self.home).unwrap()
    }

    /// The selected version on disk.
    pub fn selected(&self) -> Option<String> {
        self.selection()
            .map(|selection| selection.version.to_string())
    }

    /// The update state on disk.
    pub fn state(&self) -> UpdateState {
        update_state::read(&self.home).unwrap()
    }

    /// The published versions.
    pub fn packages(&self) -> Vec<String> {
        staging::package::list(&self.home)
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    /// What lies in the staging folder: empty after every job.
    pub fn staging_leftovers(&self) -> Vec<String> {
        std::fs::read_dir(self.home.staging_dir())
            .map(|entries| {
                entries
                    .map(|e| e.unwrap().file_name().into_string().unwrap())
                    .collect()
            })
            .unwrap_or_default()
    }

    /// A program under test, run for this home with nothing else in its environment.
    pub fn tool(&self, name: &str) -> Tool {
        Tool::new(binaries().path(name)).env("ROLLPROXY_HOME", self.home.root())
    }

    /// The processes that run for this home.
    pub fn processes(&self) -> Vec<i32> {
        let variable = format!("ROLLPROXY_HOME={}", self.home.root().display());
        std::fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
            .filter(|pid| {
                std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|all| {
                    all.split(|byte| *byte == 0)
                        .any(|one| one == variable.as_bytes())
                })
            })
            .collect()
    }
}

impl Default for TestHome {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for TestHome {
    fn drop(&mut self) {
        // Whatever the test started carries this home in its environment: workers included.
        for pid in self.processes() {
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL);
        }
        // Published packages are read-only: an ordinary user must open them to remove them.
        let _ = staging::files::remove_tree(self.home.root());
    }
}

/// A plan for a package of this build.
pub(crate) fn plan(
    version: &PackageVersion,
    binaries: Vec<(String, PathBuf)>,
    extra: Vec<(String, PathBuf)>,
) -> Plan {
    Plan {
        version: version.clone(),
        target: staging::TARGET.to_owned(),
        binaries,
        extra,
        commit: staging::COMMIT.to_owned(),
        compiled_version: rollproxy::COMPILED_VERSION.to_owned(),
        min_launcher: "0.1.0".parse().unwrap(),
        level: 1,
    }
}
