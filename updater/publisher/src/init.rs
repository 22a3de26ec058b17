//! `init`: keys, the root of trust, and an empty feed.

use std::collections::HashMap;
use std::num::NonZeroU64;

use serde::Serialize;
use staging::digest;
use tough::schema::{RoleKeys, RoleType, Root};

use crate::disk::{self, SERVED};
use crate::feed::{Feed, Folder, SPEC_VERSION};
use crate::keys::{self, Keys};
use crate::lock::PublisherLock;
use crate::sign::sign;
use crate::{Place, PublishError, ROOT_DAYS, Validity};

/// The four roles, and the names of their keys.
const ROLES: [(RoleType, &str); 4] = [
    (RoleType::Root, "root"),
    (RoleType::Targets, "targets"),
    (RoleType::Snapshot, "snapshot"),
    (RoleType::Timestamp, "timestamp"),
];

/// How a feed is to be made.
#[derive(Debug, Clone, Copy)]
pub struct Init {
    /// Days until the root of trust expires.
    pub root_days: u32,
    /// When it is signed, and how long the rest holds.
    pub validity: Validity,
}

impl Default for Init {
    fn default() -> Self {
        Self {
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
    /// When the rest expires, unless something is added, promoted or refreshed before.
    pub expires: jiff::Timestamp,
}

/// Makes the keys that are not there yet, a root of trust that names them, and an empty feed.
///
/// # Errors
/// [`PublishError::FeedExists`] if a feed is there; keys inside the feed or readable by others; folders that cannot be written.
pub fn init(place: &Place, how: &Init) -> Result<Initialised, PublishError> {
    keys::refuse_inside_feed(place)?;
    let folder = Folder::new(&place.feed);
    if folder.exists()? {
        return Err(PublishError::FeedExists {
            feed: place.feed.clone(),
        });
    }
    disk::make_folder(&place.keys, 0o700)?;
    keys::refuse_writable(&place.keys)?;
    let lock = PublisherLock::acquire(&place.keys)?;
    disk::make_folder(&folder.metadata(), 0o755)?;
    disk::make_folder(&place.feed.join("targets"), 0o755)?;

    let root = describe_root(place, how)?;
    let keys = Keys::read(&place.keys)?;
    let signed = sign(root.clone(), "root", &root, &keys, &place.keys)?;
    disk::write_whole(
        &folder.metadata_file("1.root.json"),
        signed.buffer(),
        SERVED,
    )?;
    // The same bytes under a name that stays: what people download to pin. Clients follow the numbered ones.
    disk::write_whole(&folder.metadata_file("root.json"), signed.buffer(), SERVED)?;

    let root_expires = root.expires;
    let versions = Feed::fresh(place, root, keys, lock, &how.validity)?.commit(&how.validity)?;
    Ok(Initialised {
        root: place.root(),
        root_sha256: digest::hex(signed.sha256()),
        root_expires,
        expires: versions.expires,
    })
}

/// One key and a threshold of one for each role; a later root may name more.
fn describe_root(place: &Place, how: &Init) -> Result<Root, PublishError> {
    let mut root = Root {
        spec_version: SPEC_VERSION.into(),
        consistent_snapshot: true,
        version: NonZeroU64::MIN,
        expires: how.validity.expires(how.root_days)?,
        keys: HashMap::new(),
        roles: HashMap::new(),
        _extra: HashMap::new(),
    };
    for (role, name) in ROLES {
        let key = keys::read_or_generate(&place.keys, name)?.public()?;
        let id = key
            .key_id()
            .map_err(|_| PublishError::KeyGeneration { role: name })?;
        root.keys.insert(id.clone(), key);
        root.roles.insert(
            role,
            RoleKeys {
                keyids: vec![id],
                threshold: NonZeroU64::MIN,
                _extra: HashMap::new(),
            },
        );
    }
    Ok(root)
}
