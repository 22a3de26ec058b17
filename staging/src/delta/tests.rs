use std::fs;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use proptest::prelude::*;

use super::regions::tests::noise;
use super::*;
use crate::digest;
use crate::manifest::Manifest;
use crate::pack::tests::plan;
use crate::pack::{pack_archive, pack_folder};
use crate::scratch::Scratch;

/// An archive, the folder it unpacks to, and its manifest, with a large file beside the small ones.
struct Release {
    archive: PathBuf,
    root: PathBuf,
    manifest: Manifest,
}

fn release(folder: &Path, version: &str, large: &[u8]) -> Release {
    let inputs = folder.join(version);
    fs::create_dir_all(&inputs).unwrap();
    let mut plan = plan(&inputs, version);
    let file = inputs.join("large");
    fs::write(&file, large).unwrap();
    plan.extra.push(("share/large".into(), file));
    let archive = folder.join(format!("{version}.tar.gz"));
    pack_archive(&plan, &archive).unwrap();
    let root = inputs.join("package");
    let manifest = pack_folder(&plan, &root).unwrap();
    Release {
        archive,
        root,
        manifest,
    }
}

fn tar_of(release: &Release) -> Vec<u8> {
    let mut tar = Vec::new();
    GzDecoder::new(fs::File::open(&release.archive).unwrap())
        .read_to_end(&mut tar)
        .unwrap();
    tar
}

fn patched(from: &Release, patch: &[u8]) -> io::Result<Vec<u8>> {
    let mut made = Vec::new();
    Patched::open(&from.root, &from.manifest, patch)
        .unwrap()
        .read_to_end(&mut made)?;
    Ok(made)
}

#[test]
fn a_patch_makes_the_new_tar_byte_for_byte_and_is_small() {
    let folder = Scratch::new();
    // More than two regions; what is new stands near the beginning, and everything behind it is moved.
    let large = noise(1, 2 * REGION + 3_000_000);
    let old = release(folder.path(), "1.0.0", &large);
    let mut changed = large[..1_000_000].to_vec();
    changed.extend(noise(2, 60_000));
    changed.extend_from_slice(&large[1_000_000..]);
    let new = release(folder.path(), "1.1.0", &changed);
    let patch = folder.path().join("a.patch");
    let made = make_at(3, &old.archive, &new.archive, &patch).unwrap();

    let tar = tar_of(&new);
    assert_eq!(made.from_manifest, old.manifest.digest());
    assert_eq!(made.content_length, tar.len() as u64);
    assert_eq!(made.content_sha256, digest::of(&tar));
    let bytes = fs::read(&patch).unwrap();
    assert_eq!(made.length, bytes.len() as u64);
    assert_eq!(made.sha256, digest::of(&bytes));
    // 60,000 bytes are new; the rest are references, of which this low level (for a quick test) makes more than ours.
    assert!(made.length < 100_000, "{}", made.length);
    assert!(patched(&old, &bytes).unwrap() == tar);
    let again = folder.path().join("b.patch");
    assert_eq!(
        make_at(3, &old.archive, &new.archive, &again).unwrap(),
        made
    );
    let names = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(
        names, 6,
        "no litter: two folders, two archives, two patches"
    );
}

#[test]
fn the_memory_of_a_reader_is_one_segment_one_region_and_one_frame() {
    let folder = Scratch::new();
    let large = noise(3, 2 * REGION);
    let old = release(folder.path(), "1.0.0", &large);
    // Nothing of it is in the old one: the frames are as large as what they make.
    let new = release(folder.path(), "1.1.0", &noise(4, 2 * REGION));
    let patch = folder.path().join("a.patch");
    make_at(1, &old.archive, &new.archive, &patch).unwrap();
    let mut reader =
        Patched::open(&old.root, &old.manifest, fs::File::open(&patch).unwrap()).unwrap();
    io::copy(&mut reader, &mut io::sink()).unwrap();
    let (region, frame, made) = reader.capacities();
    assert!(region <= REGION && made <= SEGMENT, "{region} {made}");
    assert!(frame <= zstd::zstd_safe::compress_bound(SEGMENT), "{frame}");
}

#[test]
fn an_archive_that_is_none_and_a_folder_that_is_another_are_named() {
    let folder = Scratch::new();
    let old = release(folder.path(), "1.0.0", b"large");
    let new = release(folder.path(), "1.1.0", b"larger");
    let patch = folder.path().join("a.patch");
    for (from, to) in [
        (&old.root.join("package.json"), &new.archive),
        (&old.archive, &patch),
    ] {
        fs::write(&patch, "no archive").unwrap();
        let error = make(from, to, &patch).unwrap_err();
        assert_eq!(error.code(), "ARCHIVE_CORRUPT", "{error}");
        assert_eq!(fs::read(&patch).unwrap(), b"no archive");
    }
    let other = Patched::open(&old.root, &new.manifest, &b""[..]).unwrap_err();
    assert_eq!(other.code(), "DELTA_OTHER_MANIFEST");
}

