//! `verify`: the whole feed, read as a careful host would, and every file it refers to. Needs no key and writes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Serialize;
use staging::delta::Patched;
use staging::digest::{self, Hasher};
use staging::manifest::Manifest;
use tough::schema::Target;

use crate::PublishError;
use crate::WARN_DAYS;
use crate::add::{expect, unpack};
use crate::archives::custom_of;
use crate::chain::Chain;
use crate::channel::read_offer;
use crate::disk;
use crate::feed::{Folder, find};
use crate::names::{
    ArchiveCustom, ChannelFile, Delta, SCHEMA, archive_name, parse_archive, parse_channel,
};

/// How much is looked at.
#[derive(Debug, Clone)]
pub struct Verify {
    /// The moment as of which metadata must not have expired.
    pub now: jiff::Timestamp,
    /// Days before an expiry from which on it is told.
    pub warn_days: u32,
    /// The SHA-256 that the first root must have.
    pub root_sha256: Option<String>,
    /// Unpack the archives that channels name, as a host would.
    pub unpack: bool,
    /// Apply every patch whose archives are in the feed.
    pub patches: bool,
}

impl Default for Verify {
    fn default() -> Self {
        Self {
            now: jiff::Timestamp::now(),
            warn_days: WARN_DAYS,
            root_sha256: None,
            unpack: false,
            patches: false,
        }
    }
}

/// A feed in which everything is as it should be.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verified {
    /// SHA-256 of the first root.
    pub root_sha256: String,
    /// Version of the newest root.
    pub root: u64,
    /// When the first of all metadata expires.
    pub expires: jiff::Timestamp,
    /// Metadata that expire soon.
    pub warnings: Vec<Expiring>,
    /// What the channels offer.
    pub channels: Vec<Offered>,
    /// How many archives the feed has.
    pub archives: usize,
    /// How many patches.
    pub patches: usize,
    /// Archives that were unpacked.
    pub unpacked: usize,
    /// Patches that were applied.
    pub applied: usize,
}

/// Metadata that expire soon.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Expiring {
    /// The file.
    pub file: PathBuf,
    /// The role that has to sign it anew.
    pub role: String,
    /// When it expires.
    pub expires: jiff::Timestamp,
}

/// What a channel offers for one target triple.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Offered {
    /// The channel.
    pub channel: String,
    /// The target triple.
    pub target: String,
    /// The version.
    pub version: String,
}

/// Verifies the feed in the folder `feed`.
///
/// # Errors
/// The first file that is missing, expired, or not what it should be, by its name.
pub fn verify(feed: &Path, how: &Verify) -> Result<Verified, PublishError> {
    let folder = Folder::new(feed);
    if !folder.exists()? {
        return Err(PublishError::FeedMissing {
            feed: feed.to_owned(),
        });
    }
    let chain = Chain::read(&folder, how.now)?;
    let root_sha256 = check_roots(&folder, how)?;
    let expiries = chain.pieces(&folder);
    let warned = how
        .now
        .checked_add(jiff::SignedDuration::from_hours(
            i64::from(how.warn_days) * 24,
        ))
        .unwrap_or(jiff::Timestamp::MAX);
    let mut looking = Looking {
        folder: &folder,
        chain: &chain,
        archives: BTreeMap::new(),
        patches: 0,
        needed: BTreeSet::new(),
    };
    looking.targets()?;
    let channels = looking.channels()?;
    let (unpacked, applied) = try_out(&looking, how)?;
    Ok(Verified {
        root_sha256,
        root: chain.root.version.get(),
        expires: expiries
            .iter()
            .map(|piece| piece.expires)
            .min()
            .unwrap_or(how.now),
        warnings: expiries
            .into_iter()
            .filter(|piece| piece.expires < warned)
            .map(|piece| Expiring {
                file: piece.path,
                role: piece.role,
                expires: piece.expires,
            })
            .collect(),
        channels,
        archives: looking.archives.len(),
        patches: looking.patches,
        unpacked,
        applied,
    })
}

