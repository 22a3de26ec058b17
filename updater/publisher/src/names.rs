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