/// A patch of one segment that refers to `offset` and `length` of the old content.
fn segment(head: Head, frame: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(head.to_bytes());
    bytes.extend_from_slice(frame);
    bytes.extend(Head::END.to_bytes());
    bytes
}

#[test]
fn what_a_patch_asks_for_beyond_its_bounds_is_refused() {
    let folder = Scratch::new();
    let old = release(folder.path(), "1.0.0", b"large");
    let frame = zstd::bulk::compress(b"some content", 1).unwrap();
    let good = Head {
        makes: 12,
        offset: 0,
        length: 0,
        frame: frame.len() as u32,
    };
    assert_eq!(
        patched(&old, &segment(good, &frame)).unwrap(),
        b"some content"
    );
    let large = u32::MAX;
    let refused = |head: Head| {
        let error = patched(&old, &segment(head, &frame)).unwrap_err();
        assert_eq!(
            error.kind(),
            io::ErrorKind::InvalidData,
            "{head:?}: {error}"
        );
        error.to_string()
    };
    assert!(
        refused(Head {
            makes: large,
            ..good
        })
        .contains("segment")
    );
    assert!(
        refused(Head {
            length: large,
            ..good
        })
        .contains("region")
    );
    assert!(
        refused(Head {
            frame: large,
            ..good
        })
        .contains("frame")
    );
    assert!(refused(Head { makes: 11, ..good }).contains("frame"));
    assert!(refused(Head { makes: 13, ..good }).contains("number"));
    for (offset, length) in [(u64::MAX, 1), (u64::MAX, 0), (1_000_000, 1), (0, 1_000_000)] {
        assert!(
            refused(Head {
                offset,
                length,
                ..good
            })
            .contains("beyond")
        );
    }
    let mut end = MAGIC.to_vec();
    end.extend(Head { makes: 0, ..good }.to_bytes());
    assert!(
        patched(&old, &end)
            .unwrap_err()
            .to_string()
            .contains("last")
    );
    let mut trailing = segment(good, &frame);
    trailing.push(0);
    assert!(
        patched(&old, &trailing)
            .unwrap_err()
            .to_string()
            .contains("follows")
    );
    let whole = segment(good, &frame);
    for short in 0..whole.len() {
        assert!(patched(&old, &whole[..short]).is_err(), "{short}");
    }
    assert!(patched(&old, b"RPpatch2").is_err());
}

/// Old and new package, and the patch between them; made once for all cases.
fn example() -> &'static (Release, Vec<u8>, Vec<u8>) {
    static EXAMPLE: std::sync::OnceLock<(Release, Vec<u8>, Vec<u8>)> = std::sync::OnceLock::new();
    EXAMPLE.get_or_init(|| {
        let folder = std::mem::ManuallyDrop::new(Scratch::new());
        let large = noise(5, 40_000);
        let old = release(folder.path(), "1.0.0", &large);
        let mut changed = large;
        changed[20_000..20_100].fill(7);
        let new = release(folder.path(), "1.1.0", &changed);
        let path = folder.path().join("a.patch");
        make(&old.archive, &new.archive, &path).unwrap();
        let (patch, tar) = (fs::read(&path).unwrap(), tar_of(&new));
        (old, patch, tar)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// A flipped byte, a cut, something put in: an error, or bytes that are judged by their digest; never a panic, and
    /// never more than the segments say.
    #[test]
    fn a_damaged_patch_ends_in_an_error_or_in_other_bytes(
        at in any::<prop::sample::Index>(), with in prop::collection::vec(any::<u8>(), 0..30), cut in 0usize..40, seldom in 0u8..4,
    ) {
        let (old, patch, tar) = example();
        let mut bytes = patch.clone();
        let at = at.index(bytes.len());
        let end = (at + cut).min(bytes.len());
        bytes.splice(at..end, with);
        if seldom == 0 {
            bytes.truncate(at);
        }
        let mut reader = Patched::open(&old.root, &old.manifest, Cursor::new(&bytes)).unwrap();
        let mut made = Vec::new();
        let outcome = (&mut reader).take(64 << 20).read_to_end(&mut made);
        let (region, frame, segment) = reader.capacities();
        prop_assert!(region <= REGION && segment <= SEGMENT && frame <= SEGMENT + (SEGMENT >> 7));
        if outcome.is_ok() && bytes == *patch {
            prop_assert!(made == *tar);
        }
    }

    /// Bytes of any kind behind the magic.
    #[test]
    fn any_bytes_are_no_danger(rest in prop::collection::vec(any::<u8>(), 0..200), small in any::<bool>()) {
        let (old, _, _) = example();
        let mut bytes = MAGIC.to_vec();
        if small {
            // Numbers that are accepted, so that the frame is looked at.
            bytes.extend(Head { makes: 100, offset: 3, length: 50, frame: rest.len() as u32 }.to_bytes());
        }
        bytes.extend(rest);
        let mut made = Vec::new();
        let _ = Patched::open(&old.root, &old.manifest, &bytes[..]).unwrap().take(64 << 20).read_to_end(&mut made);
    }
}
