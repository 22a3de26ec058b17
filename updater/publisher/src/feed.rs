//! The feed's folder: its state as it was read, what is changed in it, and writing its next state.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use staging::digest;
use tough::TargetName;
use tough::editor::signed::SignedRole;
use tough::schema::{
    DelegatedTargets, Delegations, Hashes, KeyHolder, Metafile, Role, Root, Snapshot, Target,
    Targets, Timestamp,
};

use crate::chain::{Chain, Piece};
use crate::disk::{self, Measure, SERVED};
use crate::keys::{self, Keys};
use crate::lock::PublisherLock;
use crate::names::role_of_channel;
use crate::sign::{can_sign, sign};
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
    pub(crate) fn target_file(&self, name: &str, sha256: &[u8]) -> PathBuf {
        let hash = digest::hex(sha256);
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
    pub(crate) fn highest(&self, role: &str) -> Result<u64, PublishError> {
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

/// A feed opened for one change: locked, read, verified. Nothing is written before [`Feed::commit`].
#[derive(Debug)]
pub(crate) struct Feed {
    pub(crate) folder: Folder,
    pub(crate) root: Root,
    pub(crate) root_bytes: Vec<u8>,
    pub(crate) targets: Targets,
    /// What each channel's role signs, by the channel's name.
    pub(crate) channels: BTreeMap<String, Targets>,
    pub(crate) keys: Keys,
    snapshot: Option<Snapshot>,
    timestamp: Option<Timestamp>,
    changed: Changed,
    files: Vec<NewFile>,
    lock: Arc<PublisherLock>,
}

/// What has to be signed anew; the timestamp always has.
#[derive(Debug, Default)]
struct Changed {
    targets: bool,
    channels: BTreeSet<String>,
    snapshot: bool,
}

/// A target's file that is written with the next state.
#[derive(Debug)]
enum NewFile {
    Bytes(PathBuf, Vec<u8>),
    Copy(PathBuf, PathBuf),
}

/// Metadata that are signed and not written yet, in the order of writing.
#[derive(Debug)]
pub(crate) struct SignedFeed {
    files: Vec<NewFile>,
    metadata: Vec<(PathBuf, Vec<u8>)>,
    versions: Versions,
    _lock: Arc<PublisherLock>,
}

/// The versions and expiries of a state of the feed.
#[derive(Debug, Clone)]
pub(crate) struct Versions {
    pub(crate) targets: u64,
    pub(crate) snapshot: u64,
    pub(crate) timestamp: u64,
    /// When the first of all metadata expires.
    pub(crate) expires: jiff::Timestamp,
    /// The roles that were signed.
    pub(crate) signed: Vec<String>,
}

impl Feed {
    /// Opens the feed at `place` for a change by a holder of its keys.
    ///
    /// # Errors
    /// No feed there, keys exposed or inside it, another publisher at work, or metadata that hosts would not accept either.
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
        let lock = PublisherLock::acquire(&place.keys, &folder.metadata())?;
        let keys = Keys::read(place)?;
        let chain = Chain::read(&folder, jiff::Timestamp::MIN)?;
        disk::reap(&folder.metadata())?;
        Ok(Self {
            folder,
            root: chain.root,
            root_bytes: chain.root_bytes,
            targets: chain.targets,
            channels: chain.channels,
            keys,
            snapshot: Some(chain.snapshot),
            timestamp: Some(chain.timestamp),
            changed: Changed::default(),
            files: Vec::new(),
            lock: Arc::new(lock),
        })
    }

    /// The feed of a fresh root, before its first metadata are written.
    pub(crate) fn fresh(
        place: &Place,
        root: Root,
        root_bytes: Vec<u8>,
        keys: Keys,
        lock: PublisherLock,
    ) -> Self {
        let mut feed = Self {
            folder: Folder::new(&place.feed),
            targets: Targets {
                // No delegations, rather than an empty object: both are read everywhere, the former is plainer.
                delegations: None,
                ..Targets::new(SPEC_VERSION.into(), NonZeroU64::MIN, root.expires)
            },
            root,
            root_bytes,
            channels: BTreeMap::new(),
            keys,
            snapshot: None,
            timestamp: None,
            changed: Changed::default(),
            files: Vec::new(),
            lock: Arc::new(lock),
        };
        feed.touch_targets();
        feed
    }

    /// What the feed says about the target `name` that `targets` signs itself.
    pub(crate) fn target(&self, name: &str) -> Option<&Target> {
        find(&self.targets, name)
    }

    /// Names a target that `targets` signs itself.
    pub(crate) fn set_target(
        &mut self,
        name: &str,
        measure: &Measure,
        custom: HashMap<String, serde_json::Value>,
    ) -> Result<(), PublishError> {
        self.touch_targets();
        put(&mut self.targets, "targets", name, measure, custom)
    }

    /// Whether a target named so is signed by `targets`; then it can be changed.
    pub(crate) fn target_mut(&mut self, name: &str) -> Option<&mut Target> {
        self.touch_targets();
        let name = TargetName::new(name).ok()?;
        self.targets.targets.get_mut(&name)
    }

    /// Takes a target out of what `targets` signs itself.
    pub(crate) fn remove_target(&mut self, name: &str) -> Option<Target> {
        let name = TargetName::new(name).ok()?;
        let removed = self.targets.remove_target(&name);
        if removed.is_some() {
            self.touch_targets();
        }
        removed
    }

    /// Puts a target's file to its place, with the next state.
    pub(crate) fn add_file(&mut self, path: PathBuf, bytes: Vec<u8>) {
        self.files.push(NewFile::Bytes(path, bytes));
    }

    /// Copies a target's file to its place, with the next state.
    pub(crate) fn copy_file(&mut self, from: &Path, path: PathBuf) {
        self.files.push(NewFile::Copy(from.to_owned(), path));
    }

    /// `targets` has to be signed anew.
    pub(crate) fn touch_targets(&mut self) {
        self.changed.targets = true;
    }

    /// What a channel's role signs has to be signed anew.
    pub(crate) fn touch_channel(&mut self, channel: &str) {
        self.changed.channels.insert(channel.to_owned());
    }

    /// `snapshot` has to be signed anew.
    pub(crate) fn touch_snapshot(&mut self) {
        self.changed.snapshot = true;
    }

    /// Whether the keys that are here can sign for a role of the root, or of a channel.
    pub(crate) fn can_sign(&self, role: &str) -> bool {
        can_sign(&self.holder(role), role, &self.keys)
    }

    /// The lock, for whoever writes more than the feed's next state.
    pub(crate) fn lock(&self) -> Arc<PublisherLock> {
        Arc::clone(&self.lock)
    }

    /// All metadata as they stand.
    pub(crate) fn pieces(&self) -> Vec<Piece> {
        let (Some(timestamp), Some(snapshot)) = (&self.timestamp, &self.snapshot) else {
            return Vec::new();
        };
        let chain = Chain {
            root: self.root.clone(),
            root_bytes: Vec::new(),
            timestamp: timestamp.clone(),
            snapshot: snapshot.clone(),
            targets: self.targets.clone(),
            channels: self.channels.clone(),
        };
        chain.pieces(&self.folder)
    }

    /// Signs and writes the feed's next state.
    pub(crate) fn commit(self, validity: &Validity) -> Result<Versions, PublishError> {
        let expires = validity.expires(validity.days)?;
        self.sign(expires, expires)?.write()
    }

    /// Signs the feed's next state in memory: the timestamp until `soon`, and whatever else has changed until `late`.
    pub(crate) fn sign(
        mut self,
        soon: jiff::Timestamp,
        late: jiff::Timestamp,
    ) -> Result<SignedFeed, PublishError> {
        let mut signed = Signing {
            folder: self.folder.clone(),
            keys: &self.keys,
            metadata: Vec::new(),
            roles: Vec::new(),
        };
        let mut snapshot_changed = self.changed.snapshot;
        let mut snapshot = self
            .snapshot
            .take()
            .unwrap_or_else(|| Snapshot::new(SPEC_VERSION.into(), NonZeroU64::MIN, late));
        // Versions are above everything ever written: a file of a change that was cut short is never overwritten.
        let delegations = self.targets.delegations.clone().unwrap_or_default();
        let of_channels = KeyHolder::Delegations(delegations);
        for channel in &self.changed.channels {
            let (role, Some(targets)) = (role_of_channel(channel), self.channels.get_mut(channel))
            else {
                continue;
            };
            targets.version = after(self.folder.highest(&role)?);
            targets.expires = late;
            let named = DelegatedTargets {
                name: role.clone(),
                targets: targets.clone(),
            };
            let pin = signed.add(named, &role, &of_channels)?;
            snapshot.meta.insert(format!("{role}.json"), pin);
            snapshot_changed = true;
        }
        let of_root = KeyHolder::Root(self.root.clone());
        if self.changed.targets {
            self.targets.version = after(self.folder.highest("targets")?);
            self.targets.expires = late;
            let pin = signed.add(self.targets.clone(), "targets", &of_root)?;
            snapshot.meta.insert("targets.json".into(), pin);
            snapshot_changed = true;
        }
        let mut timestamp = match self.timestamp.take() {
            Some(before) => Timestamp {
                version: after(before.version.get()),
                expires: soon,
                ..before
            },
            None => Timestamp::new(SPEC_VERSION.into(), NonZeroU64::MIN, soon),
        };
        if snapshot_changed {
            snapshot.version = after(self.folder.highest("snapshot")?);
            snapshot.expires = late;
            let pin = signed.add(snapshot.clone(), "snapshot", &of_root)?;
            timestamp.meta.insert("snapshot.json".into(), pin);
        }
        let version = timestamp.version.get();
        signed.add(timestamp, "timestamp", &of_root)?;

        let others = [
            soon,
            snapshot.expires,
            self.targets.expires,
            self.root.expires,
        ];
        let channels = self.channels.values().map(|channel| channel.expires);
        let expires = channels.chain(others).min().unwrap_or(soon);
        Ok(SignedFeed {
            metadata: signed.metadata,
            versions: Versions {
                targets: self.targets.version.get(),
                snapshot: snapshot.version.get(),
                timestamp: version,
                expires,
                signed: signed.roles,
            },
            files: self.files,
            _lock: self.lock,
        })
    }

    fn holder(&self, role: &str) -> KeyHolder {
        match &self.targets.delegations {
            Some(delegations) if role.starts_with(&role_of_channel("")) => {
                KeyHolder::Delegations(delegations.clone())
            }
            _ => KeyHolder::Root(self.root.clone()),
        }
    }

    /// The delegations, made if there were none.
    pub(crate) fn delegations_mut(&mut self) -> &mut Delegations {
        self.touch_targets();
        self.targets
            .delegations
            .get_or_insert_with(Delegations::new)
    }
}

impl SignedFeed {
    /// Writes everything, the timestamp last: until then nobody sees anything of it.
    pub(crate) fn write(self) -> Result<Versions, PublishError> {
        for file in &self.files {
            let (NewFile::Bytes(path, _) | NewFile::Copy(_, path)) = file;
            if let Some(folder) = path.parent() {
                disk::make_folder(folder, 0o755)?;
                disk::reap(folder)?;
            }
            match file {
                NewFile::Bytes(path, bytes) => disk::write_whole(path, bytes, SERVED)?,
                NewFile::Copy(from, path) => disk::copy_whole(from, path, SERVED)?,
            }
        }
        for (path, bytes) in &self.metadata {
            disk::write_whole(path, bytes, SERVED)?;
        }
        Ok(self.versions)
    }
}

/// Signs one role after the other, and remembers what is to be written.
struct Signing<'a> {
    folder: Folder,
    keys: &'a Keys,
    metadata: Vec<(PathBuf, Vec<u8>)>,
    roles: Vec<String>,
}

