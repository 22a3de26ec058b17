//! Bringing a release, as the job does, from a signed feed in a folder: what is shared, what a patch does, what happens
//! when it is not what it should be, and when there is no room.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests are tests

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use publisher::{Add, Binaries, Init, Place, Promote, Source};
use staging::contents;
use staging::delta;
use staging::digest;
use staging::home::Home;
use staging::locks::StateLock;
use staging::manifest::Manifest;
use staging::package::Package;
use staging::publish::publish;
use staging::report::{Exit, Failure, Format};
use staging::validate::Validator;
use staging::version::PackageVersion;
use updater::bring::{self, Brought, Order};
use updater::deadline::Limits;
use updater::feed::{Delta, Downloader, Feed, FeedSettings, Release};
use updater::interrupt::Interrupt;

const UPDATER: &str = env!("CARGO_BIN_EXE_rollproxy-updater");
/// More than any test needs, on any machine.
const PATIENCE: Duration = Duration::from_secs(300);

struct World {
    folder: tempfile::TempDir,
    place: Place,
    home: Home,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = staging::files::remove_tree(self.folder.path());
    }
}

fn version(text: &str) -> PackageVersion {
    text.parse().unwrap()
}

impl World {
    /// A home with 1.0.0 installed, which follows a feed that offers 1.1.0: the same program, and other notes.
    async fn new() -> (World, Release, Downloader) {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new(folder.path().join("feed"), folder.path().join("keys"));
        let made = publisher::init(&place, &Init::default()).unwrap();
        let home = Home::at(folder.path().join("home"));
        let url = format!("file://{}", place.feed.display());
        let root = made.root.display().to_string();
        let init = Command::new(UPDATER)
            .args(["init", "--feed", &url, "--root", &root])
            .args(["--sha256", &made.root_sha256])
            .env("ROLLPROXY_HOME", home.root())
            .output()
            .unwrap();
        assert!(init.status.success(), "{init:?}");
        let world = World {
            folder,
            place,
            home,
        };
        let (first, downloader) = world.release("1.0.0").await;
        let brought = world
            .bring(&first, &downloader, &[], bring::RESERVE)
            .await
            .unwrap();
        world.publish(brought);
        let (release, downloader) = world.release("1.1.0").await;
        (world, release, downloader)
    }

    async fn release(&self, number: &str) -> (Release, Downloader) {
        let notes = self.folder.path().join("notes");
        fs::write(&notes, format!("what is new in {number}\n")).unwrap();
        let add = Add::new(
            version(number),
            Source::Binaries(Binaries {
                entries: vec![("rollproxy-updater".to_owned(), PathBuf::from(UPDATER))],
                extra: vec![("share/notes.txt".to_owned(), notes)],
                commit: "abc".to_owned(),
                compiled_version: "0.1.0".to_owned(),
                min_launcher: PackageVersion::new(0, 1, 0),
                level: 1,
            }),
        );
        publisher::add(&self.place, &add).unwrap();
        let promote = Promote::new("stable", version(number));
        publisher::promote(&self.place, &promote).unwrap();
        let settings = FeedSettings::new(&format!("file://{}", self.place.feed.display())).unwrap();
        let mut feed = Feed::open(&settings, &self.home).unwrap();
        feed.refresh(staging::clock::now()).await.unwrap();
        let release = feed.release("stable", staging::TARGET).await.unwrap();
        (release.unwrap(), feed.downloader())
    }

    async fn bring(
        &self,
        release: &Release,
        downloader: &Downloader,
        installed: &[PackageVersion],
        reserve: u64,
    ) -> Result<Brought, Failure> {
        let order = Order {
            home: &self.home,
            job: "job",
            release,
            downloader,
            limits: Limits {
                inactivity: PATIENCE,
                hard: PATIENCE,
            },
            validator: &Validator {
                entry_timeout: PATIENCE,
                self_test_timeout: PATIENCE,
                ..Validator::default()
            },
            format: Format::Json,
            reserve,
            installed,
            delta: true,
        };
        bring::bring(order, &mut Interrupt::listen().unwrap()).await
    }

    /// Publishes as the job does. The download goes; a patch is gone already, for nobody would know it any more.
    fn publish(&self, brought: Brought) -> Manifest {
        let lock = StateLock::acquire(&self.home, PATIENCE).unwrap();
        publish(&lock, &self.home, brought.folder, &brought.manifest).unwrap();
        assert_eq!(brought.archive.exists(), brought.delta_from.is_none());
        if brought.delta_from.is_none() {
            fs::remove_file(brought.archive).unwrap();
        }
        contents::verify(
            &self.home.package(&brought.manifest.version),
            &brought.manifest,
        )
        .unwrap();
        brought.manifest
    }

    /// Where the feed keeps a target.
    fn target(&self, name: &str, sha256: &str) -> PathBuf {
        let (folder, base) = name.rsplit_once('/').unwrap();
        self.place
            .feed
            .join("targets")
            .join(folder)
            .join(format!("{sha256}.{base}"))
    }

