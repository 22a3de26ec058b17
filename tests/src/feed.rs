//! A signed feed in a temporary folder.

use std::path::{Path, PathBuf};

use publisher::{Add, Init, Place, Promote, Source, Validity};
use staging::pack::pack_archive;
use staging::version::PackageVersion;

use crate::home::plan;
use crate::{TestHome, binaries};

/// A feed made by the publisher, and its keys beside it.
pub struct TestFeed {
    folder: tempfile::TempDir,
    place: Place,
    root_sha256: String,
}

impl TestFeed {
    /// An empty feed.
    pub fn new() -> Self {
        Self::valid_from(Validity::default())
    }

    /// An empty feed that was signed at another time.
    pub fn valid_from(validity: Validity) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("rollproxy-feed-")
            .tempdir()
            .unwrap();
        let place = Place::new(folder.path().join("feed"), folder.path().join("keys"));
        let made = publisher::init(
            &place,
            &Init {
                validity,
                ..Init::default()
            },
        )
        .unwrap();
        Self {
            folder,
            place,
            root_sha256: made.root_sha256,
        }
    }

    /// The folder a file server serves.
    pub fn path(&self) -> &Path {
        &self.place.feed
    }

    /// The feed and its keys.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// SHA-256 of the first root.
    pub fn root_sha256(&self) -> &str {
        &self.root_sha256
    }

    /// Releases the programs under test as `version` in the channel `stable`.
    pub fn release(&self, version: &str) {
        let archive = self.pack(version, binaries().entries(), Vec::new());
        self.release_archive(version, &archive);
    }

    /// Releases a version whose worker is faulty.
    pub fn release_faulty(&self, home: &TestHome, version: &str, fault: &str) {
        let mut entries = binaries().entries();
        entries[0].1 = binaries().path("faulty-worker");
        let extra = vec![("share/fault".to_owned(), home.fault_file(fault))];
        let archive = self.pack(version, entries, extra);
        self.release_archive(version, &archive);
    }

    /// Releases an archive as it is, however bad: signed by the right keys.
    pub fn release_archive(&self, version: &str, archive: &Path) {
        let version: PackageVersion = version.parse().unwrap();
        let add = Add::new(version.clone(), Source::Unchecked(archive.to_owned()));
        publisher::add(&self.place, &add).unwrap();
        publisher::promote(&self.place, &Promote::new("stable", version)).unwrap();
    }

    /// Packs an archive into the feed's temporary folder.
    pub fn pack(
        &self,
        version: &str,
        entries: Vec<(String, PathBuf)>,
        extra: Vec<(String, PathBuf)>,
    ) -> PathBuf {
        let out = self.folder.path().join(format!("{version}.tar.gz"));
        pack_archive(&plan(&version.parse().unwrap(), entries, extra), &out).unwrap();
        out
    }

    /// Makes `home` follow this feed at `url`, by `rollproxy-updater init`.
    pub async fn pin(&self, home: &TestHome, url: &str) {
        home.tool("rollproxy-updater")
            .args([
                "init",
                "--feed",
                url,
                "--sha256",
                &self.root_sha256,
                "--root",
            ])
            .arg(self.place.root())
            .run()
            .await
            .expect(0);
    }
}

impl Default for TestFeed {
    fn default() -> Self {
        Self::new()
    }
}
