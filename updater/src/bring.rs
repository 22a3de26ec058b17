//! A release, from the feed into a validated staging folder, under the two deadlines of [`crate::deadline`].

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use staging::archive::{self, Limits};
use staging::home::Home;
use staging::manifest::Manifest;
use staging::report::{Exit, Failure, Format, note};
use staging::stage::StagingFolder;
use staging::validate::{Expected, Validator};
use staging::version::PackageVersion;

use crate::deadline::{self, Cancellable, Deadline, Stop};
use crate::feed::{Downloaded, Downloader, Release};
use crate::interrupt::{Interrupt, called_off};
use crate::progress::Progress;
use crate::retry::{WITHIN_A_RUN, retrying};

/// How long stopped work may take to notice.
const STOPPING: Duration = Duration::from_secs(10);
/// What stays free on the file system unless the configuration says otherwise.
pub const RESERVE: u64 = 64 * 1024 * 1024;

/// What is to be brought, and how.
#[derive(Clone, Copy)]
pub struct Order<'a> {
    /// Where to.
    pub home: &'a Home,
    /// The job that brings it; its staging folder is named so.
    pub job: &'a str,
    /// What.
    pub release: &'a Release,
    /// By whom.
    pub downloader: &'a Downloader,
    /// In what time.
    pub limits: deadline::Limits,
    /// Who judges what was unpacked.
    pub validator: &'a Validator,
    /// Whether a bar may be shown.
    pub format: Format,
    /// Bytes that stay free on the file system, whatever is brought.
    pub reserve: u64,
    /// Installed versions whose files may be shared and from which a patch may start; the likeliest first.
    pub installed: &'a [PackageVersion],
    /// Whether a patch may be taken instead of the whole archive.
    pub delta: bool,
}

/// A release that is validated and not yet published.
#[derive(Debug)]
pub struct Brought {
    /// Where it lies; dropped, it is removed.
    pub folder: StagingFolder,
    /// What it is.
    pub manifest: Manifest,
    /// The archive it came from.
    pub archive: PathBuf,
    /// Bytes that came over the network in this run.
    pub fetched: u64,
    /// Bytes of the archive that a patch made unnecessary to fetch.
    pub saved: u64,
    /// Bytes on disk that are shared with an installed version.
    pub shared: u64,
    /// The version from which a patch made it, if one did.
    pub delta_from: Option<PackageVersion>,
    /// How long that took.
    pub downloading: Duration,
    /// How long all of it took.
    pub staging: Duration,
}

/// Downloads, unpacks and validates. Stopped by a deadline or a signal, it leaves the partial download and nothing else.
///
/// # Errors
/// What failed, or what stopped it.
pub async fn bring(order: Order<'_>, interrupt: &mut Interrupt) -> Result<Brought, Failure> {
    let begun = Instant::now();
    let deadline = Deadline::start(order.limits);
    forget_others(order.home, &order.release.sha256);
    let folder = StagingFolder::create(order.home, order.job)?;

    let downloaded = tokio::select! {
        biased;
        downloaded = download(order, &deadline) => downloaded?,
        stop = stopped(&deadline, interrupt) => return Err(failure(stop)),
    };
    let downloading = begun.elapsed();

    let work = Work {
        home: order.home.clone(),
        archive: downloaded.path.clone(),
        version: order.release.version.clone(),
        validator: order.validator.clone(),
        deadline: deadline.clone(),
    };
    let mut work = tokio::task::spawn_blocking(move || work.run(folder));
    let done = tokio::select! {
        biased;
        done = &mut work => done,
        stop = stopped(&deadline, interrupt) => {
            deadline.cancel();
            // The folder is removed by the work itself, when it has noticed; the next job reaps it otherwise.
            let _ = tokio::time::timeout(STOPPING, &mut work).await;
            return Err(failure(stop));
        }
    };
    let (folder, manifest) = done.unwrap_or_else(|stopped| {
        let why = format!("staging stopped: {stopped}");
        Err(Failure::new("STAGING", why, Exit::Failed, true))
    })?;
    Ok(Brought {
        folder,
        manifest,
        archive: downloaded.path,
        fetched: downloaded.fetched,
        saved: 0,
        shared: 0,
        delta_from: None,
        downloading,
        staging: begun.elapsed(),
    })
}

