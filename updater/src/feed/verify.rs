//! Reading the cached metadata without a network: can this build still trust what the one before it stored?

use jiff::Timestamp;
use serde::Serialize;
use sigstore_tuf::{Error as Tuf, TrustedMetadataSet};

use super::FeedError;
use super::pin::PinnedRoot;
use super::store::Store;

/// The cached metadata, as far as they are there; all of them verified from the pinned root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cached {
    /// Version of the newest root that the pinned one leads to.
    pub root: u64,
    /// Version of the timestamp metadata.
    pub timestamp: Option<u64>,
    /// Version of the snapshot metadata.
    pub snapshot: Option<u64>,
    /// Version of the targets metadata.
    pub targets: Option<u64>,
    /// When the timestamp metadata expire.
    pub expires: Option<Timestamp>,
}

impl Cached {
    pub(super) fn read(store: &Store, root: &PinnedRoot) -> Result<Self, FeedError> {
        // Readable is the question here, not fresh: as of the earliest moment nothing has expired.
        let whenever = Timestamp::MIN;
        let mut trusted = TrustedMetadataSet::from_root(root.bytes()).map_err(|e| {
            FeedError::CacheUnreadable {
                path: "trust/root.json".into(),
                reason: why(&e),
            }
        })?;
        loop {
            let name = format!("root_history/{}.root.json", trusted.root().version + 1);
            match read(store, &name, |bytes| trusted.update_root(bytes))? {
                Step::Read => {}
                Step::Absent => break,
            }
        }
        // Each refers to the next; without one there is no judging what comes after it.
        let lower: [(&str, Update); 3] = [
            ("timestamp.json", |trusted, bytes, now| {
                trusted.update_timestamp(bytes, now)
            }),
            ("snapshot.json", |trusted, bytes, now| {
                trusted.update_snapshot(bytes, now)
            }),
            ("targets.json", |trusted, bytes, now| {
                trusted.update_targets(bytes, now).map(drop)
            }),
        ];
        for (name, update) in lower {
            let mut earlier = false;
            let step = read(store, name, |bytes| {
                match update(&mut trusted, bytes, whenever) {
                    // A refresh that failed half-way left a newer file above it: it is of an earlier state, and the
                    // next refresh replaces it.
                    Err(Tuf::IntegrityMismatch(_) | Tuf::Rollback { .. }) => {
                        earlier = true;
                        Ok(())
                    }
                    outcome => outcome,
                }
            })?;
            if earlier || step == Step::Absent {
                break;
            }
        }
        Ok(Self {
            root: trusted.root().version,
            timestamp: trusted.timestamp().map(|timestamp| timestamp.version),
            snapshot: trusted.snapshot().map(|snapshot| snapshot.version),
            targets: trusted
                .targets_role("targets")
                .map(|targets| targets.version),
            expires: trusted.timestamp().map(|timestamp| timestamp.expires),
        })
    }
}

type Update = fn(&mut TrustedMetadataSet, &[u8], Timestamp) -> sigstore_tuf::Result<()>;

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Read,
    Absent,
}

fn read(
    store: &Store,
    name: &str,
    verify: impl FnOnce(&[u8]) -> sigstore_tuf::Result<()>,
) -> Result<Step, FeedError> {
    let Some(bytes) = store.get(name)? else {
        return Ok(Step::Absent);
    };
    let path = store.path(name)?;
    verify(&bytes).map_err(|e| FeedError::CacheUnreadable {
        path,
        reason: why(&e),
    })?;
    Ok(Step::Read)
}

fn why(error: &Tuf) -> &'static str {
    match error {
        Tuf::Json(_) => "not JSON",
        Tuf::Malformed(_) | Tuf::NonIntegerNumber | Tuf::UnknownRole(_) => "JSON of another shape",
        Tuf::IntegrityMismatch(_) => "not what the file above it names",
        Tuf::Rollback { .. } | Tuf::BadRootVersion { .. } => "another version than expected",
        _ => "not signed by trusted keys",
    }
}
