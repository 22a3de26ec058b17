//! Making and signing Rollproxy releases.
//!
//! A feed is a standard TUF repository in a folder that any static file server can serve: `<feed>/metadata/` and
//! `<feed>/targets/`, with consistent snapshots, ed25519 signatures and expiries in whole seconds. The keys live in other
//! folders, readable by their owner only. Nothing here links into what runs on hosts: they only verify.
//!
//! The root names its own keys (two of three must sign, unless told otherwise) and one key each for `targets`, `snapshot` and
//! `timestamp`. `targets` signs archives and patches, and delegates each channel's files, terminating, to a role and key of its
//! own: whoever holds a channel's key can choose among the versions that `targets` signed, and nothing else.
//!
//! Every function is blocking and needs no runtime, so it can be called from anywhere. A change takes the locks, verifies the
//! feed from its first root as hosts do, signs everything in memory, and only then writes: target files first, then `channel-…`,
//! `targets`, `snapshot` and, last, `timestamp` metadata, each by an atomic rename. A client that reads meanwhile meets the old
//! whole or the new whole feed, and so does one that reads after a publisher was killed.

pub mod add;
mod archives;
pub mod barrier;
mod chain;
mod channel;
pub mod dead_end;
mod deltas;
mod disk;
mod error;
mod feed;
pub mod init;
mod keys;
mod lock;
mod names;
pub mod promote;
pub mod ramp;
pub mod refresh;
mod role;
mod root;
pub mod rotate;
mod sign;
#[cfg(test)]
mod tests;
pub mod verify;
pub mod withdraw;

pub use add::{Add, Added, Binaries, Source, add};
pub use barrier::{Barrier, Barriers, barrier};
pub use dead_end::{DeadEnd, DeadEnds, dead_end};
pub use deltas::SkippedDelta;
pub use error::PublishError;
pub use init::{Init, Initialised, init};
pub use names::{ArchiveCustom, ChannelFile, Delta, Ramp, archive_name, channel_name, patch_name};
pub use promote::{Promote, Promoted, promote};
pub use ramp::{Ramped, SetRamp, ramp};
pub use refresh::{Refresh, Refreshed, Waiting, refresh, refresh_all};
pub use role::KeyRole;
pub use rotate::{NewKey, Rotate, Rotated, rotate};
pub use verify::{Verified, Verify, verify};
pub use withdraw::{Withdraw, Withdrawn, withdraw};

use std::path::{Path, PathBuf};

/// Days before an expiry from which on `verify` tells it. Fewer than the week that a timestamp signed daily from cron may be
/// given, so that such a feed is quiet while cron runs.
pub const WARN_DAYS: u32 = 5;
/// Days for which freshly signed `targets`, `snapshot` and `timestamp` metadata are valid, unless told otherwise.
pub const METADATA_DAYS: u32 = 90;
/// Keys of the root, unless told otherwise.
pub const ROOT_KEYS: u8 = 3;
/// Keys that must sign a new root, unless told otherwise.
pub const ROOT_THRESHOLD: u8 = 2;
/// Days for which a new root of trust is valid, unless told otherwise.
pub const ROOT_DAYS: u32 = 3650;

/// Where a feed lies and where the keys are that sign it.
#[derive(Debug, Clone)]
pub struct Place {
    /// The folder that is served to hosts.
    pub feed: PathBuf,
    /// The folder of the private keys; never below `feed`.
    pub keys: PathBuf,
    /// Further folders of keys, for those of the root, which can be offline at all other times; never below `feed`.
    pub root_keys: Vec<PathBuf>,
}

impl Place {
    /// A place made of its two folders.
    pub fn new(feed: impl AsRef<Path>, keys: impl AsRef<Path>) -> Self {
        Self {
            feed: feed.as_ref().to_owned(),
            keys: keys.as_ref().to_owned(),
            root_keys: Vec::new(),
        }
    }

    /// The same place with folders of their own for the keys of the root.
    #[must_use]
    pub fn with_root_keys(mut self, folders: impl IntoIterator<Item = impl AsRef<Path>>) -> Self {
        self.root_keys = folders
            .into_iter()
            .map(|folder| folder.as_ref().to_owned())
            .collect();
        self
    }

    /// Every folder of keys, the one for all roles first.
    pub(crate) fn key_folders(&self) -> Vec<PathBuf> {
        let mut all = vec![self.keys.clone()];
        all.extend(self.root_keys.iter().cloned());
        all
    }

    /// Where the `number`th key of the root is put, from 1 on: the folders take turns.
    pub(crate) fn root_key_folder(&self, number: usize) -> &Path {
        match self.root_keys.len() {
            0 => &self.keys,
            count => &self.root_keys[number.saturating_sub(1) % count],
        }
    }

    /// The file of the first root of trust: what hosts pin at their start.
    pub fn root(&self) -> PathBuf {
        self.feed.join("metadata").join("1.root.json")
    }
}

/// When something is signed, and for how long it holds.
#[derive(Debug, Clone, Copy)]
pub struct Validity {
    /// The moment of signing; a test may choose one in the past.
    pub now: jiff::Timestamp,
    /// Days until the signed metadata expire, at least 1.
    pub days: u32,
}

impl Default for Validity {
    fn default() -> Self {
        Self {
            now: jiff::Timestamp::now(),
            days: METADATA_DAYS,
        }
    }
}

impl Validity {
    /// The expiry, in whole seconds: what other TUF implementations parse.
    fn expires(&self, days: u32) -> Result<jiff::Timestamp, PublishError> {
        let out_of_range = || PublishError::Expiry { days };
        let span = jiff::SignedDuration::from_hours(i64::from(days.max(1)) * 24);
        let end = self.now.checked_add(span).map_err(|_| out_of_range())?;
        jiff::Timestamp::from_second(end.as_second()).map_err(|_| out_of_range())
    }
}
