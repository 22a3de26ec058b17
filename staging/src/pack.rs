//! Making a package: as a folder, or as the archive that a feed carries. The same inputs give the same bytes.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use flate2::{Compression, GzBuilder};

use crate::digest::{self, Hasher};
use crate::files;
use crate::manifest::{
    self, Build, ChannelRange, FileEntry, Manifest, ManifestError, Protocol, parents,
};
use crate::protocol::{CHANNEL_PROTOCOL, STATE_PROTOCOL};
use crate::report::{Exit, Report};
use crate::version::PackageVersion;

/// What a package is made of.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The version of the package.
    pub version: PackageVersion,
    /// The target triple the binaries were built for.
    pub target: String,
    /// Program name and file; each becomes `bin/<name>` and an entry.
    pub binaries: Vec<(String, PathBuf)>,
    /// Path in the package and file; executable there if it is here.
    pub extra: Vec<(String, PathBuf)>,
    /// The commit the binaries were built from.
    pub commit: String,
    /// The version compiled into the binaries.
    pub compiled_version: String,
    /// The oldest launcher that can start the package.
    pub min_launcher: PackageVersion,
    /// The gzip level, 0 to 9.
    pub level: u32,
}

/// An archive that was made.
#[derive(Debug, Clone)]
pub struct Packed {
    /// The manifest in it.
    pub manifest: Manifest,
    /// The archive's size in bytes.
    pub size: u64,
    /// The archive's digest.
    pub sha256: String,
}

/// Why a package was not made.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// A file that should go in cannot be read.
    #[error("reading {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file changed while it was packed.
    #[error("{path} changed while it was packed: pack again when nothing builds")]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The plan breaks a rule of packages.
    #[error("this cannot be packed: {source}")]
    Manifest {
        /// Which rule.
        #[from]
        source: ManifestError,
    },
    /// A path does not fit into an archive.
    #[error("{path} does not fit into an archive: {source}; use a shorter path")]
    Path {
        /// The path in the package.
        path: String,
        /// What is wrong.
        source: io::Error,
    },
    /// Writing failed.
    #[error("writing {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Report for PackError {
    fn code(&self) -> &'static str {
        match self {
            PackError::Read { .. } => "PACK_READ",
            PackError::Changed { .. } => "PACK_CHANGED",
            PackError::Manifest { source } => source.code(),
            PackError::Path { .. } => "PACK_PATH",
            PackError::Write { .. } => "PACK_WRITE",
        }
    }
    fn exit(&self) -> Exit {
        Exit::Failed
    }
    fn retry(&self) -> bool {
        matches!(self, PackError::Changed { .. } | PackError::Write { .. })
    }
}

/// Lays a package out as a folder, made if missing: files 0555/0444 whatever the umask, folders writable, so that it can
/// be published from a staging folder.
///
/// # Errors
/// [`PackError`]; what was written so far is left for the caller to remove.
pub fn pack_folder(plan: &Plan, into: &Path) -> Result<Manifest, PackError> {
    let (manifest, sources) = survey(plan)?;
    create(into)?;
    for (file, source) in manifest.files.iter().zip(&sources) {
        for folder in parents(&file.path) {
            create(&into.join(folder))?;
        }
        let path = into.join(&file.path);
        let mut out = create_file(&path)?;
        copy_exactly(file, source, &mut out, &path)?;
        set_mode(&out, file.mode_bits(), &path)?;
    }
    let path = into.join(manifest::FILE);
    let mut out = create_file(&path)?;
    out.write_all(&manifest.to_bytes()?)
        .map_err(|source| PackError::Write {
            path: path.clone(),
            source,
        })?;
    set_mode(&out, 0o444, &path)?;
    Ok(manifest)
}

/// Writes the archive of a package: manifest first, then the files in its order, no folders, no times, no owners. The
/// file `out` is replaced as a whole.
///
/// # Errors
/// [`PackError`]; `out` is as it was then.
pub fn pack_archive(plan: &Plan, out: &Path) -> Result<Packed, PackError> {
    let (manifest, sources) = survey(plan)?;
    let failed = |source| PackError::Write {
        path: out.to_owned(),
        source,
    };
    let folder = match out.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let temp = tempfile::Builder::new()
        .prefix(".packing-")
        .tempfile_in(folder)
        .map_err(failed)?;
    let counted = Counted::new(io::BufWriter::new(temp));
    let mut gzip = GzBuilder::new()
        .mtime(0)
        .write(counted, Compression::new(plan.level.min(9)));

    let bytes = manifest.to_bytes()?;
    write_header(&mut gzip, manifest::FILE, bytes.len() as u64, 0o444, out)?;
    gzip.write_all(&bytes).map_err(failed)?;
    pad(&mut gzip, bytes.len() as u64).map_err(failed)?;
    for (file, source) in manifest.files.iter().zip(&sources) {
        write_header(&mut gzip, &file.path, file.size, file.mode_bits(), out)?;
        copy_exactly(file, source, &mut gzip, out)?;
        pad(&mut gzip, file.size).map_err(failed)?;
    }
    gzip.write_all(&[0u8; 1024]).map_err(failed)?;

    let (buffered, size, sha256) = gzip.finish().map_err(failed)?.finish();
    let temp = buffered
        .into_inner()
        .map_err(|error| failed(error.into_error()))?;
    set_mode(temp.as_file(), 0o644, out)?;
    temp.as_file().sync_all().map_err(failed)?;
    temp.persist(out).map_err(|error| failed(error.error))?;
    files::sync_folder(folder).map_err(failed)?;
    Ok(Packed {
        manifest,
        size,
        sha256,
    })
}

