use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::contents;
use crate::digest;
use crate::pack::{Plan, pack_archive};
use crate::report::Report;
use crate::version::PackageVersion;

/// A tar in the making, with any entry that a writer of malice could make.
pub(super) struct Tar(Vec<u8>);

impl Tar {
    pub(super) fn new() -> Self {
        Tar(Vec::new())
    }

    pub(super) fn raw(
        mut self,
        path: &[u8],
        kind: u8,
        mode: u32,
        size: u64,
        link: &str,
        data: &[u8],
    ) -> Self {
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes()[..path.len()].copy_from_slice(path);
        header.set_entry_type(tar::EntryType::new(kind));
        header.set_mode(mode);
        header.set_size(size);
        header.set_mtime(0);
        if !link.is_empty() {
            header.set_link_name(link).unwrap();
        }
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(super) fn file(self, path: &str, data: &[u8]) -> Self {
        self.raw(path.as_bytes(), b'0', 0o644, data.len() as u64, "", data)
    }

    pub(super) fn folder(self, path: &str) -> Self {
        self.raw(path.as_bytes(), b'5', 0o755, 0, "", b"")
    }

    pub(super) fn end(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0u8; 1024]);
        self.0
    }
}

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(super) const PROGRAM: &[u8] = b"the program";
pub(super) const NOTES: &[u8] = b"";

pub(super) fn manifest_value() -> serde_json::Value {
    json!({
        "schema": 1, "name": "rollproxy", "version": "1.4.2", "target": crate::TARGET, "minLauncher": "0.1.0",
        "protocol": {"channel": {"min": 1, "max": 1}, "state": 1},
        "entries": {"rollproxy": "bin/rollproxy"},
        "files": [
            {"path": "bin/rollproxy", "size": PROGRAM.len(), "mode": "0555", "sha256": digest::of(PROGRAM)},
            {"path": "share/doc/notes.txt", "size": NOTES.len(), "mode": "0444", "sha256": digest::of(NOTES)},
        ],
        "build": {"commit": "abc", "compiledVersion": "0.1.0"},
    })
}

fn manifest() -> Vec<u8> {
    manifest_value().to_string().into_bytes()
}

/// The beginning of every good archive.
pub(super) fn begun() -> Tar {
    Tar::new().file("package.json", &manifest())
}

pub(super) fn good() -> Tar {
    begun()
        .file("bin/rollproxy", PROGRAM)
        .file("share/doc/notes.txt", NOTES)
}

fn unpack_bytes(bytes: &[u8]) -> (crate::scratch::Scratch, Result<Manifest, ArchiveError>) {
    let folder = crate::scratch::Scratch::new();
    let result = unpack(
        bytes,
        &folder.path().join("package"),
        &Limits::default(),
        &mut |_| (),
    );
    (folder, result)
}

fn refused(tar: Tar) -> ArchiveError {
    let (folder, result) = unpack_bytes(&gzip(&tar.end()));
    let error = result.unwrap_err();
    // Whatever was tried, nothing was written outside.
    let names: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(names.iter().all(|name| name == "package"), "{names:?}");
    error
}

#[test]
fn a_good_archive_becomes_exactly_its_files() {
    let tar = begun()
        .folder("bin/")
        .folder("share")
        .folder("share/doc/")
        .file("bin/rollproxy", PROGRAM)
        .file("share/doc/notes.txt", NOTES);
    for bytes in [gzip(&good().end()), gzip(&tar.end())] {
        let (folder, result) = unpack_bytes(&bytes);
        let manifest = result.unwrap();
        let root = folder.path().join("package");
        contents::verify(&root, &manifest).unwrap();
        assert_eq!(fs::read(root.join("bin/rollproxy")).unwrap(), PROGRAM);
        assert_eq!(
            fs::metadata(root.join("bin/rollproxy"))
                .unwrap()
                .permissions()
                .mode()
                & 0o7777,
            0o555
        );
        assert_eq!(
            fs::metadata(root.join("package.json"))
                .unwrap()
                .permissions()
                .mode()
                & 0o7777,
            0o444
        );
        assert_eq!(Manifest::read(&root).unwrap().digest(), manifest.digest());
    }
}

