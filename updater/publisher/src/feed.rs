//! The feed's folder: reading it as a careful client would, and writing its next state.

use std::collections::HashMap;
use std::fs;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use staging::digest;
use tough::TargetName;
use tough::editor::signed::SignedRole;
use tough::schema::{Hashes, Metafile, Role, Root, Signed, Snapshot, Target, Targets, Timestamp};

use crate::disk::{self, Measure, SERVED};
use crate::keys::{self, Keys};
use crate::lock::PublisherLock;
use crate::sign::sign;
use crate::{Place, PublishError, Validity};

/// The TUF specification these metadata follow.
pub(crate) const SPEC_VERSION: &str = "1.0.31";

/// The paths of a feed.
#[derive(Debug, Clone)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(feed: &Path) -> Self {
        Self(feed.to_owned())
    }

    pub(crate) fn metadata(&self) -> PathBuf {
        self.0.join("metadata")
    }

    pub(crate) fn metadata_file(&self, name: &str) -> PathBuf {
        self.metadata().join(name)
    }

    /// Where the file of a target lies: its digest is part of its name, so no file ever changes.
    pub(crate) fn target_file(&self, name: &str, measure: &Measure) -> PathBuf {
        let hash = digest::hex(&measure.sha256);
        let below = match name.rsplit_once('/') {
            Some((folder, base)) => format!("{folder}/{hash}.{base}"),
            None => format!("{hash}.{name}"),
        };
        self.0.join("targets").join(below)
    }

    /// Whether a feed was ever completed here: the timestamp is written last.
    pub(crate) fn exists(&self) -> Result<bool, PublishError> {
        let path = self.metadata_file("timestamp.json");
        path.try_exists().map_err(|e| PublishError::read(path, e))
    }

    /// The highest number in front of `.<role>.json`, also of files that nothing refers to any more.
    fn highest(&self, role: &str) -> Result<u64, PublishError> {
        let folder = self.metadata();
        let mut highest = 0;
        for entry in fs::read_dir(&folder).map_err(|e| PublishError::read(&folder, e))? {
            let name = entry
                .map_err(|e| PublishError::read(&folder, e))?
                .file_name();
            let number = name
                .to_str()
                .and_then(|name| name.strip_suffix(&format!(".{role}.json")))
                .and_then(|number| number.parse().ok());
            highest = highest.max(number.unwrap_or(0));
        }
        Ok(highest)
    }
}

/// A feed opened for one change: locked, read, verified.
#[derive(Debug)]
pub(crate) struct Feed {
    pub(crate) folder: Folder,
    pub(crate) targets: Targets,
    root: Root,
    timestamp_version: u64,
    keys: Keys,
    keys_folder: PathBuf,
    _lock: PublisherLock,
}

impl Feed {
    /// Opens the feed at `place` for a change by the holder of its keys.
    ///
    /// # Errors
    /// No feed there, keys exposed or inside it, another publisher at work, or metadata that its own root does not vouch for.
    /// Expired metadata are no error: signing them again is what mends that.
    pub(crate) fn open(place: &Place) -> Result<Self, PublishError> {
        keys::refuse_inside_feed(place)?;
        let folder = Folder::new(&place.feed);
        if !folder.exists()? {
            return Err(PublishError::FeedMissing {
                feed: place.feed.clone(),
            });
        }
        keys::refuse_writable(&place.keys)?;
        let lock = PublisherLock::acquire(&place.keys)?;
        let keys = Keys::read(&place.keys)?;

        let root_file = folder.metadata_file(&format!("{}.root.json", folder.highest("root")?));
        let root: Signed<Root> = read(&root_file)?;
        verify(&root.signed, &root, &root_file)?;
        let root = root.signed;

        let timestamp: Signed<Timestamp> = read_verified(&root, &folder, "timestamp.json")?;
        let snapshot_name = format!(
            "{}.snapshot.json",
            pinned(&timestamp.signed.meta, "snapshot.json", &folder)?
        );
        let snapshot: Signed<Snapshot> = read_verified(&root, &folder, &snapshot_name)?;
        let targets_name = format!(
            "{}.targets.json",
            pinned(&snapshot.signed.meta, "targets.json", &folder)?
        );
        let targets: Signed<Targets> = read_verified(&root, &folder, &targets_name)?;

        Ok(Self {
            folder,
            targets: targets.signed,
            root,
            timestamp_version: timestamp.signed.version.get(),
            keys,
            keys_folder: place.keys.clone(),
            _lock: lock,
        })
    }

    /// The feed of a fresh root, before its first metadata are written.
    pub(crate) fn fresh(
        place: &Place,
        root: Root,
        keys: Keys,
        lock: PublisherLock,
        validity: &Validity,
    ) -> Result<Self, PublishError> {
        Ok(Self {
            folder: Folder::new(&place.feed),
            targets: Targets {
                // No delegations, rather than an empty object: both are read everywhere, the former is plainer.
                delegations: None,
                ..Targets::new(
                    SPEC_VERSION.into(),
                    NonZeroU64::MIN,
                    validity.expires(validity.days)?,
                )
            },
            root,
            timestamp_version: 0,
            keys,
            keys_folder: place.keys.clone(),
            _lock: lock,
        })
    }

