//! `install`: puts a launcher where people and cron find it, as a whole, whatever runs from there meanwhile.
//!
//! A launcher that stands in a package installs itself. One that does not stands for the selected package and lets that
//! one's launcher do it; where nothing is selected yet, as in a checkout, it installs itself too.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use staging::home::Home;
use staging::package::{self, Package};
use staging::report::{Exit, Failure, Format, line};
use staging::version::PackageVersion;
use staging::{digest, files, process, selection};

use crate::args::{LAUNCHER, MAIN, UPDATER};
use crate::start;
use crate::version::COMPILED;

/// The names that are links to the launcher.
const LINKS: [&str; 2] = [MAIN, UPDATER];
/// How long an installed launcher may take to say what it is.
const PATIENCE: Duration = Duration::from_secs(5);
/// No launcher comes near this many bytes.
const MAX_BYTES: u64 = 256 * 1024 * 1024;

/// What `install` was given.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Where to; without it, where a launcher is found in PATH, else `~/.local/bin`.
    pub folder: Option<PathBuf>,
    /// Also over a newer launcher, or over files that are not ours.
    pub force: bool,
}

/// Installs the launcher and its names, and says what was done.
///
/// # Errors
/// Nothing to install from, a folder that cannot be written, something else under one of the names, or a newer launcher
/// there. What stood there before is untouched then.
pub fn run(options: &Options, args: &[OsString], format: Format) -> Result<Exit, Failure> {
    let own = package::own();
    if own.is_none()
        && let Ok(home) = crate::home()
        && is_selected(&home)
    {
        return start::run(&home, LAUNCHER, args).map(|never| match never {});
    }
    let bytes = read(own.as_ref())?;
    let folder = match &options.folder {
        Some(folder) => absolute(folder)?,
        None => default_folder()?,
    };
    let target = folder.join(LAUNCHER);
    let before = examine(&target, &bytes)?;
    if let Before::Other(Some(newer)) = &before
        && compiled().is_some_and(|ours| *newer > ours)
        && !options.force
    {
        return Err(refused(format!(
            "{} is a newer launcher ({newer}, this one is {COMPILED}); --force replaces it all the same",
            target.display()
        )));
    }
    for name in LINKS {
        check_name(&folder.join(name), options.force)?;
    }
    let done = place(&folder, &target, &before, &bytes).map_err(|source| {
        Failure::new(
            "INSTALL_WRITE",
            format!(
                "installing {}: {source}; choose a folder of yours with --dir",
                target.display()
            ),
            Exit::Failed,
            false,
        )
    })?;
    let before = match before {
        Before::Other(version) => version,
        _ => None,
    };
    say(&folder, &target, before, done, format);
    crate::DONE
}

/// Whether a package is selected that has a launcher of its own.
fn is_selected(home: &Home) -> bool {
    let selected = selection::read(home).ok().flatten();
    selected.is_some_and(|selection| {
        let package = Package::open(home, &selection.version);
        package.is_ok_and(|package| package.entry(LAUNCHER).is_ok())
    })
}

/// This program's own bytes; of one in a package, those that its manifest names.
fn read(own: Option<&Package>) -> Result<Vec<u8>, Failure> {
    let failed = |why: String| Failure::new("INSTALL_READ", why, Exit::Failed, false);
    let bytes = files::read_bounded(Path::new("/proc/self/exe"), MAX_BYTES)
        .and_then(|bytes| bytes.ok_or_else(|| io::ErrorKind::NotFound.into()))
        .map_err(|source| failed(format!("reading this launcher: {source}")))?;
    if let Some(own) = own {
        let entry = own.manifest.entries.get(LAUNCHER);
        let file = entry.and_then(|path| own.manifest.file(path));
        if file.is_none_or(|file| file.sha256 != digest::of(&bytes)) {
            return Err(failed(format!(
                "this launcher is not the one that {} names: the package is damaged, install it again",
                own.root.join("package.json").display()
            )));
        }
    }
    Ok(bytes)
}

/// What stands where the launcher is to be.
enum Before {
    Nothing,
    /// The very same bytes.
    Same,
    /// Another one, and its version if it says one.
    Other(Option<PackageVersion>),
}

fn examine(target: &Path, bytes: &[u8]) -> Result<Before, Failure> {
    match files::read_bounded(target, MAX_BYTES) {
        Ok(None) => Ok(Before::Nothing),
        Ok(Some(there)) if there == bytes => Ok(Before::Same),
        Ok(Some(_)) => Ok(Before::Other(version_of(target))),
        Err(source) => Err(refused(format!(
            "{} cannot be read: {source}; move it away, or choose another folder with --dir",
            target.display()
        ))),
    }
}