#[test]
fn links_devices_fifos_and_extensions_are_refused_by_kind() {
    for (kind, word) in [
        (b'1', "hard link"),
        (b'2', "symbolic link"),
        (b'3', "device"),
        (b'4', "device"),
        (b'6', "fifo"),
        (b'7', "of type"),
        (b'S', "of type"),
        (b'L', "extension"),
        (b'x', "extension"),
        (b'g', "extension"),
    ] {
        let link = if matches!(kind, b'1' | b'2') {
            "/etc/passwd"
        } else {
            ""
        };
        let error = refused(begun().raw(b"bin/rollproxy", kind, 0o644, 0, link, b""));
        assert_eq!(error.code(), "ARCHIVE_ENTRY_KIND");
        assert!(
            error.to_string().contains(word) && error.to_string().contains("bin/rollproxy"),
            "{error}"
        );
        let error = refused(Tar::new().raw(b"package.json", kind, 0o644, 0, link, b""));
        assert_eq!(error.code(), "ARCHIVE_ENTRY_KIND");
    }
}

#[test]
fn paths_that_leave_the_root_are_refused() {
    for path in [
        "../evil",
        "bin/../../evil",
        "/etc/passwd",
        "./bin/rollproxy",
        "bin//rollproxy",
        "..",
        ".",
        "bin/..",
        "bin/\u{1}x",
        "a\\b",
    ] {
        let error = refused(begun().file(path, b"evil"));
        assert_eq!(error.code(), "ARCHIVE_ENTRY_PATH", "{path}: {error}");
        let error = refused(begun().folder(path));
        assert_eq!(error.code(), "ARCHIVE_ENTRY_PATH", "{path}: {error}");
    }
    let error = refused(begun().raw(b"bin/\xff", b'0', 0o644, 0, "", b""));
    assert_eq!(error.code(), "ARCHIVE_ENTRY_PATH");
    // Naming such a path in the manifest does not help.
    let mut value = manifest_value();
    value["files"][1]["path"] = json!("../evil");
    let error = refused(
        Tar::new()
            .file("package.json", value.to_string().as_bytes())
            .file("../evil", NOTES),
    );
    assert_eq!(error.code(), "MANIFEST_INVALID");
}

#[test]
fn setuid_setgid_and_sticky_are_refused() {
    for mode in [0o4755, 0o2755, 0o1755, 0o7777] {
        let error = refused(begun().raw(
            b"bin/rollproxy",
            b'0',
            mode,
            PROGRAM.len() as u64,
            "",
            PROGRAM,
        ));
        assert_eq!(error.code(), "ARCHIVE_ENTRY_MODE");
        let error = refused(begun().raw(b"bin/", b'5', mode, 0, "", b""));
        assert_eq!(error.code(), "ARCHIVE_ENTRY_MODE");
    }
}

#[test]
fn files_that_others_may_write_are_refused_and_the_owner_s_bits_do_not_matter() {
    let program = |mode| {
        let size = PROGRAM.len() as u64;
        begun().raw(b"bin/rollproxy", b'0', mode, size, "", PROGRAM)
    };
    for mode in [0o777, 0o757, 0o775, 0o666, 0o420] {
        let error = refused(program(mode));
        assert_eq!(error.code(), "ARCHIVE_ENTRY_MODE", "{mode:o}: {error}");
        assert!(error.to_string().contains("bin/rollproxy"), "{error}");
    }
    for mode in [0o755, 0o555, 0o644, 0o400] {
        assert_eq!(
            refused(program(mode)).code(),
            "ARCHIVE_ENTRY_MISSING",
            "{mode:o}: accepted, and the next one is missing"
        );
    }
}

