//! Published packages, and the one this program stands in.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::home::Home;
use crate::manifest::{Manifest, ManifestError};
use crate::report::{Exit, Report};
use crate::version::PackageVersion;

/// A package on disk with its manifest. That every file is what the manifest says is [`crate::validate`]'s business.
#[derive(Debug, Clone)]
pub struct Package {
    /// Its folder.
    pub root: PathBuf,
    /// Its manifest.
    pub manifest: Manifest,
}

/// Why a package cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// No such folder.
    #[error(
        "version {version} is not installed ({path} does not exist): install it with `rollproxy-updater check`, or select one of `rollproxy-launcher list`"
    )]
    Missing {
        /// The version asked for.
        version: PackageVersion,
        /// Where it would be.
        path: PathBuf,
    },
    /// The folder holds no good manifest.
    #[error("package {version} at {path} is not usable: {source}")]
    Manifest {
        /// The version asked for.
        version: PackageVersion,
        /// The package folder.
        path: PathBuf,
        /// What is wrong.
        source: ManifestError,
    },
    /// The folder says one version, the manifest another.
    #[error(
        "{path} says in its manifest that it is {found}: remove the folder and install {expected} again"
    )]
    OtherVersion {
        /// The package folder.
        path: PathBuf,
        /// The folder's version.
        expected: PackageVersion,
        /// The manifest's.
        found: PackageVersion,
    },
    /// The manifest names no such entry.
    #[error("package {version} has no program `{entry}`: it offers {known}")]
    NoEntry {
        /// The package.
        version: PackageVersion,
        /// The program asked for.
        entry: String,
        /// Those it has.
        known: String,
    },
    /// The entry's file cannot be started.
    #[error("{path} of package {version} cannot be started: {why}; install {version} again")]
    Unstartable {
        /// The package.
        version: PackageVersion,
        /// The program's file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// The folder of packages cannot be read.
    #[error("listing {path}: {source}")]
    List {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Report for PackageError {
    fn code(&self) -> &'static str {
        match self {
            PackageError::Missing { .. } => "PACKAGE_MISSING",
            PackageError::Manifest { source, .. } => source.code(),
            PackageError::OtherVersion { .. } => "VERSION_MISMATCH",
            PackageError::NoEntry { .. } => "PACKAGE_NO_ENTRY",
            PackageError::Unstartable { .. } => "PACKAGE_UNSTARTABLE",
            PackageError::List { .. } => "PACKAGE_LIST",
        }
    }
    fn exit(&self) -> Exit {
        match self {
            PackageError::List { .. } => Exit::Failed,
            _ => Exit::NoPackage,
        }
    }
    fn retry(&self) -> bool {
        false
    }
}

impl Package {
    /// Opens a published package: its manifest parses and names the same version as its folder.
    ///
    /// # Errors
    /// [`PackageError`]
    pub fn open(home: &Home, version: &PackageVersion) -> Result<Package, PackageError> {
        let root = home.package(version);
        let manifest = match Manifest::read(&root) {
            Ok(manifest) => manifest,
            Err(ManifestError::Missing { .. }) if !root.exists() => {
                return Err(PackageError::Missing {
                    version: version.clone(),
                    path: root,
                });
            }
            Err(source) => {
                return Err(PackageError::Manifest {
                    version: version.clone(),
                    path: root,
                    source,
                });
            }
        };
        if manifest.version != *version {
            return Err(PackageError::OtherVersion {
                path: root,
                expected: version.clone(),
                found: manifest.version,
            });
        }
        Ok(Package { root, manifest })
    }

    /// The path of a program of this package, which is there and executable.
    ///
    /// # Errors
    /// [`PackageError::NoEntry`], [`PackageError::Unstartable`]
    pub fn entry(&self, name: &str) -> Result<PathBuf, PackageError> {
        let version = &self.manifest.version;
        let Some(relative) = self.manifest.entries.get(name) else {
            let known: Vec<&str> = self.manifest.entries.keys().map(String::as_str).collect();
            return Err(PackageError::NoEntry {
                version: version.clone(),
                entry: name.to_owned(),
                known: known.join(", "),
            });
        };
        let path = self.root.join(relative);
        let why = match fs::symlink_metadata(&path) {
            Ok(metadata) if !metadata.is_file() => "it is no regular file".to_owned(),
            Ok(metadata) if metadata.permissions().mode() & 0o111 == 0 => {
                "it is not executable".to_owned()
            }
            Ok(_) => return Ok(path),
            Err(error) => error.to_string(),
        };
        Err(PackageError::Unstartable {
            version: version.clone(),
            path,
            why,
        })
    }
}

/// The installed versions, lowest first; a home without packages has none. Whether each is usable is not looked at.
///
/// # Errors
/// [`PackageError::List`]
pub fn list(home: &Home) -> Result<Vec<PackageVersion>, PackageError> {
    let path = home.packages();
    let failed = |source| PackageError::List {
        path: path.clone(),
        source,
    };
    let entries = match fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut versions = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let version = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        if let (Some(version), true) = (version, entry.file_type().map_err(failed)?.is_dir()) {
            versions.push(version);
        }
    }
    versions.sort();
    Ok(versions)
}

