//! `init`: keys, the root of trust, and an empty feed.

use std::num::NonZeroU64;

use serde::Serialize;
use staging::digest;
use tough::schema::{RoleType, Root};

use crate::disk::{self, SERVED};
use crate::feed::{Feed, Folder};
use crate::keys::{self, Keys, root_name};
use crate::lock::PublisherLock;
use crate::root::{self, Named};
use crate::sign::sign_root;
use crate::{Place, PublishError, ROOT_DAYS, ROOT_KEYS, ROOT_THRESHOLD, Validity};

/// The roles with one key each, and the names of their keys.
const SINGLE: [(RoleType, &str); 3] = [
    (RoleType::Targets, "targets"),
    (RoleType::Snapshot, "snapshot"),
    (RoleType::Timestamp, "timestamp"),
];

/// How a feed is to be made.
#[derive(Debug, Clone, Copy)]
pub struct Init {
    /// How many keys the root has.
    pub root_keys: u8,
    /// How many of them must sign a new root.
    pub root_threshold: u8,
    /// Days until the root of trust expires.
    pub root_days: u32,
    /// When it is signed, and how long the rest holds.
    pub validity: Validity,
}

impl Default for Init {
    fn default() -> Self {
        Self {
            root_keys: ROOT_KEYS,
            root_threshold: ROOT_THRESHOLD,
            root_days: ROOT_DAYS,
            validity: Validity::default(),
        }
    }
}

/// A feed that was made.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Initialised {
    /// The file of the root of trust: give it to hosts.
    pub root: std::path::PathBuf,
    /// Its SHA-256: give it to hosts by another way than the file.
    pub root_sha256: String,
    /// When the root of trust expires.
    pub root_expires: jiff::Timestamp,
    /// The key files of the root: keep them offline.
    pub root_keys: Vec<std::path::PathBuf>,
    /// How many of them must sign a new root.
    pub root_threshold: u8,
    /// When the rest expires, unless something is added, promoted or refreshed before.
    pub expires: jiff::Timestamp,
}

/// Makes the keys that are not there yet, a root of trust that names them, and an empty feed.
///
/// # Errors
/// [`PublishError::FeedExists`] if a feed is there; a threshold that the keys cannot reach; keys inside the feed or readable by
/// others; folders that cannot be written.
pub fn init(place: &Place, how: &Init) -> Result<Initialised, PublishError> {
    let threshold = check_threshold(how.root_keys, how.root_threshold)?;
    keys::refuse_inside_feed(place)?;
    let folder = Folder::new(&place.feed);
    refuse_feed(place, &folder)?;
    for keys in place.key_folders() {
        disk::make_folder(&keys, 0o700)?;
        keys::refuse_writable(&keys)?;
    }
    disk::make_folder(&folder.metadata(), 0o755)?;
    let lock = PublisherLock::acquire(&place.keys, &folder.metadata())?;
    // Once more: another init may have been faster.
    refuse_feed(place, &folder)?;
    disk::make_folder(&place.feed.join("targets"), 0o755)?;

    let mut keys = Keys::read(place)?;
    let mut root_keys = Vec::new();
    let mut named = Vec::new();
    for number in 1..=usize::from(how.root_keys) {
        let folder = place.root_key_folder(number);
        let key = keys.get_or_generate(folder, &root_name(number))?;
        root_keys.push(key.path().to_owned());
        named.push((key.id()?, key.public()?));
    }
    let expires = how.validity.expires(how.root_days)?;
    let root = describe(place, &mut keys, &named, threshold, expires)?;
    let signed = sign_root(&root, None, &keys)?;
    disk::write_whole(
        &folder.metadata_file("1.root.json"),
        signed.buffer(),
        SERVED,
    )?;
    // The same bytes under a name that stays: what people download to pin. Clients follow the numbered ones.
    disk::write_whole(&folder.metadata_file("root.json"), signed.buffer(), SERVED)?;

    let feed = Feed::fresh(place, root, signed.buffer().clone(), keys, lock);
    let versions = feed.commit(&how.validity)?;
    Ok(Initialised {
        root: place.root(),
        root_sha256: digest::hex(signed.sha256()),
        root_expires: expires,
        root_keys,
        root_threshold: how.root_threshold,
        expires: versions.expires,
    })
}

/// The threshold, if so many keys can reach it and nobody could miss it.
pub(crate) fn check_threshold(keys: u8, threshold: u8) -> Result<NonZeroU64, PublishError> {
    NonZeroU64::new(threshold.into())
        .filter(|_| threshold <= keys)
        .ok_or(PublishError::Threshold { keys, threshold })
}

fn refuse_feed(place: &Place, folder: &Folder) -> Result<(), PublishError> {
    if folder.exists()? {
        return Err(PublishError::FeedExists {
            feed: place.feed.clone(),
        });
    }
    Ok(())
}

fn describe(
    place: &Place,
    keys: &mut Keys,
    of_root: &[Named],
    threshold: NonZeroU64,
    expires: jiff::Timestamp,
) -> Result<Root, PublishError> {
    let mut root = root::empty(expires);
    root::assign(&mut root, RoleType::Root, of_root, threshold);
    for (role, name) in SINGLE {
        let key = keys.get_or_generate(&place.keys, name)?;
        let named = (key.id()?, key.public()?);
        root::assign(&mut root, role, &[named], NonZeroU64::MIN);
    }
    Ok(root)
}
