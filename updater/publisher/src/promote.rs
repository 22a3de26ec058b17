//! `promote`: a channel offers a version. From now on hosts take it.

use std::collections::HashMap;

use serde::Serialize;
use staging::version::PackageVersion;

use crate::disk::{self, SERVED};
use crate::feed::Feed;
use crate::names::{self, ChannelFile, SCHEMA, archive_name, channel_name};
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
    /// When the metadata expire, unless something is added, promoted or refreshed before.
    pub expires: jiff::Timestamp,
}

/// Makes `channel` offer a version that is in the feed. A lower version than before may be promoted: it withdraws the higher one
/// from hosts that have not taken it yet; those that have keep it, for hosts never go back by themselves.
///
/// # Errors
/// [`PublishError::VersionUnknown`] if it was not added for this target; anything wrong with the feed or the keys.
pub fn promote(place: &Place, what: &Promote) -> Result<Promoted, PublishError> {
    names::check("channel", &what.channel)?;
    names::check("target", &what.target)?;
    let mut feed = Feed::open(place)?;
    let archive = archive_name(&what.target, &what.version);
    let Some(added) = feed.target(&archive) else {
        return Err(PublishError::VersionUnknown {
            version: what.version.to_string(),
            target: what.target.clone(),
        });
    };
    let said = added
        .custom
        .get("notes")
        .and_then(serde_json::Value::as_str)
        .unwrap_or_default();
    let file = ChannelFile {
        schema: SCHEMA,
        version: what.version.to_string(),
        archive: archive.clone(),
        notes: what.notes.clone().unwrap_or_else(|| said.to_owned()),
        barriers: Vec::new(),
    };

    let name = channel_name(&what.target, &what.channel);
    // The version also in `custom`, so that the next promotion and `jq` need not open the file.
    let before = feed
        .target(&name)
        .and_then(|target| target.custom.get("version"))
        .and_then(|version| version.as_str().map(str::to_owned));
    let bytes = encode(&file)?;
    let measure = disk::measure_bytes(&bytes);
    let path = feed.folder.target_file(&name, &measure);
    if let Some(folder) = path.parent() {
        disk::make_folder(folder, 0o755)?;
    }
    disk::write_whole(&path, &bytes, SERVED)?;
    feed.set_target(
        &name,
        &measure,
        HashMap::from([("version".to_owned(), file.version.clone().into())]),
    )?;
    let versions = feed.commit(&what.validity)?;
    Ok(Promoted {
        channel: what.channel.clone(),
        version: file.version,
        before,
        archive,
        expires: versions.expires,
    })
}

fn encode(file: &ChannelFile) -> Result<Vec<u8>, PublishError> {
    let mut bytes = serde_json::to_vec_pretty(file).map_err(|e| PublishError::Sign {
        role: "targets",
        source: Box::new(e),
    })?;
    bytes.push(b'\n');
    Ok(bytes)
}