impl Signing<'_> {
    fn add<R: Role>(
        &mut self,
        role: R,
        name: &str,
        holder: &KeyHolder,
    ) -> Result<Metafile, PublishError> {
        let signed = sign(role, name, holder, self.keys)?;
        let file = signed.signed().signed.filename(true);
        self.metadata
            .push((self.folder.metadata_file(&file), signed.buffer().clone()));
        self.roles.push(name.to_owned());
        Ok(pin(&signed))
    }
}

/// What a role's metadata say about the target `name`.
pub(crate) fn find<'a>(targets: &'a Targets, name: &str) -> Option<&'a Target> {
    TargetName::new(name)
        .ok()
        .and_then(|name| targets.targets.get(&name))
}

/// Names a target in a role's metadata.
pub(crate) fn put(
    targets: &mut Targets,
    role: &str,
    name: &str,
    measure: &Measure,
    custom: HashMap<String, serde_json::Value>,
) -> Result<(), PublishError> {
    let name = TargetName::new(name).map_err(|e| PublishError::Sign {
        role: role.to_owned(),
        source: Box::new(e),
    })?;
    let target = Target {
        length: measure.length,
        hashes: hashes(measure),
        custom,
        _extra: HashMap::new(),
    };
    targets.add_target(name, target);
    Ok(())
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

pub(crate) fn after(version: u64) -> NonZeroU64 {
    NonZeroU64::MIN.saturating_add(version)
}
