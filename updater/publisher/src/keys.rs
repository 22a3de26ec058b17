//! The private keys: ed25519, PKCS#8 DER, one file a key, readable by their owner only.
//!
//! A role's key lies in `<role>.pk8`, those of the root in `root-1.pk8` and so on, a channel's in `channel-<name>.pk8`; further
//! ones may lie beside it under any name ending in `.pk8`. Which key signs what is decided by the signed metadata, not by
//! the file's name.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::Ed25519KeyPair;
use tough::async_trait;
use tough::key_source::KeySource;
use tough::schema::decoded::{Decoded, Hex};
use tough::sign::{Sign, parse_keypair};

use crate::disk::{self, PRIVATE};
use crate::{Place, PublishError};

/// How metadata name a key.
pub(crate) type KeyId = Decoded<Hex>;

/// One private key in memory. It signs without touching a disk or a runtime again.
#[derive(Clone)]
pub(crate) struct PrivateKey {
    path: PathBuf,
    pkcs8: Vec<u8>,
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey({})", self.path.display())
    }
}

#[async_trait]
impl KeySource for PrivateKey {
    async fn as_sign(&self) -> Result<Box<dyn Sign>, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Box::new(parse_keypair(&self.pkcs8)?))
    }

    async fn write(
        &self,
        _value: &str,
        _key_id: &str,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Err("keys are written by rollproxy-publish itself only".into())
    }
}

impl PrivateKey {
    /// Its public half, as metadata name it.
    pub(crate) fn public(&self) -> Result<tough::schema::key::Key, PublishError> {
        Ed25519KeyPair::from_pkcs8(&self.pkcs8)
            .map(|pair| pair.tuf_key())
            .map_err(|_| self.unusable())
    }

    /// How metadata name it.
    pub(crate) fn id(&self) -> Result<KeyId, PublishError> {
        self.public()?.key_id().map_err(|_| self.unusable())
    }

    /// Its file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn read(path: &Path) -> Result<Self, PublishError> {
        let about = fs::symlink_metadata(path).map_err(|e| PublishError::read(path, e))?;
        if !about.is_file() {
            return Err(PublishError::KeyUnusable {
                path: path.to_owned(),
            });
        }
        let mode = about.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(PublishError::KeyExposed {
                path: path.to_owned(),
                mode,
            });
        }
        // A key is 83 bytes; whatever is far larger is something else.
        if about.size() > 4096 {
            return Err(PublishError::KeyUnusable {
                path: path.to_owned(),
            });
        }
        let key = Self {
            path: path.to_owned(),
            pkcs8: disk::read_bounded(path, 4096)?.unwrap_or_default(),
        };
        key.public()?;
        Ok(key)
    }

    fn unusable(&self) -> PublishError {
        PublishError::KeyUnusable {
            path: self.path.clone(),
        }
    }
}

/// Every key of the folders of a place.
#[derive(Debug)]
pub(crate) struct Keys {
    folders: Vec<PathBuf>,
    keys: Vec<PrivateKey>,
}

impl Keys {
    /// Reads all keys of a place; one that others can read spoils all.
    pub(crate) fn read(place: &Place) -> Result<Self, PublishError> {
        let folders = place.key_folders();
        let mut paths = Vec::new();
        for folder in &folders {
            refuse_writable(folder)?;
            for entry in fs::read_dir(folder).map_err(|e| PublishError::read(folder, e))? {
                let path = entry.map_err(|e| PublishError::read(folder, e))?.path();
                if path.extension().is_some_and(|extension| extension == "pk8") {
                    paths.push(path);
                }
            }
        }
        paths.sort();
        let keys = paths.iter().map(|path| PrivateKey::read(path));
        Ok(Self {
            folders,
            keys: keys.collect::<Result<_, _>>()?,
        })
    }

    /// The key in `<folder>/<name>.pk8`, made now if it is not there.
    pub(crate) fn get_or_generate(
        &mut self,
        folder: &Path,
        name: &str,
    ) -> Result<PrivateKey, PublishError> {
        let path = file_of(folder, name);
        if !path
            .try_exists()
            .map_err(|e| PublishError::read(&path, e))?
        {
            let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| {
                PublishError::KeyGeneration {
                    role: name.to_owned(),
                }
            })?;
            disk::write_whole(&path, pkcs8.as_ref(), PRIVATE)?;
        }
        let key = PrivateKey::read(&path)?;
        self.keys.push(key.clone());
        Ok(key)
    }

    /// The keys as the signing library takes them.
    pub(crate) fn sources(&self) -> Vec<Box<dyn KeySource>> {
        self.keys
            .iter()
            .map(|key| Box::new(key.clone()) as Box<dyn KeySource>)
            .collect()
    }

    /// How many of `ids` are here.
    pub(crate) fn count_of(&self, ids: &[KeyId]) -> u64 {
        let here: Vec<_> = self.keys.iter().map(PrivateKey::id).collect();
        let count = ids
            .iter()
            .filter(|id| {
                here.iter()
                    .any(|here| here.as_ref().is_ok_and(|here| here == *id))
            })
            .count();
        count as u64
    }

    /// The keys whose ids are among `ids`.
    pub(crate) fn with_ids(&self, ids: &[KeyId]) -> Vec<&PrivateKey> {
        let among = |key: &&PrivateKey| key.id().is_ok_and(|id| ids.contains(&id));
        self.keys.iter().filter(among).collect()
    }

    /// The folders, for messages.
    pub(crate) fn folders(&self) -> String {
        let folders: Vec<_> = self
            .folders
            .iter()
            .map(|folder| folder.display().to_string())
            .collect();
        folders.join(" and ")
    }
}

