//! The feed as a host sees it: signed metadata by a maintained TUF client, archives by our own downloader.
//!
//! [`Feed::open`] reads the pinned root, [`Feed::refresh`] brings the metadata up to date, [`Feed::release`] says what a channel
//! offers, and [`Feed::downloader`] streams the archive. Trust comes from the pinned root alone: neither the server, nor what
//! lies between, nor the cache in the home can make a host take anything else. [`Feed::cached`] reads the cache without a network.

mod belief;
mod download;
mod error;
mod floors;
mod location;
mod mirrors;
mod part;
mod pin;
mod release;
mod store;
mod tls;
mod transport;
mod verify;

#[cfg(test)]
mod tests;

pub use download::{Downloaded, Downloader, Progress};
pub use error::FeedError;
pub use location::Location;
pub use pin::{RootSource, pin_root};
pub use release::{ArchiveCustom, Delta, Ramp, Release, Wanted};
pub(crate) use tls::certificates;
pub use verify::Cached;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use sigstore_tuf::{TrustedMetadataSet, Updater, UpdaterConfig};
use staging::home::Home;
use staging::version::PackageVersion;

use floors::{Floors, Seen};
use mirrors::Mirrors;
use release::Channel;
use store::Store;
use transport::{Client, MetadataTransport};

/// No channel file comes near this many bytes.
const CHANNEL_FILE_LIMIT: u64 = 64 * 1024;

/// Where the feed is, and how patient to be with it.
#[derive(Debug, Clone)]
pub struct FeedSettings {
    /// Where it is: `file://`, `http://` or `https://`.
    pub url: Location,
    /// Whole copies of it, which are asked when it does not answer as it should.
    pub mirrors: Vec<Location>,
    /// Certificates in PEM that are trusted besides the machine's own.
    pub ca_file: Option<PathBuf>,
    /// How long one connection may take to be made.
    pub connect_timeout: Duration,
    /// How long one read may bring nothing.
    pub read_timeout: Duration,
}

impl FeedSettings {
    /// Settings for a feed at `url`, with ten seconds to connect and thirty for each read.
    ///
    /// # Errors
    /// [`FeedError::Url`] if it is not a feed's URL.
    pub fn new(url: &str) -> Result<Self, FeedError> {
        url.parse().map(Self::at)
    }

    /// With these mirrors.
    ///
    /// # Errors
    /// [`FeedError::Url`] for the first that is not a feed's URL.
    pub fn with_mirrors(mut self, mirrors: &[String]) -> Result<Self, FeedError> {
        self.mirrors = mirrors
            .iter()
            .map(|mirror| mirror.parse())
            .collect::<Result<_, _>>()?;
        Ok(self)
    }

    /// With the certificates in `ca_file`.
    ///
    /// # Errors
    /// [`FeedError::Certificates`] if there is nothing usable in it.
    pub fn with_ca_file(mut self, ca_file: Option<PathBuf>) -> Result<Self, FeedError> {
        tls::certificates(ca_file.as_deref())?;
        self.ca_file = ca_file;
        Ok(self)
    }

    fn at(url: Location) -> Self {
        Self {
            url,
            mirrors: Vec::new(),
            ca_file: None,
            connect_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(30),
        }
    }
}

/// A feed, trusted as far as its pinned root vouches for it.
#[derive(Debug)]
pub struct Feed {
    /// The copy of the feed that is asked.
    client: Client,
    mirrors: Arc<Mirrors>,
    root: pin::PinnedRoot,
    store: Arc<Store>,
    floors: Floors,
    /// The copies that were not asked yet since the last refresh began.
    untried: VecDeque<usize>,
    /// Present after a refresh that succeeded.
    current: Option<(Updater, Timestamp)>,
}

impl Feed {
    /// Reads the pinned root and the version floors of `home`. Contacts nobody.
    ///
    /// # Errors
    /// No root pinned, a root or a floors file that cannot be read, a client that cannot be set up.
    pub fn open(settings: &FeedSettings, home: &Home) -> Result<Self, FeedError> {
        let root = pin::PinnedRoot::read(home)?;
        let floors = Floors::read(home, &root)?;
        let client = Client::new(settings)?;
        Ok(Self {
            mirrors: Arc::new(Mirrors::read(home, &client.locations())),
            client,
            untried: VecDeque::new(),
            store: Arc::new(Store::new(home.feed())),
            root,
            floors,
            current: None,
        })
    }

