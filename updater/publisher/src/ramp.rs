//! `ramp`: a version reaches hosts share by share.

use serde::Serialize;
use staging::version::PackageVersion;

use crate::feed::Feed;
use crate::names::Ramp;
use crate::{Place, PublishError, Validity};

/// Which ramp a version is to have.
#[derive(Debug, Clone)]
pub struct SetRamp {
    /// The version.
    pub version: PackageVersion,
    /// One target triple; without it, every one the version was added for.
    pub target: Option<String>,
    /// The ramp; none lets every host take the version at once.
    pub ramp: Option<Ramp>,
    /// When it is signed, and for how long.
    pub validity: Validity,
}

/// A ramp that was signed.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ramped {
    /// The version.
    pub version: String,
    /// The target names of its archives.
    pub archives: Vec<String>,
    /// The ramp it has now.
    pub ramp: Option<Ramp>,
    /// When the metadata expire, unless something is added, promoted or refreshed before.
    pub expires: jiff::Timestamp,
}

/// Sets or ends the ramp of a version, also while it runs. Hosts that have taken the version keep it.
///
/// # Errors
/// [`PublishError::VersionUnknown`]; anything wrong with the feed or the keys.
pub fn ramp(place: &Place, what: &SetRamp) -> Result<Ramped, PublishError> {
    let mut feed = Feed::open(place)?;
    let version = what.version.to_string();
    let archives = feed.edit_archives(&version, what.target.as_deref(), |custom| {
        custom.ramp.clone_from(&what.ramp);
    })?;
    let versions = feed.commit(&what.validity)?;
    Ok(Ramped {
        version,
        archives,
        ramp: what.ramp.clone(),
        expires: versions.expires,
    })
}