/// The file of a key.
pub(crate) fn file_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.pk8"))
}

/// The name of the `number`th key of the root, from 1 on.
pub(crate) fn root_name(number: usize) -> String {
    format!("root-{number}")
}

/// Refuses keys folders that are, or lie in, the folder that everyone is served.
pub(crate) fn refuse_inside_feed(place: &Place) -> Result<(), PublishError> {
    let feed = disk::resolve(&place.feed)?;
    for keys in place.key_folders() {
        let keys = disk::resolve(&keys)?;
        if keys.starts_with(&feed) {
            return Err(PublishError::KeysInsideFeed { keys, feed });
        }
    }
    Ok(())
}

/// Refuses a keys folder in which others can put, replace or remove keys.
pub(crate) fn refuse_writable(folder: &Path) -> Result<(), PublishError> {
    let about = fs::metadata(folder).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => PublishError::KeysFolderMissing {
            path: folder.to_owned(),
        },
        _ => PublishError::read(folder, error),
    })?;
    let mode = about.permissions().mode() & 0o7777;
    if mode & 0o022 != 0 {
        return Err(PublishError::KeysExposed {
            path: folder.to_owned(),
            mode,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folders {
        _all: tempfile::TempDir,
        place: Place,
    }

    /// A place whose keys folder is there.
    fn folders() -> Folders {
        let all = tempfile::tempdir().unwrap();
        let place = Place::new(all.path().join("feed"), all.path().join("keys"));
        fs::create_dir(&place.keys).unwrap();
        Folders { _all: all, place }
    }

    #[test]
    fn a_key_is_made_private_and_read_again() {
        let folders = folders();
        let keys = &folders.place.keys;
        let made = Keys::read(&folders.place)
            .unwrap()
            .get_or_generate(keys, "root-1")
            .unwrap();
        let mut read = Keys::read(&folders.place).unwrap();
        assert_eq!(read.count_of(&[made.id().unwrap()]), 1);
        let again = read.get_or_generate(keys, "root-1").unwrap();
        assert_eq!(made.public().unwrap(), again.public().unwrap());
        let mode = fs::metadata(keys.join("root-1.pk8"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let folders = folders();
        let keys = &folders.place.keys;
        Keys::read(&folders.place)
            .unwrap()
            .get_or_generate(keys, "targets")
            .unwrap();
        fs::set_permissions(keys.join("targets.pk8"), fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(
            Keys::read(&folders.place),
            Err(PublishError::KeyExposed { mode: 0o640, .. })
        ));
    }

    #[test]
    fn a_file_that_is_no_key_is_named() {
        let large = vec![0; 5000];
        for bytes in [&b"not a key"[..], b"", &large] {
            let folders = folders();
            disk::write_whole(&folders.place.keys.join("x.pk8"), bytes, PRIVATE).unwrap();
            let refused = Keys::read(&folders.place).unwrap_err();
            assert!(matches!(&refused, PublishError::KeyUnusable { .. }));
            assert!(refused.to_string().contains("x.pk8"), "{refused}");
        }
    }

    #[test]
    fn keys_inside_the_feed_are_refused_also_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let feed = folder.path().join("feed");
        fs::create_dir(&feed).unwrap();
        std::os::unix::fs::symlink(&feed, folder.path().join("alias")).unwrap();
        for keys in ["feed", "feed/keys", "alias/deep/keys", "feed/../feed/keys"] {
            let keys = folder.path().join(keys);
            let outside = Place::new(&feed, folder.path().join("elsewhere"));
            for place in [Place::new(&feed, &keys), outside.with_root_keys([&keys])] {
                assert!(
                    matches!(
                        refuse_inside_feed(&place),
                        Err(PublishError::KeysInsideFeed { .. })
                    ),
                    "{place:?}"
                );
            }
        }
        for keys in ["keys", "feed-keys", "feed/../keys"] {
            assert!(
                refuse_inside_feed(&Place::new(&feed, folder.path().join(keys))).is_ok(),
                "{keys}"
            );
        }
    }
}