    /// Brings the metadata up to date with the feed as of `now`, and writes what was verified durably into the home. Copies
    /// of the feed are asked in turn until one has metadata that this host believes.
    ///
    /// # Errors
    /// [`FeedError`], of the feed itself rather than of a mirror; after one, what a host trusts is what it trusted before,
    /// or newer.
    pub async fn refresh(&mut self, now: Timestamp) -> Result<(), FeedError> {
        self.untried = self.mirrors.order().into();
        self.next_copy(now, None).await
    }

    /// Goes on to the next copy that can be believed. `failed` is why the current one is left.
    async fn next_copy(
        &mut self,
        now: Timestamp,
        failed: Option<FeedError>,
    ) -> Result<(), FeedError> {
        let mut worst = failed.map(|error| (self.client.site(), error));
        if let Some((site, _)) = &worst {
            self.mirrors.failed(*site);
        }
        let outcome = loop {
            let Some(site) = self.untried.pop_front() else {
                break Err(worst.map_or(FeedError::NotRefreshed, |(_, error)| error));
            };
            self.client = self.client.on(site);
            match self.refresh_here(now).await {
                Ok(()) => {
                    self.mirrors.worked(site);
                    self.mirrors.passed_over(self.untried.make_contiguous());
                    break Ok(());
                }
                Err(error) if error.is_of_site() => {
                    self.mirrors.failed(site);
                    // A person looks after the feed; a mirror's trouble tells them less.
                    if site == 0 || worst.is_none() {
                        worst = Some((site, error));
                    }
                }
                Err(error) => break Err(error),
            }
        };
        self.mirrors.save();
        outcome
    }

    async fn refresh_here(&mut self, now: Timestamp) -> Result<(), FeedError> {
        self.current = None;
        self.store.begin();
        let transport = MetadataTransport::new(self.client.clone());
        let trace = transport.trace();
        let explain = |error| FeedError::from_tuf(error, &trace, self.client.location());
        let mut updater = Updater::new(transport, self.root.bytes())
            .map_err(explain)?
            .with_config(limits())
            .with_store(Arc::clone(&self.store));
        let outcome = updater.refresh(now).await.map_err(explain);
        // Also after an error: a root that was verified before it stays verified. The error itself is what counts then.
        let kept = self.keep(updater.trusted());
        outcome.and(kept)?;
        self.current = Some((updater, now));
        Ok(())
    }

    /// What `channel` offers for `target`, or `None` if the feed has no such channel for it.
    ///
    /// # Errors
    /// [`FeedError::NotRefreshed`] before a refresh; a channel file that is malformed or disagrees with the archive it names.
    pub async fn release(
        &mut self,
        channel: &str,
        target: &str,
    ) -> Result<Option<Release>, FeedError> {
        loop {
            let now = self.current.as_ref().ok_or(FeedError::NotRefreshed)?.1;
            match self.release_here(channel, target).await {
                // Metadata that are whole, and a file that is not: as of a copy that is being made.
                Err(error) if error.is_of_site() && !self.untried.is_empty() => {
                    self.next_copy(now, Some(error)).await?;
                }
                outcome => return outcome,
            }
        }
    }

    async fn release_here(
        &mut self,
        channel: &str,
        target: &str,
    ) -> Result<Option<Release>, FeedError> {
        let (updater, now) = self.current.as_mut().ok_or(FeedError::NotRefreshed)?;
        let (role, channel) = (channel, Channel::new(channel, target)?);
        let explain =
            |error| FeedError::from_tuf_target(error, channel.name(), self.client.location());
        let found = updater.get_target_info(channel.name(), *now).await;
        let Some(file) = found.map_err(explain)? else {
            // The role that would name it may have been read on the way.
            self.store.commit()?;
            return Ok(None);
        };
        if !belief::of_channel(updater.trusted(), role, channel.name(), &file, *now) {
            return Err(channel.malformed("it is signed by a role that may not speak of it"));
        }
        if file.length > CHANNEL_FILE_LIMIT {
            return Err(channel.malformed("it is larger than 64 KiB"));
        }
        let bytes = match updater.find_cached_target(&file, channel.name()) {
            Some(bytes) => bytes,
            None => updater
                .download_target(&file, channel.name())
                .await
                .map_err(explain)?,
        };
        self.store.commit()?;
        let offer = channel.parse(&bytes)?;
        let archive = updater
            .get_target_info(&offer.archive, *now)
            .await
            .map_err(explain)?;
        let archive = archive
            .filter(|found| belief::of_targets(updater.trusted(), &offer.archive, found))
            .ok_or_else(|| FeedError::ArchiveMissing {
                archive: offer.archive.clone(),
            })?;
        let consistent = updater.trusted().root().consistent_snapshot;
        channel.release(offer, &archive, consistent).map(Some)
    }

