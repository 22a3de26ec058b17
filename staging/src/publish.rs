//! The step by which a staged package becomes `packages/<version>`: whole or not at all.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::contents::{self, ContentsError};
use crate::files;
use crate::home::Home;
use crate::locks::StateLock;
use crate::manifest::{self, Manifest, ManifestError, parents};
use crate::package::{self, Package, PackageError};
use crate::process;
use crate::report::{Exit, Report};
use crate::stage::StagingFolder;
use crate::version::PackageVersion;

/// The mode of a published package's root.
const ROOT_MODE: u32 = 0o555;

/// Files that are synced at the same time.
const SYNCS: usize = 8;

/// What publishing came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Published {
    /// The same package was there already.
    Already,
    /// It is there now.
    New,
}

/// Why a package was not published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// Another package of this version is there.
    #[error(
        "version {version} is already published at {path} with other contents (manifest {have}, offered {offered}): a version is published once, release the change under a new one"
    )]
    Different {
        /// The version.
        version: PackageVersion,
        /// The published folder.
        path: PathBuf,
        /// The manifest digest of what is there.
        have: String,
        /// The manifest digest of what was offered.
        offered: String,
    },
    /// What is there of this version is no usable package.
    #[error(
        "what is published as {version} at {path} is damaged: {source}; bring it again with `rollproxy-updater check`, or remove the folder"
    )]
    Damaged {
        /// The version.
        version: PackageVersion,
        /// The published folder.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What is there of this version is damaged, and programs run from it.
    #[error(
        "what is published as {version} at {path} is damaged, and {running} of its programs run: stop or move them to another version, and run again"
    )]
    Running {
        /// The version.
        version: PackageVersion,
        /// The published folder.
        path: PathBuf,
        /// How many processes run from it.
        running: usize,
    },
    /// What was staged is not what was validated.
    #[error("the staged package changed after it was validated: run again")]
    Changed,
    /// The staged manifest cannot be read.
    #[error("the staged package: {source}")]
    Staged {
        /// What is wrong.
        #[from]
        source: ManifestError,
    },
    /// Making the staged files read-only and durable failed.
    #[error("making {path} read-only and durable: {source}")]
    Seal {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The rename failed.
    #[error("publishing {path}: {source}")]
    Rename {
        /// The folder to be.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Published, but the last steps failed; the next holder of the state lock does them.
    #[error("{path} is published, and finishing it failed: {source}; the next run finishes it")]
    Finish {
        /// The published folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The packages cannot be listed.
    #[error(transparent)]
    List(#[from] PackageError),
}

impl Report for PublishError {
    fn code(&self) -> &'static str {
        match self {
            PublishError::Different { .. } => "PUBLISHED_DIFFERENT",
            PublishError::Damaged { .. } => "PUBLISHED_DAMAGED",
            PublishError::Running { .. } => "PUBLISHED_IN_USE",
            PublishError::Changed => "STAGED_CHANGED",
            PublishError::Staged { source } => source.code(),
            PublishError::Seal { .. } => "PUBLISH_SEAL",
            PublishError::Rename { .. } => "PUBLISH_RENAME",
            PublishError::Finish { .. } => "PUBLISH_FINISH",
            PublishError::List(error) => error.code(),
        }
    }
    fn exit(&self) -> Exit {
        match self {
            PublishError::Running { .. } => Exit::Deferred,
            _ => Exit::Failed,
        }
    }
    fn retry(&self) -> bool {
        matches!(
            self,
            PublishError::Changed
                | PublishError::Running { .. }
                | PublishError::Seal { .. }
                | PublishError::Rename { .. }
                | PublishError::Finish { .. }
        )
    }
}

/// Publishes a validated package. The staging folder is gone afterwards, whatever the outcome.
///
/// # Errors
/// [`PublishError`]; under every one but `Finish`, nothing of the version was published.
pub fn publish(
    _lock: &StateLock,
    home: &Home,
    staged: StagingFolder,
    manifest: &Manifest,
) -> Result<Published, PublishError> {
    let target = home.package(&manifest.version);
    if Manifest::read(staged.path())?.digest() != manifest.digest() {
        return Err(PublishError::Changed);
    }
    if !is_vacant(&target) {
        return compare(home, &target, manifest);
    }
    seal(staged.path(), manifest)?;
    // Renaming a folder changes its `..`, which an ordinary user may only do while it is writable: the root is sealed after.
    fs::rename(staged.path(), &target).map_err(|source| PublishError::Rename {
        path: target.clone(),
        source,
    })?;
    finish(home, &target)?;
    Ok(Published::New)
}

/// Publishes a validated package over a damaged one of the same version, if that is what is there and nothing runs from it;
/// otherwise as [`publish`]. Good and damaged one change places in one step where the file system can, so that the version is
/// never missing; the damaged one then goes with the staging folder.
///
/// # Errors
/// [`PublishError`]; [`PublishError::Running`] if programs run from what is there.
pub fn replace_damaged(
    lock: &StateLock,
    home: &Home,
    staged: StagingFolder,
    manifest: &Manifest,
) -> Result<Published, PublishError> {
    let target = home.package(&manifest.version);
    let is_folder = fs::symlink_metadata(&target).is_ok_and(|metadata| metadata.is_dir());
    let damaged = !is_vacant(&target)
        && is_folder
        && matches!(
            compare(home, &target, manifest),
            Err(PublishError::Damaged { .. })
        );
    if !damaged {
        return publish(lock, home, staged, manifest);
    }
    if Manifest::read(staged.path())?.digest() != manifest.digest() {
        return Err(PublishError::Changed);
    }
    let failed = |source| PublishError::Rename {
        path: target.clone(),
        source,
    };
    match process::running_from(&target).map_err(failed)? {
        0 => {}
        running => {
            return Err(PublishError::Running {
                version: manifest.version.clone(),
                path: target,
                running,
            });
        }
    }
    seal(staged.path(), manifest)?;
    fs::set_permissions(&target, Permissions::from_mode(0o755)).map_err(failed)?;
    change_places(staged.path(), &target).map_err(failed)?;
    finish(home, &target)?;
    Ok(Published::New)
}

/// Puts two folders each to where the other was.
fn change_places(staged: &Path, target: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, staged, CWD, target, RenameFlags::EXCHANGE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => set_aside(staged, target),
        outcome => Ok(outcome?),
    }
}

/// The same on a file system that cannot exchange: for a moment the version is not there, and who dies then has brought
/// nothing yet.
fn set_aside(staged: &Path, target: &Path) -> io::Result<()> {
    fs::rename(target, staged.with_extension("damaged"))?;
    fs::rename(staged, target)
}

/// Does the last steps for packages whose publisher died before them. Says which.
///
/// # Errors
/// [`PublishError::Finish`], [`PublishError::List`]
pub fn finish_interrupted(
    _lock: &StateLock,
    home: &Home,
) -> Result<Vec<PackageVersion>, PublishError> {
    let mut finished = Vec::new();
    for version in package::list(home)? {
        let path = home.package(&version);
        let mode = match fs::symlink_metadata(&path) {
            Ok(metadata) => metadata.permissions().mode() & 0o7777,
            Err(source) => return Err(PublishError::Finish { path, source }),
        };
        // A folder that holds no package was not left by publish; it is not made to look like one.
        if mode != ROOT_MODE && Package::open(home, &version).is_ok() {
            finish(home, &path)?;
            finished.push(version);
        }
    }
    Ok(finished)
}

/// Whether a rename can put a package there: nothing is, or an empty folder.
fn is_vacant(target: &Path) -> bool {
    match fs::read_dir(target) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// What is published under this version already, against what is offered.
fn compare(home: &Home, target: &Path, manifest: &Manifest) -> Result<Published, PublishError> {
    let version = &manifest.version;
    let damaged = |source: Box<dyn std::error::Error + Send + Sync>| PublishError::Damaged {
        version: version.clone(),
        path: target.to_owned(),
        source,
    };
    let there = Package::open(home, version).map_err(|error| damaged(error.into()))?;
    if there.manifest.digest() != manifest.digest() {
        return Err(PublishError::Different {
            version: version.clone(),
            path: target.to_owned(),
            have: there.manifest.digest().to_owned(),
            offered: manifest.digest().to_owned(),
        });
    }
    contents::verify(target, manifest).map_err(|error: ContentsError| damaged(error.into()))?;
    finish(home, target)?;
    Ok(Published::Already)
}

/// Makes everything below the root read-only and durable, files in parallel, then folders from the inside out.
fn seal(root: &Path, manifest: &Manifest) -> Result<(), PublishError> {
    let mut files: Vec<(PathBuf, u32)> = vec![(root.join(manifest::FILE), 0o444)];
    files.extend(
        manifest
            .files
            .iter()
            .map(|file| (root.join(&file.path), file.mode_bits())),
    );
    // They wait for the disk, not for a core.
    contents::for_each_parallel(&files, SYNCS, |(path, mode)| seal_one(path, *mode))?;
    let folders: BTreeSet<&str> = manifest
        .files
        .iter()
        .flat_map(|file| parents(&file.path))
        .collect();
    for folder in folders.into_iter().rev() {
        seal_one(&root.join(folder), 0o555)?;
    }
    files::sync_folder(root).map_err(|source| PublishError::Seal {
        path: root.to_owned(),
        source,
    })
}

fn seal_one(path: &Path, mode: u32) -> Result<(), PublishError> {
    let seal = || -> io::Result<()> {
        let file = open_no_link(path)?;
        // A file that is shared with another package has its mode, and may be in use there.
        if file.metadata()?.permissions().mode() & 0o7777 != mode {
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        file.sync_all()
    };
    seal().map_err(|source| PublishError::Seal {
        path: path.to_owned(),
        source,
    })
}

/// The steps after the rename.
fn finish(home: &Home, target: &Path) -> Result<(), PublishError> {
    let finish = || -> io::Result<()> {
        let root = open_no_link(target)?;
        root.set_permissions(Permissions::from_mode(ROOT_MODE))?;
        root.sync_all()?;
        files::sync_folder(&home.packages())
    };
    finish().map_err(|source| PublishError::Finish {
        path: target.to_owned(),
        source,
    })
}

fn open_no_link(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::pack_folder;
    use crate::pack::tests::plan;
    use crate::scratch::home;
    use std::os::unix::fs::MetadataExt;
    use std::time::Duration;

    fn lock(home: &Home) -> StateLock {
        StateLock::acquire(home, Duration::from_secs(60)).unwrap()
    }

    fn staged(folder: &Path, home: &Home, version: &str) -> (StagingFolder, Manifest) {
        let staged = StagingFolder::create(home, "job").unwrap();
        let manifest = pack_folder(&plan(folder, version), staged.path()).unwrap();
        (staged, manifest)
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_published_package_is_read_only_and_the_staging_is_gone() {
        let (folder, home) = home();
        let (staging, manifest) = staged(folder.path(), &home, "1.0.0");
        assert_eq!(
            publish(&lock(&home), &home, staging, &manifest).unwrap(),
            Published::New
        );
        let root = home.package(&manifest.version);
        assert_eq!(mode(&root), 0o555);
        assert_eq!(mode(&root.join("bin")), 0o555);
        assert_eq!(mode(&root.join("bin/rollproxy")), 0o555);
        assert_eq!(mode(&root.join("package.json")), 0o444);
        assert_eq!(fs::read_dir(home.staging_dir()).unwrap().count(), 0);
        contents::verify(&root, &manifest).unwrap();
    }

    #[test]
    fn the_same_again_is_already_there_and_other_contents_are_refused() {
        let (folder, home) = home();
        let (staging, manifest) = staged(folder.path(), &home, "1.0.0");
        publish(&lock(&home), &home, staging, &manifest).unwrap();
        let (again, manifest) = staged(folder.path(), &home, "1.0.0");
        assert_eq!(
            publish(&lock(&home), &home, again, &manifest).unwrap(),
            Published::Already
        );

        let other = StagingFolder::create(&home, "job").unwrap();
        let mut changed = plan(folder.path(), "1.0.0");
        changed.commit = "another".into();
        let changed = pack_folder(&changed, other.path()).unwrap();
        let error = publish(&lock(&home), &home, other, &changed).unwrap_err();
        assert!(matches!(error, PublishError::Different { .. }), "{error}");
        assert!(error.to_string().contains("1.0.0"));
        contents::verify(&home.package(&manifest.version), &manifest).unwrap();
        assert_eq!(fs::read_dir(home.staging_dir()).unwrap().count(), 0);
    }

    #[test]
    fn damage_in_what_is_published_is_not_taken_for_already_there() {
        let (folder, home) = home();
        let (staging, manifest) = staged(folder.path(), &home, "1.0.0");
        publish(&lock(&home), &home, staging, &manifest).unwrap();
        let file = home.package(&manifest.version).join("bin/rollproxy");
        let mut bytes = fs::read(&file).unwrap();
        bytes[30] ^= 1;
        fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
        fs::write(&file, bytes).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o555)).unwrap();
        let (again, manifest) = staged(folder.path(), &home, "1.0.0");
        let error = publish(&lock(&home), &home, again, &manifest).unwrap_err();
        assert_eq!(error.code(), "PUBLISHED_DAMAGED");
    }

    /// A published package, a byte of which is another now.
    fn published_and_damaged(folder: &Path, home: &Home) -> PathBuf {
        let (staging, manifest) = staged(folder, home, "1.0.0");
        publish(&lock(home), home, staging, &manifest).unwrap();
        let root = home.package(&manifest.version);
        let file = root.join("bin/rollproxy");
        let mut bytes = fs::read(&file).unwrap();
        bytes[30] ^= 1;
        fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
        fs::write(&file, bytes).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o555)).unwrap();
        root
    }

    #[test]
    fn a_damaged_package_is_replaced_by_a_good_one_of_the_same_version() {
        let (folder, home) = home();
        let root = published_and_damaged(folder.path(), &home);
        let (again, manifest) = staged(folder.path(), &home, "1.0.0");
        let outcome = replace_damaged(&lock(&home), &home, again, &manifest).unwrap();
        assert_eq!(outcome, Published::New);
        contents::verify(&root, &manifest).unwrap();
        assert_eq!((mode(&root), mode(&root.join("bin"))), (0o555, 0o555));
        assert_eq!(fs::read_dir(home.staging_dir()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_without_manifest_is_replaced_and_a_good_or_another_package_is_not() {
        let (folder, home) = home();
        let (first, manifest) = staged(folder.path(), &home, "1.0.0");
        let root = home.package(&manifest.version);
        fs::create_dir(&root).unwrap();
        fs::write(root.join("rubbish"), "").unwrap();
        replace_damaged(&lock(&home), &home, first, &manifest).unwrap();
        contents::verify(&root, &manifest).unwrap();

        let (again, manifest) = staged(folder.path(), &home, "1.0.0");
        let before = fs::metadata(&root).unwrap().ino();
        let outcome = replace_damaged(&lock(&home), &home, again, &manifest).unwrap();
        assert_eq!(outcome, Published::Already);
        assert_eq!(fs::metadata(&root).unwrap().ino(), before);

        let other = StagingFolder::create(&home, "job").unwrap();
        let mut changed = plan(folder.path(), "1.0.0");
        changed.commit = "another".into();
        let changed = pack_folder(&changed, other.path()).unwrap();
        let error = replace_damaged(&lock(&home), &home, other, &changed).unwrap_err();
        assert!(matches!(error, PublishError::Different { .. }), "{error}");

        let (link, manifest) = staged(folder.path(), &home, "2.0.0");
        std::os::unix::fs::symlink(&root, home.package(&manifest.version)).unwrap();
        let error = replace_damaged(&lock(&home), &home, link, &manifest).unwrap_err();
        assert!(matches!(error, PublishError::Damaged { .. }), "{error}");
        assert!(root.exists());
    }

    #[test]
    fn a_damaged_package_that_runs_is_not_replaced() {
        let (folder, home) = home();
        let root = published_and_damaged(folder.path(), &home);
        fs::set_permissions(&root, Permissions::from_mode(0o755)).unwrap();
        fs::copy("/bin/sleep", root.join("sleep")).unwrap();
        let mut running = std::process::Command::new(root.join("sleep"))
            .arg("60")
            .spawn()
            .unwrap();
        let (again, manifest) = staged(folder.path(), &home, "1.0.0");
        let error = replace_damaged(&lock(&home), &home, again, &manifest).unwrap_err();
        running.kill().unwrap();
        running.wait().unwrap();
        assert_eq!(error.code(), "PUBLISHED_IN_USE");
        assert!(root.join("sleep").exists());
        assert_eq!(fs::read_dir(home.staging_dir()).unwrap().count(), 0);
    }

    #[test]
    fn without_an_exchange_the_two_change_places_all_the_same() {
        let folder = crate::scratch::Scratch::new();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        fs::create_dir(&a).unwrap();
        fs::create_dir(&b).unwrap();
        fs::write(a.join("good"), "").unwrap();
        change_places(&a, &b).unwrap();
        assert!(b.join("good").exists() && !a.join("good").exists());
        set_aside(&b, &a).unwrap();
        assert!(a.join("good").exists() && !b.join("good").exists());
    }

    #[test]
    fn what_changed_after_validation_is_not_published() {
        let (folder, home) = home();
        let (staging, manifest) = staged(folder.path(), &home, "1.0.0");
        let path = staging.path().join("package.json");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let text = fs::read_to_string(&path)
            .unwrap()
            .replace("\"commit\": \"", "\"commit\": \"x");
        fs::write(&path, text).unwrap();
        let error = publish(&lock(&home), &home, staging, &manifest).unwrap_err();
        assert!(matches!(error, PublishError::Changed), "{error}");
        assert!(!home.package(&manifest.version).exists());
    }

    #[test]
    fn a_death_between_rename_and_the_last_steps_is_finished_by_the_next() {
        let (folder, home) = home();
        let (staging, manifest) = staged(folder.path(), &home, "1.0.0");
        seal(staging.path(), &manifest).unwrap();
        let target = home.package(&manifest.version);
        fs::rename(staging.path(), &target).unwrap();
        fs::create_dir(home.packages().join("9.9.9")).unwrap();
        let stranger = mode(&home.packages().join("9.9.9"));
        let state = lock(&home);
        assert_eq!(
            finish_interrupted(&state, &home).unwrap(),
            std::slice::from_ref(&manifest.version)
        );
        assert_eq!(mode(&target), 0o555);
        assert_eq!(mode(&home.packages().join("9.9.9")), stranger);
        assert!(finish_interrupted(&state, &home).unwrap().is_empty());
    }

    #[test]
    fn a_death_before_the_rename_leaves_nothing_visible() {
        let (folder, home) = home();
        let (staging, manifest) = staged(folder.path(), &home, "1.0.0");
        seal(staging.path(), &manifest).unwrap();
        assert!(package::list(&home).unwrap().is_empty());
        drop(staging);
        assert_eq!(fs::read_dir(home.staging_dir()).unwrap().count(), 0);
    }

    #[test]
    fn an_empty_folder_in_the_way_is_replaced() {
        let (folder, home) = home();
        let (staging, manifest) = staged(folder.path(), &home, "1.0.0");
        fs::create_dir(home.package(&manifest.version)).unwrap();
        assert_eq!(
            publish(&lock(&home), &home, staging, &manifest).unwrap(),
            Published::New
        );
    }
}