/// The package that this program's own executable stands in, if it does: `<root>/bin/x` with a manifest at `<root>`
/// that names it. Ask once, at the start: a removed package no longer says what it was.
pub fn own() -> Option<Package> {
    containing(&fs::read_link("/proc/self/exe").ok()?)
}

/// The package that an executable stands in.
pub fn containing(executable: &Path) -> Option<Package> {
    let root = executable.parent()?.parent()?;
    let manifest = Manifest::read(root).ok()?;
    let relative = executable.strip_prefix(root).ok()?.to_str()?;
    manifest.file(relative)?;
    Some(Package {
        root: root.to_owned(),
        manifest,
    })
}

/// This program's version: that of the package it stands in, outside one the compiled one.
pub fn own_version(compiled: &str) -> PackageVersion {
    version_of(own().as_ref(), compiled)
}

fn version_of(package: Option<&Package>, compiled: &str) -> PackageVersion {
    match package {
        Some(package) => package.manifest.version.clone(),
        // The compiled one is Cargo's own, which is semver; build metadata alone could make it unfit.
        None => compiled.parse().unwrap_or(PackageVersion::new(0, 0, 0)),
    }
}

/// What `--version` prints, without the last newline: `rollproxy 1.2.3`, and with `verbose` lines for the compiled
/// version, the commit and the package.
pub fn version_report(name: &str, compiled: &str, commit: &str, verbose: bool) -> String {
    report_of(own().as_ref(), name, compiled, commit, verbose)
}

fn report_of(
    package: Option<&Package>,
    name: &str,
    compiled: &str,
    commit: &str,
    verbose: bool,
) -> String {
    let mut report = format!("{name} {}", version_of(package, compiled));
    if verbose {
        let root = match package {
            Some(package) => package.root.display().to_string(),
            None => "none".to_owned(),
        };
        report.push_str(&format!(
            "\ncompiled: {compiled}\ncommit: {commit}\npackage: {root}"
        ));
    }
    report
}

