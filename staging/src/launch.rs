//! Which program a launcher starts. Reads two small files, writes nothing.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::document::DocumentError;
use crate::home::Home;
use crate::package::{Package, PackageError};
use crate::report::{Exit, Report};
use crate::selection;
use crate::version::PackageVersion;

/// The environment variable in which a launcher says its own version to what it starts.
pub const LAUNCHER: &str = "ROLLPROXY_LAUNCHER";

/// The version of the launcher that started this program; none if none did, or it does not say.
pub fn launcher_version(environment: &dyn Fn(&str) -> Option<OsString>) -> Option<PackageVersion> {
    environment(LAUNCHER)?.to_str()?.parse().ok()
}

/// Whether the launcher is older than what a package needs. One that is not known is not judged.
pub fn too_old(needed: &PackageVersion, have: Option<&PackageVersion>) -> bool {
    have.is_some_and(|have| have < needed)
}

/// A program to start.
#[derive(Debug)]
pub struct Resolved {
    /// The package it comes from.
    pub package: Package,
    /// The program's file.
    pub path: PathBuf,
    /// Set if this is not the selected package; to be told as a warning.
    pub fallback: Option<Fallback>,
}

/// Why the previous package is used in place of the selected one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fallback {
    /// The selected version.
    pub wanted: PackageVersion,
    /// The version used.
    pub used: PackageVersion,
    /// What is wrong with the selected one.
    pub why: String,
}

impl std::fmt::Display for Fallback {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "the selected version {} is not usable, version {} is used instead: {}",
            self.wanted, self.used, self.why
        )
    }
}

/// Why there is nothing to start.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// Nothing was ever selected.
    #[error(
        "nothing is selected in {home}: choose an installed version (`rollproxy-launcher list` shows them) with `rollproxy-launcher select VERSION`; for a first install run `init` and `check` of a release's own rollproxy-updater, such as target/release/rollproxy-updater in a checkout"
    )]
    NothingSelected {
        /// The home.
        home: PathBuf,
    },
    /// The selection cannot be read.
    #[error(
        "what is selected cannot be read: {source}; if you move the file away, choose anew with `rollproxy-launcher select VERSION` (`rollproxy-launcher list` shows what is installed)"
    )]
    Selection {
        /// What is wrong.
        #[from]
        source: DocumentError,
    },
    /// The selected package is unusable, and there is no previous one.
    #[error("the selected package is not usable, and there is no previous one: {selected}")]
    NoPrevious {
        /// What is wrong with it.
        selected: PackageError,
    },
    /// Neither can be used.
    #[error("no usable package: the selected one: {selected}; the previous one: {previous}")]
    Neither {
        /// What is wrong with the selected one.
        selected: Box<PackageError>,
        /// What is wrong with the previous one.
        previous: Box<PackageError>,
    },
}

impl Report for LaunchError {
    fn code(&self) -> &'static str {
        match self {
            LaunchError::NothingSelected { .. } => "NOTHING_SELECTED",
            LaunchError::Selection { source } => source.code(),
            LaunchError::NoPrevious { selected } => selected.code(),
            LaunchError::Neither { .. } => "NO_USABLE_PACKAGE",
        }
    }
    fn exit(&self) -> Exit {
        Exit::NoPackage
    }
    fn retry(&self) -> bool {
        false
    }
}

/// Finds the program `entry` of the selected package, or of the previous one if the selected is unusable.
///
/// # Errors
/// [`LaunchError`] when neither can be used; always exit 69.
pub fn resolve(home: &Home, entry: &str) -> Result<Resolved, LaunchError> {
    select(home, |version| {
        let package = Package::open(home, version)?;
        let path = package.entry(entry)?;
        Ok((package, path))
    })
    .map(|((package, path), fallback)| Resolved {
        package,
        path,
        fallback,
    })
}

/// The version that [`resolve`] would start, from selection and manifest alone.
///
/// # Errors
/// As [`resolve`].
pub fn version(home: &Home) -> Result<(PackageVersion, Option<Fallback>), LaunchError> {
    let (package, fallback) = select(home, |version| Package::open(home, version))?;
    Ok((package.manifest.version, fallback))
}

