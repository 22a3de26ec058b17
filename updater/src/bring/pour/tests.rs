use std::fs;
use std::path::Path;
use std::time::Duration;

use staging::home::Home;
use staging::manifest::Manifest;
use staging::pack::{self, Plan, pack_archive};
use staging::package::Package;
use staging::stage::StagingFolder;
use staging::version::PackageVersion;
use staging::{archive, contents, delta, digest, files};

use super::*;
use crate::deadline;
use crate::feed::Delta;

/// More than any test needs, on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A home, and archives of packages with one large file.
struct World {
    home: Home,
    folder: tempfile::TempDir,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = files::remove_tree(self.folder.path());
    }
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::at(folder.path().join("home"));
        home.create().unwrap();
        World { home, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// An archive whose large file is noise with a few bytes of its own.
    fn archive(&self, version: &str) -> (PathBuf, Manifest) {
        let mut large = noise(3_000_000);
        large[..version.len()].copy_from_slice(version.as_bytes());
        let input = self.path("input");
        fs::write(&input, large).unwrap();
        let plan = Plan {
            version: version.parse().unwrap(),
            target: staging::TARGET.to_owned(),
            binaries: vec![("rollproxy".into(), input)],
            extra: Vec::new(),
            commit: "abc".into(),
            compiled_version: "0.1.0".into(),
            min_launcher: PackageVersion::new(0, 1, 0),
            level: 1,
        };
        let archive = self.path(&format!("{version}.tar.gz"));
        let packed: pack::Packed = pack_archive(&plan, &archive).unwrap();
        (archive, packed.manifest)
    }

    fn pour(&self, form: Form) -> Pour {
        let (held, _) = mpsc::channel(1);
        Pour {
            staged: Arc::new(Staged {
                folder: StagingFolder::create(&self.home, "job").unwrap(),
                _held: held,
            }),
            shelf: Arc::default(),
            deadline: Deadline::start(deadline::Limits {
                inactivity: PATIENCE,
                hard: PATIENCE,
            }),
            form,
            reserve: 0,
            manifest: None,
        }
    }

    /// What the downloader says when all of `bytes` came and are the right ones.
    fn downloaded(&self, bytes: &[u8]) -> Downloaded {
        Downloaded {
            path: self.path("x.part"),
            resumed: 0,
            fetched: bytes.len() as u64,
        }
    }
}

fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}

fn wrong_digest() -> FeedError {
    FeedError::ArchiveDigest {
        archive: "the archive".into(),
        expected: "00".repeat(32),
        actual: "11".repeat(32),
        again: false,
    }
}

fn broke_off() -> FeedError {
    FeedError::Unreachable {
        url: "the archive".into(),
        reason: "connection reset".into(),
    }
}

/// Sends bytes as the downloader does: in order, waiting for room, and going on when nobody takes them.
async fn send(blocks: &mpsc::Sender<Bytes>, bytes: &[u8]) {
    for block in bytes.chunks(64 * 1024) {
        if blocks.send(Bytes::copy_from_slice(block)).await.is_err() {
            return;
        }
    }
}

async fn run(
    pour: &Pour,
    download: impl AsyncFnOnce(mpsc::Sender<Bytes>) -> Result<Downloaded, FeedError>,
) -> Result<Result<Poured, Failure>, FeedError> {
    let (blocks, receiver) = mpsc::channel(BLOCKS);
    let tap = pour.tap(1_000);
    tokio::time::timeout(PATIENCE, pour.run(&tap, receiver, download(blocks)))
        .await
        .unwrap()
}

fn verify(pour: &Pour, manifest: &Manifest) {
    contents::verify(pour.staged.folder.path(), manifest).unwrap();
}

#[tokio::test]
async fn what_came_is_on_disk_before_the_rest_has_come() {
    let world = World::new();
    let (archive, manifest) = world.archive("1.0.0");
    let bytes = fs::read(archive).unwrap();
    let pour = world.pour(Form::Whole);
    let program = pour.staged.folder.path().join("bin/rollproxy");
    let poured = run(&pour, async |blocks| {
        send(&blocks, &bytes[..bytes.len() / 2]).await;
        // A third of it, and all that came so far is in the middle.
        while fs::metadata(&program).map_or(0, |file| file.len()) < 1_000_000 {
            tokio::task::yield_now().await;
        }
        send(&blocks, &bytes[bytes.len() / 2..]).await;
        Ok(world.downloaded(&bytes))
    })
    .await
    .unwrap()
    .unwrap();
    assert_eq!(poured.unpacked.manifest, manifest);
    verify(&pour, &manifest);
}