#[test]
fn duplicates_case_twins_and_unlisted_entries_are_refused() {
    let cases = [
        (
            good().file("bin/rollproxy", PROGRAM),
            "ARCHIVE_ENTRY_DUPLICATE",
        ),
        (
            good().file("package.json", &manifest()),
            "ARCHIVE_ENTRY_DUPLICATE",
        ),
        (
            begun().folder("bin").folder("bin/"),
            "ARCHIVE_ENTRY_DUPLICATE",
        ),
        (good().file("bin/Rollproxy", PROGRAM), "ARCHIVE_ENTRY_CASE"),
        (good().file("PACKAGE.json", PROGRAM), "ARCHIVE_ENTRY_CASE"),
        (begun().folder("BIN"), "ARCHIVE_ENTRY_CASE"),
        (good().file("bin/extra", b""), "ARCHIVE_ENTRY_UNLISTED"),
        (begun().folder("lib"), "ARCHIVE_ENTRY_UNLISTED"),
        // A file in a folder's place and the reverse.
        (begun().file("bin", b""), "ARCHIVE_ENTRY_UNLISTED"),
        (begun().folder("bin/rollproxy"), "ARCHIVE_ENTRY_UNLISTED"),
    ];
    for (tar, code) in cases {
        assert_eq!(refused(tar).code(), code);
    }
}

#[test]
fn everything_the_manifest_names_must_come_and_be_it() {
    let missing = refused(begun().file("bin/rollproxy", PROGRAM));
    assert!(matches!(&missing, ArchiveError::Missing { path } if path == "share/doc/notes.txt"));
    assert_eq!(
        refused(begun().file("bin/rollproxy", b"the prograM")).code(),
        "ARCHIVE_ENTRY_DIGEST"
    );
    assert_eq!(
        refused(begun().file("bin/rollproxy", b"short")).code(),
        "ARCHIVE_ENTRY_SIZE"
    );
    let bomb = begun().raw(b"bin/rollproxy", b'0', 0o644, 1 << 32, "", b"");
    assert_eq!(refused(bomb).code(), "ARCHIVE_ENTRY_SIZE");
    let heavy_folder = begun().raw(b"bin/", b'5', 0o755, 512, "", &[0; 512]);
    assert_eq!(refused(heavy_folder).code(), "ARCHIVE_ENTRY_SIZE");
}

#[test]
fn the_manifest_comes_first() {
    let error = refused(
        Tar::new()
            .file("bin/rollproxy", PROGRAM)
            .file("package.json", &manifest()),
    );
    assert_eq!(error.code(), "ARCHIVE_FIRST_ENTRY");
    assert_eq!(refused(Tar::new()).code(), "ARCHIVE_FIRST_ENTRY");
    assert_eq!(
        refused(Tar::new().folder("package.json")).code(),
        "ARCHIVE_FIRST_ENTRY"
    );
    assert_eq!(
        refused(Tar::new().file("./package.json", &manifest())).code(),
        "ARCHIVE_FIRST_ENTRY"
    );
    assert_eq!(
        refused(Tar::new().file("package.json", b"{}")).code(),
        "MANIFEST_UNPARSABLE"
    );
    let huge = Tar::new().raw(
        b"package.json",
        b'0',
        0o644,
        manifest::MAX_BYTES + 1,
        "",
        b"",
    );
    assert_eq!(refused(huge).code(), "ARCHIVE_TOO_MUCH");
}