/// Tries the selected version, then the previous one.
fn select<T>(
    home: &Home,
    attempt: impl Fn(&PackageVersion) -> Result<T, PackageError>,
) -> Result<(T, Option<Fallback>), LaunchError> {
    let Some(selection) = selection::read(home)? else {
        return Err(LaunchError::NothingSelected {
            home: home.root().to_owned(),
        });
    };
    let selected = match attempt(&selection.version) {
        Ok(found) => return Ok((found, None)),
        Err(error) => error,
    };
    let Some(version) = selection.previous else {
        return Err(LaunchError::NoPrevious { selected });
    };
    match attempt(&version) {
        Ok(found) => Ok((
            found,
            Some(Fallback {
                wanted: selection.version,
                used: version,
                why: selected.to_string(),
            }),
        )),
        Err(previous) => Err(LaunchError::Neither {
            selected: Box::new(selected),
            previous: Box::new(previous),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files;
    use crate::locks::StateLock;
    use crate::pack::tests::{install, plan};
    use crate::selection::Change;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    fn home(installed: &[&str]) -> (crate::scratch::Scratch, Home) {
        let folder = crate::scratch::Scratch::new();
        let home = Home::at(folder.path().join("home"));
        home.create().unwrap();
        for version in installed {
            install(&home, &plan(folder.path(), version));
            let lock = StateLock::acquire(&home, Duration::from_secs(60)).unwrap();
            let change = Change {
                version: version.parse().unwrap(),
                pinned: false,
                by: "job".into(),
            };
            selection::write(&lock, &home, change).unwrap();
        }
        (folder, home)
    }

    fn v(text: &str) -> PackageVersion {
        text.parse().unwrap()
    }

    #[test]
    fn nothing_selected_says_what_to_do() {
        let (_folder, home) = home(&[]);
        let error = resolve(&home, "rollproxy").unwrap_err();
        assert_eq!(error.exit(), Exit::NoPackage);
        let said = error.to_string();
        for advice in ["rollproxy-launcher select", "own rollproxy-updater"] {
            assert!(said.contains(advice), "{said}");
        }
    }

    #[test]
    fn the_selected_package_is_used() {
        let (_folder, home) = home(&["1.0.0", "1.1.0"]);
        let resolved = resolve(&home, "rollproxy").unwrap();
        assert_eq!(
            resolved.path,
            home.package(&v("1.1.0")).join("bin/rollproxy")
        );
        assert_eq!(resolved.fallback, None);
        assert_eq!(version(&home).unwrap(), (v("1.1.0"), None));
    }

    #[test]
    fn a_broken_selected_package_falls_back_and_says_so() {
        type Break = fn(&Home);
        let breaks: [Break; 3] = [
            |home| files::remove_tree(&home.package(&v("1.1.0"))).unwrap(),
            |home| {
                let root = home.package(&v("1.1.0"));
                files::remove_tree(&root).unwrap();
                fs::create_dir(&root).unwrap();
                fs::write(root.join("package.json"), "{").unwrap();
            },
            |home| {
                let root = home.package(&v("1.1.0"));
                files::remove_tree(&root).unwrap();
                let other = home.package(&v("1.0.0"));
                fs::create_dir(&root).unwrap();
                fs::copy(other.join("package.json"), root.join("package.json")).unwrap();
            },
        ];
        for break_it in breaks {
            let (_folder, home) = home(&["1.0.0", "1.1.0"]);
            break_it(&home);
            let resolved = resolve(&home, "rollproxy").unwrap();
            assert_eq!(resolved.package.manifest.version, v("1.0.0"));
            let fallback = resolved.fallback.unwrap();
            assert_eq!(
                (&fallback.wanted, &fallback.used),
                (&v("1.1.0"), &v("1.0.0"))
            );
            assert!(fallback.to_string().contains("1.1.0"), "{fallback}");
            assert_eq!(version(&home).unwrap().0, v("1.0.0"));
        }
    }

    #[test]
    fn neither_usable_and_none_before_are_told_apart() {
        let (_folder, lonely) = home(&["1.0.0"]);
        files::remove_tree(&lonely.package(&v("1.0.0"))).unwrap();
        assert!(matches!(
            resolve(&lonely, "rollproxy"),
            Err(LaunchError::NoPrevious { .. })
        ));
        let (_folder, both) = home(&["1.0.0", "1.1.0"]);
        for version in ["1.0.0", "1.1.0"] {
            files::remove_tree(&both.package(&v(version))).unwrap();
        }
        let error = resolve(&both, "rollproxy").unwrap_err();
        assert_eq!(
            (error.code(), error.exit()),
            ("NO_USABLE_PACKAGE", Exit::NoPackage)
        );
    }

    #[test]
    fn a_broken_selection_is_no_licence_to_guess() {
        let (_folder, home) = home(&["1.0.0"]);
        fs::write(home.selection_file(), "").unwrap();
        let error = resolve(&home, "rollproxy").unwrap_err();
        assert_eq!(error.exit(), Exit::NoPackage);
        assert!(error.to_string().contains("selection.json"), "{error}");
        assert!(version(&home).is_err());
    }

    #[test]
    fn resolving_writes_nothing() {
        let (_folder, home) = home(&["1.0.0", "1.1.0"]);
        let before = snapshot(home.root());
        resolve(&home, "rollproxy").unwrap();
        version(&home).unwrap();
        assert_eq!(snapshot(home.root()), before);
    }

    /// Proves the most when run as an ordinary user: root may write anywhere.
    #[test]
    fn everything_readable_is_read_from_a_read_only_home() {
        let (_folder, home) = home(&["1.0.0", "1.1.0"]);
        let lock = StateLock::acquire(&home, Duration::from_secs(60)).unwrap();
        crate::update_state::modify(&lock, &home, |state| state.kept(&v("1.0.0"))).unwrap();
        drop(lock);
        let folders = [
            home.root().to_owned(),
            home.packages(),
            home.state(),
            home.run(),
            home.jobs(),
        ];
        for folder in &folders {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o500)).unwrap();
        }
        resolve(&home, "rollproxy").unwrap();
        assert_eq!(version(&home).unwrap().0, v("1.1.0"));
        assert_eq!(crate::package::list(&home).unwrap().len(), 2);
        assert!(crate::selection::read(&home).unwrap().is_some());
        assert_eq!(
            crate::update_state::read(&home).unwrap().floor,
            Some(v("1.0.0"))
        );
        assert!(crate::journal::unfinished(&home).unwrap().is_empty());
        crate::ownership::Ownership::observe(&home).unwrap();
        home.check().unwrap();
        for folder in &folders {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).unwrap();
        }
    }

    fn snapshot(folder: &std::path::Path) -> Vec<(PathBuf, std::time::SystemTime)> {
        let mut seen = Vec::new();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            seen.push((
                path.clone(),
                fs::symlink_metadata(&path).unwrap().modified().unwrap(),
            ));
            if path.is_dir() {
                seen.extend(snapshot(&path));
            }
        }
        seen.sort();
        seen
    }
}