/// Digests everything that goes in. The sources stand in the order of the manifest's files.
fn survey(plan: &Plan) -> Result<(Manifest, Vec<PathBuf>), PackError> {
    let mut entries = BTreeMap::new();
    let mut inputs: Vec<(String, &Path, Option<bool>)> = Vec::new();
    for (name, source) in &plan.binaries {
        let path = format!("bin/{name}");
        entries.insert(name.clone(), path.clone());
        inputs.push((path, source, Some(true)));
    }
    for (path, source) in &plan.extra {
        inputs.push((path.clone(), source, None));
    }
    inputs.sort_by(|a, b| a.0.cmp(&b.0));

    let mut files = Vec::new();
    let mut sources = Vec::new();
    for (path, source, executable) in inputs {
        let failed = |error| PackError::Read {
            path: source.to_owned(),
            source: error,
        };
        let mode = fs::metadata(source).map_err(failed)?.permissions().mode();
        let executable = executable.unwrap_or(mode & 0o111 != 0);
        let (size, sha256) = digest::of_file(source).map_err(failed)?;
        files.push(FileEntry {
            path,
            size,
            mode: if executable { "0555" } else { "0444" }.to_owned(),
            sha256,
        });
        sources.push(source.to_owned());
    }
    let manifest = Manifest::new(
        plan.version.clone(),
        plan.target.clone(),
        plan.min_launcher.clone(),
        Protocol {
            channel: ChannelRange {
                min: CHANNEL_PROTOCOL,
                max: CHANNEL_PROTOCOL,
            },
            state: STATE_PROTOCOL,
        },
        entries,
        files,
        Build {
            commit: plan.commit.clone(),
            compiled_version: plan.compiled_version.clone(),
        },
    )?;
    Ok((manifest, sources))
}

/// Copies a file that must still be what was surveyed.
fn copy_exactly(
    file: &FileEntry,
    source: &Path,
    out: &mut impl Write,
    out_path: &Path,
) -> Result<(), PackError> {
    let failed = |error| PackError::Read {
        path: source.to_owned(),
        source: error,
    };
    let changed = || PackError::Changed {
        path: source.to_owned(),
    };
    let mut input = File::open(source).map_err(failed)?;
    let mut hasher = Hasher::new();
    let mut buffer = vec![0u8; 128 * 1024];
    let mut left = file.size;
    loop {
        let count = match input.read(&mut buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        if count == 0 {
            break;
        }
        left = left.checked_sub(count as u64).ok_or_else(changed)?;
        hasher.update(&buffer[..count]);
        out.write_all(&buffer[..count])
            .map_err(|source| PackError::Write {
                path: out_path.to_owned(),
                source,
            })?;
    }
    if left != 0 || hasher.finish() != file.sha256 {
        return Err(changed());
    }
    Ok(())
}

fn write_header(
    out: &mut impl Write,
    path: &str,
    size: u64,
    mode: u32,
    out_path: &Path,
) -> Result<(), PackError> {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_path(path).map_err(|source| PackError::Path {
        path: path.to_owned(),
        source,
    })?;
    header.set_size(size);
    header.set_mode(mode);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_cksum();
    out.write_all(header.as_bytes())
        .map_err(|source| PackError::Write {
            path: out_path.to_owned(),
            source,
        })
}

/// Fills the last block of an entry.
fn pad(out: &mut impl Write, size: u64) -> io::Result<()> {
    let over = (size % 512) as usize;
    if over == 0 {
        Ok(())
    } else {
        out.write_all(&[0u8; 512][over..])
    }
}

fn create(folder: &Path) -> Result<(), PackError> {
    files::create_private(folder)
        .map(|_| ())
        .map_err(|source| PackError::Write {
            path: folder.to_owned(),
            source,
        })
}

fn create_file(path: &Path) -> Result<File, PackError> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|source| PackError::Write {
            path: path.to_owned(),
            source,
        })
}

fn set_mode(file: &File, mode: u32, path: &Path) -> Result<(), PackError> {
    file.set_permissions(Permissions::from_mode(mode))
        .map_err(|source| PackError::Write {
            path: path.to_owned(),
            source,
        })
}

/// Counts and digests what is written through it.
struct Counted<W> {
    inner: W,
    size: u64,
    hasher: Hasher,
}

