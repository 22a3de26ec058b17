//! Making and signing Rollproxy releases.
//!
//! A feed is a standard TUF repository in a folder that any static file server can serve: `<feed>/metadata/` and
//! `<feed>/targets/`, with consistent snapshots, ed25519 signatures and expiries in whole seconds. The keys live in another
//! folder, readable by their owner only. Nothing here links into what runs on hosts: they only verify.
//!
//! Every function is blocking and needs no runtime, so it can be called from anywhere. A change takes the lock in the keys
//! folder, verifies the feed as it stands, writes target files first, then `targets`, `snapshot` and, last, `timestamp`
//! metadata, each by an atomic rename. A client that reads meanwhile meets the old whole or the new whole feed.

pub mod add;
mod disk;
mod error;
mod feed;
pub mod init;
mod keys;
mod lock;
mod names;
pub mod promote;
pub mod refresh;
mod sign;

pub use add::{Add, Added, Binaries, Source, add};
pub use error::PublishError;
pub use init::{Init, Initialised, init};
pub use names::{ArchiveCustom, ChannelFile, Ramp, archive_name, channel_name};
pub use promote::{Promote, Promoted, promote};
pub use refresh::{Refresh, Refreshed, refresh};

use std::path::{Path, PathBuf};

/// Days for which freshly signed `targets`, `snapshot` and `timestamp` metadata are valid, unless told otherwise.
pub const METADATA_DAYS: u32 = 90;
/// Days for which a new root of trust is valid, unless told otherwise.
pub const ROOT_DAYS: u32 = 3650;

/// Where a feed lies and where the keys are that sign it.
#[derive(Debug, Clone)]
pub struct Place {
    /// The folder that is served to hosts.
    pub feed: PathBuf,
    /// The folder of the private keys; never below `feed`.
    pub keys: PathBuf,
}

impl Place {
    /// A place made of its two folders.
    pub fn new(feed: impl AsRef<Path>, keys: impl AsRef<Path>) -> Self {
        Self {
            feed: feed.as_ref().to_owned(),
            keys: keys.as_ref().to_owned(),
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
