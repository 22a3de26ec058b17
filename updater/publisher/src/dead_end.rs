//! `dead-end`: no update leads on from a version without a person.

use serde::Serialize;
use staging::version::PackageVersion;

use crate::feed::Feed;
use crate::names::{self, REASON_LIMIT};
use crate::{Place, PublishError, Validity};

/// Which version is a dead end, or no more.
#[derive(Debug, Clone)]
pub struct DeadEnd {
    /// The version.
    pub version: PackageVersion,
    /// One target triple; without it, every one the version was added for.
    pub target: Option<String>,
    /// Why, and what a person has to do; none: it is no dead end any more.
    pub reason: Option<String>,
    /// When it is signed, and for how long.
    pub validity: Validity,
}

/// What was signed about a dead end.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadEnds {
    /// The version.
    pub version: String,
    /// The target names of its archives.
    pub archives: Vec<String>,
    /// Why it is a dead end, if it is one.
    pub dead_end: Option<String>,
    /// When the metadata expire, unless something is added, promoted or refreshed before.
    pub expires: jiff::Timestamp,
}

/// Says that hosts which run a version take no further update by themselves, or that they may again.
///
/// # Errors
/// [`PublishError::VersionUnknown`]; a reason longer than hosts keep; anything wrong with the feed or the keys.
pub fn dead_end(place: &Place, what: &DeadEnd) -> Result<DeadEnds, PublishError> {
    if let Some(reason) = &what.reason {
        names::check_text("reason", reason, REASON_LIMIT)?;
    }
    let mut feed = Feed::open(place)?;
    let version = what.version.to_string();
    let archives = feed.edit_archives(&version, what.target.as_deref(), |custom| {
        custom.dead_end.clone_from(&what.reason);
    })?;
    let versions = feed.commit(&what.validity)?;
    Ok(DeadEnds {
        version,
        archives,
        dead_end: what.reason.clone(),
        expires: versions.expires,
    })
}
