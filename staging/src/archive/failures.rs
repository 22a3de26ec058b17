//! Archives that somebody made by mistake or malice, each by its name, in gzip and bare: the same refusal, and nothing outside
//! the folder.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use serde_json::json;

use super::tests::{NOTES, PROGRAM, Tar, begun, good, gzip, manifest_value};
use super::*;
use crate::contents;
use crate::pack::tests::{install, plan};
use crate::report::Report;
use crate::scratch::{Scratch, home};

/// Unpacks a tar bare and in gzip; both must come to the same.
fn outcome(tar: &[u8]) -> Result<Manifest, ArchiveError> {
    let run = |in_gzip: bool| {
        let folder = Scratch::new();
        let unpacking = Unpacking {
            limits: Limits::default(),
            shelf: &Shelf::default(),
            room: &mut |_| Ok(()),
            progress: &mut |_| (),
        };
        let into = folder.path().join("package");
        let result = match in_gzip {
            true => unpacking.gzip(&gzip(tar)[..], &into),
            false => unpacking.tar(tar, &into),
        };
        let outside = fs::read_dir(folder.path())
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name() != "package")
            .count();
        assert_eq!(outside, 0);
        result.map(|unpacked| {
            contents::verify(&into, &unpacked.manifest).unwrap();
            unpacked.manifest
        })
    };
    let (bare, zipped) = (run(false), run(true));
    let code = |result: &Result<Manifest, ArchiveError>| result.as_ref().err().map(Report::code);
    assert_eq!(code(&bare), code(&zipped));
    zipped
}

fn code(tar: Tar) -> &'static str {
    outcome(&tar.end()).unwrap_err().code()
}

fn unzipped(bytes: &[u8]) -> &'static str {
    let folder = Scratch::new();
    unpack(
        bytes,
        &folder.path().join("p"),
        &Limits::default(),
        &mut |_| (),
    )
    .unwrap_err()
    .code()
}

#[test]
fn a_good_tar_unpacks_bare_and_in_gzip() {
    assert_eq!(outcome(&good().end()).unwrap().version.to_string(), "1.4.2");
}

#[test]
fn two_gzip_members_are_refused_wherever_the_first_ends() {
    let tar = good().end();
    // One tar over two members, as `cat a.gz b.gz` makes it; and two whole archives in a row.
    for cut in [512, tar.len() / 2, tar.len() - 1024, tar.len() - 512] {
        let (first, second) = tar.split_at(cut);
        let bytes = [gzip(first), gzip(second)].concat();
        assert_eq!(unzipped(&bytes), "ARCHIVE_TRUNCATED", "cut at {cut}");
    }
    let twice = [gzip(&tar), gzip(&tar)].concat();
    assert_eq!(unzipped(&twice), "ARCHIVE_TRAILING");
    let empty = [gzip(&tar), gzip(b"")].concat();
    assert_eq!(unzipped(&empty), "ARCHIVE_TRAILING");
}

#[test]
fn garbage_behind_the_end_is_refused_even_one_zero_byte_behind_gzip() {
    for more in [&b"\0"[..], b"x", &[0; 512], &[0x1f, 0x8b]] {
        let bytes = [gzip(&good().end()), more.to_vec()].concat();
        assert_eq!(unzipped(&bytes), "ARCHIVE_TRAILING");
    }
    let mut tar = good().end();
    tar.extend_from_slice(good().end().as_slice());
    assert_eq!(outcome(&tar).unwrap_err().code(), "ARCHIVE_TRAILING");
}

#[test]
fn a_leading_dot_is_refused_for_files_folders_and_the_manifest() {
    assert_eq!(
        code(begun().file("./bin/rollproxy", PROGRAM)),
        "ARCHIVE_ENTRY_PATH"
    );
    assert_eq!(code(begun().folder("./bin/")), "ARCHIVE_ENTRY_PATH");
    assert_eq!(code(begun().folder("./")), "ARCHIVE_ENTRY_PATH");
    let manifest = manifest_value().to_string();
    let dotted = Tar::new().file("./package.json", manifest.as_bytes());
    assert_eq!(code(dotted), "ARCHIVE_FIRST_ENTRY");
    // What `tar czf x.tar.gz .` begins with.
    assert_eq!(code(Tar::new().folder("./")), "ARCHIVE_FIRST_ENTRY");
}

#[test]
fn pax_headers_that_rename_or_resize_what_follows_are_refused_unread() {
    for record in [
        "30 path=../../../tmp/escaped\n",
        "20 size=999999999\n",
        "30 linkpath=/etc/passwd    \n",
        "22 GNU.sparse.major=1\n",
        "30 GNU.sparse.name=../escape\n",
    ] {
        for kind in [b'x', b'g'] {
            let size = record.len() as u64;
            let pax = |tar: Tar| tar.raw(b"PaxHeaders/x", kind, 0o644, size, "", record.as_bytes());
            assert_eq!(
                code(pax(begun()).file("bin/rollproxy", PROGRAM)),
                "ARCHIVE_ENTRY_KIND"
            );
            let first = pax(Tar::new()).file("package.json", b"{}");
            assert_eq!(code(first), "ARCHIVE_ENTRY_KIND");
        }
    }
    let long = begun().raw(b"././@LongLink", b'L', 0o644, 5, "", b"a/b/c");
    assert_eq!(
        code(long.file("bin/rollproxy", PROGRAM)),
        "ARCHIVE_ENTRY_KIND"
    );
}

