//! Making a patch. It takes time and memory, which whoever makes releases has.

use std::fs::{File, Permissions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use flate2::bufread::GzDecoder;
use zstd::zstd_safe::{self, CCtx, CParameter};

use super::content::Content;
use super::regions::{Index, SAMPLE};
use super::{DeltaError, Head, MAGIC, Patched, REGION, SEGMENT};
use crate::archive::{self, Limits};
use crate::digest::{self, Hasher};
use crate::files;
use crate::manifest::Manifest;

/// How hard [`make`] tries. The highest level that asks no more of a reader than a low one does; 11 takes a sixth of the time
/// and makes patches an eighth larger.
pub const LEVEL: i32 = 19;
/// A window, as a power of two, that holds a region and a segment.
const WINDOW: u32 = 24;

/// A patch that was made, and how to recognise what it is made from and what it makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// SHA-256 of the old package's manifest.
    pub from_manifest: String,
    /// Bytes of the patch.
    pub length: u64,
    /// SHA-256 of the patch.
    pub sha256: String,
    /// Bytes of the tar that it makes.
    pub content_length: u64,
    /// SHA-256 of that tar.
    pub content_sha256: String,
}

/// Makes the patch that leads from the package in `old_archive` to the tar in `new_archive`, tries it, and puts it to `patch`,
/// which is replaced as a whole. Both archives are unpacked beside it, as a host would, to know that they are good ones.
/// The same archives give the same patch.
///
/// # Errors
/// [`DeltaError`]; `patch` is as it was then.
pub fn make(old_archive: &Path, new_archive: &Path, patch: &Path) -> Result<Made, DeltaError> {
    make_at(LEVEL, old_archive, new_archive, patch)
}

/// [`make`] at another zstd level, 1 to 22.
///
/// # Errors
/// [`DeltaError`]; `patch` is as it was then.
pub fn make_at(
    level: i32,
    old_archive: &Path,
    new_archive: &Path,
    patch: &Path,
) -> Result<Made, DeltaError> {
    let failed = |source| DeltaError::Write {
        path: patch.to_owned(),
        source,
    };
    let beside = match patch.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let scratch = Unpacked(
        tempfile::Builder::new()
            .prefix(".patching-")
            .tempdir_in(beside)
            .map_err(failed)?
            .keep(),
    );
    let root = scratch.0.join("old");
    let old = unpack(old_archive, &root)?;
    let new = scratch.0.join("new");
    unpack(new_archive, &new)?;
    files::remove_tree(&new).map_err(failed)?;

    let mut content = Content::open(&root, &old)?;
    let index = index(&mut content).map_err(|source| DeltaError::Read {
        path: old_archive.to_owned(),
        source,
    })?;
    let temp = tempfile::Builder::new()
        .prefix(".patching-")
        .suffix(".tmp")
        .tempfile_in(beside)
        .map_err(failed)?;
    let (content_length, content_sha256) = write(
        level,
        &mut content,
        &index,
        new_archive,
        temp.as_file(),
        patch,
    )?;

    check(&root, &old, temp.path(), content_length, &content_sha256)?;
    let (length, sha256) = digest::of_file(temp.path()).map_err(failed)?;
    temp.as_file()
        .set_permissions(Permissions::from_mode(0o644))
        .and_then(|()| temp.as_file().sync_all())
        .map_err(failed)?;
    temp.persist(patch).map_err(|error| failed(error.error))?;
    files::sync_folder(beside).map_err(failed)?;
    Ok(Made {
        from_manifest: old.digest().to_owned(),
        length,
        sha256,
        content_length,
        content_sha256,
    })
}

/// A folder that goes away even with read-only packages in it.
struct Unpacked(std::path::PathBuf);

impl Drop for Unpacked {
    fn drop(&mut self) {
        let _ = files::remove_tree(&self.0);
    }
}

fn open(path: &Path) -> Result<File, DeltaError> {
    files::open_regular(path).map_err(|source| DeltaError::Read {
        path: path.to_owned(),
        source,
    })
}

