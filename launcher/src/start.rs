//! Becoming an entry of the selected package; of the previous one if that cannot be.

use std::convert::Infallible;
use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use staging::home::Home;
use staging::launch::{self, LaunchError};
use staging::package::{Package, PackageError};
use staging::report::{Exit, Failure, Format, line, note};
use staging::selection::{self, Selection};
use staging::version::PackageVersion;

/// Becomes the entry: same process, arguments and descriptors, and the same environment but for [`launch::LAUNCHER`],
/// which says who started it. Returns only if nothing can be started.
///
/// Nobody is told of a fallback but the person: the program reads from its own package what it really is.
pub fn run(home: &Home, entry: &str, args: &[OsString]) -> Result<Infallible, Failure> {
    let selection = selection::read(home)
        .map_err(LaunchError::from)?
        .ok_or_else(|| LaunchError::NothingSelected {
            home: home.root().to_owned(),
        })?;
    let mut reasons: Vec<String> = Vec::new();
    for version in order(&selection) {
        let reason = match path(home, version, entry) {
            Ok(path) => {
                for reason in &reasons {
                    note(&format!("warning: {reason}; starting {version} instead"));
                }
                let error = exec(&path, args);
                format!("starting {}: {error}", path.display())
            }
            Err(error) => error.to_string(),
        };
        reasons.push(reason);
    }
    Err(Failure::new(
        "NO_USABLE_PACKAGE",
        format!(
            "{}; choose another version with `rollproxy-launcher select`, `rollproxy-launcher list` shows them",
            reasons.join("; ")
        ),
        Exit::NoPackage,
        false,
    ))
}

/// `which`: prints what [`run`] would start.
pub fn which(home: &Home, entry: &str, format: Format) -> Result<Exit, Failure> {
    let found = launch::resolve(home, entry)?;
    if let Some(fallback) = &found.fallback {
        note(&format!("warning: {fallback}"));
    }
    line(&match format {
        Format::Text => found.path.display().to_string(),
        Format::Json => serde_json::json!({
            "schema": 1,
            "entry": entry,
            "version": found.package.manifest.version,
            "path": found.path.to_string_lossy(),
            "fallback": found.fallback.map(|fallback| fallback.why),
        })
        .to_string(),
    });
    crate::DONE
}

/// The versions to try: the selected one, then the previous one.
fn order(selection: &Selection) -> impl Iterator<Item = &PackageVersion> {
    let previous = selection.previous.as_ref();
    std::iter::once(&selection.version)
        .chain(previous.filter(|previous| **previous != selection.version))
}

/// Replaces this process; returns only the reason why not.
///
/// Not by the standard library's `exec`: that is execvp, which hands a file that is no program to a shell. A torn
/// executable must never be read as a script.
fn exec(path: &Path, args: &[OsString]) -> std::io::Error {
    let words = std::iter::once(path.as_os_str())
        .chain(args.iter().map(OsString::as_os_str))
        .map(|word| CString::new(word.as_bytes()))
        .collect::<Result<Vec<_>, _>>();
    let environment = environment();
    match words {
        Ok(words) => match nix::unistd::execve(&words[0], &words, &environment) {
            Ok(never) => match never {},
            Err(errno) => errno.into(),
        },
        // Nobody can pass a zero byte in an argument; a path could hold none either.
        Err(error) => error.into(),
    }
}

/// Our environment, with our version in it.
fn environment() -> Vec<CString> {
    let ours = (
        OsString::from(launch::LAUNCHER),
        OsString::from(crate::version::COMPILED),
    );
    std::env::vars_os()
        .filter(|(name, _)| name != launch::LAUNCHER)
        .chain([ours])
        .filter_map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            // What came through an exec holds no zero byte.
            CString::new(name.into_vec()).ok()
        })
        .collect()
}

fn path(home: &Home, version: &PackageVersion, entry: &str) -> Result<PathBuf, PackageError> {
    Package::open(home, version)?.entry(entry)
}
