//! `add`: one version's archive for one target, signed into the feed. No host takes it before it is promoted.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use staging::home::Home;
use staging::manifest::Manifest;
use staging::pack::{self, Plan};
use staging::validate::{Expected, ValidationError, Validator};
use staging::version::PackageVersion;
use staging::{archive, digest, protocol};

use crate::archives::{custom_of, to_map};
use crate::deltas::{self, SkippedDelta};
use crate::disk;
use crate::feed::Feed;
use crate::names::{
    self, ArchiveCustom, Delta, NOTES_LIMIT, REASON_LIMIT, Ramp, SCHEMA, archive_name,
};
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
    /// Versions in the feed from which a patch is to be made.
    pub delta_from: Vec<PackageVersion>,
    /// Whether it is first tried here as every host would, if it can run here.
    pub trial: bool,
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
            delta_from: Vec::new(),
            trial: false,
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
    /// Whether the very same archive, and every patch asked for, was there before; then nothing was written.
    pub already: bool,
    /// Patches that were added now.
    pub deltas: Vec<Delta>,
    /// Patches that were not, because they save nothing.
    pub skipped_deltas: Vec<SkippedDelta>,
}

/// Packs (or takes), signs and adds one version. With the very same archive it may be called again, to add further patches.
///
/// # Errors
/// [`PublishError::VersionExists`] if that version is there, or was, with other content; an archive that hosts would refuse;
/// anything wrong with the feed or the keys.
pub fn add(place: &Place, what: &Add) -> Result<Added, PublishError> {
    names::check("target", &what.target)?;
    names::check_text("notes", &what.notes, NOTES_LIMIT)?;
    names::check_text(
        "reason",
        what.dead_end.as_deref().unwrap_or_default(),
        REASON_LIMIT,
    )?;
    let mut feed = Feed::open(place)?;
    let workshop = tempfile::tempdir().map_err(|e| PublishError::write(std::env::temp_dir(), e))?;
    let (archive, manifest) = prepare(what, workshop.path())?;
    if what.trial && protocol::runs_here(&what.target) {
        let root = feed.folder.metadata_file("1.root.json");
        try_here(what, &archive, &root, workshop.path())?;
    }
    let measure = disk::measure(&archive)?;

    let name = archive_name(&what.target, &what.version);
    let path = feed.folder.target_file(&name, &measure.sha256);
    let sha256 = digest::hex(&measure.sha256);
    let there = feed.target(&name);
    let published = there.map(|there| digest::hex(&there.hashes.sha256));
    let published = published.as_deref().or_else(|| feed.withdrawn(&name));
    if published.is_some_and(|published| published != sha256) {
        return Err(PublishError::VersionExists {
            version: what.version.to_string(),
            target: what.target.clone(),
        });
    }
    let known = there.is_some();
    let mut custom = match there {
        Some(there) => custom_of(there, &name)?,
        None => custom(what, manifest),
    };
    let made = deltas::make(
        &feed,
        what,
        &custom.deltas,
        (&archive, &measure),
        workshop.path(),
    )?;
    let whole = path.is_file();
    let already = known && whole && made.patches.is_empty();
    if !whole {
        feed.copy_file(&archive, path.clone());
    }
    if !already {
        for patch in &made.patches {
            feed.copy_file(
                &patch.file,
                feed.folder
                    .target_file(&patch.delta.target, &patch.measure.sha256),
            );
            feed.set_target(&patch.delta.target, &patch.measure, HashMap::new())?;
            custom.deltas.push(patch.delta.clone());
        }
        feed.set_target(&name, &measure, to_map(&custom)?)?;
        feed.forget_withdrawn(&name);
        feed.commit(&what.validity)?;
    }
    Ok(Added {
        version: what.version.to_string(),
        archive: name,
        length: measure.length,
        sha256,
        path,
        already,
        deltas: made.patches.into_iter().map(|patch| patch.delta).collect(),
        skipped_deltas: made.skipped,
    })
}

