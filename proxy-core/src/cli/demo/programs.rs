//! The programs the demo plays with: this very build, and the ones it builds with the `CARGO` that runs it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Result, failed};

/// Built by cargo: package and binary.
const BUILT: [(&str, &str); 4] = [
    ("rollproxy-launcher", "rollproxy-launcher"),
    ("rollproxy-updater", "rollproxy-updater"),
    ("rollproxy-publisher", "rollproxy-publish"),
    ("rollproxy-tests", "faulty-worker"),
];

/// Where everything is.
pub struct Programs {
    /// Holds the folders below.
    _folder: tempfile::TempDir,
    /// The publisher's program.
    pub publish: PathBuf,
    /// The launcher, the one program that is installed for good.
    pub launcher: PathBuf,
    /// The updater, for the first install only.
    pub updater: PathBuf,
    /// A folder with the three programs of a package.
    pub package: PathBuf,
    /// The same, but its `rollproxy` crashes as a worker.
    pub broken_package: PathBuf,
}

impl Programs {
    /// Builds what is missing and lays the packages' folders out.
    pub fn build() -> Result<Self> {
        let own = std::env::current_exe()
            .map_err(|error| failed(format!("cannot find this program's own file: {error}")))?;
        let built = build(&own)?;
        let find = |name: &str| {
            built
                .iter()
                .find(|path| path.file_name().is_some_and(|file| file == name))
                .cloned()
                .ok_or_else(|| failed(format!("cargo built no {name}; is this a whole checkout?")))
        };
        let folder = tempfile::tempdir()
            .map_err(|error| failed(format!("cannot make a temporary folder: {error}")))?;
        let (launcher, updater) = (find("rollproxy-launcher")?, find("rollproxy-updater")?);
        let lay_out = |name: &str, worker: &Path| -> Result<PathBuf> {
            let into = folder.path().join(name);
            std::fs::create_dir(&into)
                .map_err(|error| failed(format!("{}: {error}", into.display())))?;
            for (from, to) in [
                (worker, "rollproxy"),
                (&updater, "rollproxy-updater"),
                (&launcher, "rollproxy-launcher"),
            ] {
                std::fs::copy(from, into.join(to))
                    .map_err(|error| failed(format!("{}: {error}", from.display())))?;
            }
            Ok(into)
        };
        let package = lay_out("good", &own)?;
        let broken_package = lay_out("broken", &find("faulty-worker")?)?;
        Ok(Self {
            publish: find("rollproxy-publish")?,
            launcher,
            updater,
            package,
            broken_package,
            _folder: folder,
        })
    }
}

/// The programs that cargo built, in the profile that this one was built in.
fn build(own: &Path) -> Result<Vec<PathBuf>> {
    let (Some(cargo), Some(manifest)) = (
        std::env::var_os("CARGO"),
        std::env::var_os("CARGO_MANIFEST_DIR"),
    ) else {
        return Err(failed(
            "the demo builds the programs it plays with: run it from a checkout, `cargo run --release --bin rollproxy -- demo`".to_owned(),
        ));
    };
    let mut command = Command::new(cargo);
    command.args([
        "build",
        "--locked",
        "--message-format",
        "json-render-diagnostics",
    ]);
    if own
        .parent()
        .is_some_and(|folder| folder.ends_with("release"))
    {
        command.arg("--release");
    }
    for (package, binary) in BUILT {
        command.args(["--package", package, "--bin", binary]);
    }
    let output = command
        .current_dir(manifest)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| failed(format!("cannot start cargo: {error}")))?;
    if !output.status.success() {
        return Err(failed(format!(
            "cargo could not build the other programs ({}); its own words are above",
            output.status
        )));
    }
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .collect())
}