#[test]
fn sparse_entries_are_refused_before_a_hole_is_made() {
    let size = PROGRAM.len() as u64;
    let sparse = begun().raw(b"bin/rollproxy", b'S', 0o644, size, "", PROGRAM);
    assert_eq!(code(sparse), "ARCHIVE_ENTRY_KIND");
    // A size beyond all octal digits, in the binary form that GNU tar has for it.
    let mut tar = begun().end();
    tar.truncate(tar.len() - 1024);
    let mut header = tar::Header::new_gnu();
    header.set_path("bin/rollproxy").unwrap();
    header.set_mode(0o644);
    header.set_size(1 << 40);
    header.set_cksum();
    tar.extend_from_slice(header.as_bytes());
    assert_eq!(outcome(&tar).unwrap_err().code(), "ARCHIVE_ENTRY_SIZE");
}

#[test]
fn a_hard_link_to_itself_and_to_the_manifest_is_refused() {
    for (name, target) in [
        ("bin/rollproxy", "bin/rollproxy"),
        ("bin/rollproxy", "package.json"),
        ("package.json", "package.json"),
    ] {
        let link = |tar: Tar| tar.raw(name.as_bytes(), b'1', 0o644, 0, target, b"");
        assert_eq!(code(link(begun())), "ARCHIVE_ENTRY_KIND");
        assert_eq!(code(link(Tar::new())), "ARCHIVE_ENTRY_KIND");
        assert_eq!(code(link(good())), "ARCHIVE_ENTRY_KIND");
    }
}

#[test]
fn case_twins_are_refused_in_the_archive_and_in_the_manifest() {
    assert_eq!(
        code(good().file("BIN/rollproxy", PROGRAM)),
        "ARCHIVE_ENTRY_CASE"
    );
    assert_eq!(
        code(good().file("share/DOC/notes.txt", NOTES)),
        "ARCHIVE_ENTRY_CASE"
    );
    assert_eq!(
        code(good().file("Package.json", PROGRAM)),
        "ARCHIVE_ENTRY_CASE"
    );
    let mut value = manifest_value();
    let twin = value["files"][0].clone();
    value["files"].as_array_mut().unwrap().push(twin);
    value["files"][2]["path"] = json!("bin/RollProxy");
    let named = Tar::new().file("package.json", value.to_string().as_bytes());
    assert_eq!(code(named), "MANIFEST_INVALID");
}

#[test]
fn an_entry_the_manifest_does_not_name_and_a_name_without_an_entry_are_refused() {
    assert_eq!(
        code(good().file("bin/stowaway", b"")),
        "ARCHIVE_ENTRY_UNLISTED"
    );
    assert_eq!(code(begun()), "ARCHIVE_ENTRY_MISSING");
    assert_eq!(
        code(begun().file("share/doc/notes.txt", NOTES)),
        "ARCHIVE_ENTRY_MISSING"
    );
}

#[test]
fn what_an_installed_version_has_is_shared_and_must_come_as_it_is_all_the_same() {
    let (folder, home) = home();
    let mut old = plan(folder.path(), "1.0.0");
    install(&home, &old);
    old.version = "1.1.0".parse().unwrap();
    fs::write(&old.extra[0].1, "other notes").unwrap();
    let archive = folder.path().join("a.tar.gz");
    let packed = crate::pack::pack_archive(&old, &archive).unwrap();
    let shelf = Shelf::of(&home, &["1.0.0".parse().unwrap()]);
    let unpack = |bytes: &[u8], into: &Path| {
        let mut steps = Vec::new();
        let unpacking = Unpacking {
            limits: Limits::default(),
            shelf: &shelf,
            room: &mut |_| Ok(()),
            progress: &mut |so_far| steps.push(so_far),
        };
        unpacking
            .gzip(bytes, into)
            .inspect(|done| assert_eq!(steps.last().copied(), done.manifest.total_size()))
    };
    let bytes = fs::read(&archive).unwrap();
    let root = folder.path().join("package");
    let unpacked = unpack(&bytes, &root).unwrap();
    contents::verify(&root, &unpacked.manifest).unwrap();
    let programs = packed
        .manifest
        .files
        .iter()
        .filter(|file| file.is_executable());
    assert_eq!(unpacked.shared, programs.map(|file| file.size).sum::<u64>());
    let notes = fs::metadata(root.join("share/notes.txt")).unwrap();
    assert_eq!(notes.nlink(), 1, "what is new is its own file");

    // The installed one is good; the archive says the same digest and brings other bytes.
    let mut tar = Vec::new();
    io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&bytes[..]), &mut tar).unwrap();
    let at = tar
        .windows(4)
        .position(|window| window == b"\x7fELF")
        .unwrap();
    tar[at + 20] ^= 1;
    let error = unpack(&gzip(&tar), &folder.path().join("other")).unwrap_err();
    assert_eq!(error.code(), "ARCHIVE_ENTRY_DIGEST");
    let installed = home.package(&"1.0.0".parse().unwrap());
    let manifest = Manifest::read(&installed).unwrap();
    contents::verify(&installed, &manifest).unwrap();
}

#[test]
fn no_room_is_told_before_anything_is_written() {
    let folder = Scratch::new();
    let into = folder.path().join("package");
    let mut asked = None;
    let unpacking = Unpacking {
        limits: Limits::default(),
        shelf: &Shelf::default(),
        room: &mut |manifest| {
            asked = manifest.total_size();
            crate::space::check(folder.path(), u64::MAX, 0)
        },
        progress: &mut |_| (),
    };
    let error = unpacking.tar(&good().end()[..], &into).unwrap_err();
    assert_eq!(
        (error.code(), error.retry(), error.is_ours()),
        ("NO_SPACE", true, true)
    );
    assert!(!into.exists());
    assert_eq!(asked, Some(PROGRAM.len() as u64));
}