#[test]
fn too_many_files_or_bytes_are_refused_before_anything_is_written() {
    let bytes = gzip(&good().end());
    let exact = Limits {
        max_bytes: PROGRAM.len() as u64,
        max_files: 2,
    };
    let tight = [
        Limits {
            max_files: 1,
            ..exact
        },
        Limits {
            max_bytes: exact.max_bytes - 1,
            ..exact
        },
    ];
    for limits in tight {
        let folder = crate::scratch::Scratch::new();
        let error = unpack(
            &bytes[..],
            &folder.path().join("package"),
            &limits,
            &mut |_| (),
        )
        .unwrap_err();
        assert_eq!(error.code(), "ARCHIVE_TOO_MUCH");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
    let folder = crate::scratch::Scratch::new();
    unpack(
        &bytes[..],
        &folder.path().join("package"),
        &exact,
        &mut |_| (),
    )
    .unwrap();

    let mut value = manifest_value();
    for file in [0, 1] {
        value["files"][file]["size"] = json!(u64::MAX);
    }
    let error = refused(Tar::new().file("package.json", value.to_string().as_bytes()));
    assert_eq!(error.code(), "ARCHIVE_TOO_MUCH");
}

#[test]
fn cut_anywhere_it_is_truncated() {
    let bytes = gzip(&good().end());
    for length in 0..bytes.len() {
        let (_folder, result) = unpack_bytes(&bytes[..length]);
        let error = result.unwrap_err();
        assert!(
            matches!(error, ArchiveError::Truncated),
            "cut at {length} of {}: {error}",
            bytes.len()
        );
    }
    // Cut inside, and closed with a right gzip trailer.
    let tar = good().end();
    for length in (0..tar.len() - 512).step_by(64).chain([tar.len() - 512]) {
        let (_folder, result) = unpack_bytes(&gzip(&tar[..length]));
        assert!(
            matches!(result, Err(ArchiveError::Truncated)),
            "cut at {length} of {}",
            tar.len()
        );
    }
}

#[test]
fn extra_bytes_at_either_end_are_refused() {
    let mut after_gzip = gzip(&good().end());
    after_gzip.extend_from_slice(b"more");
    let mut second_member = gzip(&good().end());
    second_member.extend(gzip(b"more"));
    let mut after_tar = good().end();
    after_tar.extend_from_slice(b"more");
    let mut bomb = good().end();
    bomb.resize(bomb.len() + 4 * 1024 * 1024, 0);
    for bytes in [after_gzip, second_member, gzip(&after_tar), gzip(&bomb)] {
        assert_eq!(
            unpack_bytes(&bytes).1.unwrap_err().code(),
            "ARCHIVE_TRAILING"
        );
    }
    let mut padded = good().end();
    padded.resize(padded.len().next_multiple_of(10 * 1024), 0);
    unpack_bytes(&gzip(&padded)).1.unwrap();
}

#[test]
fn html_plain_text_and_flipped_bits_are_corrupt() {
    let html = b"<!DOCTYPE html><html><body>Sign in to the network</body></html>".repeat(20);
    for bytes in [html.clone(), gzip(&html)] {
        let error = unpack_bytes(&bytes).1.unwrap_err();
        assert!(matches!(error, ArchiveError::Corrupt { .. }), "{error}");
    }
    let mut lone = good().0;
    lone.extend_from_slice(&[0u8; 512]);
    let lone = Tar(lone).file("x", b"").end();
    assert!(matches!(
        unpack_bytes(&gzip(&lone)).1,
        Err(ArchiveError::Corrupt { .. })
    ));
    let mut checksum = gzip(&good().end());
    let at = checksum.len() - 6;
    checksum[at] ^= 1;
    assert!(matches!(
        unpack_bytes(&checksum).1,
        Err(ArchiveError::Corrupt { .. })
    ));
}

#[test]
fn an_error_of_the_source_comes_through_as_itself() {
    #[derive(Debug, thiserror::Error)]
    #[error("stalled for 120 s")]
    struct Stalled;

    struct Source<'a>(&'a [u8]);
    impl Read for Source<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, Stalled));
            }
            let count = self.0.len().min(buffer.len()).min(7);
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    let bytes = gzip(&good().end());
    for length in [0, 1, 9, 20, bytes.len() / 2, bytes.len() - 1, bytes.len()] {
        let folder = crate::scratch::Scratch::new();
        let error = unpack(
            Source(&bytes[..length]),
            &folder.path().join("p"),
            &Limits::default(),
            &mut |_| (),
        )
        .unwrap_err();
        assert!(error.retry());
        let ArchiveError::Read { source } = error else {
            panic!("at {length}: {error}");
        };
        assert_eq!(source.kind(), io::ErrorKind::TimedOut);
        assert!(source.get_ref().is_some_and(|inner| inner.is::<Stalled>()));
    }
}

#[test]
fn interrupted_reads_are_read_again_and_progress_only_rises() {
    struct Stuttering<'a>(&'a [u8], bool);
    impl Read for Stuttering<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(io::ErrorKind::Interrupted.into());
            }
            self.0.read(&mut buffer[..1])
        }
    }
    let bytes = gzip(&good().end());
    let folder = crate::scratch::Scratch::new();
    let mut seen = Vec::new();
    unpack(
        Stuttering(&bytes, false),
        &folder.path().join("p"),
        &Limits::default(),
        &mut |count| seen.push(count),
    )
    .unwrap();
    assert!(seen.is_sorted());
    assert_eq!(seen.last(), Some(&(PROGRAM.len() as u64)));
}

