//! The words of a feed: target names, and what stands in them and beside them.

use std::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::PublishError;

/// Schema number of the channel file and of an archive's `custom`.
pub(crate) const SCHEMA: u32 = 1;

/// The target name of a version's archive: `rollproxy/<triple>/<version>.tar.gz`.
pub fn archive_name(target: &str, version: impl Display) -> String {
    format!("rollproxy/{target}/{version}.tar.gz")
}

/// The target name of a channel's file: `rollproxy/<triple>/<channel>.json`.
pub fn channel_name(target: &str, channel: &str) -> String {
    format!("rollproxy/{target}/{channel}.json")
}

/// The target name of a patch: `rollproxy/<triple>/<version>.from-<from>.patch`.
pub fn patch_name(target: &str, version: impl Display, from: impl Display) -> String {
    format!("rollproxy/{target}/{version}.from-{from}.patch")
}

/// The triple and the version of an archive's target name.
pub(crate) fn parse_archive(name: &str) -> Option<(&str, &str)> {
    let (target, file) = name.strip_prefix("rollproxy/")?.split_once('/')?;
    file.strip_suffix(".tar.gz")
        .map(|version| (target, version))
}

/// The triple in the target name of a file of `channel`.
pub(crate) fn parse_channel<'a>(name: &'a str, channel: &str) -> Option<&'a str> {
    let (target, file) = name.strip_prefix("rollproxy/")?.split_once('/')?;
    (file.strip_suffix(".json") == Some(channel)).then_some(target)
}

/// The role that signs what a channel offers.
pub(crate) fn role_of_channel(channel: &str) -> String {
    format!("channel-{channel}")
}

/// The target names that a channel's role may sign, as a pattern: one file a triple.
pub(crate) fn paths_of_channel(channel: &str) -> String {
    channel_name("*", channel)
}

/// What a channel offers: one small signed file a channel and target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChannelFile {
    /// Schema number of this file.
    pub schema: u32,
    /// The version on offer.
    pub version: String,
    /// The target name of its archive.
    pub archive: String,
    /// What people should know about it; may be empty.
    #[serde(default)]
    pub notes: String,
    /// Versions that older hosts must have run before they go further, lowest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub barriers: Vec<String>,
}

/// What the feed says about an archive, in its `custom` field. Integers only: canonical JSON knows no fractions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ArchiveCustom {
    /// Schema number of this object.
    pub schema: u32,
    /// The version in the archive.
    pub version: String,
    /// The lowest version that may update to this one directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_version: Option<String>,
    /// Which share of hosts takes it, and how that share grows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ramp: Option<Ramp>,
    /// Why no update leads on from this version without a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_end: Option<String>,
    /// SHA-256 of the package's manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// Patches that make it from an earlier version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deltas: Vec<Delta>,
    /// What people should know; a promotion copies it into the channel file.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub notes: String,
}

/// A patch that makes one version's archive content from the files of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Delta {
    /// The version it is made from.
    pub from: String,
    /// SHA-256 of that version's manifest.
    pub from_manifest: String,
    /// The target name of the patch: `rollproxy/<triple>/<version>.from-<from>.patch`.
    pub target: String,
    /// Bytes of the patch.
    pub length: u64,
    /// SHA-256 of the patch.
    pub sha256: String,
    /// Bytes of the tar that it makes.
    pub content_length: u64,
    /// SHA-256 of that tar.
    pub content_sha256: String,
}

/// A rollout over time: from `share` percent at `start` to all hosts `durationMs` later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ramp {
    /// When it starts; before that no host takes the version.
    pub start: jiff::Timestamp,
    /// The share of hosts at the start, in percent, 0 to 100.
    pub share: u8,
    /// Milliseconds from the start until every host takes it.
    pub duration_ms: u64,
}

impl Ramp {
    /// A ramp of `share` percent at `start` that reaches all hosts `over` later.
    ///
    /// # Errors
    /// [`PublishError::Share`] above 100 percent.
    pub fn new(
        start: jiff::Timestamp,
        share: u8,
        over: std::time::Duration,
    ) -> Result<Self, PublishError> {
        if share > 100 {
            return Err(PublishError::Share { share });
        }
        Ok(Self {
            // Whole seconds, as all times of a feed.
            start: jiff::Timestamp::from_second(start.as_second()).unwrap_or(start),
            share,
            duration_ms: u64::try_from(over.as_millis()).unwrap_or(u64::MAX),
        })
    }
}

/// Characters of notes that hosts keep.
pub(crate) const NOTES_LIMIT: usize = 4000;
/// Characters of the reason for a dead end that hosts keep.
pub(crate) const REASON_LIMIT: usize = 500;

/// Refuses a text that hosts would cut.
pub(crate) fn check_text(what: &'static str, text: &str, limit: usize) -> Result<(), PublishError> {
    match text.chars().count() {
        length if length > limit => Err(PublishError::TooLong {
            what,
            length,
            limit,
        }),
        _ => Ok(()),
    }
}

/// A channel's or target's name becomes a file name and part of a URL, so it is plain.
pub(crate) fn check(what: &'static str, value: &str) -> Result<(), PublishError> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
    if !value.is_empty() && value.len() <= 64 && value.chars().all(plain) && !value.starts_with('-')
    {
        return Ok(());
    }
    Err(PublishError::Name {
        what,
        value: value.to_owned(),
        allowed: "1 to 64 of a-z, 0-9, - and _, not starting with -",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        let triple = "x86_64-unknown-linux-gnu";
        let archive = archive_name(triple, "1.0.0-rc.1");
        assert_eq!(parse_archive(&archive), Some((triple, "1.0.0-rc.1")));
        assert_eq!(parse_archive(&patch_name(triple, "1.1.0", "1.0.0")), None);
        let channel = channel_name(triple, "stable");
        assert_eq!(parse_channel(&channel, "stable"), Some(triple));
        assert_eq!(parse_channel(&channel, "beta"), None);
        assert_eq!(parse_archive(&channel), None);
        assert_eq!(paths_of_channel("stable"), "rollproxy/*/stable.json");
    }

    #[test]
    fn names_that_would_leave_their_folder_are_refused() {
        for bad in [
            "",
            "..",
            "a/b",
            "Stable",
            "-x",
            "a.b",
            "a b",
            &"x".repeat(65),
        ] {
            assert!(check("channel", bad).is_err(), "{bad:?}");
        }
        for good in ["stable", "x86_64-unknown-linux-gnu", "beta-2"] {
            assert!(check("channel", good).is_ok(), "{good:?}");
        }
    }
}