fn unpack(archive: &Path, into: &Path) -> Result<Manifest, DeltaError> {
    archive::unpack(open(archive)?, into, &Limits::default(), &mut |_| ()).map_err(|source| {
        DeltaError::Archive {
            path: archive.to_owned(),
            source,
        }
    })
}

/// The samples of all of the old content.
fn index(content: &mut Content) -> io::Result<Index> {
    let mut index = Index::default();
    let mut block = vec![0; 1024 * 1024];
    let mut at = 0;
    while at < content.length() {
        let left = content.length() - at;
        let count = usize::try_from(left).map_or(block.len(), |left| left.min(block.len()));
        content.read(at, &mut block[..count])?;
        index.add(at, &block[..count]);
        if count as u64 == left {
            break;
        }
        at += (count - (SAMPLE - 1)) as u64;
    }
    Ok(index)
}

/// Writes the patch; gives length and digest of the tar that it makes.
fn write(
    level: i32,
    content: &mut Content,
    index: &Index,
    new_archive: &Path,
    out: &File,
    out_path: &Path,
) -> Result<(u64, String), DeltaError> {
    let unread = |source| DeltaError::Read {
        path: new_archive.to_owned(),
        source,
    };
    let unwritten = |source| DeltaError::Write {
        path: out_path.to_owned(),
        source,
    };
    let mut out = BufWriter::new(out);
    out.write_all(MAGIC).map_err(unwritten)?;
    let mut tar = GzDecoder::new(BufReader::new(open(new_archive)?));
    let (mut hasher, mut at) = (Hasher::new(), 0u64);
    let (mut segment, mut region) = (Vec::new(), Vec::new());
    loop {
        segment.clear();
        (&mut tar)
            .take(SEGMENT as u64)
            .read_to_end(&mut segment)
            .map_err(unread)?;
        if segment.is_empty() {
            break;
        }
        hasher.update(&segment);
        let (offset, length) = index.best(&segment, at, REGION as u64);
        region.resize(length as usize, 0);
        content.read(offset, &mut region).map_err(unread)?;
        let frame = compress(level, &region, &segment)?;
        let head = Head {
            makes: segment.len() as u32,
            offset,
            length: length as u32,
            frame: frame.len() as u32,
        };
        out.write_all(&head.to_bytes()).map_err(unwritten)?;
        out.write_all(&frame).map_err(unwritten)?;
        at += segment.len() as u64;
    }
    out.write_all(&Head::END.to_bytes()).map_err(unwritten)?;
    out.flush().map_err(unwritten)?;
    Ok((at, hasher.finish()))
}

fn compress(level: i32, region: &[u8], segment: &[u8]) -> Result<Vec<u8>, DeltaError> {
    let failed = |code| DeltaError::Compress {
        why: zstd_safe::get_error_name(code).to_owned(),
    };
    let mut context = CCtx::try_create().ok_or_else(|| DeltaError::Compress {
        why: "no memory".to_owned(),
    })?;
    for parameter in [
        CParameter::CompressionLevel(level),
        CParameter::WindowLog(WINDOW),
        CParameter::EnableLongDistanceMatching(true),
        // The digest of the whole says it better.
        CParameter::ChecksumFlag(false),
    ] {
        context.set_parameter(parameter).map_err(failed)?;
    }
    context.ref_prefix(region).map_err(failed)?;
    let mut frame = Vec::with_capacity(zstd_safe::compress_bound(segment.len()));
    context.compress2(&mut frame, segment).map_err(failed)?;
    Ok(frame)
}

/// Does what a host will do.
fn check(
    root: &Path,
    old: &Manifest,
    patch: &Path,
    length: u64,
    sha256: &str,
) -> Result<(), DeltaError> {
    let patched = Patched::open(root, old, BufReader::new(open(patch)?))?;
    match digest::of_reader(patched) {
        Ok((made, digest)) if made == length && digest == sha256 => Ok(()),
        _ => Err(DeltaError::Wrong),
    }
}