#[test]
fn a_folder_that_is_not_empty_is_not_written_over() {
    let folder = crate::scratch::Scratch::new();
    let root = folder.path().join("package");
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::write(root.join("bin/rollproxy"), "mine").unwrap();
    let bytes = gzip(&good().end());
    let error = unpack(&bytes[..], &root, &Limits::default(), &mut |_| ()).unwrap_err();
    assert_eq!(error.code(), "ARCHIVE_WRITE");
    assert_eq!(
        fs::read_to_string(root.join("bin/rollproxy")).unwrap(),
        "mine"
    );
}

fn any_files() -> impl Strategy<Value = BTreeMap<String, Vec<u8>>> {
    let path = "(lib|share|etc)(/[a-z]{1,8}){1,3}";
    let data = proptest::collection::vec(any::<u8>(), 0..3000);
    proptest::collection::btree_map(path, data, 0..6).prop_filter(
        "no path is another's folder",
        |files| {
            let paths: Vec<&String> = files.keys().collect();
            !paths
                .iter()
                .any(|a| paths.iter().any(|b| b.starts_with(&format!("{a}/"))))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn packed_and_unpacked_files_are_the_same(files in any_files(), program in proptest::collection::vec(any::<u8>(), 0..200_000), level in 0u32..=9) {
        let folder = crate::scratch::Scratch::new();
        let mut extra = Vec::new();
        for (index, (path, data)) in files.iter().enumerate() {
            let source = folder.path().join(format!("input-{index}"));
            fs::write(&source, data).unwrap();
            fs::set_permissions(&source, Permissions::from_mode(if index % 2 == 0 { 0o644 } else { 0o700 })).unwrap();
            extra.push((path.clone(), source));
        }
        let source = folder.path().join("program");
        fs::write(&source, &program).unwrap();
        let plan = Plan {
            version: PackageVersion::new(1, 0, 0),
            target: crate::TARGET.into(),
            binaries: vec![("rollproxy".into(), source)],
            extra,
            commit: "abc".into(),
            compiled_version: "0.1.0".into(),
            min_launcher: PackageVersion::new(0, 1, 0),
            level,
        };
        let archive = folder.path().join("a.tar.gz");
        let packed = pack_archive(&plan, &archive).unwrap();
        let root = folder.path().join("package");
        let manifest = unpack(fs::File::open(&archive).unwrap(), &root, &Limits::default(), &mut |_| ()).unwrap();
        prop_assert_eq!(&manifest, &packed.manifest);
        contents::verify(&root, &manifest).unwrap();
        prop_assert_eq!(fs::read(root.join("bin/rollproxy")).unwrap(), program);
        for (path, data) in &files {
            prop_assert_eq!(&fs::read(root.join(path)).unwrap(), data);
        }
    }

    #[test]
    fn a_flipped_bit_never_changes_what_is_unpacked(at in any::<proptest::sample::Index>(), bit in 0u8..8) {
        let mut bytes = gzip(&good().end());
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let (folder, result) = unpack_bytes(&bytes);
        // A few bits of gzip mean nothing: its time, its system, what fills the last byte of the deflated data.
        if let Ok(unpacked) = result {
            prop_assert_eq!(unpacked.digest(), digest::of(&manifest()));
            contents::verify(&folder.path().join("package"), &unpacked).unwrap();
        }
    }

    #[test]
    fn any_tar_bytes_are_unpacked_or_refused_within_the_folder(at in any::<proptest::sample::Index>(), byte in any::<u8>()) {
        let mut tar = good().end();
        let at = at.index(tar.len());
        tar[at] = byte;
        let (folder, _) = unpack_bytes(&gzip(&tar));
        let outside = fs::read_dir(folder.path()).unwrap().filter(|entry| entry.as_ref().unwrap().file_name() != "package").count();
        prop_assert_eq!(outside, 0);
    }
}
