//! Which packages may go, and how one goes: it leaves `packages/` whole, in one step, before anything of it is removed.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::files;
use crate::home::Home;
use crate::locks::StateLock;
use crate::process;
use crate::report::{Exit, Report};
use crate::stage::{StageError, StagingFolder};
use crate::version::PackageVersion;

/// Packages that are kept besides those that something names, unless the configuration says otherwise.
pub const KEEP: usize = 3;

/// What names which version, in words for people. A version may be named by several.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names(BTreeMap<PackageVersion, Vec<String>>);

impl Names {
    /// Takes note that `who` names `version`.
    pub fn add(&mut self, version: &PackageVersion, who: impl Into<String>) {
        let (who, by) = (who.into(), self.0.entry(version.clone()).or_default());
        if !by.contains(&who) {
            by.push(who);
        }
    }

    /// Takes note of a version that may not be there.
    pub fn add_some(&mut self, version: Option<&PackageVersion>, who: &str) {
        if let Some(version) = version {
            self.add(version, who);
        }
    }

    fn of(&self, version: &PackageVersion) -> Option<&[String]> {
        self.0.get(version).map(Vec::as_slice)
    }
}

/// An installed version, and what is to become of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    /// The version.
    pub version: PackageVersion,
    /// Why it stays; none = it may go.
    pub stays: Option<String>,
}

/// Judges every installed version, the newest first: what is named stays, and so do the newest `keep` of the others.
pub fn judge(installed: &[PackageVersion], names: &Names, keep: usize) -> Vec<Judged> {
    let mut newest_first = installed.to_vec();
    newest_first.sort_by(|a, b| b.cmp(a));
    newest_first.dedup();
    let mut left = keep;
    newest_first
        .into_iter()
        .map(|version| {
            let stays = match names.of(&version) {
                Some(by) => Some(by.join(", ")),
                None if left > 0 => {
                    left -= 1;
                    Some(format!("one of the newest {keep} besides"))
                }
                None => None,
            };
            Judged { version, stays }
        })
        .collect()
}