    /// What the feed says about the archive of `version` for `target`; none if it has no such archive, or no more.
    ///
    /// # Errors
    /// [`FeedError::NotRefreshed`] before a refresh; words about it that this version cannot read.
    pub async fn about(
        &mut self,
        version: &PackageVersion,
        target: &str,
    ) -> Result<Option<ArchiveCustom>, FeedError> {
        let (updater, now) = self.current.as_mut().ok_or(FeedError::NotRefreshed)?;
        let name = release::archive_name(target, version);
        let archive = updater
            .get_target_info(&name, *now)
            .await
            .map_err(|error| FeedError::from_tuf_target(error, &name, self.client.location()))?;
        archive
            .filter(|found| belief::of_targets(updater.trusted(), &name, found))
            .map(|archive| release::about(&name, &archive))
            .transpose()
    }

    /// The release of `version` for `target`, as its archive tells it; none if the feed has no such archive. What a channel
    /// says is not in it.
    ///
    /// # Errors
    /// As [`Feed::release`].
    pub async fn version(
        &mut self,
        version: &PackageVersion,
        target: &str,
    ) -> Result<Option<Release>, FeedError> {
        let (updater, now) = self.current.as_mut().ok_or(FeedError::NotRefreshed)?;
        let name = release::archive_name(target, version);
        let archive = updater
            .get_target_info(&name, *now)
            .await
            .map_err(|error| FeedError::from_tuf_target(error, &name, self.client.location()))?;
        let consistent = updater.trusted().root().consistent_snapshot;
        archive
            .filter(|found| belief::of_targets(updater.trusted(), &name, found))
            .map(|archive| release::release_of(&name, target, version, &archive, consistent))
            .transpose()
    }

    /// How to recognise the file that the feed knows as `name`, whatever it is; none if it knows no such file.
    ///
    /// # Errors
    /// [`FeedError::NotRefreshed`] before a refresh; metadata on the way to it that cannot be had or believed.
    pub async fn target(&mut self, name: &str) -> Result<Option<Wanted>, FeedError> {
        let (updater, now) = self.current.as_mut().ok_or(FeedError::NotRefreshed)?;
        let found = updater
            .get_target_info(name, *now)
            .await
            .map_err(|error| FeedError::from_tuf_target(error, name, self.client.location()));
        // Roles that were read on the way are trusted from now on.
        let kept = self.store.commit();
        let found = found?;
        kept?;
        let consistent = updater.trusted().root().consistent_snapshot;
        found
            .map(|target| release::wanted(name, &target, consistent))
            .transpose()
    }

    /// Something that streams this feed's archives.
    pub fn downloader(&self) -> Downloader {
        Downloader::new(self.client.clone(), Arc::clone(&self.mirrors))
    }

    /// Verifies the cached metadata of `home` from its pinned root, without a network and whatever the time is: what `check
    /// --self-test` of a new updater does, so that no update can take away the next one. An empty cache is fine.
    ///
    /// # Errors
    /// A root, floors or metadata in the home that this build cannot read.
    pub fn cached(home: &Home) -> Result<Cached, FeedError> {
        let root = pin::PinnedRoot::read(home)?;
        Floors::read(home, &root)?;
        Cached::read(&Store::new(home.feed()), &root)
    }

    /// Judges what was just verified by the floors, and writes both.
    fn keep(&mut self, trusted: &TrustedMetadataSet) -> Result<(), FeedError> {
        let seen = Seen::of(trusted);
        self.floors.judge(&seen)?;
        // The floors first: if the power goes between the two, the cache is older than the floors, and is refreshed.
        self.floors.raise(&seen)?;
        self.store.commit()
    }
}

fn limits() -> UpdaterConfig {
    let mut config = UpdaterConfig::default();
    config.target_max_length = CHANNEL_FILE_LIMIT;
    // A rotation adds two roots, and a host may have pinned the first of a feed that is old.
    config.max_root_rotations = 1024;
    config
}
