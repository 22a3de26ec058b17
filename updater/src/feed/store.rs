//! The cache of verified metadata in the home.
//!
//! What the TUF client stores waits in memory until the version floors have been asked; then it is written durably. The client
//! only logs what goes wrong with its store, so errors are remembered here and returned by [`Store::commit`].

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sigstore_tuf::{Error as Tuf, MetadataStore};
use staging::files;

use super::FeedError;

/// No metadata file comes near this; a larger one is damaged, and as good as absent.
const LIMIT: u64 = 8 * 1024 * 1024;

/// Files in the folder that are no metadata: a role that is named so is not cached, only read anew every time.
const OURS: [&str; 1] = [super::floors::FILE];

/// The folder of cached metadata.
#[derive(Debug)]
pub(super) struct Store {
    folder: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pending: BTreeMap<String, Vec<u8>>,
    unreadable: Option<(PathBuf, io::Error)>,
}

impl Store {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            state: Mutex::default(),
        }
    }

    /// Forgets what was not written.
    pub(super) fn begin(&self) {
        *self.state() = State::default();
    }

    /// Writes what waits, each file whole and durably.
    ///
    /// # Errors
    /// What could not be read since [`Store::begin`], or cannot be written now.
    pub(super) fn commit(&self) -> Result<(), FeedError> {
        let mut state = self.state();
        if let Some((path, source)) = state.unreadable.take() {
            return Err(FeedError::store("read", path, source));
        }
        while let Some((name, bytes)) = state.pending.pop_first() {
            let path = self.path(&name)?;
            write(&self.folder, &path, &bytes).map_err(|e| FeedError::store("write", path, e))?;
        }
        Ok(())
    }

    /// The cached file `name`, also of what waits to be written.
    pub(super) fn get(&self, name: &str) -> Result<Option<Vec<u8>>, FeedError> {
        if let Some(bytes) = self.state().pending.get(name) {
            return Ok(Some(bytes.clone()));
        }
        let path = self.path(name)?;
        read(&path).map_err(|e| FeedError::store("read", path, e))
    }

    /// Where `name` lies.
    pub(super) fn path(&self, name: &str) -> Result<PathBuf, FeedError> {
        let below = Path::new(name);
        if below
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
        {
            return Ok(self.folder.join(below));
        }
        let outside = io::Error::new(
            io::ErrorKind::InvalidInput,
            "the name leads out of the cache",
        );
        Err(FeedError::store("write", &self.folder, outside))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MetadataStore for Store {
    fn load(&self, name: &str) -> sigstore_tuf::Result<Option<Vec<u8>>> {
        match self.get(name) {
            Ok(bytes) => Ok(bytes),
            Err(FeedError::Store { path, source, .. }) => {
                let kind = source.kind();
                self.state().unreadable.get_or_insert((path, source));
                Err(Tuf::io("reading the cache", kind.into()))
            }
            Err(_) => Err(Tuf::io("reading the cache", io::ErrorKind::Other.into())),
        }
    }

    fn store(&self, name: &str, bytes: &[u8]) -> sigstore_tuf::Result<()> {
        // Beside `snapshot.json` the client also stores it under its version, and never reads or removes that.
        let numbered = !name.contains('/') && name.starts_with(|c: char| c.is_ascii_digit());
        // A delegated role may have any name, also one of a file that is ours.
        if !numbered && !OURS.contains(&name) {
            self.state().pending.insert(name.to_owned(), bytes.to_vec());
        }
        Ok(())
    }
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match files::open_regular(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut bytes = Vec::new();
    file.take(LIMIT + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= LIMIT).then_some(bytes))
}

fn write(folder: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    // Most checks find nothing new; then nothing is written.
    if read(path)?.as_deref() == Some(bytes) {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        make_private(folder, parent)?;
    }
    files::write_atomic(path, bytes)
}

/// Makes the folders from `root` (whose parent exists) down to `folder`.
fn make_private(root: &Path, folder: &Path) -> io::Result<()> {
    let mut path = root.to_owned();
    let below = folder
        .strip_prefix(root)
        .map(Path::components)
        .into_iter()
        .flatten();
    for part in std::iter::once(None).chain(below.map(Some)) {
        path.extend(part);
        if files::create_private(&path)?
            && let Some(parent) = path.parent()
        {
            files::sync_folder(parent)?;
        }
    }
    Ok(())
}

/// Removes everything cached, but for the file `keep`.
pub(super) fn clear(folder: &Path, keep: &str) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name() != keep {
            files::remove_tree(&entry.path())?;
        }
    }
    files::sync_folder(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_before_the_commit_and_all_of_it_then() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("feed"));
        store.store("timestamp.json", b"t").unwrap();
        store.store("root_history/1.root.json", b"r").unwrap();
        store.store("7.snapshot.json", b"s").unwrap();
        assert!(!folder.path().join("feed").exists());
        assert_eq!(store.load("timestamp.json").unwrap().unwrap(), b"t");
        store.commit().unwrap();
        assert_eq!(
            fs::read(folder.path().join("feed/timestamp.json")).unwrap(),
            b"t"
        );
        assert_eq!(
            fs::read(folder.path().join("feed/root_history/1.root.json")).unwrap(),
            b"r"
        );
        assert!(!folder.path().join("feed/7.snapshot.json").exists());
    }

    #[test]
    fn what_the_client_would_only_log_is_returned() {
        let folder = tempfile::tempdir().unwrap();
        // A folder where a file should be fails for every user, root included.
        fs::create_dir(folder.path().join("timestamp.json")).unwrap();
        let store = Store::new(folder.path().to_owned());
        assert!(store.load("timestamp.json").is_err());
        assert!(matches!(
            store.commit(),
            Err(FeedError::Store { action: "read", .. })
        ));
        store.store("timestamp.json", b"t").unwrap();
        assert!(matches!(
            store.commit(),
            Err(FeedError::Store {
                action: "write",
                ..
            })
        ));
    }

    #[test]
    fn no_role_takes_the_place_of_a_file_that_is_ours() {
        let folder = tempfile::tempdir().unwrap();
        for name in OURS {
            fs::write(folder.path().join(name), "ours").unwrap();
        }
        let store = Store::new(folder.path().to_owned());
        for name in OURS {
            store.store(name, b"theirs").unwrap();
        }
        store.commit().unwrap();
        for name in OURS {
            assert_eq!(fs::read(folder.path().join(name)).unwrap(), b"ours");
        }
    }

    #[test]
    fn names_do_not_lead_out() {
        let store = Store::new("/nowhere".into());
        for bad in ["../x", "/etc/x", "a/../../x"] {
            assert!(store.path(bad).is_err(), "{bad}");
        }
        assert!(store.path("targets/rollproxy/x/stable.json").is_ok());
    }

    #[test]
    fn clearing_keeps_the_floors() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("root_history")).unwrap();
        for name in [
            "root_history/2.root.json",
            "timestamp.json",
            "versions.json",
        ] {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        clear(folder.path(), "versions.json").unwrap();
        let left: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(left, ["versions.json"]);
    }
}
