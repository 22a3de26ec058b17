//! `withdraw`: a version that should not have been published leaves the feed.

use std::path::PathBuf;

use serde::Serialize;
use staging::digest;
use staging::version::PackageVersion;

use crate::feed::Feed;
use crate::names::{ChannelFile, SCHEMA, archive_name};
use crate::{Place, PublishError, Validity};

/// Which version goes.
#[derive(Debug, Clone)]
pub struct Withdraw {
    /// The version.
    pub version: PackageVersion,
    /// One target triple; without it, every one the version was added for.
    pub target: Option<String>,
    /// What channels that offered it offer instead; none: nothing, until the next promotion.
    pub instead: Option<PackageVersion>,
    /// When it is signed, and for how long.
    pub validity: Validity,
}

/// A version that has left the feed.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Withdrawn {
    /// The version.
    pub version: String,
    /// The target names of archives and patches that are gone.
    pub targets: Vec<String>,
    /// Their files, which nothing refers to any more; they may be removed when nobody downloads them.
    pub files: Vec<PathBuf>,
    /// The channels that offered it, and what they offer now.
    pub channels: Vec<ChannelAfter>,
    /// When the metadata expire, unless something is added, promoted or refreshed before.
    pub expires: jiff::Timestamp,
}

/// A channel that named the withdrawn version.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ChannelAfter {
    /// The channel.
    pub channel: String,
    /// The target triple.
    pub target: String,
    /// What it offers now; none: hosts read "no release".
    pub offers: Option<String>,
    /// Whether the version was one of its barriers, which is gone, too.
    pub barrier_removed: bool,
}

/// Takes a version out of the feed: its archives and the patches that make it are not signed any more, and no channel names it.
///
/// A channel that offered it offers `instead`, or has no file, which hosts read as "no release": they keep what they run. Hosts
/// that have the version keep it, too. The version's number is not free again: only the very same archive may be added anew.
///
/// # Errors
/// [`PublishError::VersionUnknown`] for either version; anything wrong with the feed or the keys of all roles concerned.
pub fn withdraw(place: &Place, what: &Withdraw) -> Result<Withdrawn, PublishError> {
    if what.instead.as_ref() == Some(&what.version) {
        return Err(PublishError::InsteadOfItself {
            version: what.version.to_string(),
        });
    }
    let mut feed = Feed::open(place)?;
    let version = what.version.to_string();
    let triples = feed.triples_with(&version, what.target.as_deref())?;
    let mut channels = Vec::new();
    for offer in feed.offers()? {
        if triples.contains(&offer.target)
            && let Some(after) = leave(&mut feed, place, what, offer)?
        {
            channels.push(after);
        }
    }
    let (mut targets, mut files) = (Vec::new(), Vec::new());
    for target in &triples {
        let archive = archive_name(target, &version);
        let patches = format!("rollproxy/{target}/{version}.from-");
        let mut names: Vec<_> = feed
            .targets
            .targets
            .keys()
            .map(|name| name.raw().to_owned())
            .filter(|name| *name == archive || name.starts_with(&patches))
            .collect();
        names.sort();
        for name in names {
            if let Some(gone) = feed.remove_target(&name) {
                files.push(feed.folder.target_file(&name, &gone.hashes.sha256));
                if name == archive {
                    feed.remember_withdrawn(&name, &digest::hex(&gone.hashes.sha256));
                }
                targets.push(name);
            }
        }
    }
    let versions = feed.commit(&what.validity)?;
    Ok(Withdrawn {
        version,
        targets,
        files,
        channels,
        expires: versions.expires,
    })
}

/// Makes one channel name the version no more; none if it did not.
fn leave(
    feed: &mut Feed,
    place: &Place,
    what: &Withdraw,
    offer: crate::channel::Offer,
) -> Result<Option<ChannelAfter>, PublishError> {
    let version = what.version.to_string();
    let (channel, target) = (offer.channel, offer.target);
    let offered = offer.file.version == version;
    let mut barriers = offer.file.barriers.clone();
    barriers.retain(|barrier| *barrier != version);
    let barrier_removed = barriers != offer.file.barriers;
    if !offered && !barrier_removed {
        return Ok(None);
    }
    feed.delegate(place, &channel)?;
    let after = match (&what.instead, offered) {
        (_, false) => Some(ChannelFile {
            barriers,
            ..offer.file
        }),
        (Some(instead), true) => Some(ChannelFile {
            schema: SCHEMA,
            version: instead.to_string(),
            archive: archive_name(&target, instead),
            notes: feed.notes_of(&instead.to_string(), &target)?,
            barriers,
        }),
        (None, true) => None,
    };
    match &after {
        Some(file) => feed.set_offer(&channel, &target, file)?,
        None => feed.clear_offer(&channel, &target),
    }
    Ok(Some(ChannelAfter {
        channel,
        target,
        offers: after.map(|file| file.version),
        barrier_removed,
    }))
}