#[tokio::test]
async fn a_wrong_digest_explains_it_better_than_the_unpacker() {
    let world = World::new();
    let (archive, _) = world.archive("1.0.0");
    let good = fs::read(archive).unwrap();
    // Rubbish, one that ends early, and one that unpacks without any complaint.
    for bytes in [&b"<html>sign in</html>"[..], &good[..good.len() / 2], &good] {
        let pour = world.pour(Form::Whole);
        let outcome = run(&pour, async |blocks| {
            send(&blocks, bytes).await;
            Err(wrong_digest())
        })
        .await;
        assert!(matches!(outcome, Err(FeedError::ArchiveDigest { .. })));
    }
}

#[tokio::test]
async fn of_a_right_digest_the_unpacker_s_word_is_the_archive_s_own_fault() {
    let world = World::new();
    let pour = world.pour(Form::Whole);
    let all_sent = std::cell::Cell::new(false);
    let failure = run(&pour, async |blocks| {
        send(&blocks, b"<html>this is what the publisher signed</html>").await;
        // It goes on to the end, though nobody takes it any more.
        blocks.closed().await;
        all_sent.set(true);
        Ok(world.downloaded(b""))
    })
    .await
    .unwrap()
    .unwrap_err();
    assert_eq!(
        (failure.code.as_str(), failure.retry),
        ("ARCHIVE_CORRUPT", false)
    );
    assert!(all_sent.get());
}

#[tokio::test]
async fn each_try_begins_a_new_unpacking() {
    let world = World::new();
    let (archive, manifest) = world.archive("1.0.0");
    let bytes = fs::read(archive).unwrap();
    let pour = world.pour(Form::Whole);
    for cut in [bytes.len() / 3, bytes.len() - 1] {
        let outcome = run(&pour, async |blocks| {
            send(&blocks, &bytes[..cut]).await;
            Err(broke_off())
        })
        .await;
        assert!(matches!(outcome, Err(FeedError::Unreachable { .. })));
        fs::write(pour.staged.folder.path().join("stray"), "").unwrap();
    }
    run(&pour, async |blocks| {
        send(&blocks, &bytes).await;
        Ok(world.downloaded(&bytes))
    })
    .await
    .unwrap()
    .unwrap();
    verify(&pour, &manifest);
}