/// The file of a target, if it is there and is what the metadata say.
pub(crate) fn whole_target(
    folder: &Folder,
    name: &str,
    about: &Target,
) -> Result<PathBuf, PublishError> {
    let path = folder.target_file(name, &about.hashes.sha256);
    let damaged = |reason: String| {
        Err(PublishError::TargetDamaged {
            path: path.clone(),
            reason,
        })
    };
    match path.try_exists() {
        Ok(true) => {}
        Ok(false) => return damaged("it is missing".into()),
        Err(e) => return Err(PublishError::read(path, e)),
    }
    let found = disk::measure(&path)?;
    if found.length != about.length {
        return damaged(format!(
            "it has {} bytes, and the feed says {}",
            found.length, about.length
        ));
    }
    if *found.sha256 != *about.hashes.sha256 {
        return damaged("its SHA-256 is not the one that the feed says".into());
    }
    Ok(path)
}

/// The roots besides what a host reads of them: none beyond a gap, and the one that people download is the first.
fn check_roots(folder: &Folder, how: &Verify) -> Result<String, PublishError> {
    let whole = |name: &str| {
        let path = folder.metadata_file(name);
        let limit = crate::chain::limit_of("root");
        match disk::read_bounded(&path, limit)? {
            Some(bytes) => Ok(bytes),
            None => Err(PublishError::MetadataMissing { path }),
        }
    };
    for version in 1..folder.highest("root")? {
        whole(&format!("{version}.root.json"))?;
    }
    let first = whole("1.root.json")?;
    if whole("root.json")? != first {
        return Err(PublishError::Inconsistent {
            path: folder.metadata_file("root.json"),
        });
    }
    let sha256 = digest::of(&first);
    match &how.root_sha256 {
        Some(expected) if !expected.eq_ignore_ascii_case(&sha256) => Err(PublishError::OtherRoot {
            path: folder.metadata_file("1.root.json"),
            expected: expected.clone(),
            found: sha256,
        }),
        _ => Ok(sha256),
    }
}

struct Looking<'a> {
    folder: &'a Folder,
    chain: &'a Chain,
    /// Archives by their names: what is said about each, and its file.
    archives: BTreeMap<String, (ArchiveCustom, PathBuf)>,
    patches: usize,
    /// The names of archives that hosts are led to.
    needed: BTreeSet<String>,
}

impl Looking<'_> {
    /// Every file that `targets` signs: there, whole, and described in words that agree.
    fn targets(&mut self) -> Result<(), PublishError> {
        let mut all: Vec<_> = self.chain.targets.targets.iter().collect();
        all.sort_by(|one, other| one.0.cmp(other.0));
        for (name, about) in &all {
            let name = name.raw();
            let path = whole_target(self.folder, name, about)?;
            let Some((_, version)) = parse_archive(name) else {
                continue;
            };
            let custom = custom_of(about, name)?;
            let wrong = |reason: String| PublishError::Custom {
                name: name.to_owned(),
                reason,
            };
            if custom.schema != SCHEMA {
                return Err(wrong(format!("it is of schema {}", custom.schema)));
            }
            if custom.version != version {
                return Err(wrong(format!("it says version {}", custom.version)));
            }
            if custom.ramp.as_ref().is_some_and(|ramp| ramp.share > 100) {
                return Err(wrong("its ramp starts above 100 percent".into()));
            }
            for delta in &custom.deltas {
                let patch = find(&self.chain.targets, &delta.target);
                let agrees = patch.is_some_and(|patch| {
                    patch.length == delta.length
                        && digest::hex(&patch.hashes.sha256) == delta.sha256
                });
                if !agrees {
                    return Err(wrong(format!(
                        "its patch {} is not a target of that length and digest",
                        delta.target
                    )));
                }
                self.patches += 1;
            }
            self.archives.insert(name.to_owned(), (custom, path));
        }
        Ok(())
    }

    /// Every channel's file, and that what it names is there.
    fn channels(&mut self) -> Result<Vec<Offered>, PublishError> {
        let mut all = Vec::new();
        for (channel, signed) in &self.chain.channels {
            for (name, about) in &signed.targets {
                let name = name.raw();
                let Some(target) = parse_channel(name, channel) else {
                    return Err(PublishError::Custom {
                        name: name.to_owned(),
                        reason: format!("the key of channel {channel} may not sign it"),
                    });
                };
                let file = read_offer(self.folder, name, about)?;
                self.needs(name, target, &file)?;
                all.push(Offered {
                    channel: channel.clone(),
                    target: target.to_owned(),
                    version: file.version,
                });
            }
        }
        all.sort_by(|one, other| (&one.channel, &one.target).cmp(&(&other.channel, &other.target)));
        Ok(all)
    }

    fn needs(&mut self, name: &str, target: &str, file: &ChannelFile) -> Result<(), PublishError> {
        for version in [&file.version].into_iter().chain(&file.barriers) {
            let archive = archive_name(target, version);
            if !self.archives.contains_key(&archive) {
                return Err(PublishError::Custom {
                    name: name.to_owned(),
                    reason: format!("it names {archive}, which is not in the feed"),
                });
            }
            self.needed.insert(archive);
        }
        Ok(())
    }
}

