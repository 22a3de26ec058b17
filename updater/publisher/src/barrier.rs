//! `barrier`: a version that older hosts must have run before they go further.

use serde::Serialize;
use staging::version::PackageVersion;

use crate::feed::Feed;
use crate::names::{self, archive_name};
use crate::{Place, PublishError, Validity};

/// Which barrier a channel gets or loses.
#[derive(Debug, Clone)]
pub struct Barrier {
    /// The channel.
    pub channel: String,
    /// The version that is the barrier.
    pub version: PackageVersion,
    /// One target triple; without it, every one the channel offers something for.
    pub target: Option<String>,
    /// Whether it is taken away instead.
    pub remove: bool,
    /// When it is signed, and for how long.
    pub validity: Validity,
}

/// The barriers of a channel as they were signed.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Barriers {
    /// The channel.
    pub channel: String,
    /// For each target triple, the barriers, lowest first.
    pub barriers: Vec<TripleBarriers>,
    /// When the metadata expire, unless something is added, promoted or refreshed before.
    pub expires: jiff::Timestamp,
}

/// The barriers for one target triple.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TripleBarriers {
    /// The triple.
    pub target: String,
    /// The barriers, lowest first.
    pub barriers: Vec<String>,
}

/// Adds or removes a barrier of a channel: a host below it takes the barrier's version first, whatever the channel offers. Later
/// promotions keep it.
///
/// # Errors
/// [`PublishError::ChannelUnknown`]; [`PublishError::VersionUnknown`] if the barrier's archive is not in the feed for a target that
/// the channel offers something for; [`PublishError::BarrierAhead`] above what the channel offers; anything wrong with the feed or
/// the keys.
pub fn barrier(place: &Place, what: &Barrier) -> Result<Barriers, PublishError> {
    names::check("channel", &what.channel)?;
    let mut feed = Feed::open(place)?;
    let only = |triple: &String| what.target.as_ref().is_none_or(|only| only == triple);
    let triples: Vec<_> = feed
        .triples_of(&what.channel)
        .into_iter()
        .filter(only)
        .collect();
    if triples.is_empty() {
        return Err(PublishError::ChannelUnknown {
            channel: what.channel.clone(),
        });
    }
    feed.delegate(place, &what.channel)?;
    let mut all = Vec::new();
    for target in triples {
        let Some(mut file) = feed.offer(&what.channel, &target)? else {
            continue;
        };
        let mut barriers = parse(&file.barriers, &what.channel)?;
        barriers.retain(|barrier| *barrier != what.version);
        if !what.remove {
            if feed.target(&archive_name(&target, &what.version)).is_none() {
                return Err(PublishError::VersionUnknown {
                    version: what.version.to_string(),
                    target,
                });
            }
            let offered = file.version.parse::<PackageVersion>();
            if offered.is_ok_and(|offered| what.version > offered) {
                return Err(PublishError::BarrierAhead {
                    version: what.version.to_string(),
                    channel: what.channel.clone(),
                    offered: file.version,
                });
            }
            barriers.push(what.version.clone());
            barriers.sort();
        }
        file.barriers = barriers.iter().map(ToString::to_string).collect();
        feed.set_offer(&what.channel, &target, &file)?;
        all.push(TripleBarriers {
            target,
            barriers: file.barriers,
        });
    }
    let versions = feed.commit(&what.validity)?;
    Ok(Barriers {
        channel: what.channel.clone(),
        barriers: all,
        expires: versions.expires,
    })
}

fn parse(barriers: &[String], channel: &str) -> Result<Vec<PackageVersion>, PublishError> {
    let parsed = barriers.iter().map(|barrier| barrier.parse());
    parsed
        .collect::<Result<_, _>>()
        .map_err(|e: staging::version::VersionError| PublishError::Custom {
            name: format!("the barriers of {channel}"),
            reason: e.to_string(),
        })
}
