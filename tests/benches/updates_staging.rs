//! What staging costs: time against `sha256sum` + `tar xzf` of the same bytes, memory of the updater by the size of the
//! archive, and bytes of a patch against the whole archive.
//!
//! `cargo bench -p rollproxy-tests --bench updates_staging [-- --rounds N] [-- --old FOLDER --new FOLDER]`: the two folders
//! hold the programs of two builds; without them, patches are left out. No goal missed ends it with a failure: it tells.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use harness::binaries;
use publisher::{Add, Binaries, Init, Place, Promote, Source};
use staging::delta;
use staging::home::Home;
use staging::pack::{Plan, pack_archive};
use staging::report::Format;
use staging::validate::Validator;
use staging::version::PackageVersion;
use updater::bring::{self, Order};
use updater::deadline::Limits;
use updater::feed::{Downloader, Feed, FeedSettings, Release};
use updater::interrupt::Interrupt;

const LONG: Duration = Duration::from_secs(600);
const MIB: usize = 1024 * 1024;

struct Arguments {
    rounds: usize,
    old: Option<PathBuf>,
    new: Option<PathBuf>,
}

fn main() {
    let mut arguments = Arguments {
        rounds: 9,
        old: None,
        new: None,
    };
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "--rounds" => arguments.rounds = given.next().unwrap().parse().unwrap(),
            "--old" => arguments.old = given.next().map(PathBuf::from),
            "--new" => arguments.new = given.next().map(PathBuf::from),
            _ => {}
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(time(40 * MIB, arguments.rounds));
    for size in [10 * MIB, 200 * MIB] {
        memory(size);
    }
    if let (Some(old), Some(new)) = (&arguments.old, &arguments.new) {
        patches(old, new);
    }
}

/// A feed that offers one version, whose archive has about so many bytes, and a home that follows it.
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

impl World {
    fn new(size: usize) -> World {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new(folder.path().join("feed"), folder.path().join("keys"));
        let made = publisher::init(&place, &Init::default()).unwrap();
        let home = Home::at(folder.path().join("home"));
        let world = World {
            folder,
            place,
            home,
        };
        let url = world.url();
        let root = made.root.display().to_string();
        let init = [
            "init",
            "--feed",
            &url,
            "--root",
            &root,
            "--sha256",
            &made.root_sha256,
        ];
        assert!(world.updater().args(init).status().unwrap().success());
        let version = PackageVersion::new(1, 0, 0);
        let add = Add::new(
            version.clone(),
            Source::Binaries(Binaries {
                entries: vec![(
                    "rollproxy-updater".into(),
                    binaries().path("rollproxy-updater"),
                )],
                extra: world.ballast(size),
                commit: "abc".into(),
                compiled_version: "0.1.0".into(),
                min_launcher: PackageVersion::new(0, 1, 0),
                level: 6,
            }),
        );
        publisher::add(&world.place, &add).unwrap();
        publisher::promote(&world.place, &Promote::new("stable", version)).unwrap();
        world
    }

    /// Files that fill an archive as programs do: real ones, over and over, further apart than gzip looks back.
    fn ballast(&self, size: usize) -> Vec<(String, PathBuf)> {
        let programs: Vec<u8> = binaries()
            .entries()
            .into_iter()
            .flat_map(|(_, path)| fs::read(path).unwrap())
            .collect();
        let packed = |bytes: &[u8]| {
            let file = self.folder.path().join("ballast");
            fs::write(&file, bytes).unwrap();
            let out = self.folder.path().join("ballast.tar.gz");
            let plan = plan(vec![("rollproxy".into(), file)], 6);
            let size = pack_archive(&plan, &out).unwrap().size;
            fs::remove_file(out).unwrap();
            size as usize
        };
        // What else goes in is about one updater.
        let piece = packed(&programs);
        let wanted = size.saturating_sub(piece / 2);
        let bytes = wanted as u64 * programs.len() as u64 / piece as u64;
        let mut files = Vec::new();
        let mut left = bytes as usize;
        while left > 0 {
            let count = left.min(programs.len());
            let file = self.folder.path().join(format!("part-{}", files.len()));
            fs::write(&file, &programs[..count]).unwrap();
            files.push((format!("share/part-{}", files.len()), file));
            left -= count;
        }
        files
    }

    fn url(&self) -> String {
        format!("file://{}", self.place.feed.display())
    }

    fn updater(&self) -> Command {
        let mut command = Command::new(binaries().path("rollproxy-updater"));
        command.env("ROLLPROXY_HOME", self.home.root());
        command.stdout(Stdio::null());
        command
    }

    async fn release(&self) -> (Release, Downloader) {
        let settings = FeedSettings::new(&self.url()).unwrap();
        let mut feed = Feed::open(&settings, &self.home).unwrap();
        feed.refresh(staging::clock::now()).await.unwrap();
        let release = feed.release("stable", staging::TARGET).await.unwrap();
        (release.unwrap(), feed.downloader())
    }
}

fn plan(binaries: Vec<(String, PathBuf)>, level: u32) -> Plan {
    Plan {
        version: PackageVersion::new(1, 0, 0),
        target: staging::TARGET.to_owned(),
        binaries,
        extra: Vec::new(),
        commit: "abc".into(),
        compiled_version: "0.1.0".into(),
        min_launcher: PackageVersion::new(0, 1, 0),
        level,
    }
}

