//! The programs under test: built once, with the lock file as it is, and stripped for packing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Where the programs are.
#[derive(Debug, Clone)]
pub struct Binaries {
    /// A folder with stripped copies.
    pub folder: PathBuf,
}

/// What is built and copied.
const NAMES: [&str; 6] = [
    "rollproxy",
    "rollproxy-updater",
    "rollproxy-launcher",
    "rollproxy-publish",
    "faulty-worker",
    "faulty-supervisor",
];

impl Binaries {
    /// The path of one program.
    pub fn path(&self, name: &str) -> PathBuf {
        let path = self.folder.join(name);
        assert!(path.is_file(), "{} was not built", path.display());
        path
    }

    /// The three programs of a package, by entry name.
    pub fn entries(&self) -> Vec<(String, PathBuf)> {
        ["rollproxy", "rollproxy-updater", "rollproxy-launcher"]
            .into_iter()
            .map(|name| (name.to_owned(), self.path(name)))
            .collect()
    }
}

/// Builds the programs the first time a test process asks; cargo does nothing where nothing changed.
pub fn binaries() -> &'static Binaries {
    static BUILT: OnceLock<Binaries> = OnceLock::new();
    BUILT.get_or_init(build)
}

fn build() -> Binaries {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let output = Command::new(cargo)
        .args([
            "build",
            "--workspace",
            "--bins",
            "--locked",
            "--message-format",
            "json-render-diagnostics",
        ])
        .args((!cfg!(debug_assertions)).then_some("--release"))
        .current_dir(root)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo can be started");
    assert!(
        output.status.success(),
        "the programs under test do not build"
    );
    let built: Vec<PathBuf> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| Some(PathBuf::from(message["executable"].as_str()?)))
        .filter(|path| {
            NAMES
                .iter()
                .any(|name| path.file_name().is_some_and(|file| file == *name))
        })
        .collect();
    assert_eq!(built.len(), NAMES.len(), "cargo named {built:?}");
    let folder = built[0].parent().unwrap().join("harness");
    std::fs::create_dir_all(&folder).unwrap();
    let lock = std::fs::File::create(folder.join("lock")).unwrap();
    // Test processes run side by side; one copies, the others find it done.
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    for path in built {
        copy_stripped(&path, &folder.join(path.file_name().unwrap()));
    }
    Binaries { folder }
}

/// Copies without symbols where `strip` is there, whole where not: only the size differs.
fn copy_stripped(from: &Path, to: &Path) {
    let changed = |path: &Path| {
        std::fs::metadata(path)
            .and_then(|metadata| metadata.modified())
            .ok()
    };
    if changed(to) > changed(from) {
        return;
    }
    let fresh = to.with_extension("new");
    let stripped = Command::new("strip")
        .arg("-o")
        .arg(&fresh)
        .arg(from)
        .stderr(Stdio::null())
        .status();
    if !stripped.is_ok_and(|status| status.success()) {
        std::fs::copy(from, &fresh).unwrap();
    }
    std::fs::rename(fresh, to).unwrap();
}