#[tokio::test]
async fn a_disk_without_room_ends_the_download_at_once() {
    let world = World::new();
    let (archive, _) = world.archive("1.0.0");
    let bytes = fs::read(archive).unwrap();
    let mut pour = world.pour(Form::Whole);
    pour.reserve = u64::MAX / 2;
    let failure = run(&pour, async |blocks| {
        send(&blocks, &bytes).await;
        std::future::pending().await
    })
    .await
    .unwrap()
    .unwrap_err();
    assert_eq!((failure.code.as_str(), failure.retry), ("NO_SPACE", true));
    assert_eq!(fs::read_dir(pour.staged.folder.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn called_off_the_folder_goes_when_the_last_one_lets_go() {
    let world = World::new();
    let (archive, _) = world.archive("1.0.0");
    let bytes = fs::read(archive).unwrap();
    let mut pour = world.pour(Form::Whole);
    let (held, mut all_let_go) = mpsc::channel(1);
    let root = pour.staged.folder.path().to_owned();
    pour.staged = {
        drop(pour.staged);
        Arc::new(Staged {
            folder: StagingFolder::create(&world.home, "job").unwrap(),
            _held: held,
        })
    };
    let deadline = pour.deadline.clone();
    let program = root.join("bin/rollproxy");
    let stopped = tokio::select! {
        _ = run(&pour, async |blocks| {
            send(&blocks, &bytes[..bytes.len() / 2]).await;
            std::future::pending().await
        }) => false,
        () = async {
            while !program.exists() {
                tokio::task::yield_now().await;
            }
        } => true,
    };
    assert!(stopped);
    drop(pour);
    deadline.cancel();
    tokio::time::timeout(PATIENCE, all_let_go.recv())
        .await
        .unwrap();
    assert!(!root.parent().unwrap().exists());
}

#[tokio::test]
async fn the_manifest_that_the_feed_names_is_the_only_one() {
    let world = World::new();
    let (archive, manifest) = world.archive("1.0.0");
    let bytes = fs::read(archive).unwrap();
    for (said, accepted) in [
        (manifest.digest().to_owned(), true),
        ("00".repeat(32), false),
    ] {
        let mut pour = world.pour(Form::Whole);
        pour.manifest = Some(said);
        let poured = run(&pour, async |blocks| {
            send(&blocks, &bytes).await;
            Ok(world.downloaded(&bytes))
        })
        .await
        .unwrap();
        assert_eq!(poured.is_ok(), accepted);
        if let Err(failure) = poured {
            assert_eq!(
                (failure.code.as_str(), failure.retry),
                ("MANIFEST_MISMATCH", false)
            );
        }
    }
}

/// A patch from 1.0.0, unpacked somewhere, to 1.1.0.
fn patch(world: &World) -> (Base, Vec<u8>, Manifest) {
    let (old, old_manifest) = world.archive("1.0.0");
    let (new, manifest) = world.archive("1.1.0");
    let root = world.path("installed");
    let limits = archive::Limits::default();
    archive::unpack(fs::File::open(&old).unwrap(), &root, &limits, &mut |_| ()).unwrap();
    let path = world.path("a.patch");
    let made = delta::make_at(3, &old, &new, &path).unwrap();
    assert!(made.length < 100_000);
    let delta = Delta {
        from: old_manifest.version.clone(),
        from_manifest: made.from_manifest,
        target: "x.patch".into(),
        length: made.length,
        sha256: made.sha256,
        content_length: made.content_length,
        content_sha256: made.content_sha256,
    };
    let package = Package {
        root,
        manifest: old_manifest,
    };
    (Base { delta, package }, fs::read(path).unwrap(), manifest)
}

async fn pour_patch(world: &World, base: Base, bytes: &[u8]) -> (Pour, Result<Poured, Failure>) {
    let pour = world.pour(Form::Patch(Arc::new(base)));
    let outcome = run(&pour, async |blocks| {
        send(&blocks, bytes).await;
        Ok(world.downloaded(bytes))
    })
    .await
    .unwrap();
    (pour, outcome)
}

#[tokio::test]
async fn a_patch_and_the_installed_files_make_the_package() {
    let world = World::new();
    let (base, bytes, manifest) = patch(&world);
    let (pour, poured) = pour_patch(&world, base, &bytes).await;
    assert_eq!(poured.unwrap().unpacked.manifest, manifest);
    verify(&pour, &manifest);
}

#[tokio::test]
async fn a_patch_that_makes_something_else_is_refused_for_good() {
    type Break = fn(&mut Base, &mut Vec<u8>);
    let cases: [(&str, Break); 6] = [
        ("DELTA_CONTENT", |base, _| {
            base.delta.content_sha256 = digest::of(b"x")
        }),
        ("DELTA_CONTENT", |base, _| base.delta.content_length += 1),
        ("ARCHIVE_READ", |_, bytes| bytes.truncate(bytes.len() / 2)),
        ("ARCHIVE_READ", |_, bytes| bytes.push(0)),
        ("DELTA_OTHER_MANIFEST", |base, _| {
            let path = base.package.root.join("package.json");
            let text = fs::read_to_string(&path).unwrap();
            fs::remove_file(&path).unwrap();
            fs::write(&path, format!("{text} ")).unwrap();
        }),
        // Another byte in the middle of what was installed.
        ("ARCHIVE_ENTRY_DIGEST", |base, _| {
            let path = base.package.root.join("bin/rollproxy");
            change_a_byte(&path);
        }),
    ];
    let world = World::new();
    let (_, bytes, _) = patch(&world);
    for (code, break_it) in cases {
        files::remove_tree(&world.path("installed")).unwrap();
        let (mut base, _, _) = patch(&world);
        let mut bytes = bytes.clone();
        break_it(&mut base, &mut bytes);
        let (_, outcome) = pour_patch(&world, base, &bytes).await;
        let failure = outcome.unwrap_err();
        assert_eq!(
            (failure.code.as_str(), failure.retry),
            (code, false),
            "{failure}"
        );
    }
}

fn change_a_byte(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    bytes[1_500_000] ^= 1;
    fs::remove_file(path).unwrap();
    fs::write(path, bytes).unwrap();
}
