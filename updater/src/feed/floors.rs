//! The highest metadata versions this host has seen: they survive a cache that is lost or damaged, so that nobody can use
//! that moment to offer yesterday's feed.
//!
//! They hold for one pinned root and one set of timestamp and snapshot keys. When the root replaces those keys, the
//! floors start anew, as the TUF specification asks: that is how a publisher recovers from stolen keys that signed absurdly high
//! versions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sigstore_tuf::TrustedMetadataSet;
use staging::document::{self, Document};
use staging::home::Home;

use super::FeedError;
use super::pin::PinnedRoot;

/// The floors' file in the folder of cached metadata.
pub(super) const FILE: &str = "versions.json";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    schema: u32,
    /// SHA-256 of the pinned root they hold for.
    pinned_root: String,
    /// Ids of the keys they hold for.
    keys: BTreeSet<String>,
    root: u64,
    timestamp: u64,
    snapshot: u64,
    targets: u64,
    /// Of the roles that `targets` delegates to.
    #[serde(default)]
    delegated: BTreeMap<String, u64>,
}

impl Document for Versions {
    const SCHEMA: u32 = 1;
    const NAME: &'static str = "record of feed versions";
}

/// The floors of a home.
#[derive(Debug)]
pub(super) struct Floors {
    path: PathBuf,
    versions: Versions,
}

/// The versions of metadata that were verified.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Seen {
    keys: BTreeSet<String>,
    root: u64,
    timestamp: Option<u64>,
    snapshot: Option<u64>,
    targets: Option<u64>,
    /// The delegated roles that the snapshot names; none if there is no snapshot.
    delegated: Option<BTreeMap<String, u64>>,
}

impl Seen {
    pub(super) fn of(trusted: &TrustedMetadataSet) -> Self {
        let root = trusted.root();
        let keys = ["timestamp", "snapshot"]
            .iter()
            .filter_map(|role| root.role(role));
        Self {
            keys: keys.flat_map(|role| role.keyids.iter().cloned()).collect(),
            root: root.version,
            timestamp: trusted.timestamp().map(|timestamp| timestamp.version),
            snapshot: trusted.snapshot().map(|snapshot| snapshot.version),
            targets: trusted
                .targets_role("targets")
                .map(|targets| targets.version),
            // The snapshot names the version of each, whether it was read or not.
            delegated: trusted.snapshot().map(|snapshot| {
                let roles = snapshot.meta.iter().filter_map(|(file, about)| {
                    let role = file.strip_suffix(".json")?;
                    (role != "targets").then(|| (role.to_owned(), about.version))
                });
                roles.collect()
            }),
        }
    }
}

impl Floors {
    /// The floors of `home`; none if they were of another pinned root.
    pub(super) fn read(home: &Home, root: &PinnedRoot) -> Result<Self, FeedError> {
        let path = home.feed().join(FILE);
        let versions = document::read::<Versions>(&path)?
            .filter(|versions| versions.pinned_root == root.sha256())
            .unwrap_or_else(|| Versions {
                schema: Versions::SCHEMA,
                pinned_root: root.sha256().to_owned(),
                keys: BTreeSet::new(),
                root: 0,
                timestamp: 0,
                snapshot: 0,
                targets: 0,
                delegated: BTreeMap::new(),
            });
        Ok(Self { path, versions })
    }

    /// Refuses what is older than what was seen.
    pub(super) fn judge(&self, seen: &Seen) -> Result<(), FeedError> {
        refuse_older("root", self.versions.root, Some(seen.root))?;
        if seen.keys != self.versions.keys {
            return Ok(());
        }
        refuse_older("timestamp", self.versions.timestamp, seen.timestamp)?;
        refuse_older("snapshot", self.versions.snapshot, seen.snapshot)?;
        refuse_older("targets", self.versions.targets, seen.targets)?;
        let Some(delegated) = &seen.delegated else {
            return Ok(());
        };
        // One that is gone went back too: a snapshot never loses a role.
        self.versions
            .delegated
            .iter()
            .try_for_each(|(role, floor)| {
                let seen = delegated.get(role).copied().unwrap_or(0);
                refuse_older(role, *floor, Some(seen))
            })
    }

    /// Remembers what was seen, durably; writes nothing if it is nothing new.
    pub(super) fn raise(&mut self, seen: &Seen) -> Result<(), FeedError> {
        let raised = raised(&self.versions, seen);
        if raised != self.versions {
            document::write(&self.path, &raised)?;
            self.versions = raised;
        }
        Ok(())
    }
}

