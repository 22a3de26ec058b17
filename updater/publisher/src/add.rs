//! `add`: one version's archive for one target, signed into the feed. No host takes it before it is promoted.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use serde::Serialize;
use staging::pack::{self, Plan};
use staging::version::PackageVersion;
use staging::{archive, digest};

use crate::disk::{self, Measure, SERVED};
use crate::feed::Feed;
use crate::names::{self, ArchiveCustom, Ramp, SCHEMA, archive_name};
use crate::{Place, PublishError, Validity};

/// The binaries of every package, each an entry of the same name.
const ENTRIES: [&str; 3] = ["rollproxy", "rollproxy-updater", "rollproxy-launcher"];

/// What is to be added.
#[derive(Debug, Clone)]
pub struct Add {
    /// The version.
    pub version: PackageVersion,
    /// The target triple it runs on.
    pub target: String,
    /// What it consists of.
    pub source: Source,
    /// What people should know about it.
    pub notes: String,
    /// The lowest version that may update to it directly.
    pub minimum_version: Option<PackageVersion>,
    /// Which hosts take it when.
    pub ramp: Option<Ramp>,
    /// Why no update leads on from it without a person.
    pub dead_end: Option<String>,
    /// When it is signed, and for how long.
    pub validity: Validity,
}

impl Add {
    /// An addition for the target this program was built for, with nothing special about it.
    pub fn new(version: PackageVersion, source: Source) -> Self {
        Self {
            version,
            target: staging::TARGET.to_owned(),
            source,
            notes: String::new(),
            minimum_version: None,
            ramp: None,
            dead_end: None,
            validity: Validity::default(),
        }
    }
}

/// Where a version's bytes come from.
#[derive(Debug, Clone)]
pub enum Source {
    /// Binaries to be packed now.
    Binaries(Binaries),
    /// An archive packed elsewhere; refused here already if hosts would refuse it.
    Archive(PathBuf),
    /// An archive taken as it is. For tests of how hosts refuse.
    Unchecked(PathBuf),
}

/// Binaries and more, to be packed.
#[derive(Debug, Clone)]
pub struct Binaries {
    /// Entry name and file.
    pub entries: Vec<(String, PathBuf)>,
    /// Path in the package and file.
    pub extra: Vec<(String, PathBuf)>,
    /// The commit they were built from.
    pub commit: String,
    /// The version compiled into them.
    pub compiled_version: String,
    /// The lowest launcher version that can start the package.
    pub min_launcher: PackageVersion,
    /// How hard to compress, 0 to 9.
    pub level: u32,
}

impl Binaries {
    /// The three binaries of a build folder, said to be compiled as `compiled_version`.
    ///
    /// # Errors
    /// [`PublishError::BinaryMissing`] for one that is not there.
    pub fn in_folder(folder: &Path, compiled_version: &str) -> Result<Self, PublishError> {
        let mut entries = Vec::new();
        for name in ENTRIES {
            let path = folder.join(name);
            if !path.is_file() {
                return Err(PublishError::BinaryMissing { path });
            }
            entries.push((name.to_owned(), path));
        }
        Ok(Self {
            entries,
            extra: Vec::new(),
            commit: staging::COMMIT.to_owned(),
            compiled_version: compiled_version.to_owned(),
            min_launcher: PackageVersion::new(0, 1, 0),
            level: 6,
        })
    }
}

/// A version that is in the feed.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Added {
    /// The version.
    pub version: String,
    /// The target name of its archive.
    pub archive: String,
    /// Bytes of the archive.
    pub length: u64,
    /// SHA-256 of the archive.
    pub sha256: String,
    /// The archive's file in the feed.
    pub path: PathBuf,
    /// Whether the very same archive was there before; then nothing was written.
    pub already: bool,
}

