//! `refresh`: the same releases, signed anew, so that hosts do not see the feed expire. Run it from a timer.

use serde::Serialize;

use crate::feed::Feed;
use crate::{METADATA_DAYS, Place, PublishError, Validity};

/// Days before its expiry from which on metadata are signed anew where their key is.
const NEAR_DAYS: u32 = 30;

/// How the feed is to be signed anew.
#[derive(Debug, Clone, Copy, Default)]
pub struct Refresh {
    /// When it is signed, and for how long the timestamp holds; whatever else is signed holds for [`METADATA_DAYS`] at least.
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
    /// When the first of all metadata expires.
    pub expires: jiff::Timestamp,
    /// The roles that were signed.
    pub signed: Vec<String>,
    /// Roles that expire soon and whose keys are not here.
    pub waiting: Vec<Waiting>,
}

/// A role that should be signed anew where its key is.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// The role.
    pub role: String,
    /// When its metadata expire.
    pub expires: jiff::Timestamp,
}

/// Signs the timestamp again with a new expiry, and with it whatever expires within 30 days and can be signed here. Works on a
/// feed that has expired, too.
///
/// # Errors
/// [`PublishError::ExpiredElsewhere`] if other metadata have expired whose key is not here; anything wrong with the feed.
pub fn refresh(place: &Place, how: &Refresh) -> Result<Refreshed, PublishError> {
    sign_anew(place, how, false)
}

/// Signs everything but the root again with a new expiry.
///
/// # Errors
/// [`PublishError::KeyMissing`] for any key that is not here; anything wrong with the feed.
pub fn refresh_all(place: &Place, how: &Refresh) -> Result<Refreshed, PublishError> {
    sign_anew(place, how, true)
}

fn sign_anew(place: &Place, how: &Refresh, all: bool) -> Result<Refreshed, PublishError> {
    let mut feed = Feed::open(place)?;
    let soon = how.validity.expires(how.validity.days)?;
    let late = how.validity.expires(how.validity.days.max(METADATA_DAYS))?;
    let near = how.validity.expires(NEAR_DAYS)?;
    let can_pin = feed.can_sign("snapshot");
    let mut waiting = Vec::new();
    for piece in feed.pieces() {
        let role = piece.role.as_str();
        let wanted = role != "root" && all || piece.expires < near;
        // Whatever is signed anew is pinned anew, so nothing goes without the snapshot's key.
        let can = role != "root" && can_pin && feed.can_sign(role);
        match (role, wanted) {
            ("timestamp", _) | (_, false) => {}
            ("snapshot", true) if can || all => feed.touch_snapshot(),
            ("targets", true) if can || all => feed.touch_targets(),
            (_, true) if role != "root" && (can || all) => {
                feed.touch_channel(role.strip_prefix("channel-").unwrap_or(role));
            }
            (_, true) => {
                if piece.expires < how.validity.now {
                    return Err(PublishError::ExpiredElsewhere {
                        role: role.to_owned(),
                        expires: piece.expires,
                        keys: feed.keys.folders(),
                    });
                }
                waiting.push(Waiting {
                    role: role.to_owned(),
                    expires: piece.expires,
                });
            }
        }
    }
    let versions = feed.sign(soon, late)?.write()?;
    Ok(Refreshed {
        targets: versions.targets,
        snapshot: versions.snapshot,
        timestamp: versions.timestamp,
        expires: versions.expires,
        signed: versions.signed,
        waiting,
    })
}
