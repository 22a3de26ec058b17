//! Reading a feed's metadata as a careful host does: from the first root up, every signature, threshold, length, digest and
//! version checked by the very library that hosts use, and nothing read without a bound.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use sigstore_tuf::{Error as Tuf, TrustedMetadataSet, UpdaterConfig};
use tough::schema::{Root, Signed, Snapshot, Targets, Timestamp};

use crate::PublishError;
use crate::disk;
use crate::feed::Folder;
use crate::names::role_of_channel;

/// A feed's metadata, verified, in the shape in which they can be changed and signed again.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) root: Root,
    /// The bytes of the newest root.
    pub(crate) root_bytes: Vec<u8>,
    pub(crate) timestamp: Timestamp,
    pub(crate) snapshot: Snapshot,
    pub(crate) targets: Targets,
    /// What each channel's role signed, by the channel's name.
    pub(crate) channels: BTreeMap<String, Targets>,
}

/// A piece of metadata: whose it is, its file, and when it expires.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) role: String,
    pub(crate) path: PathBuf,
    pub(crate) expires: jiff::Timestamp,
}

impl Chain {
    /// Reads the feed as of `now`. At [`jiff::Timestamp::MIN`] nothing has expired: that is for whoever signs it anew.
    ///
    /// # Errors
    /// The first file that is not what a host would accept, named.
    pub(crate) fn read(folder: &Folder, now: jiff::Timestamp) -> Result<Self, PublishError> {
        let limits = UpdaterConfig::default();
        let whole = |name: &str, limit| {
            let path = folder.metadata_file(name);
            match disk::read_bounded(&path, limit)? {
                Some(bytes) => Ok((path, bytes)),
                None => Err(PublishError::MetadataMissing { path }),
            }
        };

        let (path, mut root_bytes) = whole("1.root.json", limits.root_max_length)?;
        let mut trusted =
            TrustedMetadataSet::from_root(&root_bytes).map_err(|e| explain(e, &path))?;
        let mut root_path = path;
        loop {
            let name = format!("{}.root.json", trusted.root().version + 1);
            let path = folder.metadata_file(&name);
            let Some(bytes) = disk::read_bounded(&path, limits.root_max_length)? else {
                break;
            };
            trusted.update_root(&bytes).map_err(|e| explain(e, &path))?;
            (root_bytes, root_path) = (bytes, path);
        }
        trusted
            .check_root_expired(now)
            .map_err(|e| explain(e, &root_path))?;

        let (path, timestamp) = whole("timestamp.json", limits.timestamp_max_length)?;
        trusted
            .update_timestamp(&timestamp, now)
            .map_err(|e| explain(e, &path))?;
        let timestamp: Timestamp = parse(&timestamp, &path)?;

        let version = pinned(&timestamp.meta, "snapshot.json", &path)?;
        let (path, bytes) = whole(
            &format!("{version}.snapshot.json"),
            limits.snapshot_max_length,
        )?;
        trusted
            .update_snapshot(&bytes, now)
            .map_err(|e| explain(e, &path))?;
        let snapshot: Snapshot = parse(&bytes, &path)?;

        let version = pinned(&snapshot.meta, "targets.json", &path)?;
        let (targets_path, bytes) = whole(
            &format!("{version}.targets.json"),
            limits.targets_max_length,
        )?;
        trusted
            .update_targets(&bytes, now)
            .map_err(|e| explain(e, &targets_path))?;
        let targets: Targets = parse(&bytes, &targets_path)?;

        let mut channels = BTreeMap::new();
        for role in targets.delegations.iter().flat_map(|all| &all.roles) {
            let Some(channel) = role.name.strip_prefix(&role_of_channel("")) else {
                return Err(PublishError::Metadata {
                    path: targets_path,
                    reason: format!("it delegates to {:?}, which is no channel", role.name),
                });
            };
            let version = pinned(&snapshot.meta, &format!("{}.json", role.name), &path)?;
            let (path, bytes) = whole(
                &format!("{version}.{}.json", role.name),
                limits.targets_max_length,
            )?;
            trusted
                .update_delegated_targets(&bytes, &role.name, "targets", now)
                .map_err(|e| explain(e, &path))?;
            channels.insert(channel.to_owned(), parse(&bytes, &path)?);
        }
        Ok(Self {
            root: parse(&root_bytes, &root_path)?,
            root_bytes,
            timestamp,
            snapshot,
            targets,
            channels,
        })
    }

    /// All of it, piece by piece, with the files they were read from.
    pub(crate) fn pieces(&self, folder: &Folder) -> Vec<Piece> {
        let piece = |role: &str, name: String, expires| Piece {
            role: role.to_owned(),
            path: folder.metadata_file(&name),
            expires,
        };
        let numbered = |role: &str, version: u64, expires| {
            piece(role, format!("{version}.{role}.json"), expires)
        };
        let mut all = vec![
            numbered("root", self.root.version.get(), self.root.expires),
            piece("timestamp", "timestamp.json".into(), self.timestamp.expires),
            numbered(
                "snapshot",
                self.snapshot.version.get(),
                self.snapshot.expires,
            ),
            numbered("targets", self.targets.version.get(), self.targets.expires),
        ];
        for (channel, signed) in &self.channels {
            all.push(numbered(
                &role_of_channel(channel),
                signed.version.get(),
                signed.expires,
            ));
        }
        all
    }
}

/// The most bytes that hosts read of a role's metadata.
pub(crate) fn limit_of(role: &str) -> u64 {
    let limits = UpdaterConfig::default();
    match role {
        "root" => limits.root_max_length,
        "timestamp" => limits.timestamp_max_length,
        "snapshot" => limits.snapshot_max_length,
        _ => limits.targets_max_length,
    }
}

fn parse<R: DeserializeOwned>(bytes: &[u8], path: &Path) -> Result<R, PublishError> {
    serde_json::from_slice::<Signed<R>>(bytes)
        .map(|role| role.signed)
        .map_err(|e| PublishError::Metadata {
            path: path.to_owned(),
            reason: e.to_string(),
        })
}

fn pinned(
    meta: &std::collections::HashMap<String, tough::schema::Metafile>,
    name: &str,
    path: &Path,
) -> Result<u64, PublishError> {
    meta.get(name)
        .map(|file| file.version.get())
        .ok_or_else(|| PublishError::Metadata {
            path: path.to_owned(),
            reason: format!("it does not refer to {name}"),
        })
}

fn explain(error: Tuf, path: &Path) -> PublishError {
    let path = path.to_owned();
    match error {
        Tuf::ThresholdNotMet {
            found, threshold, ..
        } => PublishError::Signature {
            path,
            found,
            threshold,
        },
        Tuf::Expired { expires, .. } => PublishError::Expired { path, expires },
        Tuf::IntegrityMismatch(_) => PublishError::Inconsistent { path },
        error => {
            let mut reason = error.to_string();
            let mut source = error.source();
            while let Some(cause) = source {
                reason = format!("{reason}: {cause}");
                source = cause.source();
            }
            PublishError::Metadata { path, reason }
        }
    }
}
