//! The root of trust: pinned once, by digest, and read ever after.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use sigstore_tuf::TrustedMetadataSet;
use staging::home::Home;
use staging::{digest, files};

use super::location::Location;
use super::transport::Client;
use super::{FeedError, FeedSettings, floors, store};

/// A root of trust has a few keys and signatures; nothing near this many bytes.
const LIMIT: u64 = 512 * 1024;

/// Where a root of trust is taken from before it is pinned.
#[derive(Debug, Clone)]
pub enum RootSource {
    /// A file.
    File(PathBuf),
    /// A URL. Its digest is what makes it trustworthy, not the server.
    At(Location),
    /// Bytes in memory.
    Bytes(Vec<u8>),
}

impl fmt::Display for RootSource {
    /// The path, or the URL without credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::At(at) => at.fmt(f),
            Self::Bytes(_) => f.write_str("the given root"),
        }
    }
}

impl FromStr for RootSource {
    type Err = FeedError;

    /// A URL if it looks like one, else a path.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.contains("://") {
            Location::of_file(text).map(Self::At)
        } else {
            Ok(Self::File(text.into()))
        }
    }
}

/// Pins a root of trust into `home`, whose folders exist, if its SHA-256 is `sha256` and it is signed by its own keys.
/// Pinning the same root again changes nothing.
///
/// # Errors
/// [`FeedError::RootMismatch`], [`FeedError::RootInvalid`], [`FeedError::RootAlreadyPinned`] for another one, and whatever
/// reading or writing it says. After an error nothing is pinned that was not before.
pub async fn pin_root(home: &Home, source: &RootSource, sha256: &str) -> Result<(), FeedError> {
    let (name, bytes) = load(source).await?;
    let expected = sha256.trim().to_ascii_lowercase();
    let actual = digest::of(&bytes);
    if expected != actual {
        return Err(FeedError::RootMismatch {
            path: name,
            expected: expected
                .chars()
                .filter(char::is_ascii_graphic)
                .take(64)
                .collect(),
            actual,
        });
    }
    check(&name, &bytes)?;

    let path = home.trust_root();
    match read_file(&path) {
        Ok(pinned) if pinned == bytes => return Ok(()),
        Ok(pinned) => {
            let pinned = digest::of(&pinned);
            return Err(FeedError::RootAlreadyPinned { path, pinned });
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(FeedError::store("read", path, e)),
    }
    // What was cached under another root proves nothing under this one. The floors know which root they are of.
    store::clear(&home.feed(), floors::FILE)
        .map_err(|e| FeedError::store("write", home.feed(), e))?;
    files::write_atomic(&path, &bytes).map_err(|e| FeedError::store("write", path, e))
}

/// The pinned root of a home.
#[derive(Debug, Clone)]
pub(super) struct PinnedRoot {
    bytes: Vec<u8>,
    sha256: String,
}

impl PinnedRoot {
    pub(super) fn read(home: &Home) -> Result<Self, FeedError> {
        let path = home.trust_root();
        match read_file(&path) {
            Ok(bytes) => {
                check(&path.display().to_string(), &bytes)?;
                Ok(Self {
                    sha256: digest::of(&bytes),
                    bytes,
                })
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(FeedError::RootMissing { path }),
            Err(e) => Err(unreadable(&path, &e)),
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn sha256(&self) -> &str {
        &self.sha256
    }
}

async fn load(source: &RootSource) -> Result<(String, Vec<u8>), FeedError> {
    match source {
        RootSource::Bytes(bytes) => Ok(("the given root".to_owned(), bytes.clone())),
        RootSource::File(path) => {
            let bytes = read_file(path).map_err(|e| unreadable(path, &e))?;
            Ok((path.display().to_string(), bytes))
        }
        RootSource::At(at) => {
            let client = Client::new(&FeedSettings::at(at.clone()))?;
            let bytes =
                client
                    .fetch(at, LIMIT)
                    .await?
                    .ok_or_else(|| FeedError::RootUnreadable {
                        path: at.to_string(),
                        reason: "there is no such file".to_owned(),
                    })?;
            Ok((at.to_string(), bytes))
        }
    }
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    files::read_bounded(path, LIMIT)?.ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn unreadable(path: &Path, error: &io::Error) -> FeedError {
    FeedError::RootUnreadable {
        path: path.display().to_string(),
        reason: error.to_string(),
    }
}

/// A root vouches for itself; that it is the right one, its digest says.
fn check(name: &str, bytes: &[u8]) -> Result<(), FeedError> {
    let invalid = |reason| FeedError::RootInvalid {
        path: name.to_owned(),
        reason,
    };
    let trusted = TrustedMetadataSet::from_root(bytes).map_err(|error| {
        invalid(match error {
            sigstore_tuf::Error::Json(_) => "it is not JSON",
            sigstore_tuf::Error::Malformed(_) => "it is not TUF root metadata",
            _ => "it is not signed by its own keys",
        })
    })?;
    for role in ["timestamp", "snapshot", "targets"] {
        if trusted.root().role(role).is_none() {
            return Err(invalid("it does not name the keys of all roles"));
        }
    }
    Ok(())
}