/// Packs (or takes), signs and adds one version.
///
/// # Errors
/// [`PublishError::VersionExists`] if that version is there with other content; an archive that hosts would refuse; anything wrong
/// with the feed or the keys.
pub fn add(place: &Place, what: &Add) -> Result<Added, PublishError> {
    names::check("target", &what.target)?;
    let mut feed = Feed::open(place)?;
    let workshop = tempfile::tempdir().map_err(|e| PublishError::write(std::env::temp_dir(), e))?;
    let archive = prepare(what, workshop.path())?;
    let measure = disk::measure(&archive)?;

    let name = archive_name(&what.target, &what.version);
    let path = feed.folder.target_file(&name, &measure);
    let already = match feed.target(&name) {
        Some(there) if *there.hashes.sha256 != *measure.sha256.as_slice() => {
            return Err(PublishError::VersionExists {
                version: what.version.to_string(),
                target: what.target.clone(),
            });
        }
        Some(_) => path.is_file(),
        None => false,
    };
    if !already {
        if let Some(folder) = path.parent() {
            disk::make_folder(folder, 0o755)?;
        }
        disk::copy_whole(&archive, &path, SERVED)?;
        feed.set_target(&name, &measure, custom(what)?)?;
        feed.commit(&what.validity)?;
    }
    Ok(added(what, name, &measure, path, already))
}

fn added(what: &Add, archive: String, measure: &Measure, path: PathBuf, already: bool) -> Added {
    Added {
        version: what.version.to_string(),
        archive,
        length: measure.length,
        sha256: digest::hex(&measure.sha256),
        path,
        already,
    }
}

/// The archive to be added: packed now, or checked, or as it is.
fn prepare(what: &Add, workshop: &Path) -> Result<PathBuf, PublishError> {
    match &what.source {
        Source::Unchecked(path) => Ok(path.clone()),
        Source::Archive(path) => {
            check_archive(what, path, workshop)?;
            Ok(path.clone())
        }
        Source::Binaries(binaries) => pack_binaries(what, binaries, workshop),
    }
}

fn custom(what: &Add) -> Result<HashMap<String, serde_json::Value>, PublishError> {
    let custom = ArchiveCustom {
        schema: SCHEMA,
        version: what.version.to_string(),
        minimum_version: what.minimum_version.as_ref().map(ToString::to_string),
        ramp: what.ramp.clone(),
        dead_end: what.dead_end.clone(),
        manifest: None,
        deltas: Vec::new(),
        notes: what.notes.clone(),
    };
    let object = serde_json::to_value(custom).and_then(serde_json::from_value);
    object.map_err(|e| PublishError::Sign {
        role: "targets",
        source: Box::new(e),
    })
}

fn pack_binaries(
    what: &Add,
    binaries: &Binaries,
    workshop: &Path,
) -> Result<PathBuf, PublishError> {
    let plan = Plan {
        version: what.version.clone(),
        target: what.target.clone(),
        binaries: binaries.entries.clone(),
        extra: binaries.extra.clone(),
        commit: binaries.commit.clone(),
        compiled_version: binaries.compiled_version.clone(),
        min_launcher: binaries.min_launcher.clone(),
        level: binaries.level,
    };
    let path = workshop.join("archive.tar.gz");
    pack::pack_archive(&plan, &path).map_err(|e| PublishError::Pack {
        version: what.version.to_string(),
        source: Box::new(e),
    })?;
    Ok(path)
}

/// Unpacks an archive as a host would, and looks whether it is what it is said to be.
fn check_archive(what: &Add, path: &Path, workshop: &Path) -> Result<(), PublishError> {
    let file = File::open(path).map_err(|e| PublishError::read(path, e))?;
    let into = workshop.join("unpacked");
    disk::make_folder(&into, 0o700)?;
    let manifest =
        archive::unpack(file, &into, &archive::Limits::default(), &mut |_| {}).map_err(|e| {
            PublishError::Archive {
                path: path.to_owned(),
                source: Box::new(e),
            }
        })?;
    let differs = |name, expected: &str, found: &str| PublishError::ArchiveMismatch {
        path: path.to_owned(),
        what: name,
        expected: expected.to_owned(),
        found: found.to_owned(),
    };
    if manifest.version != what.version {
        return Err(differs(
            "version",
            &what.version.to_string(),
            &manifest.version.to_string(),
        ));
    }
    if manifest.target != what.target {
        return Err(differs("target", &what.target, &manifest.target));
    }
    Ok(())
}