/// Why a package was not removed.
#[derive(Debug, thiserror::Error)]
pub enum RetentionError {
    /// A place outside the packages could not be had.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// Whether it runs could not be found out.
    #[error("finding out whether something runs from {path}: {source}")]
    Look {
        /// The package.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It could not leave the packages.
    #[error("taking {path} out of the packages: {source}")]
    TakeOut {
        /// The package.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Report for RetentionError {
    fn code(&self) -> &'static str {
        match self {
            RetentionError::Stage(error) => error.code(),
            RetentionError::Look { .. } => "RETENTION_LOOK",
            RetentionError::TakeOut { .. } => "RETENTION_TAKE_OUT",
        }
    }
    fn exit(&self) -> Exit {
        Exit::Failed
    }
    fn retry(&self) -> bool {
        !matches!(self, RetentionError::Look { .. })
    }
}

/// A package that is no longer one: it lies in a staging folder of its own, which whoever comes next reaps if this process
/// dies before it is removed.
#[derive(Debug)]
pub struct TakenOut {
    /// The version it was.
    pub version: PackageVersion,
    /// Bytes that removing it gives back: those of files that no other package shares.
    pub bytes: u64,
    folder: StagingFolder,
}

impl TakenOut {
    /// Removes it. Says how many bytes that gave back.
    ///
    /// # Errors
    /// [`StageError::Remove`]
    pub fn remove(self) -> Result<u64, StageError> {
        let bytes = self.bytes;
        self.folder.remove()?;
        Ok(bytes)
    }
}

/// How many of our processes run from a package. More than none, and it must stay, whatever else is known: such as the workers
/// of a supervisor that died, which finish what they serve.
///
/// # Errors
/// [`RetentionError::Look`]
pub fn running(home: &Home, version: &PackageVersion) -> Result<usize, RetentionError> {
    let path = home.package(version);
    process::running_from(&path).map_err(|source| RetentionError::Look { path, source })
}

/// Takes a package out of the packages, in one step. `job` names the folder that it lies in until it is removed.
///
/// # Errors
/// [`RetentionError`]; the package is where it was then.
pub fn take_out(
    _lock: &StateLock,
    home: &Home,
    version: &PackageVersion,
    job: &str,
) -> Result<TakenOut, RetentionError> {
    let path = home.package(version);
    let bytes = bytes(&path);
    let folder = StagingFolder::create(home, job)?;
    let take = || -> io::Result<()> {
        // Renaming a folder changes its `..`, which an ordinary user may only do while it is writable.
        fs::set_permissions(&path, Permissions::from_mode(0o755))?;
        fs::rename(&path, folder.path())?;
        files::sync_folder(&home.packages())
    };
    take().map_err(|source| RetentionError::TakeOut { path, source })?;
    Ok(TakenOut {
        version: version.clone(),
        bytes,
        folder,
    })
}

/// What a package takes up and shares with no other one. What cannot be looked at is not counted.
pub fn bytes(root: &Path) -> u64 {
    let Ok(metadata) = fs::symlink_metadata(root) else {
        return 0;
    };
    if !metadata.is_dir() {
        return if metadata.nlink() == 1 {
            metadata.blocks().saturating_mul(512)
        } else {
            0
        };
    }
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    entries.map(|entry| bytes(&entry.path())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::tests::{install, plan};
    use crate::scratch::home;
    use std::time::Duration;

    fn v(text: &str) -> PackageVersion {
        text.parse().unwrap()
    }

    fn gone(installed: &[&str], named: &[&str], keep: usize) -> Vec<String> {
        let installed: Vec<_> = installed.iter().copied().map(v).collect();
        let mut names = Names::default();
        for version in named {
            names.add(&v(version), "selected");
        }
        let judged = judge(&installed, &names, keep);
        assert_eq!(judged.len(), installed.len());
        let gone = judged.into_iter().filter(|judged| judged.stays.is_none());
        gone.map(|judged| judged.version.to_string()).collect()
    }

    #[test]
    fn what_is_named_stays_and_so_do_the_newest_of_the_others() {
        let all = ["1.2.0", "1.10.0", "1.9.0", "1.10.0-rc.1", "1.0.0"];
        for (named, keep, expected) in [
            (&[][..], 3, &["1.2.0", "1.0.0"][..]),
            (&["1.10.0"], 3, &["1.0.0"]),
            (&["1.0.0"], 3, &["1.2.0"]),
            (&["1.10.0", "1.0.0"], 3, &[]),
            (&["1.2.0"], 0, &["1.10.0", "1.10.0-rc.1", "1.9.0", "1.0.0"]),
            (&["9.9.9"], 5, &[]),
            (
                &[],
                0,
                &["1.10.0", "1.10.0-rc.1", "1.9.0", "1.2.0", "1.0.0"],
            ),
        ] {
            assert_eq!(gone(&all, named, keep), expected, "{named:?} {keep}");
        }
        assert_eq!(gone(&[], &["1.0.0"], 0), Vec::<String>::new());
    }

    #[test]
    fn the_reasons_to_stay_are_all_told_once() {
        let mut names = Names::default();
        names.add(&v("1.0.0"), "selected");
        names.add_some(Some(&v("1.0.0")), "generation 7");
        names.add(&v("1.0.0"), "selected");
        names.add_some(None, "pending");
        let judged = judge(&[v("1.0.0"), v("0.9.0")], &names, 1);
        let told: Vec<_> = judged
            .iter()
            .map(|judged| judged.stays.as_deref().unwrap_or("goes"))
            .collect();
        assert_eq!(
            told,
            ["selected, generation 7", "one of the newest 1 besides"]
        );
    }

    #[test]
    fn a_package_leaves_whole_and_then_is_removed() {
        let (folder, home) = home();
        install(&home, &plan(folder.path(), "1.0.0"));
        install(&home, &plan(folder.path(), "1.1.0"));
        let lock = StateLock::acquire(&home, Duration::from_secs(60)).unwrap();
        let out = take_out(&lock, &home, &v("1.0.0"), "gc-1").unwrap();
        assert!(!home.package(&v("1.0.0")).exists());
        let staged = home.staging_dir().join("gc-1/package");
        assert!(staged.join("package.json").exists());
        assert!(out.bytes > 0);
        assert_eq!(out.remove().unwrap(), out_bytes(&home, "1.1.0"));
        assert!(!staged.exists());
        assert_eq!(fs::read_dir(home.staging_dir()).unwrap().count(), 0);
        assert!(home.package(&v("1.1.0")).exists());
    }

    fn out_bytes(home: &Home, version: &str) -> u64 {
        bytes(&home.package(&v(version)))
    }

    #[test]
    fn files_that_are_shared_give_nothing_back() {
        let (folder, home) = home();
        install(&home, &plan(folder.path(), "1.0.0"));
        let root = home.package(&v("1.0.0"));
        let alone = bytes(&root);
        fs::hard_link(root.join("bin/rollproxy"), folder.path().join("shared")).unwrap();
        assert!(bytes(&root) < alone);
    }

    #[test]
    fn what_was_taken_out_by_one_who_died_is_reaped() {
        let (folder, home) = home();
        install(&home, &plan(folder.path(), "1.0.0"));
        let lock = StateLock::acquire(&home, Duration::from_secs(60)).unwrap();
        let out = take_out(&lock, &home, &v("1.0.0"), "gc-1").unwrap();
        assert_eq!(StagingFolder::reap_dead(&home).unwrap(), 0, "it lives");
        // As a kill does it: the lock is free, the folder stays.
        let folder = home.staging_dir().join("gc-1");
        let aside = home.state().join("aside");
        fs::rename(&folder, &aside).unwrap();
        drop(out);
        fs::rename(&aside, &folder).unwrap();
        assert_eq!(StagingFolder::reap_dead(&home).unwrap(), 1);
        assert!(!folder.exists());
    }

    #[test]
    fn what_runs_from_a_package_is_seen() {
        let (folder, home) = home();
        install(&home, &plan(folder.path(), "1.0.0"));
        let root = home.package(&v("1.0.0"));
        assert_eq!(running(&home, &v("1.0.0")).unwrap(), 0);
        fs::set_permissions(&root, Permissions::from_mode(0o755)).unwrap();
        fs::copy("/bin/sleep", root.join("sleep")).unwrap();
        let mut child = std::process::Command::new(root.join("sleep"))
            .arg("60")
            .spawn()
            .unwrap();
        let seen = running(&home, &v("1.0.0"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(seen.unwrap(), 1);
    }
}
