//! What a channel offers: from signed bytes to a [`Release`], and every way they can contradict themselves. Pure.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sigstore_tuf::TargetFile;
use staging::digest;
use staging::version::PackageVersion;

use super::FeedError;

/// The newest schema of channel files and of an archive's `custom` that this build knows.
const SCHEMA: u64 = 1;
/// Characters of notes that are kept.
const NOTES_LIMIT: usize = 4000;
/// Characters of the reason for a dead end that are kept.
const REASON_LIMIT: usize = 500;

/// A version that a channel offers, and how to recognise its archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Release {
    /// The version.
    pub version: PackageVersion,
    /// The target name of its archive.
    pub archive: String,
    /// Bytes of the archive.
    pub length: u64,
    /// SHA-256 of the archive, lower-case hex.
    pub sha256: String,
    /// What people should know about it: text without control characters but line feeds.
    pub notes: String,
    /// What the publisher says about when and where to take it.
    pub custom: ArchiveCustom,
    /// Versions that older hosts must have run before they go further, lowest first.
    pub barriers: Vec<PackageVersion>,
    /// Whether digests are part of the files' names below the feed's `targets/`.
    #[serde(skip)]
    pub(super) consistent: bool,
}

/// A signed file of the feed that a [`super::Downloader`] brings: an archive, or a patch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its target name; messages call it so.
    pub name: String,
    /// Where it lies below the feed's `targets/`.
    pub path: String,
    /// Its bytes.
    pub length: u64,
    /// Its SHA-256, lower-case hex.
    pub sha256: String,
}

impl Release {
    /// The archive.
    pub fn wanted(&self) -> Wanted {
        Wanted {
            name: self.archive.clone(),
            path: file_of(&self.archive, &self.sha256, self.consistent),
            length: self.length,
            sha256: self.sha256.clone(),
        }
    }

    /// One of the patches that make its content: of [`ArchiveCustom::deltas`] in [`Release::custom`].
    pub fn patch(&self, delta: &Delta) -> Wanted {
        Wanted {
            name: delta.target.clone(),
            path: file_of(&delta.target, &delta.sha256, self.consistent),
            length: delta.length,
            sha256: delta.sha256.clone(),
        }
    }
}

/// What the feed says about an archive in its `custom` field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ArchiveCustom {
    /// The version in the archive.
    pub version: PackageVersion,
    /// The lowest version that may update to it directly; a lower one needs a step between.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_version: Option<PackageVersion>,
    /// Which share of hosts takes it, and how that share grows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ramp: Option<Ramp>,
    /// Why no update leads on from this version without a person; bounded, without control characters but line feeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_end: Option<String>,
    /// SHA-256 of the package's manifest, lower-case hex; none in feeds that do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// Patches that make it from an installed version; those that do not name themselves as agreed are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deltas: Vec<Delta>,
    /// What people should know about it; bounded, without control characters but line feeds.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub notes: String,
}

/// A patch that makes one version's archive content from the files of another ([`staging::delta`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Delta {
    /// The version it is made from.
    pub from: PackageVersion,
    /// SHA-256 of that version's manifest: the files it needs are exactly these.
    pub from_manifest: String,
    /// The target name of the patch: `rollproxy/<triple>/<version>.from-<from>.patch`.
    pub target: String,
    /// Bytes of the patch.
    pub length: u64,
    /// SHA-256 of the patch, lower-case hex.
    pub sha256: String,
    /// Bytes of the tar that it makes.
    pub content_length: u64,
    /// SHA-256 of that tar, lower-case hex.
    pub content_sha256: String,
}

/// A rollout over time: from `share` percent of hosts at `start` to all of them `durationMs` later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ramp {
    /// When it starts; before that no host takes the version.
    pub start: Timestamp,
    /// The share of hosts at the start, in percent, 0 to 100.
    pub share: u8,
    /// Milliseconds from the start until every host takes it.
    pub duration_ms: u64,
}

/// The words of a channel file.
#[derive(Debug, Deserialize)]
pub(super) struct Offer {
    pub(super) version: PackageVersion,
    pub(super) archive: String,
    #[serde(default)]
    pub(super) notes: String,
    /// Versions that older hosts must have run before they go further.
    #[serde(default)]
    pub(super) barriers: Vec<PackageVersion>,
}

/// One channel for one target triple.
#[derive(Debug)]
pub(super) struct Channel {
    target: String,
    name: String,
}

impl Channel {
    pub(super) fn new(channel: &str, target: &str) -> Result<Self, FeedError> {
        for name in [channel, target] {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
            if name.is_empty()
                || name.len() > 64
                || !name.chars().all(plain)
                || name.starts_with('-')
            {
                return Err(FeedError::ChannelName {
                    name: name.chars().take(64).collect(),
                });
            }
        }
        Ok(Self {
            target: target.to_owned(),
            name: format!("rollproxy/{target}/{channel}.json"),
        })
    }