    /// What the feed says about the target `name`.
    pub(crate) fn target(&self, name: &str) -> Option<&Target> {
        TargetName::new(name)
            .ok()
            .and_then(|name| self.targets.targets.get(&name))
    }

    /// Names a target; its file must already lie in its place.
    pub(crate) fn set_target(
        &mut self,
        name: &str,
        measure: &Measure,
        custom: HashMap<String, serde_json::Value>,
    ) -> Result<(), PublishError> {
        let name = TargetName::new(name).map_err(|e| PublishError::Sign {
            role: "targets",
            source: Box::new(e),
        })?;
        let target = Target {
            length: measure.length,
            hashes: hashes(measure),
            custom,
            _extra: HashMap::new(),
        };
        self.targets.add_target(name, target);
        Ok(())
    }

    /// Signs and writes the feed's next state, the timestamp last.
    pub(crate) fn commit(mut self, validity: &Validity) -> Result<Versions, PublishError> {
        let expires = validity.expires(validity.days)?;
        // Above everything ever written: a file of a change that did not complete is never overwritten by another content.
        self.targets.version = after(self.folder.highest("targets")?);
        self.targets.expires = expires;
        let targets = self.signed(self.targets.clone(), "targets")?;

        let mut snapshot = Snapshot::new(
            SPEC_VERSION.into(),
            after(self.folder.highest("snapshot")?),
            expires,
        );
        snapshot.meta.insert("targets.json".into(), pin(&targets));
        let snapshot = self.signed(snapshot, "snapshot")?;

        let mut timestamp =
            Timestamp::new(SPEC_VERSION.into(), after(self.timestamp_version), expires);
        timestamp
            .meta
            .insert("snapshot.json".into(), pin(&snapshot));
        let timestamp = self.signed(timestamp, "timestamp")?;

        self.write(&targets)?;
        self.write(&snapshot)?;
        self.write(&timestamp)?;
        Ok(Versions {
            targets: targets.signed().signed.version.get(),
            snapshot: snapshot.signed().signed.version.get(),
            timestamp: timestamp.signed().signed.version.get(),
            expires,
        })
    }

    fn signed<R: Role>(&self, role: R, name: &'static str) -> Result<SignedRole<R>, PublishError> {
        sign(role, name, &self.root, &self.keys, &self.keys_folder)
    }

    fn write<R: Role>(&self, role: &SignedRole<R>) -> Result<(), PublishError> {
        let name = role.signed().signed.filename(true);
        disk::write_whole(&self.folder.metadata_file(&name), role.buffer(), SERVED)
    }
}

/// The versions and the expiry of metadata just written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Versions {
    pub(crate) targets: u64,
    pub(crate) snapshot: u64,
    pub(crate) timestamp: u64,
    pub(crate) expires: jiff::Timestamp,
}

fn read<R: DeserializeOwned>(path: &Path) -> Result<Signed<R>, PublishError> {
    let bytes = fs::read(path).map_err(|e| PublishError::read(path, e))?;
    serde_json::from_slice(&bytes).map_err(|e| PublishError::Metadata {
        path: path.to_owned(),
        reason: e.to_string(),
    })
}

fn read_verified<R: Role + DeserializeOwned>(
    root: &Root,
    folder: &Folder,
    name: &str,
) -> Result<Signed<R>, PublishError> {
    let path = folder.metadata_file(name);
    let role = read(&path)?;
    verify(root, &role, &path)?;
    Ok(role)
}

fn verify<R: Role>(root: &Root, role: &Signed<R>, path: &Path) -> Result<(), PublishError> {
    root.verify_role(role).map_err(|_| PublishError::Signature {
        path: path.to_owned(),
    })
}

fn pinned(
    meta: &HashMap<String, Metafile>,
    name: &str,
    folder: &Folder,
) -> Result<u64, PublishError> {
    meta.get(name)
        .map(|file| file.version.get())
        .ok_or_else(|| PublishError::Metadata {
            path: folder.metadata(),
            reason: format!("nothing refers to {name}"),
        })
}

fn pin<R: Role>(role: &SignedRole<R>) -> Metafile {
    let measure = Measure {
        length: *role.length(),
        sha256: role.sha256().to_vec(),
    };
    Metafile {
        length: Some(measure.length),
        hashes: Some(hashes(&measure)),
        version: role.signed().signed.version(),
        _extra: HashMap::new(),
    }
}

fn hashes(measure: &Measure) -> Hashes {
    Hashes {
        sha256: measure.sha256.clone().into(),
        _extra: HashMap::new(),
    }
}

fn after(version: u64) -> NonZeroU64 {
    NonZeroU64::MIN.saturating_add(version)
}