/// Staging until everything is unpacked and hashed, against the two tools on the same archive.
async fn time(size: usize, rounds: usize) {
    let world = World::new(size);
    let (release, downloader) = world.release().await;
    let order = Order {
        home: &world.home,
        job: "job",
        release: &release,
        downloader: &downloader,
        limits: Limits {
            inactivity: LONG,
            hard: LONG,
        },
        validator: &Validator::default(),
        format: Format::Json,
        reserve: 0,
        installed: &[],
        delta: false,
    };
    let mut interrupt = Interrupt::listen().unwrap();
    let archive = world.folder.path().join("archive.tar.gz");
    let (mut fresh, mut there, mut tools) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=rounds {
        // Dropped at once: its staging folder is held for as long as it is there, and there is one job.
        let first = bring::bring(order, &mut interrupt).await.unwrap().unpacking;
        let again = bring::bring(order, &mut interrupt).await.unwrap();
        if round == 0 {
            fs::copy(&again.archive, &archive).unwrap();
            println!(
                "archive {} bytes, unpacked {}",
                release.length,
                again.manifest.total_size().unwrap()
            );
        }
        fs::remove_file(&again.archive).unwrap();
        let other = by_tools(&archive, &world.folder.path().join("unpacked"));
        // The first round warms up.
        if round > 0 {
            fresh.push((first, other));
            there.push((again.unpacking, other));
            tools.push(other);
        }
    }
    let ms = |duration: Duration| format!("{:.0} ms", duration.as_secs_f64() * 1e3);
    let tools = median(tools);
    println!("sha256sum, then tar xzf: {}", ms(tools));
    for (what, pairs) in [("from the feed", fresh), ("from a whole download", there)] {
        let ratios = pairs
            .iter()
            .map(|(ours, theirs)| ours.as_secs_f64() / theirs.as_secs_f64());
        let ratio = median(ratios.collect());
        let ours = median(pairs.iter().map(|(ours, _)| *ours).collect());
        println!("staged {what}: {}, {ratio:.2} of the tools", ms(ours));
    }
}

fn by_tools(archive: &Path, into: &Path) -> Duration {
    fs::create_dir(into).unwrap();
    let begun = Instant::now();
    let mut hash = Command::new("sha256sum");
    let mut untar = Command::new("tar");
    for command in [
        hash.arg(archive),
        untar.arg("xzf").arg(archive).arg("-C").arg(into),
    ] {
        assert!(command.stdout(Stdio::null()).status().unwrap().success());
    }
    let took = begun.elapsed();
    staging::files::remove_tree(into).unwrap();
    took
}

/// The most that the updater ever had resident while it installed an archive of that size.
fn memory(size: usize) {
    let world = World::new(size);
    let mut most = Vec::new();
    for _ in 0..3 {
        for version in staging::package::list(&world.home).unwrap() {
            staging::files::remove_tree(&world.home.package(&version)).unwrap();
        }
        let _ = fs::remove_file(world.home.selection_file());
        let mut child = world.updater().args(["check", "--now"]).spawn().unwrap();
        let status = PathBuf::from(format!("/proc/{}/status", child.id()));
        let mut high = 0;
        // It only grows: the last look before the end is the highest but for the last instant, in which nothing is unpacked.
        let ended = loop {
            let text = fs::read_to_string(&status).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            if let Some(kib) = line.and_then(|line| line.split_whitespace().next()) {
                high = kib.parse::<u64>().unwrap().max(high);
            }
            if let Some(ended) = child.try_wait().unwrap() {
                break ended;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        assert!(ended.success());
        most.push(high);
    }
    println!(
        "archive of {} MB: the updater had at most {:.1} MiB resident (VmHWM; goal 32)",
        size / MIB,
        median(most) as f64 / 1024.0
    );
}

/// The bytes of a patch between two builds, and how long it takes to unpack by it and by the whole archive.
fn patches(old: &Path, new: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let pack = |builds: &Path, name: &str| {
        let programs = ["rollproxy", "rollproxy-updater", "rollproxy-launcher"];
        let there = programs
            .iter()
            .map(|name| ((*name).to_owned(), builds.join(name)))
            .filter(|(_, path)| path.is_file());
        let out = folder.path().join(name);
        let packed = pack_archive(&plan(there.collect(), 9), &out).unwrap();
        (out, packed)
    };
    let (old, old_packed) = pack(old, "old.tar.gz");
    let (new, new_packed) = pack(new, "new.tar.gz");
    println!(
        "whole archives: {} and {} bytes",
        old_packed.size, new_packed.size
    );
    for level in [3, 11, delta::LEVEL] {
        let begun = Instant::now();
        let patch = folder.path().join("patch");
        let made = delta::make_at(level, &old, &new, &patch).unwrap();
        println!(
            "patch at level {level}: {} bytes, {:.3} of the whole; made in {:.1} s",
            made.length,
            made.length as f64 / new_packed.size as f64,
            begun.elapsed().as_secs_f64()
        );
    }
}

fn median<T: PartialOrd + Copy>(mut values: Vec<T>) -> T {
    values.sort_by(|a, b| a.partial_cmp(b).unwrap());
    values[values.len() / 2]
}