/// Streams the archive, trying again where that can help; each try goes on where the last one broke off.
async fn download(order: Order<'_>, deadline: &Deadline) -> Result<Downloaded, Failure> {
    let bar = Progress::start(order.release.length, order.format);
    let folder = order.home.downloads();
    let mut fetched = 0;
    let mut downloaded = retrying(WITHIN_A_RUN, async || {
        let mut last = None;
        let mut progress = |at: crate::feed::Progress| {
            // The first report is what an earlier run brought: there already, not written now.
            let before = last.replace(at.received).unwrap_or(at.received);
            let wrote = at.received.saturating_sub(before);
            fetched += wrote;
            deadline.wrote(wrote);
            bar.at(at.received);
        };
        order
            .downloader
            .download(
                &order.release.wanted(),
                &folder,
                order.limits.inactivity,
                &mut progress,
                None,
            )
            .await
    })
    .await?;
    downloaded.fetched = fetched;
    Ok(downloaded)
}

/// Ends when the deadline has passed or a signal came.
async fn stopped(deadline: &Deadline, interrupt: &mut Interrupt) -> Stop {
    tokio::select! {
        stop = deadline.expired() => stop,
        () = interrupt.came() => Stop::Signal,
    }
}

fn failure(stop: Stop) -> Failure {
    let (code, what) = match stop {
        Stop::Signal => return called_off(),
        Stop::Inactive(limit) => (
            "STAGING_INACTIVE",
            format!(
                "nothing was written for {} ms (update.inactivity_timeout)",
                limit.as_millis()
            ),
        ),
        Stop::Overdue(limit) => (
            "STAGING_OVERDUE",
            format!(
                "it took longer than {} ms in all (update.hard_timeout)",
                limit.as_millis()
            ),
        ),
    };
    let message = format!("staging was stopped: {what}; what was downloaded is kept for resuming");
    Failure::new(code, message, Exit::Failed, true)
}

/// Partial downloads of other archives: nobody comes back for them.
fn forget_others(home: &Home, sha256: &str) {
    let Ok(entries) = std::fs::read_dir(home.downloads()) else {
        return;
    };
    let keep = format!("{sha256}.part");
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_part = Path::new(&name)
            .extension()
            .is_some_and(|extension| extension == "part");
        if is_part
            && name != *keep
            && let Err(error) = std::fs::remove_file(entry.path())
        {
            note(&format!(
                "warning: removing {}: {error}",
                entry.path().display()
            ));
        }
    }
}

/// The blocking half: unpack and validate.
struct Work {
    home: Home,
    archive: PathBuf,
    version: PackageVersion,
    validator: Validator,
    deadline: Deadline,
}

impl Work {
    fn run(self, folder: StagingFolder) -> Result<(StagingFolder, Manifest), Failure> {
        let archive = File::open(&self.archive).map_err(|source| {
            let what = format!("opening {}: {source}", self.archive.display());
            Failure::new("ARCHIVE_OPEN", what, Exit::Failed, true)
        })?;
        let reader = Cancellable {
            inner: archive,
            deadline: self.deadline.clone(),
        };
        let mut before = 0;
        let unpacked = archive::unpack(reader, folder.path(), &Limits::default(), &mut |so_far| {
            self.deadline.wrote(so_far - before);
            before = so_far;
        })?;
        let expected = Expected {
            version: self.version,
            manifest_digest: Some(unpacked.digest().to_owned()),
        };
        let cancel = || self.deadline.is_cancelled();
        let validated = self
            .validator
            .validate(folder.path(), &expected, &self.home, &cancel)?;
        Ok((folder, validated.manifest))
    }
}
