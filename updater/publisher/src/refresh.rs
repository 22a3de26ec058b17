//! `refresh`: the same releases, signed anew, so that hosts do not see the feed expire. Run it from a timer.

use serde::Serialize;

use crate::feed::Feed;
use crate::{Place, PublishError, Validity};

/// How the feed is to be signed anew.
#[derive(Debug, Clone, Copy, Default)]
pub struct Refresh {
    /// When it is signed, and for how long.
    pub validity: Validity,
}

/// A feed that was signed anew.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Refreshed {
    /// Version of the targets metadata.
    pub targets: u64,
    /// Version of the snapshot metadata.
    pub snapshot: u64,
    /// Version of the timestamp metadata.
    pub timestamp: u64,
    /// When they expire.
    pub expires: jiff::Timestamp,
}

/// Signs targets, snapshot and timestamp again with a new expiry. Works on a feed that has expired, too.
///
/// # Errors
/// Anything wrong with the feed or the keys.
pub fn refresh(place: &Place, how: &Refresh) -> Result<Refreshed, PublishError> {
    let versions = Feed::open(place)?.commit(&how.validity)?;
    Ok(Refreshed {
        targets: versions.targets,
        snapshot: versions.snapshot,
        timestamp: versions.timestamp,
        expires: versions.expires,
    })
}