fn raised(floors: &Versions, seen: &Seen) -> Versions {
    let anew = seen.keys != floors.keys;
    let above = |floor: u64, seen: Option<u64>| {
        let seen = seen.unwrap_or(0);
        if anew { seen } else { floor.max(seen) }
    };
    let mut delegated = if anew {
        BTreeMap::new()
    } else {
        floors.delegated.clone()
    };
    for (role, version) in seen.delegated.iter().flatten() {
        let floor = delegated.entry(role.clone()).or_default();
        *floor = (*floor).max(*version);
    }
    Versions {
        schema: floors.schema,
        pinned_root: floors.pinned_root.clone(),
        keys: seen.keys.clone(),
        root: floors.root.max(seen.root),
        timestamp: above(floors.timestamp, seen.timestamp),
        snapshot: above(floors.snapshot, seen.snapshot),
        targets: above(floors.targets, seen.targets),
        delegated,
    }
}

fn refuse_older(role: &str, floor: u64, seen: Option<u64>) -> Result<(), FeedError> {
    match seen {
        Some(seen) if seen < floor => Err(FeedError::Rollback {
            // A delegated role's name is the publisher's; all others are plain.
            role: role
                .chars()
                .filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c))
                .take(64)
                .collect(),
            trusted: floor,
            offered: seen,
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(keys: &str, root: u64, rest: u64) -> Seen {
        Seen {
            keys: BTreeSet::from([keys.to_owned()]),
            root,
            timestamp: Some(rest),
            snapshot: Some(rest),
            targets: Some(rest),
            delegated: Some(BTreeMap::from([("channel-stable".to_owned(), rest)])),
        }
    }

    fn floors(folder: &tempfile::TempDir, seen: &Seen) -> Floors {
        let versions = Versions {
            schema: 1,
            pinned_root: "r".into(),
            keys: BTreeSet::new(),
            root: 0,
            timestamp: 0,
            snapshot: 0,
            targets: 0,
            delegated: BTreeMap::new(),
        };
        let mut floors = Floors {
            path: folder.path().join(FILE),
            versions,
        };
        floors.judge(seen).unwrap();
        floors.raise(seen).unwrap();
        floors
    }

    #[test]
    fn versions_only_rise() {
        let folder = tempfile::tempdir().unwrap();
        let mut floors = floors(&folder, &seen("k", 1, 5));
        floors.judge(&seen("k", 1, 5)).unwrap();
        assert!(matches!(
            floors.judge(&seen("k", 1, 4)),
            Err(FeedError::Rollback {
                trusted: 5,
                offered: 4,
                ..
            })
        ));
        floors.raise(&seen("k", 1, 4)).unwrap();
        assert_eq!(floors.versions.timestamp, 5);
        // A refresh that failed half-way saw less; that lowers nothing.
        floors
            .raise(&Seen {
                timestamp: None,
                ..seen("k", 1, 6)
            })
            .unwrap();
        assert_eq!((floors.versions.timestamp, floors.versions.targets), (5, 6));
    }

    #[test]
    fn new_keys_start_anew_but_an_old_root_does_not_bring_old_keys_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut floors = floors(&folder, &seen("stolen", 1, 1_000_000));
        floors.judge(&seen("new", 2, 3)).unwrap();
        floors.raise(&seen("new", 2, 3)).unwrap();
        assert_eq!(floors.versions.timestamp, 3);
        assert!(matches!(
            floors.judge(&seen("stolen", 1, 1_000_001)),
            Err(FeedError::Rollback { offered: 1, .. })
        ));
    }

    #[test]
    fn a_delegated_role_neither_goes_back_nor_away() {
        let folder = tempfile::tempdir().unwrap();
        let mut floors = floors(&folder, &seen("k", 1, 5));
        let of = |version: Option<u64>| {
            let role = version.map(|version| ("channel-stable".to_owned(), version));
            Seen {
                delegated: Some(role.into_iter().collect()),
                ..seen("k", 1, 6)
            }
        };
        for back in [Some(4), None] {
            let error = floors.judge(&of(back)).unwrap_err();
            assert!(
                matches!(&error, FeedError::Rollback { role, trusted: 5, .. } if role == "channel-stable"),
                "{error}"
            );
        }
        floors.judge(&of(Some(5))).unwrap();
        // Without a snapshot nothing is known of them, and nothing is forgotten.
        let half = Seen {
            delegated: None,
            ..seen("k", 1, 6)
        };
        floors.judge(&half).unwrap();
        floors.raise(&half).unwrap();
        assert_eq!(floors.versions.delegated["channel-stable"], 5);
        // Other keys: anew, as all the rest.
        floors
            .judge(&Seen {
                delegated: Some(BTreeMap::new()),
                ..seen("new", 2, 1)
            })
            .unwrap();
    }

    #[test]
    fn floors_written_before_there_were_channel_roles_are_read() {
        let old = r#"{"schema":1,"pinnedRoot":"r","keys":["k"],"root":1,"timestamp":5,"snapshot":5,"targets":5}"#;
        let versions: Versions = serde_json::from_str(old).unwrap();
        assert!(versions.delegated.is_empty());
    }
}