/// The archive to be added: packed now, or checked, or as it is; and its manifest's digest, if it has one.
fn prepare(what: &Add, workshop: &Path) -> Result<(PathBuf, Option<String>), PublishError> {
    match &what.source {
        Source::Unchecked(path) => {
            let manifest = check_archive(what, path, workshop).ok();
            Ok((path.clone(), manifest))
        }
        Source::Archive(path) => {
            let manifest = check_archive(what, path, workshop)?;
            Ok((path.clone(), Some(manifest)))
        }
        Source::Binaries(binaries) => {
            let (path, manifest) = pack_binaries(what, binaries, workshop)?;
            Ok((path, Some(manifest)))
        }
    }
}

fn custom(what: &Add, manifest: Option<String>) -> ArchiveCustom {
    ArchiveCustom {
        schema: SCHEMA,
        version: what.version.to_string(),
        minimum_version: what.minimum_version.as_ref().map(ToString::to_string),
        ramp: what.ramp.clone(),
        dead_end: what.dead_end.clone(),
        manifest,
        deltas: Vec::new(),
        notes: what.notes.clone(),
    }
}

fn pack_binaries(
    what: &Add,
    binaries: &Binaries,
    workshop: &Path,
) -> Result<(PathBuf, String), PublishError> {
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
    let packed = pack::pack_archive(&plan, &path).map_err(|e| PublishError::Pack {
        version: what.version.to_string(),
        source: Box::new(e),
    })?;
    Ok((path, packed.manifest.digest().to_owned()))
}

/// Unpacks an archive as a host would, and looks whether it is what it is said to be; gives its manifest's digest.
fn check_archive(what: &Add, path: &Path, workshop: &Path) -> Result<String, PublishError> {
    let into = workshop.join("unpacked");
    let manifest = unpack(path, &into)?;
    expect(path, "version", &what.version, &manifest.version)?;
    expect(path, "target", &what.target, &manifest.target)?;
    Ok(manifest.digest().to_owned())
}

/// Starts what is to be published as hosts do before they take it: one that no host takes is better refused here.
fn try_here(what: &Add, archive: &Path, root: &Path, workshop: &Path) -> Result<(), PublishError> {
    let staged = workshop.join("trial");
    unpack(archive, &staged)?;
    let expected = Expected {
        version: what.version.clone(),
        manifest_digest: None,
    };
    // Its updater looks whether it could go on from here: it needs a home that follows this feed.
    let home = Home::at(workshop.join("home"));
    home.create()
        .map_err(|source| PublishError::write(home.root(), std::io::Error::other(source)))?;
    std::fs::copy(root, home.trust_root())
        .map_err(|source| PublishError::write(home.trust_root(), source))?;
    Validator::default()
        .validate(&staged, &expected, &home, &|| false)
        .map(|_validated| ())
        .map_err(|source| match source {
            ValidationError::NoExec { .. } => PublishError::TrialPlace {
                folder: std::env::temp_dir(),
            },
            source => PublishError::Trial {
                version: what.version.to_string(),
                source: Box::new(source),
            },
        })
}

/// Unpacks an archive as a host would.
pub(crate) fn unpack(path: &Path, into: &Path) -> Result<Manifest, PublishError> {
    let file = staging::files::open_regular(path).map_err(|e| PublishError::read(path, e))?;
    archive::unpack(file, into, &archive::Limits::default(), &mut |_| {}).map_err(|e| {
        PublishError::Archive {
            path: path.to_owned(),
            source: Box::new(e),
        }
    })
}

/// Refuses an archive of something else.
pub(crate) fn expect(
    path: &Path,
    what: &'static str,
    expected: impl ToString,
    found: impl ToString,
) -> Result<(), PublishError> {
    let (expected, found) = (expected.to_string(), found.to_string());
    if expected == found {
        return Ok(());
    }
    Err(PublishError::ArchiveMismatch {
        path: path.to_owned(),
        what,
        expected,
        found,
    })
}
