//! The private keys: ed25519, PKCS#8 DER, one file a key, readable by their owner only.
//!
//! A role's key lies in `<role>.pk8`; further ones may lie beside it under any name ending in `.pk8`. Which key signs what is
//! decided by the root of trust, not by the file's name.

use std::fmt;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::Ed25519KeyPair;
use tough::async_trait;
use tough::key_source::KeySource;
use tough::sign::{Sign, parse_keypair};

use crate::disk::{self, PRIVATE};
use crate::{Place, PublishError};

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
        Err("keys are written by rollproxy-publish init only".into())
    }
}

impl PrivateKey {
    /// Its public half, as metadata name it.
    pub(crate) fn public(&self) -> Result<tough::schema::key::Key, PublishError> {
        Ed25519KeyPair::from_pkcs8(&self.pkcs8)
            .map(|pair| pair.tuf_key())
            .map_err(|_| self.unusable())
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
            pkcs8: fs::read(path).map_err(|e| PublishError::read(path, e))?,
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

/// Every key of a keys folder.
#[derive(Debug)]
pub(crate) struct Keys(Vec<PrivateKey>);

impl Keys {
    /// Reads all keys; one that others can read spoils the whole folder.
    pub(crate) fn read(folder: &Path) -> Result<Self, PublishError> {
        let mut paths = Vec::new();
        for entry in fs::read_dir(folder).map_err(|e| PublishError::read(folder, e))? {
            let path = entry.map_err(|e| PublishError::read(folder, e))?.path();
            if path.extension().is_some_and(|extension| extension == "pk8") {
                paths.push(path);
            }
        }
        paths.sort();
        paths
            .iter()
            .map(|path| PrivateKey::read(path))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// The keys as the signing library takes them.
    pub(crate) fn sources(&self) -> Vec<Box<dyn KeySource>> {
        self.0
            .iter()
            .map(|key| Box::new(key.clone()) as Box<dyn KeySource>)
            .collect()
    }
}

/// The key of `role` in `folder`, made now if it is not there.
pub(crate) fn read_or_generate(
    folder: &Path,
    role: &'static str,
) -> Result<PrivateKey, PublishError> {
    let path = folder.join(format!("{role}.pk8"));
    if !path
        .try_exists()
        .map_err(|e| PublishError::read(&path, e))?
    {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
            .map_err(|_| PublishError::KeyGeneration { role })?;
        disk::write_whole(&path, pkcs8.as_ref(), PRIVATE)?;
    }
    PrivateKey::read(&path)
}

/// Refuses a keys folder that is, or lies in, the folder that everyone is served.
pub(crate) fn refuse_inside_feed(place: &Place) -> Result<(), PublishError> {
    let (feed, keys) = (disk::resolve(&place.feed)?, disk::resolve(&place.keys)?);
    if keys.starts_with(&feed) {
        return Err(PublishError::KeysInsideFeed { keys, feed });
    }
    Ok(())
}

/// Refuses a keys folder in which others can put, replace or remove keys.
pub(crate) fn refuse_writable(folder: &Path) -> Result<(), PublishError> {
    let about = fs::metadata(folder).map_err(|e| PublishError::read(folder, e))?;
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

    #[test]
    fn a_key_is_made_private_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let made = read_or_generate(folder.path(), "root").unwrap();
        let again = read_or_generate(folder.path(), "root").unwrap();
        assert_eq!(made.public().unwrap(), again.public().unwrap());
        let mode = fs::metadata(folder.path().join("root.pk8"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(Keys::read(folder.path()).unwrap().sources().len(), 1);
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        read_or_generate(folder.path(), "root").unwrap();
        let path = folder.path().join("root.pk8");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(
            Keys::read(folder.path()),
            Err(PublishError::KeyExposed { mode: 0o640, .. })
        ));
    }

    #[test]
    fn a_file_that_is_no_key_is_named() {
        let folder = tempfile::tempdir().unwrap();
        disk::write_whole(&folder.path().join("x.pk8"), b"not a key", PRIVATE).unwrap();
        assert!(matches!(
            Keys::read(folder.path()),
            Err(PublishError::KeyUnusable { .. })
        ));
    }

    #[test]
    fn keys_inside_the_feed_are_refused_also_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let feed = folder.path().join("feed");
        fs::create_dir(&feed).unwrap();
        std::os::unix::fs::symlink(&feed, folder.path().join("alias")).unwrap();
        for keys in ["feed", "feed/keys", "alias/deep/keys", "feed/../feed/keys"] {
            let place = Place::new(&feed, folder.path().join(keys));
            assert!(
                matches!(
                    refuse_inside_feed(&place),
                    Err(PublishError::KeysInsideFeed { .. })
                ),
                "{keys}"
            );
        }
        for keys in ["keys", "feed-keys", "feed/../keys"] {
            assert!(
                refuse_inside_feed(&Place::new(&feed, folder.path().join(keys))).is_ok(),
                "{keys}"
            );
        }
    }
}
