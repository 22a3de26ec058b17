//! `promote`: a channel offers a version. From now on hosts take it.

use serde::Serialize;
use staging::version::PackageVersion;

use crate::feed::Feed;
use crate::names::{self, ChannelFile, NOTES_LIMIT, SCHEMA, archive_name};
use crate::{Place, PublishError, Validity};

/// What is to be promoted.
#[derive(Debug, Clone)]
pub struct Promote {
    /// The channel, such as `stable`.
    pub channel: String,
    /// A version that is in the feed.
    pub version: PackageVersion,
    /// The target triple.
    pub target: String,
    /// What people should know; without it, what was said when the version was added.
    pub notes: Option<String>,
    /// When it is signed, and for how long.
    pub validity: Validity,
}

impl Promote {
    /// A promotion for the target this program was built for.
    pub fn new(channel: &str, version: PackageVersion) -> Self {
        Self {
            channel: channel.to_owned(),
            version,
            target: staging::TARGET.to_owned(),
            notes: None,
            validity: Validity::default(),
        }
    }
}

/// A promotion that was signed.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Promoted {
    /// The channel.
    pub channel: String,
    /// The version it now offers.
    pub version: String,
    /// The version it offered before, if it did.
    pub before: Option<String>,
    /// The target name of the archive.
    pub archive: String,
    /// Versions that older hosts still must have run before they go further; a promotion keeps them.
    pub barriers: Vec<String>,
    /// Whether the channel is new: then its key was made.
    pub new_channel: bool,
    /// When the metadata expire, unless something is added, promoted or refreshed before.
    pub expires: jiff::Timestamp,
}

/// Makes `channel` offer a version that is in the feed. A lower version than before may be promoted: it withdraws the higher one
/// from hosts that have not taken it yet; those that have keep it, for hosts never go back by themselves.
///
/// The first promotion of a channel makes its key and its role, which `targets` signs; later ones need the keys of the
/// channel, `snapshot` and `timestamp` only.
///
/// # Errors
/// [`PublishError::VersionUnknown`] if it was not added for this target; anything wrong with the feed or the keys.
pub fn promote(place: &Place, what: &Promote) -> Result<Promoted, PublishError> {
    names::check("channel", &what.channel)?;
    names::check("target", &what.target)?;
    if let Some(notes) = &what.notes {
        names::check_text("notes", notes, NOTES_LIMIT)?;
    }
    let mut feed = Feed::open(place)?;
    let archive = archive_name(&what.target, &what.version);
    let said = feed.notes_of(&what.version.to_string(), &what.target)?;
    let before = feed.offer(&what.channel, &what.target)?;
    let file = ChannelFile {
        schema: SCHEMA,
        version: what.version.to_string(),
        archive: archive.clone(),
        notes: what.notes.clone().unwrap_or(said),
        barriers: before
            .as_ref()
            .map(|before| before.barriers.clone())
            .unwrap_or_default(),
    };
    let new_channel = !feed.channels.contains_key(&what.channel);
    feed.delegate(place, &what.channel)?;
    feed.set_offer(&what.channel, &what.target, &file)?;
    let versions = feed.commit(&what.validity)?;
    Ok(Promoted {
        channel: what.channel.clone(),
        version: file.version,
        before: before.map(|before| before.version),
        archive,
        barriers: file.barriers,
        new_channel,
        expires: versions.expires,
    })
}

impl Feed {
    /// What was said about a version when it was added.
    ///
    /// # Errors
    /// [`PublishError::VersionUnknown`]
    pub(crate) fn notes_of(&self, version: &str, target: &str) -> Result<String, PublishError> {
        let archive = self.target(&archive_name(target, version)).ok_or_else(|| {
            PublishError::VersionUnknown {
                version: version.to_owned(),
                target: target.to_owned(),
            }
        })?;
        let notes = archive.custom.get("notes").and_then(|notes| notes.as_str());
        Ok(notes.unwrap_or_default().to_owned())
    }
}
