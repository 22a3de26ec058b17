//! A release, from the feed into a validated staging folder, under the two deadlines of [`crate::deadline`].
//!
//! There is one pass from socket to disk (`pour`): what comes is hashed, inflated and unpacked while it comes. Where the
//! feed has a patch from an installed version that is smaller (`patch`), that is poured instead; whatever is wrong with it,
//! the whole archive follows.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use staging::archive::Unpacked;
use staging::home::Home;
use staging::manifest::Manifest;
use staging::report::{Exit, Failure, Format, note};
use staging::share::Shelf;
use staging::space;
use staging::stage::StagingFolder;
use staging::validate::Validator;
use staging::version::PackageVersion;
use tokio::sync::mpsc;

use crate::deadline::{self, Deadline, Stop};
use crate::feed::{Delta, Downloader, Release, Wanted};
use crate::interrupt::{self, Interrupt, called_off};
use crate::progress::Progress;
use crate::retry::{WITHIN_A_RUN, retrying};

mod patch;
mod pour;
use pour::{Form, Pour, Poured};

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
    /// The download it came from: the archive; or the patch, which is removed already.
    pub archive: PathBuf,
    /// Bytes that came over the network in this run.
    pub fetched: u64,
    /// Bytes of the archive that a patch made unnecessary to fetch.
    pub saved: u64,
    /// Bytes on disk that are shared with an installed version.
    pub shared: u64,
    /// The version from which a patch made it, if one did.
    pub delta_from: Option<PackageVersion>,
    /// Why a patch that was there did not make it; the whole archive did then.
    pub fell_back: Option<String>,
    /// How long downloading took.
    pub downloading: Duration,
    /// How long it took until everything was unpacked and hashed, but not yet tried.
    pub unpacking: Duration,
    /// How long all of it took.
    pub staging: Duration,
}

/// The staging folder while it is filled. Whoever works on it holds it; when the last one lets go, it is removed, and who
/// waits for that is told.
#[derive(Debug)]
struct Staged {
    // In this order: the folder is gone when the other end of the channel notices.
    folder: StagingFolder,
    _held: mpsc::Sender<()>,
}

/// Downloads, unpacks and validates. Stopped by a deadline or a signal, it leaves the partial download and nothing else.
///
/// # Errors
/// What failed, or what stopped it.
pub async fn bring(order: Order<'_>, interrupt: &mut Interrupt) -> Result<Brought, Failure> {
    let deadline = Deadline::start(order.limits);
    let (held, mut all_let_go) = mpsc::channel(1);
    let outcome = tokio::select! {
        biased;
        outcome = fill(order, &deadline, held) => outcome,
        stop = stopped(&deadline, interrupt) => Err(failure(stop)),
    };
    if outcome.is_err() {
        deadline.cancel();
        // The blocking parts notice when they read next. If one does not in time, the next job reaps the folder.
        let _ = tokio::time::timeout(STOPPING, all_let_go.recv()).await;
    }
    outcome.map_err(|failure| with_need(failure, order.release, order.reserve))
}

/// The patch that [`bring`] would take.
pub async fn patch_for(order: Order<'_>) -> Option<Delta> {
    patch::base_for(order).await.map(|base| base.delta)
}

async fn fill(
    order: Order<'_>,
    deadline: &Deadline,
    held: mpsc::Sender<()>,
) -> Result<Brought, Failure> {
    let begun = Instant::now();
    let release = order.release;
    forget_others(order.home, |name| {
        std::iter::once(&release.sha256)
            .chain(release.custom.deltas.iter().map(|delta| &delta.sha256))
            .any(|sha256| *name == *part_name(sha256))
    });
    let staged = Arc::new(Staged {
        folder: StagingFolder::create(order.home, order.job)?,
        _held: held,
    });
    let work = Work {
        order,
        deadline,
        shelf: Arc::new(Shelf::of(order.home, order.installed)),
    };

    let (mut patched, mut fell_back) = (None, None);
    if let Some(base) = patch::base_for(order).await {
        let (delta, form) = (base.delta.clone(), Form::Patch(Arc::new(base)));
        match work.pour(release.patch(&delta), form, &staged).await {
            Ok(poured) => patched = Some((poured, Some(delta))),
            // The whole archive would meet the same.
            Err(failure) if [space::CODE, interrupt::CODE].contains(&failure.code.as_str()) => {
                return Err(failure);
            }
            Err(failure) => {
                fell_back = Some(format!(
                    "the patch from {}: {}: {}",
                    delta.from, failure.code, failure.message
                ));
                // What does not make the release is not tried again by a later run; what broke off may be.
                if !failure.retry {
                    let part = order.home.downloads().join(part_name(&delta.sha256));
                    let _ = std::fs::remove_file(part);
                }
                // The whole archive is not asked to find room beside what the patch made.
                staged.folder.clear()?;
            }
        }
    }
    let (poured, delta) = match patched {
        Some(patched) => patched,
        None => (
            work.pour(release.wanted(), Form::Whole, &staged).await?,
            None,
        ),
    };
    let unpacking = begun.elapsed();
    work.validate(&staged, poured.unpacked.clone()).await?;
    if delta.is_some() {
        // Once the version is published, nobody would know what this was a patch for.
        let _ = std::fs::remove_file(&poured.archive);
    }
    let used = poured.archive.file_name().map(ToOwned::to_owned);
    forget_others(order.home, |name| used.as_deref() == Some(name));
    let Some(Staged { folder, .. }) = Arc::into_inner(staged) else {
        let why = "the staging folder is still in use";
        return Err(Failure::new("STAGING", why, Exit::Failed, true));
    };
    let saved = delta
        .as_ref()
        .map_or(0, |delta| release.length.saturating_sub(delta.length));
    Ok(Brought {
        folder,
        manifest: poured.unpacked.manifest,
        archive: poured.archive,
        fetched: poured.fetched,
        saved,
        shared: poured.unpacked.shared,
        delta_from: delta.map(|delta| delta.from),
        fell_back,
        downloading: poured.downloaded.saturating_duration_since(begun),
        unpacking,
        staging: begun.elapsed(),
    })
}

