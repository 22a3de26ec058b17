//! Durable writing, and removing trees that were made read-only.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Replaces a file as a whole: temp file in the same folder, fsync, rename, fsync of the folder. Mode 0600.
/// A reader meets the old whole or the new whole file.
///
/// # Errors
/// The first step that fails; the old file is untouched then.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_atomic_with_mode(path, bytes, 0o600)
}

/// As [`write_atomic`], with another mode, whatever the umask.
///
/// # Errors
/// The first step that fails; the old file is untouched then.
pub fn write_atomic_with_mode(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let folder = parent(path);
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::other("the path has no file name"))?;
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(name);
    prefix.push(".");
    let mut temp = tempfile::Builder::new()
        .prefix(&prefix)
        .suffix(".tmp")
        .tempfile_in(folder)?;
    // The mode given at creation passes through the umask.
    temp.as_file()
        .set_permissions(Permissions::from_mode(mode))?;
    temp.write_all(bytes)?;
    temp.as_file().sync_all()?;
    temp.persist(path).map_err(|error| error.error)?;
    sync_folder(folder)
}

/// Opens a regular file to read it; anything else is refused at once. A pipe in its place would otherwise wait for a writer.
///
/// # Errors
/// What open says, or that it is no regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("not a regular file"))
    }
}

/// A whole regular file of at most `limit` bytes; `None` if it is not there.
///
/// # Errors
/// As [`open_regular`], and `FileTooLarge`.
pub fn read_bounded(path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match open_regular(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("larger than the {limit} bytes that such a file can have"),
        ));
    }
    Ok(Some(bytes))
}

/// Removes a file durably; one that is not there is no error.
///
/// # Errors
/// What unlink or the folder's fsync says.
pub fn remove_durably(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Ok(()) => sync_folder(parent(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes the entries of a folder durable.
///
/// # Errors
/// What open or fsync says.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Makes a folder of mode 0700 whatever the umask; one that exists already keeps its mode. Says whether it made it.
///
/// # Errors
/// What mkdir or chmod says; something that is no folder in its place is `AlreadyExists`.
pub fn create_private(folder: &Path) -> io::Result<bool> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => {
            fs::set_permissions(folder, Permissions::from_mode(0o700))?;
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes a tree even where its folders were made read-only; does not follow links. Not there, or gone meanwhile = done.
///
/// # Errors
/// The first entry that cannot be removed.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    match remove_there(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn remove_there(path: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_dir() {
        return fs::remove_file(path);
    }
    if metadata.permissions().mode() & 0o700 != 0o700 {
        fs::set_permissions(path, Permissions::from_mode(0o700))?;
    }
    for entry in fs::read_dir(path)? {
        remove_tree(&entry?.path())?;
    }
    fs::remove_dir(path)
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_replaces_as_a_whole_leaves_no_litter_and_is_private() {
        let folder = crate::scratch::Scratch::new();
        let path = folder.path().join("x.json");
        write_atomic(&path, b"one").unwrap();
        write_atomic(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o7777,
            0o600
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_no_litter() {
        let folder = crate::scratch::Scratch::new();
        let path = folder.path().join("x");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("inside"), "kept").unwrap();
        assert!(write_atomic(&path, b"new").is_err());
        assert_eq!(fs::read(path.join("inside")).unwrap(), b"kept");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn read_only_trees_go_and_links_are_not_followed() {
        let folder = crate::scratch::Scratch::new();
        let outside = folder.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), "").unwrap();
        let tree = folder.path().join("tree");
        fs::create_dir_all(tree.join("bin")).unwrap();
        fs::write(tree.join("bin/x"), "").unwrap();
        std::os::unix::fs::symlink(&outside, tree.join("bin/link")).unwrap();
        for path in ["tree/bin", "tree"] {
            fs::set_permissions(folder.path().join(path), Permissions::from_mode(0o555)).unwrap();
        }
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        assert!(outside.join("precious").exists());
        remove_tree(&tree).unwrap();
    }

    #[test]
    fn create_private_says_whether_it_made_the_folder() {
        let folder = crate::scratch::Scratch::new();
        let path = folder.path().join("p");
        assert!(create_private(&path).unwrap());
        assert!(!create_private(&path).unwrap());
        fs::write(folder.path().join("f"), "").unwrap();
        assert!(create_private(&folder.path().join("f")).is_err());
    }
}