    /// Puts a patch from 1.0.0 into the feed and what there is to say about it into the release.
    fn patch(&self, release: &mut Release) -> PathBuf {
        let old = fs::read_dir(self.target(&release.archive, "x").parent().unwrap())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .find(|path| path.to_str().unwrap().ends_with(".1.0.0.tar.gz"))
            .unwrap();
        let new = self.target(&release.archive, &release.sha256);
        let path = self.folder.path().join("patch");
        let made = delta::make_at(1, &old, &new, &path).unwrap();
        let delta = Delta {
            from: version("1.0.0"),
            from_manifest: made.from_manifest,
            target: format!("rollproxy/{}/1.1.0.from-1.0.0.patch", staging::TARGET),
            length: made.length,
            sha256: made.sha256,
            content_length: made.content_length,
            content_sha256: made.content_sha256,
        };
        let target = self.target(&delta.target, &delta.sha256);
        fs::rename(path, &target).unwrap();
        release.custom.deltas = vec![delta];
        target
    }

    fn downloads(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.home.downloads()).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    fn nothing_staged(&self) -> bool {
        fs::read_dir(self.home.staging_dir()).unwrap().count() == 0
    }
}

#[tokio::test]
async fn an_unchanged_file_is_shared_and_outlives_the_version_it_came_from() {
    let (world, release, downloader) = World::new().await;
    let brought = world
        .bring(&release, &downloader, &[version("1.0.0")], bring::RESERVE)
        .await
        .unwrap();
    let program = brought.manifest.file("bin/rollproxy-updater").unwrap();
    assert_eq!(brought.shared, program.size);
    assert_eq!(
        (brought.saved, &brought.delta_from, &brought.fell_back),
        (0, &None, &None)
    );
    assert_eq!(brought.fetched, release.length);
    let manifest = world.publish(brought);

    let old = Package::open(&world.home, &version("1.0.0")).unwrap();
    contents::verify(&old.root, &old.manifest).unwrap();
    let path = |number: &str| {
        world
            .home
            .package(&version(number))
            .join("bin/rollproxy-updater")
    };
    let (was, is) = (
        fs::metadata(path("1.0.0")).unwrap(),
        fs::metadata(path("1.1.0")).unwrap(),
    );
    assert_eq!(is.permissions().mode() & 0o7777, 0o555);
    // By a hard link, or by blocks alone where the file system can do that.
    assert!(was.ino() != is.ino() || is.nlink() == 2);
    staging::files::remove_tree(&old.root).unwrap();
    contents::verify(&world.home.package(&version("1.1.0")), &manifest).unwrap();
}

#[tokio::test]
async fn a_patch_from_an_installed_version_is_taken_instead_of_the_archive() {
    let (world, mut release, downloader) = World::new().await;
    world.patch(&mut release);
    let length = release.custom.deltas[0].length;
    let brought = world
        .bring(&release, &downloader, &[version("1.0.0")], bring::RESERVE)
        .await
        .unwrap();
    assert_eq!(brought.delta_from, Some(version("1.0.0")));
    assert_eq!(brought.fell_back, None);
    assert_eq!(
        (brought.fetched, brought.saved),
        (length, release.length - length)
    );
    assert!(
        length * 20 < release.length,
        "{length} of {}",
        release.length
    );
    world.publish(brought);
    assert!(world.downloads().is_empty() && world.nothing_staged());

    // Switched off, or from a version that is not installed, it is not looked at.
    let brought = world
        .bring(&release, &downloader, &[], bring::RESERVE)
        .await
        .unwrap();
    assert_eq!(
        (brought.delta_from, brought.fetched),
        (None, release.length)
    );
}