/// What every step of bringing needs.
struct Work<'a> {
    order: Order<'a>,
    deadline: &'a Deadline,
    shelf: Arc<Shelf>,
}

impl Work<'_> {
    /// Streams one file of the feed into the staging folder, trying again where that can help. Each try goes on downloading
    /// where the last one broke off, and begins a new unpacking.
    async fn pour(
        &self,
        wanted: Wanted,
        form: Form,
        staged: &Arc<Staged>,
    ) -> Result<Poured, Failure> {
        let Order {
            home,
            release,
            downloader,
            limits,
            ..
        } = self.order;
        let folder = home.downloads();
        self.room_before(&wanted)?;
        let bar = Progress::start(wanted.length, self.order.format);
        let pour = Pour {
            staged: Arc::clone(staged),
            shelf: Arc::clone(&self.shelf),
            deadline: self.deadline.clone(),
            form,
            reserve: self.order.reserve,
            manifest: release.custom.manifest.clone(),
        };
        let mut fetched = 0;
        let mut poured = retrying(WITHIN_A_RUN, async || {
            let tap = pour.tap(wanted.length);
            let mut last = None;
            let mut progress = |at: crate::feed::Progress| {
                // The first report is what an earlier run brought: there already, not written now.
                let before = last.replace(at.received).unwrap_or(at.received);
                let wrote = at.received.saturating_sub(before);
                fetched += wrote;
                self.deadline.wrote(wrote);
                tap.received(at.received);
                bar.at(at.received);
            };
            let (blocks, receiver) = mpsc::channel(pour::BLOCKS);
            let download = downloader.download(
                &wanted,
                &folder,
                limits.inactivity,
                &mut progress,
                Some(blocks),
            );
            pour.run(&tap, receiver, download).await
        })
        .await??;
        poured.fetched = fetched;
        Ok(poured)
    }

    /// Refuses what has no room, as far as that is known before the manifest is.
    fn room_before(&self, wanted: &Wanted) -> Result<(), Failure> {
        let Order { home, release, .. } = self.order;
        let left = wanted.length - patch::there(home, &wanted.sha256, wanted.length);
        let needs = [
            (home.downloads(), left),
            (home.packages(), unpacked_size(release)),
        ];
        space::check_all(&needs, self.order.reserve).map_err(Failure::from)
    }

    /// Judges what lies in the staging folder.
    async fn validate(&self, staged: &Arc<Staged>, unpacked: Unpacked) -> Result<(), Failure> {
        let (staged, home) = (Arc::clone(staged), self.order.home.clone());
        let version = self.order.release.version.clone();
        let (validator, deadline) = (self.order.validator.clone(), self.deadline.clone());
        let judged = tokio::task::spawn_blocking(move || {
            let cancel = || deadline.is_cancelled();
            let root = staged.folder.path();
            validator.validate_unpacked(root, &version, &unpacked, &home, &cancel)
        });
        judged.await.map_err(stopped_short)??;
        Ok(())
    }
}

/// What the package takes, as long as its manifest is not known.
fn unpacked_size(release: &Release) -> u64 {
    // A patch says how large the tar is. Without one, a package is hardly smaller than its archive.
    let deltas = release.custom.deltas.iter();
    let tar = deltas.map(|delta| delta.content_length).max();
    space::of_bytes(tar.unwrap_or(release.length))
}

/// A disk that ran full was told by whoever met it; how much this needs is known here.
fn with_need(mut failure: Failure, release: &Release, reserve: u64) -> Failure {
    if failure.code == space::CODE && !failure.message.contains("are needed") {
        let needed = release.length.saturating_add(unpacked_size(release));
        failure.message.push_str(&format!(
            " ({} takes about {needed} bytes, and {reserve} stay free)",
            release.version
        ));
    }
    failure
}

/// A blocking part that did not come to its end.
fn stopped_short(stopped: tokio::task::JoinError) -> Failure {
    let why = format!("staging stopped: {stopped}");
    Failure::new("STAGING", why, Exit::Failed, true)
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

/// The file of a download.
fn part_name(sha256: &str) -> String {
    format!("{sha256}.part")
}

/// Removes downloads that nobody comes back for.
fn forget_others(home: &Home, keep: impl Fn(&std::ffi::OsStr) -> bool) {
    let Ok(entries) = std::fs::read_dir(home.downloads()) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = Path::new(&name);
        // Beside a part that broke off lies the tag of what it is a part of.
        let part = match name.extension() {
            Some(extension) if extension == "tag" => name.with_extension(""),
            _ => name.to_owned(),
        };
        let is_part = part
            .extension()
            .is_some_and(|extension| extension == "part");
        if is_part
            && !keep(part.as_os_str())
            && let Err(error) = std::fs::remove_file(entry.path())
        {
            note(&format!(
                "warning: removing {}: {error}",
                entry.path().display()
            ));
        }
    }
}