/// Unpacks and patches, as far as that is wanted; says how many of each.
fn try_out(looking: &Looking<'_>, how: &Verify) -> Result<(usize, usize), PublishError> {
    let (mut unpacked, mut applied) = (0, 0);
    for (name, (custom, path)) in &looking.archives {
        if how.unpack && looking.needed.contains(name) {
            try_archive(name, custom, path)?;
            unpacked += 1;
        }
        for delta in custom.deltas.iter().filter(|_| how.patches) {
            if try_patch(looking, name, delta)? {
                applied += 1;
            }
        }
    }
    Ok((unpacked, applied))
}

/// A folder for a package, which is read-only once it is there.
struct Workshop(PathBuf);

impl Workshop {
    fn new() -> Result<Self, PublishError> {
        let folder =
            tempfile::tempdir().map_err(|e| PublishError::write(std::env::temp_dir(), e))?;
        Ok(Self(folder.keep()))
    }

    fn unpack(&self, archive: &Path) -> Result<(PathBuf, Manifest), PublishError> {
        let into = self.0.join("package");
        let manifest = unpack(archive, &into)?;
        Ok((into, manifest))
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        let _ = staging::files::remove_tree(&self.0);
    }
}

fn try_archive(name: &str, custom: &ArchiveCustom, path: &Path) -> Result<(), PublishError> {
    let (_, manifest) = Workshop::new()?.unpack(path)?;
    expect(path, "version", &custom.version, &manifest.version)?;
    let (target, _) = parse_archive(name).unwrap_or_default();
    expect(path, "target", target, &manifest.target)?;
    match &custom.manifest {
        Some(digest) => expect(path, "manifest", digest, manifest.digest()),
        None => Ok(()),
    }
}

/// Applies a patch; false if the archive it starts from was withdrawn.
fn try_patch(looking: &Looking<'_>, name: &str, delta: &Delta) -> Result<bool, PublishError> {
    let (target, _) = parse_archive(name).unwrap_or_default();
    let old = looking.archives.get(&archive_name(target, &delta.from));
    let patch = find(&looking.chain.targets, &delta.target);
    let (Some((_, old)), Some(patch)) = (old, patch) else {
        return Ok(false);
    };
    let path = looking
        .folder
        .target_file(&delta.target, &patch.hashes.sha256);
    let damaged = |reason: String| PublishError::TargetDamaged {
        path: path.clone(),
        reason,
    };
    let workshop = Workshop::new()?;
    let (root, manifest) = workshop.unpack(old)?;
    if manifest.digest() != delta.from_manifest {
        return Err(damaged(format!(
            "it is for another package than the {} in the feed",
            delta.from
        )));
    }
    let file = staging::files::open_regular(&path).map_err(|e| PublishError::read(&path, e))?;
    let made = Patched::open(&root, &manifest, io::BufReader::new(file))
        .map_err(|e| damaged(format!("it cannot be applied: {e}")))
        .and_then(|made| {
            count(made.take(delta.content_length.saturating_add(1)))
                .map_err(|e| damaged(format!("it cannot be applied: {e}")))
        })?;
    if made != (delta.content_length, delta.content_sha256.clone()) {
        return Err(damaged(
            "it does not make what the feed says it makes".into(),
        ));
    }
    Ok(true)
}

fn count(mut reader: impl Read) -> io::Result<(u64, String)> {
    let (mut hasher, mut length) = (Hasher::new(), 0);
    let mut block = vec![0; 128 * 1024];
    loop {
        match reader.read(&mut block)? {
            0 => return Ok((length, hasher.finish())),
            count => {
                hasher.update(&block[..count]);
                length += count as u64;
            }
        }
    }
}