#[tokio::test]
async fn whatever_is_wrong_with_a_patch_the_whole_archive_follows() {
    type Break = fn(&World, &mut Release, &PathBuf);
    /// What is wrong, and whether the patch is tried at all.
    const CASES: [(&str, bool, Break); 6] = [
        ("it is not there", true, |_, _, file| {
            fs::remove_file(file).unwrap()
        }),
        ("other bytes came", true, |_, _, file| {
            let mut bytes = fs::read(file).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(file, bytes).unwrap();
        }),
        ("it makes something else", true, |_, release, _| {
            release.custom.deltas[0].content_sha256 = digest::of(b"something else");
        }),
        ("it is no patch", true, |world, release, _| {
            let delta = &mut release.custom.deltas[0];
            delta.sha256 = digest::of(b"no patch");
            delta.length = 8;
            fs::write(world.target(&delta.target, &delta.sha256), "no patch").unwrap();
        }),
        ("it starts from another 1.0.0", false, |_, release, _| {
            release.custom.deltas[0].from_manifest = digest::of(b"another");
        }),
        ("what is installed is damaged", false, |world, _, _| {
            let notes = world
                .home
                .package(&version("1.0.0"))
                .join("share/notes.txt");
            fs::set_permissions(&notes, fs::Permissions::from_mode(0o644)).unwrap();
            fs::write(&notes, "what was new in 1.0.0\n").unwrap();
            fs::set_permissions(&notes, fs::Permissions::from_mode(0o444)).unwrap();
        }),
    ];
    let (world, mut release, downloader) = World::new().await;
    let file = world.patch(&mut release);
    let bytes = fs::read(&file).unwrap();
    for (what, tried, break_it) in CASES {
        let mut release = release.clone();
        break_it(&world, &mut release, &file);
        let brought = world
            .bring(&release, &downloader, &[version("1.0.0")], bring::RESERVE)
            .await
            .unwrap();
        assert_eq!(brought.delta_from, None, "{what}");
        assert_eq!(
            brought.fell_back.is_some(),
            tried,
            "{what}: {:?}",
            brought.fell_back
        );
        assert_eq!(brought.saved, 0);
        contents::verify(brought.folder.path(), &brought.manifest).unwrap();
        assert_eq!(
            world.downloads(),
            [brought.archive],
            "{what}: the patch is gone"
        );
        fs::remove_file(&world.downloads()[0]).unwrap();
        fs::write(&file, &bytes).unwrap();
    }
}

#[tokio::test]
async fn without_room_nothing_is_begun_and_the_numbers_are_said() {
    let (world, release, downloader) = World::new().await;
    let reserve = u64::MAX / 2;
    let failure = world
        .bring(&release, &downloader, &[], reserve)
        .await
        .unwrap_err();
    assert_eq!(failure.code, "NO_SPACE");
    assert_eq!((failure.exit, failure.retry), (Exit::Failed, true));
    let said = &failure.message;
    assert!(said.contains(world.home.root().to_str().unwrap()), "{said}");
    assert!(said.contains(&format!("{reserve} stay free")), "{said}");
    assert!(world.nothing_staged() && world.downloads().is_empty());
}

#[tokio::test]
async fn a_download_that_is_there_whole_is_read_from_the_disk() {
    let (world, release, downloader) = World::new().await;
    let first = world
        .bring(&release, &downloader, &[], bring::RESERVE)
        .await
        .unwrap();
    assert_eq!(first.fetched, release.length);
    drop(first);
    fs::remove_file(world.target(&release.archive, &release.sha256)).unwrap();
    let again = world
        .bring(&release, &downloader, &[], bring::RESERVE)
        .await
        .unwrap();
    assert_eq!(again.fetched, 0);
    world.publish(again);
}

/// A small file system over a home, gone when dropped.
struct Small(PathBuf);

impl Small {
    fn mount(at: &std::path::Path) -> Small {
        run(
            "mount",
            &[
                "-t",
                "tmpfs",
                "-o",
                "size=600m",
                "none",
                at.to_str().unwrap(),
            ],
        );
        Small(at.to_owned())
    }

    /// So many more files can be made.
    fn leave(&self, files: u64) {
        let said = rustix::fs::statvfs(&self.0).unwrap();
        let option = format!("remount,nr_inodes={}", said.f_files - said.f_ffree + files);
        run("mount", &["-o", &option, self.0.to_str().unwrap()]);
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn run(program: &str, arguments: &[&str]) {
    let ended = Command::new(program).args(arguments).status().unwrap();
    assert!(ended.success(), "{program} {arguments:?}");
}

#[tokio::test]
#[ignore = "needs root: it mounts a small file system"]
async fn a_disk_that_runs_full_at_any_point_is_told_by_its_name_and_recovers() {
    let (mut world, release, downloader) = World::new().await;
    // The same home, on a file system that can be made to run out of files, which is the same error as of bytes.
    let at = world.folder.path().join("small");
    fs::create_dir(&at).unwrap();
    let small = Small::mount(&at);
    let old = std::mem::replace(&mut world.home, Home::at(at.join("home")));
    run(
        "cp",
        &[
            "-a",
            old.root().to_str().unwrap(),
            world.home.root().to_str().unwrap(),
        ],
    );
    let mut refused = 0;
    loop {
        small.leave(refused);
        match world.bring(&release, &downloader, &[], 0).await {
            Ok(brought) => {
                small.leave(1_000);
                world.publish(brought);
                break;
            }
            Err(failure) => {
                assert_eq!(failure.code, "NO_SPACE", "{refused} more files: {failure}");
                assert_eq!((failure.exit, failure.retry), (Exit::Failed, true));
                assert!(failure.message.contains(at.to_str().unwrap()), "{failure}");
                assert!(failure.message.contains("takes about"), "{failure}");
                assert!(world.nothing_staged(), "{refused} more files");
                refused += 1;
                assert!(refused < 50);
            }
        }
    }
    // Folders of staging and job, lock, package, manifest, two folders and two files, the download.
    assert!(refused >= 8, "{refused}");
}
