//! Archives of releases, small, and wrong in the one way that a test wants.

use std::path::{Path, PathBuf};

use fixtures::archives::Entry;
use publisher::{Add, Promote, Source};
use serde_json::{Value, json};
use staging::pack::{Plan, pack_archive};

use crate::home::plan;
use crate::{TestFeed, TestHome, binaries};

/// The files of a package that looks like one and holds no program: enough for whoever refuses it
/// before anything of it runs.
pub fn tiny(version: &str) -> Vec<Entry> {
    signed_for(
        version,
        vec![
            Entry::new("bin/rollproxy", 0o555, b"program".to_vec()),
            Entry::new("bin/rollproxy-updater", 0o555, b"updater".to_vec()),
        ],
        |_| {},
    )
}

/// A package of `files`, its manifest first and right about all of them, but for what `change` makes of it.
pub fn signed_for(version: &str, files: Vec<Entry>, change: impl FnOnce(&mut Value)) -> Vec<Entry> {
    let entries: serde_json::Map<String, Value> = files
        .iter()
        .filter_map(|file| Some((file.path.strip_prefix("bin/")?.to_owned(), json!(file.path))))
        .collect();
    let list: Vec<Value> = files
        .iter()
        .map(|file| {
            json!({
                "path": file.path, "size": file.bytes.len(), "mode": format!("{:04o}", file.mode),
                "sha256": staging::digest::of(&file.bytes),
            })
        })
        .collect();
    let mut manifest = json!({
        "schema": 1, "name": "rollproxy", "version": version, "target": staging::TARGET,
        "minLauncher": "0.1.0", "protocol": {"channel": {"min": 1, "max": 1}, "state": 1},
        "entries": entries, "files": list, "build": {"commit": "abc", "compiledVersion": "0.1.0"},
    });
    change(&mut manifest);
    let manifest = Entry::new("package.json", 0o444, manifest.to_string().into_bytes());
    std::iter::once(manifest).chain(files).collect()
}

/// What a feed says about a release, besides its version.
type Said = Box<dyn Fn(&mut Add)>;

/// A package of the small faulty worker alone, packed by the real packer.
pub struct Pack<'a> {
    feed: &'a TestFeed,
    plan: Plan,
    said: Option<Said>,
}

impl<'a> Pack<'a> {
    /// A package whose `rollproxy` is the faulty worker with this fault.
    pub fn faulty(feed: &'a TestFeed, home: &TestHome, version: &str, fault: &str) -> Self {
        let rollproxy = ("rollproxy".to_owned(), binaries().path("faulty-worker"));
        let extra = vec![("share/fault".to_owned(), home.fault_file(fault))];
        let plan = plan(&version.parse().unwrap(), vec![rollproxy], extra);
        Self {
            feed,
            plan,
            said: None,
        }
    }

    /// A package that holds the real `rollproxy` alone: half the bytes of a release.
    pub fn proxy(feed: &'a TestFeed, version: &str) -> Self {
        let rollproxy = ("rollproxy".to_owned(), binaries().path("rollproxy"));
        let plan = plan(&version.parse().unwrap(), vec![rollproxy], Vec::new());
        Self {
            feed,
            plan,
            said: None,
        }
    }

    /// For another target.
    #[must_use]
    pub fn target(mut self, target: &str) -> Self {
        target.clone_into(&mut self.plan.target);
        self
    }

    /// With another file as its `rollproxy`.
    #[must_use]
    pub fn program(mut self, file: &Path) -> Self {
        self.plan.binaries[0].1 = file.to_owned();
        self
    }

    /// What the feed says about it, besides its version.
    #[must_use]
    pub fn with(mut self, said: impl Fn(&mut Add) + 'static) -> Self {
        self.said = Some(Box::new(said));
        self
    }

    /// Packs it; the archive's path.
    pub fn pack(self) -> PathBuf {
        let out = self
            .feed
            .scratch()
            .join(format!("{}.tar.gz", self.plan.version));
        pack_archive(&self.plan, &out).unwrap();
        out
    }

    /// Packs and releases it in the channel `stable`.
    pub fn release(mut self) {
        let (feed, version, said) = (self.feed, self.plan.version.clone(), self.said.take());
        let mut add = Add::new(version.clone(), Source::Unchecked(self.pack()));
        if let Some(said) = said {
            said(&mut add);
        }
        publisher::add(feed.place(), &add).unwrap();
        publisher::promote(feed.place(), &Promote::new("stable", version)).unwrap();
    }
}

impl TestFeed {
    /// Releases these bytes as the archive of `version`, signed by the right keys.
    pub fn release_bytes(&self, version: &str, bytes: &[u8]) {
        let path = self.scratch().join(format!("{version}.bytes"));
        std::fs::write(&path, bytes).unwrap();
        self.release_archive(version, &path);
    }

    /// Its URL as a folder of this host.
    pub fn file_url(&self) -> String {
        format!("file://{}", self.path().display())
    }

    /// The bytes of a release's archive.
    pub fn length_of(&self, version: &str) -> u64 {
        std::fs::metadata(self.archive_of(version)).unwrap().len()
    }

    /// Where a release's archive lies.
    pub fn archive_of(&self, version: &str) -> PathBuf {
        let folder = self.path().join("targets/rollproxy").join(staging::TARGET);
        let name = format!(".{version}.tar.gz");
        std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .find(|path| path.to_str().unwrap().ends_with(&name))
            .unwrap_or_else(|| panic!("{version} was not released"))
    }

    /// The folder around feed and keys.
    fn scratch(&self) -> &Path {
        self.path().parent().unwrap()
    }
}