/// What an installed launcher says it was compiled as; one that says nothing usable is as good as old.
fn version_of(launcher: &Path) -> Option<PackageVersion> {
    let mut command = Command::new(launcher);
    command.args(["--version", "--verbose"]);
    let output = process::run_bounded(&mut command, PATIENCE, &|| false).ok()?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .find_map(|line| line.strip_prefix("launcher: "))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|version| version.parse().ok())
}

fn compiled() -> Option<PackageVersion> {
    COMPILED.parse().ok()
}

/// Refuses to take a name away from something else.
fn check_name(path: &Path, force: bool) -> Result<(), Failure> {
    match fs::read_link(path) {
        Ok(to) if force || to.file_name().is_some_and(|name| name == LAUNCHER) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        _ if force && !path.is_dir() => Ok(()),
        _ => Err(refused(format!(
            "{} is something else than a link to {LAUNCHER}: choose another folder with --dir, or replace it with --force",
            path.display()
        ))),
    }
}

fn refused(message: String) -> Failure {
    Failure::new("INSTALL_REFUSED", message, Exit::Failed, false)
}

/// Writes what is missing. Says whether anything was.
fn place(folder: &Path, target: &Path, before: &Before, bytes: &[u8]) -> io::Result<bool> {
    let mut changed = false;
    fs::create_dir_all(folder)?;
    let executable =
        || fs::metadata(target).is_ok_and(|about| about.permissions().mode() & 0o111 == 0o111);
    if !matches!(before, Before::Same) || !executable() {
        files::write_atomic_with_mode(target, bytes, 0o755)?;
        changed = true;
    }
    for name in LINKS {
        let path = folder.join(name);
        if fs::read_link(&path).is_ok_and(|to| to == Path::new(LAUNCHER)) {
            continue;
        }
        // A rename replaces what stands there as a whole; symlink() would refuse.
        let temporary = folder.join(format!(".{name}.{}.tmp", std::process::id()));
        let _ = fs::remove_file(&temporary);
        symlink(LAUNCHER, &temporary)?;
        fs::rename(&temporary, &path).inspect_err(|_| {
            let _ = fs::remove_file(&temporary);
        })?;
        changed = true;
    }
    if changed {
        files::sync_folder(folder)?;
    }
    Ok(changed)
}

fn absolute(folder: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(folder).map_err(|source| {
        refused(format!(
            "{} cannot be made absolute: {source}",
            folder.display()
        ))
    })
}

/// Where a launcher stands in PATH already, but in no package; else `~/.local/bin`.
fn default_folder() -> Result<PathBuf, Failure> {
    let found = path_folders()
        .into_iter()
        .find(|folder| is_installed(folder));
    if let Some(folder) = found {
        return Ok(folder);
    }
    match std::env::var_os("HOME").map(PathBuf::from) {
        Some(home) if home.is_absolute() => Ok(home.join(".local/bin")),
        _ => Err(Failure::new(
            "HOME_UNSET",
            "HOME is not set: say where to install with --dir",
            Exit::Configuration,
            false,
        )),
    }
}

/// Whether a launcher was installed in a folder. One beside programs of its names that are no links to it was built there.
fn is_installed(folder: &Path) -> bool {
    let launcher = folder.join(LAUNCHER);
    launcher.is_file()
        && package::containing(&launcher).is_none()
        && LINKS
            .iter()
            .all(|name| check_name(&folder.join(name), false).is_ok())
}

fn path_folders() -> Vec<PathBuf> {
    std::env::var_os("PATH")
        .map(|path| std::env::split_paths(&path).collect::<Vec<_>>())
        .unwrap_or_default()
        .into_iter()
        .filter(|folder| folder.is_absolute())
        .collect()
}

fn say(
    folder: &Path,
    target: &Path,
    before: Option<PackageVersion>,
    changed: bool,
    format: Format,
) {
    let reached = path_folders().iter().any(|there| there == folder);
    match format {
        Format::Json => line(
            &serde_json::json!({
                "schema": 1,
                "outcome": if changed { "installed" } else { "already" },
                "path": target.to_string_lossy(),
                "version": COMPILED,
                "before": before,
                "links": LINKS.map(|name| folder.join(name).to_string_lossy().into_owned()),
                "inPath": reached,
            })
            .to_string(),
        ),
        Format::Text => {
            let before = before
                .map(|before| format!(" (before: {before})"))
                .unwrap_or_default();
            let what = if changed {
                "is installed"
            } else {
                "is installed already"
            };
            line(&format!(
                "launcher {COMPILED} {what} as {}{before}, with the names {}",
                target.display(),
                LINKS.join(" and ")
            ));
            if !reached {
                line(&format!(
                    "{} is not in PATH: add it, or call the programs by their full paths",
                    folder.display()
                ));
            }
        }
    }
}