    /// The target name of the channel's file.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn malformed(&self, reason: impl Into<String>) -> FeedError {
        FeedError::Channel {
            name: self.name.clone(),
            reason: reason.into(),
        }
    }

    /// Reads the channel's file. Its archive must be that of its version.
    pub(super) fn parse(&self, bytes: &[u8]) -> Result<Offer, FeedError> {
        check_schema(bytes).map_err(|reason| self.malformed(reason))?;
        let offer: Offer =
            serde_json::from_slice(bytes).map_err(|e| self.malformed(e.to_string()))?;
        let archive = archive_name(&self.target, &offer.version);
        if offer.archive != archive {
            return Err(FeedError::Contradiction {
                name: format!("version {} of {}", offer.version, self.name),
                said: archive,
                other: "its archive field".to_owned(),
                otherwise: clean(&offer.archive, 200),
            });
        }
        Ok(offer)
    }

    /// Puts the channel's offer and what the feed says about its archive together.
    pub(super) fn release(
        &self,
        offer: Offer,
        archive: &TargetFile,
        consistent: bool,
    ) -> Result<Release, FeedError> {
        let mut barriers = offer.barriers;
        barriers.sort();
        let release = release_of(
            &self.name,
            &self.target,
            &offer.version,
            archive,
            consistent,
        )?;
        Ok(Release {
            notes: clean(&offer.notes, NOTES_LIMIT),
            barriers,
            ..release
        })
    }
}

/// What the feed says about the archive of `version` for `target`. `from` says who speaks of that version.
pub(super) fn release_of(
    from: &str,
    target: &str,
    version: &PackageVersion,
    archive: &TargetFile,
    consistent: bool,
) -> Result<Release, FeedError> {
    let name = archive_name(target, version);
    let malformed = |reason: String| FeedError::Channel {
        name: name.clone(),
        reason,
    };
    let sha256 = sha256_of(archive).ok_or_else(|| malformed("it has no SHA-256".to_owned()))?;
    let mut custom = custom_of(archive).map_err(malformed)?;
    if custom.version != *version {
        return Err(FeedError::Contradiction {
            name: from.to_owned(),
            said: version.to_string(),
            other: name,
            otherwise: custom.version.to_string(),
        });
    }
    if custom.ramp.as_ref().is_some_and(|ramp| ramp.share > 100) {
        return Err(malformed("its ramp starts above 100 percent".to_owned()));
    }
    // Its name becomes a file's and a part of a URL. The whole archive is there for whoever has no patch.
    custom.deltas.retain(|delta| {
        delta.target == patch_name(target, version, &delta.from)
            && [&delta.from_manifest, &delta.sha256, &delta.content_sha256]
                .iter()
                .all(|sha256| digest::is_digest(sha256))
    });
    Ok(Release {
        version: version.clone(),
        archive: name,
        length: archive.length,
        sha256,
        notes: custom.notes.clone(),
        custom,
        barriers: Vec::new(),
        consistent,
    })
}

/// What the feed says about the archive of one version.
pub(super) fn about(name: &str, archive: &TargetFile) -> Result<ArchiveCustom, FeedError> {
    custom_of(archive).map_err(|reason| FeedError::Channel {
        name: name.to_owned(),
        reason,
    })
}

/// The target name of a version's archive.
pub(super) fn archive_name(target: &str, version: &PackageVersion) -> String {
    format!("rollproxy/{target}/{version}.tar.gz")
}

/// The target name of the patch that makes `version` from `from`.
fn patch_name(target: &str, version: &PackageVersion, from: &PackageVersion) -> String {
    format!("rollproxy/{target}/{version}.from-{from}.patch")
}

fn custom_of(archive: &TargetFile) -> Result<ArchiveCustom, String> {
    let custom = archive
        .custom
        .as_ref()
        .ok_or_else(|| "it has no custom field".to_owned())?;
    let text = custom.to_string();
    check_schema(text.as_bytes())?;
    let mut custom: ArchiveCustom = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    custom.dead_end = custom.dead_end.map(|reason| clean(&reason, REASON_LIMIT));
    custom.notes = clean(&custom.notes, NOTES_LIMIT);
    Ok(custom)
}

/// How to recognise the file of any target.
pub(super) fn wanted(
    name: &str,
    target: &TargetFile,
    consistent: bool,
) -> Result<Wanted, FeedError> {
    let sha256 = sha256_of(target).ok_or_else(|| FeedError::Channel {
        name: name.to_owned(),
        reason: "it has no SHA-256".to_owned(),
    })?;
    Ok(Wanted {
        name: name.to_owned(),
        path: file_of(name, &sha256, consistent),
        length: target.length,
        sha256,
    })
}

/// The SHA-256 that was signed for a target, lower-case hex.
fn sha256_of(target: &TargetFile) -> Option<String> {
    let sha256 = target.hashes.get("sha256")?.to_ascii_lowercase();
    digest::is_digest(&sha256).then_some(sha256)
}

/// Where a target's file lies: with consistent snapshots its digest is part of its name.
fn file_of(target: &str, sha256: &str, consistent: bool) -> String {
    match target.rsplit_once('/') {
        _ if !consistent => target.to_owned(),
        Some((folder, base)) => format!("{folder}/{sha256}.{base}"),
        None => format!("{sha256}.{target}"),
    }
}

