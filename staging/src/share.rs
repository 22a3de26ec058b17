//! Files that an installed package has already: the new one gets them without writing them again.
//!
//! A reflink shares the blocks and nothing else, where the file system can. Elsewhere a hard link makes one file of both: it
//! has one mode and one time, which is no harm, for published files are never written and are shared only with the mode they
//! have. What neither can (another file system, too many links, another owner) is written as usual, and nobody is told.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::digest;
use crate::home::Home;
use crate::manifest::FileEntry;
use crate::package::Package;
use crate::version::PackageVersion;

/// The files of installed packages, by what is in them.
#[derive(Debug, Default)]
pub struct Shelf {
    files: HashMap<Key, PathBuf>,
}

/// What makes two files the same.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    sha256: String,
    size: u64,
    executable: bool,
}

impl Key {
    fn of(file: &FileEntry) -> Key {
        Key {
            sha256: file.sha256.clone(),
            size: file.size,
            executable: file.is_executable(),
        }
    }
}

impl Shelf {
    /// Everything that the manifests of `versions` name; of the same file in several, the first. A package that cannot be
    /// opened has nothing to give.
    pub fn of(home: &Home, versions: &[PackageVersion]) -> Shelf {
        let mut shelf = Shelf::default();
        for version in versions {
            if let Ok(package) = Package::open(home, version) {
                shelf.add(&package);
            }
        }
        shelf
    }

    fn add(&mut self, package: &Package) {
        for file in &package.manifest.files {
            // An empty file has nothing to share.
            if file.size > 0 {
                self.files
                    .entry(Key::of(file))
                    .or_insert_with(|| package.root.join(&file.path));
            }
        }
    }

    /// Puts `file` to `path` if an installed package has it, and says whether it did. What is there then has the right mode
    /// and, read once more, the right digest. If not, nothing is there.
    pub fn place(&self, file: &FileEntry, path: &Path) -> bool {
        let Some(installed) = self.files.get(&Key::of(file)) else {
            return false;
        };
        [reflink, hard_link]
            .iter()
            .any(|put| match put(installed, path, file.mode_bits()) {
                Ok(()) if is_it(path, file) => true,
                // Something else may stand at the path, which is not ours to remove.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
                _ => {
                    let _ = fs::remove_file(path);
                    false
                }
            })
    }
}

fn reflink(installed: &Path, path: &Path, mode: u32) -> io::Result<()> {
    let from = open(installed)?;
    let to = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    rustix::fs::ioctl_ficlone(&to, &from)?;
    to.set_permissions(Permissions::from_mode(mode))
}

fn hard_link(installed: &Path, path: &Path, _mode: u32) -> io::Result<()> {
    fs::hard_link(installed, path)
}

/// Whether what was put there is ours, whole and of the manifest's mode.
fn is_it(path: &Path, file: &FileEntry) -> bool {
    let look = || -> io::Result<bool> {
        let there = open(path)?;
        let metadata = there.metadata()?;
        Ok(metadata.is_file()
            && metadata.uid() == rustix::process::geteuid().as_raw()
            && metadata.len() == file.size
            && metadata.permissions().mode() & 0o7777 == file.mode_bits()
            && digest::of_reader(there)?.1 == file.sha256)
    };
    look().unwrap_or(false)
}

fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::tests::{install, plan};
    use crate::scratch::{Scratch, home};

    /// An installed package, a shelf of it, one of its files and where that lies.
    fn installed() -> (Scratch, Home, Shelf, FileEntry, PathBuf) {
        let (folder, home) = home();
        install(&home, &plan(folder.path(), "1.0.0"));
        let version: PackageVersion = "1.0.0".parse().unwrap();
        let shelf = Shelf::of(&home, &["9.9.9".parse().unwrap(), version.clone()]);
        let package = Package::open(&home, &version).unwrap();
        let file = package.manifest.file("bin/rollproxy").unwrap().clone();
        let path = package.root.join(&file.path);
        (folder, home, shelf, file, path)
    }

    #[test]
    fn an_installed_file_is_shared_with_its_bytes_and_mode() {
        let (folder, _home, shelf, file, source) = installed();
        let path = folder.path().join("shared");
        assert!(shelf.place(&file, &path));
        assert_eq!(fs::read(&path).unwrap(), fs::read(&source).unwrap());
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o555);
        assert!(!shelf.place(&file, &path), "what is there is not replaced");
        assert!(path.exists());
    }

    #[test]
    fn where_reflinks_are_not_known_a_hard_link_is_made() {
        let (folder, _home, _shelf, file, source) = installed();
        let path = folder.path().join("shared");
        hard_link(&source, &path, 0o555).unwrap();
        assert!(is_it(&path, &file));
        let (a, b) = (fs::metadata(&path).unwrap(), fs::metadata(&source).unwrap());
        assert_eq!((a.ino(), a.nlink()), (b.ino(), 2));
    }

    #[test]
    fn another_size_digest_or_mode_is_not_the_same_file() {
        let (folder, _home, shelf, file, _source) = installed();
        let path = folder.path().join("shared");
        for other in [
            FileEntry {
                size: file.size + 1,
                ..file.clone()
            },
            FileEntry {
                sha256: digest::of(b"x"),
                ..file.clone()
            },
            FileEntry {
                mode: "0444".into(),
                ..file.clone()
            },
        ] {
            assert!(!shelf.place(&other, &path));
            assert!(!path.exists());
        }
    }

    #[test]
    fn a_damaged_installed_file_is_not_shared_and_leaves_nothing() {
        type Damage = fn(&Path);
        let damages: [Damage; 4] = [
            |path| {
                let mut bytes = fs::read(path).unwrap();
                bytes[20] ^= 1;
                mode(path, 0o755);
                fs::write(path, bytes).unwrap();
                mode(path, 0o555);
            },
            |path| mode(path, 0o755),
            |path| {
                mode(path.parent().unwrap(), 0o755);
                fs::remove_file(path).unwrap();
            },
            |path| {
                mode(path.parent().unwrap(), 0o755);
                let aside = path.with_extension("aside");
                fs::rename(path, &aside).unwrap();
                std::os::unix::fs::symlink(&aside, path).unwrap();
            },
        ];
        for (number, damage) in damages.into_iter().enumerate() {
            let (folder, _home, shelf, file, source) = installed();
            damage(&source);
            let path = folder.path().join("shared");
            assert!(!shelf.place(&file, &path), "{number}");
            assert!(fs::symlink_metadata(&path).is_err(), "{number}");
        }
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
}