/// The version in what a program printed for `--version`: the second word of its first line.
pub(crate) fn reported_version(printed: &str) -> Option<(&str, &str)> {
    let mut words = printed.lines().next()?.split(' ');
    let (name, version) = (words.next()?, words.next()?);
    words.next().is_none().then_some((name, version))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::tests::{install, plan};
    use crate::scratch::home;

    fn version(text: &str) -> PackageVersion {
        text.parse().unwrap()
    }

    #[test]
    fn versions_are_listed_in_their_order_and_strangers_are_not() {
        let (_folder, home) = home();
        assert!(list(&Home::at("/nonexistent/home")).unwrap().is_empty());
        for name in ["1.10.0", "1.9.0", "1.9.0-rc.1", "v1.0.0", "notes", "1.0"] {
            fs::create_dir(home.packages().join(name)).unwrap();
        }
        fs::write(home.packages().join("2.0.0"), "a file").unwrap();
        let names: Vec<String> = list(&home)
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(names, ["1.9.0-rc.1", "1.9.0", "1.10.0"]);
    }

    #[test]
    fn an_installed_package_opens_and_gives_its_entries() {
        let (folder, home) = home();
        install(&home, &plan(folder.path(), "1.2.3"));
        let package = Package::open(&home, &version("1.2.3")).unwrap();
        let path = package.entry("rollproxy").unwrap();
        assert_eq!(path, home.package(&version("1.2.3")).join("bin/rollproxy"));
        let error = package.entry("nginx").unwrap_err();
        assert!(error.to_string().contains("rollproxy-updater"), "{error}");
        assert_eq!(
            containing(&path).unwrap().manifest.version,
            version("1.2.3")
        );
        assert!(containing(&home.root().join("bin/rollproxy")).is_none());
    }

    #[test]
    fn missing_misnamed_and_damaged_packages_are_refused_each_by_name() {
        let (folder, home) = home();
        let missing = Package::open(&home, &version("9.9.9")).unwrap_err();
        assert!(matches!(missing, PackageError::Missing { .. }), "{missing}");
        assert_eq!(missing.exit(), Exit::NoPackage);

        install(&home, &plan(folder.path(), "1.2.3"));
        let package = Package::open(&home, &version("1.2.3")).unwrap();
        let file = package.entry("rollproxy").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).unwrap();
        assert!(matches!(
            package.entry("rollproxy"),
            Err(PackageError::Unstartable { .. })
        ));
        for folder in [package.root.join("bin"), package.root.clone()] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::remove_file(&file).unwrap();
        assert!(matches!(
            package.entry("rollproxy"),
            Err(PackageError::Unstartable { .. })
        ));

        fs::rename(
            home.package(&version("1.2.3")),
            home.package(&version("1.2.4")),
        )
        .unwrap();
        let misnamed = Package::open(&home, &version("1.2.4")).unwrap_err();
        assert_eq!(misnamed.code(), "VERSION_MISMATCH");
        fs::remove_file(home.package(&version("1.2.4")).join(crate::manifest::FILE)).unwrap();
        let damaged = Package::open(&home, &version("1.2.4")).unwrap_err();
        assert_eq!(damaged.code(), "MANIFEST_MISSING");
    }

    #[test]
    fn outside_a_package_the_compiled_version_is_the_version() {
        assert!(own().is_none(), "the test program stands in no package");
        assert_eq!(own_version("0.1.0"), version("0.1.0"));
        assert_eq!(
            version_report("rollproxy", "0.1.0", "abc", false),
            "rollproxy 0.1.0"
        );
        assert_eq!(
            version_report("rollproxy", "0.1.0", "abc", true),
            "rollproxy 0.1.0\ncompiled: 0.1.0\ncommit: abc\npackage: none"
        );
    }

    #[test]
    fn inside_a_package_the_manifest_is_the_version() {
        let (folder, home) = home();
        install(&home, &plan(folder.path(), "1.2.3"));
        let package = Package::open(&home, &version("1.2.3")).unwrap();
        let report = report_of(Some(&package), "rollproxy", "0.1.0", "abc", true);
        assert!(
            report.starts_with("rollproxy 1.2.3\ncompiled: 0.1.0\n"),
            "{report}"
        );
        assert!(
            report.ends_with(&format!("package: {}", package.root.display())),
            "{report}"
        );
    }

    #[test]
    fn only_name_and_version_are_a_report() {
        assert_eq!(
            reported_version("rollproxy 1.2.3\nmore"),
            Some(("rollproxy", "1.2.3"))
        );
        for bad in [
            "",
            "rollproxy",
            "rollproxy 1.2.3 extra",
            "\nrollproxy 1.2.3",
        ] {
            assert_eq!(reported_version(bad), None, "{bad:?}");
        }
    }
}