/// A newer schema is refused by name, before anything else in it is looked at.
fn check_schema(json: &[u8]) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Head {
        schema: u64,
    }
    let head: Head = serde_json::from_slice(json).map_err(|e| e.to_string())?;
    match head.schema {
        0 => Err("schema 0 never existed".to_owned()),
        schema if schema > SCHEMA => Err(format!(
            "it is of schema {schema}, and this version knows up to {SCHEMA}"
        )),
        _ => Ok(()),
    }
}

fn clean(text: &str, limit: usize) -> String {
    text.chars()
        .filter(|c| *c == '\n' || !c.is_control())
        .take(limit)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const TRIPLE: &str = "x86_64-unknown-linux-gnu";

    fn channel() -> Channel {
        Channel::new("stable", TRIPLE).unwrap()
    }

    fn offer(version: &str, archive: &str) -> Result<Offer, FeedError> {
        let file = json!({"schema": 1, "version": version, "archive": archive, "notes": "a\u{1b}[31mb\nc"});
        channel().parse(file.to_string().as_bytes())
    }

    fn target(custom: Value) -> TargetFile {
        let hash = "AB".repeat(32);
        serde_json::from_value(json!({"length": 7, "hashes": {"sha256": hash}, "custom": custom}))
            .unwrap()
    }

    fn archive(version: &str) -> String {
        format!("rollproxy/{TRIPLE}/{version}.tar.gz")
    }

    #[test]
    fn an_offer_and_its_archive_make_a_release() {
        let offer = offer("1.2.0", &archive("1.2.0")).unwrap();
        let custom = json!({
            "schema": 1, "version": "1.2.0", "minimumVersion": "1.0.0", "deadEnd": "moves to 2", "later": true,
            "ramp": {"start": "2030-01-01T00:00:00Z", "share": 5, "durationMs": 3_600_000},
        });
        let release = channel().release(offer, &target(custom), true).unwrap();
        assert_eq!(
            release.wanted().path,
            format!("rollproxy/{TRIPLE}/{}.1.2.0.tar.gz", "ab".repeat(32))
        );
        assert_eq!(release.notes, "a[31mb\nc");
        assert_eq!(release.custom.minimum_version.unwrap().to_string(), "1.0.0");
        assert_eq!(release.custom.ramp.unwrap().share, 5);
        assert_eq!(release.custom.dead_end.unwrap(), "moves to 2");
    }

    #[test]
    fn versions_must_agree_everywhere() {
        assert!(matches!(
            offer("9.9.0", &archive("1.2.0")),
            Err(FeedError::Contradiction { .. })
        ));
        let other_triple = archive("1.2.0").replace("x86_64", "aarch64");
        assert!(matches!(
            offer("1.2.0", &other_triple),
            Err(FeedError::Contradiction { .. })
        ));
        let offer = offer("9.9.0", &archive("9.9.0")).unwrap();
        let refused = channel().release(
            offer,
            &target(json!({"schema": 1, "version": "1.2.0"})),
            true,
        );
        assert!(matches!(refused, Err(FeedError::Contradiction { .. })));
    }

    #[test]
    fn what_is_malformed_or_newer_is_named() {
        for bad in [
            json!({"schema": 2, "version": "1.2.0", "archive": archive("1.2.0")}),
            json!({"schema": 0, "version": "1.2.0", "archive": archive("1.2.0")}),
            json!({"version": "1.2.0", "archive": archive("1.2.0")}),
            json!({"schema": 1, "version": "v1", "archive": archive("1.2.0")}),
            json!({"schema": 1, "version": "1.2.0"}),
            json!([]),
        ] {
            let refused = channel().parse(bad.to_string().as_bytes());
            assert!(matches!(refused, Err(FeedError::Channel { .. })), "{bad}");
        }
        for custom in [
            Value::Null,
            json!({"schema": 2, "version": "1.2.0"}),
            json!({"schema": 1}),
            json!({"schema": 1, "version": "1.2.0", "ramp": {"start": "2030-01-01T00:00:00Z", "share": 101, "durationMs": 1}}),
        ] {
            let offer = offer("1.2.0", &archive("1.2.0")).unwrap();
            let refused = channel().release(offer, &target(custom.clone()), true);
            assert!(
                matches!(refused, Err(FeedError::Channel { .. })),
                "{custom}"
            );
        }
        let without_digest =
            serde_json::from_value(json!({"length": 7, "hashes": {"sha512": "00"}})).unwrap();
        let offer = offer("1.2.0", &archive("1.2.0")).unwrap();
        assert!(channel().release(offer, &without_digest, true).is_err());
    }

    #[test]
    fn channel_names_stay_in_their_folder() {
        for bad in ["", "../x", "a/b", "Stable", "a.b", "-a"] {
            assert!(Channel::new(bad, TRIPLE).is_err(), "{bad:?}");
            assert!(Channel::new("stable", bad).is_err(), "{bad:?}");
        }
    }
}
