//! The feed against the publisher, over files and over HTTP.

mod archives;
mod certificates;
mod conformance;
mod copies;
mod delegations;
mod failures;
mod metadata;
mod python;
mod repository;
mod roots;
mod server;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use publisher::{Add, Init, Place, Promote, Source, Validity};
use staging::home::Home;
use staging::report::Report;

use super::*;

/// Long enough for a loaded machine, short enough to end a test that hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// A feed with its keys, and a home that pinned its root.
struct World {
    folder: tempfile::TempDir,
    place: Place,
    home: Home,
    now: Timestamp,
}

impl World {
    /// An empty feed, made now.
    async fn new() -> Self {
        Self::made_at(Timestamp::now()).await
    }

    async fn made_at(now: Timestamp) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new(folder.path().join("feed"), folder.path().join("keys"));
        let how = Init {
            validity: Validity { now, days: 90 },
            ..Init::default()
        };
        let made = publisher::init(&place, &how).unwrap();
        let home = Home::at(folder.path().join("home"));
        home.create().unwrap();
        pin_root(&home, &RootSource::File(made.root), &made.root_sha256)
            .await
            .unwrap();
        Self {
            folder,
            place,
            home,
            now,
        }
    }

    /// A feed whose stable channel offers version 1.0.0, with `content` as its archive.
    async fn with_release(content: &[u8]) -> Self {
        let world = Self::new().await;
        world.release("1.0.0", content);
        world
    }

    /// Adds a version and promotes it.
    fn release(&self, version: &str, content: &[u8]) {
        let archive = self.folder.path().join(format!("{version}.tar.gz"));
        fs::write(&archive, content).unwrap();
        let add = Add {
            notes: format!("about {version}"),
            validity: self.validity(),
            ..Add::new(version.parse().unwrap(), Source::Unchecked(archive))
        };
        publisher::add(&self.place, &add).unwrap();
        self.promote("stable", version);
    }

    fn promote(&self, channel: &str, version: &str) {
        let promote = Promote {
            validity: self.validity(),
            ..Promote::new(channel, version.parse().unwrap())
        };
        publisher::promote(&self.place, &promote).unwrap();
    }

    fn validity(&self) -> Validity {
        Validity {
            now: self.now,
            days: 90,
        }
    }

    /// The feed as its file URL.
    fn url(&self) -> String {
        file_url(&self.place.feed)
    }

    /// A client of this home for the feed at `url`.
    fn open(&self, url: &str) -> Result<Feed, FeedError> {
        let settings = FeedSettings {
            read_timeout: PATIENCE,
            ..FeedSettings::new(url)?
        };
        Feed::open(&settings, &self.home)
    }

    /// Opens and refreshes.
    async fn refresh(&self, url: &str) -> Result<Feed, FeedError> {
        let mut feed = self.open(url)?;
        feed.refresh(self.now).await?;
        Ok(feed)
    }

    /// Refreshes and asks what stable offers.
    async fn stable(&self, url: &str) -> Result<(Feed, Release), FeedError> {
        let mut feed = self.refresh(url).await?;
        let release = feed
            .release("stable", staging::TARGET)
            .await?
            .expect("a stable release");
        Ok((feed, release))
    }

    /// A copy of the feed as it is now.
    fn copy(&self, name: &str) -> PathBuf {
        let copy = self.folder.path().join(name);
        copy_tree(&self.place.feed, &copy);
        copy
    }
}

fn file_url(path: &Path) -> String {
    url::Url::from_directory_path(path).unwrap().into()
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Bytes that do not repeat within a block.
fn content(length: usize) -> Vec<u8> {
    (0..length)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 7) as u8)
        .collect()
}

fn code<T>(result: Result<T, FeedError>) -> &'static str {
    result
        .map(|_| ())
        .map_or_else(|error| error.code(), |()| "none")
}