impl<W: Write> Counted<W> {
    fn new(inner: W) -> Self {
        Counted {
            inner,
            size: 0,
            hasher: Hasher::new(),
        }
    }

    fn finish(self) -> (W, u64, String) {
        (self.inner, self.size, self.hasher.finish())
    }
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        self.size += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::home::Home;
    use crate::locks::StateLock;
    use crate::stage::StagingFolder;
    use std::time::Duration;

    /// A plan with two programs that are ELF in form only, and a text.
    pub(crate) fn plan(folder: &Path, version: &str) -> Plan {
        let inputs = folder.join("inputs");
        fs::create_dir_all(&inputs).unwrap();
        let machine = if cfg!(target_arch = "x86_64") {
            62
        } else {
            183
        };
        for name in ["rollproxy", "rollproxy-updater"] {
            let mut bytes = crate::elf::tests::header(machine, 3);
            bytes.extend_from_slice(name.as_bytes());
            fs::write(inputs.join(name), bytes).unwrap();
        }
        fs::write(inputs.join("notes.txt"), "notes\n").unwrap();
        Plan {
            version: version.parse().unwrap(),
            target: crate::TARGET.to_owned(),
            binaries: vec![
                ("rollproxy".into(), inputs.join("rollproxy")),
                ("rollproxy-updater".into(), inputs.join("rollproxy-updater")),
            ],
            extra: vec![("share/notes.txt".into(), inputs.join("notes.txt"))],
            commit: "abc".into(),
            compiled_version: "0.1.0".into(),
            min_launcher: PackageVersion::new(0, 1, 0),
            level: 1,
        }
    }

    /// Publishes a planned package.
    pub(crate) fn install(home: &Home, plan: &Plan) -> Manifest {
        let staged = StagingFolder::create(home, "install").unwrap();
        let manifest = pack_folder(plan, staged.path()).unwrap();
        let lock = StateLock::acquire(home, Duration::from_secs(60)).unwrap();
        crate::publish::publish(&lock, home, staged, &manifest).unwrap();
        manifest
    }

    #[test]
    fn the_same_plan_gives_the_same_bytes() {
        let folder = crate::scratch::Scratch::new();
        let plan = plan(folder.path(), "1.0.0");
        let (a, b) = (
            folder.path().join("a.tar.gz"),
            folder.path().join("b.tar.gz"),
        );
        let first = pack_archive(&plan, &a).unwrap();
        let second = pack_archive(&plan, &b).unwrap();
        assert_eq!(fs::read(&a).unwrap(), fs::read(&b).unwrap());
        assert_eq!(first.sha256, second.sha256);
        assert_eq!(digest::of_file(&a).unwrap(), (first.size, first.sha256));
        assert_eq!(first.manifest.digest(), second.manifest.digest());
    }

    #[test]
    fn folder_and_archive_agree_on_the_manifest() {
        let folder = crate::scratch::Scratch::new();
        let plan = plan(folder.path(), "1.0.0");
        let manifest = pack_folder(&plan, &folder.path().join("package")).unwrap();
        let packed = pack_archive(&plan, &folder.path().join("a.tar.gz")).unwrap();
        assert_eq!(manifest, packed.manifest);
        assert_eq!(
            Manifest::read(&folder.path().join("package")).unwrap(),
            manifest
        );
    }

    #[test]
    fn what_cannot_be_packed_is_named_and_nothing_is_written() {
        let folder = crate::scratch::Scratch::new();
        let out = folder.path().join("a.tar.gz");
        let mut missing = plan(folder.path(), "1.0.0");
        missing.binaries[0].1 = folder.path().join("missing");
        assert_eq!(
            pack_archive(&missing, &out).unwrap_err().code(),
            "PACK_READ"
        );
        let mut escaping = plan(folder.path(), "1.0.0");
        escaping.extra[0].0 = "../notes.txt".into();
        assert_eq!(
            pack_archive(&escaping, &out).unwrap_err().code(),
            "MANIFEST_INVALID"
        );
        let mut twice = plan(folder.path(), "1.0.0");
        twice.extra[0].0 = "bin/Rollproxy".into();
        assert_eq!(
            pack_archive(&twice, &out).unwrap_err().code(),
            "MANIFEST_INVALID"
        );
        assert!(!out.exists());
    }

    #[test]
    fn a_file_that_changes_meanwhile_is_noticed() {
        let folder = crate::scratch::Scratch::new();
        let plan = plan(folder.path(), "1.0.0");
        let (manifest, sources) = survey(&plan).unwrap();
        let (file, source) = (&manifest.files[0], &sources[0]);
        for change in [
            "",
            "another text that is much longer than what was there before, by far and for sure",
        ] {
            fs::write(source, change).unwrap();
            let error = copy_exactly(file, source, &mut Vec::new(), Path::new("out")).unwrap_err();
            assert!(matches!(error, PackError::Changed { .. }), "{error}");
        }
    }
}
