//! `gc`: removes packages that nothing names, and what dead jobs left. Also the last step of an update that was kept.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use control::{Client, Deadlines, Status};
use serde::Serialize;
use staging::home::Home;
use staging::journal;
use staging::litter;
use staging::locks::{StateLock, UpdaterLock};
use staging::ownership::{self, Ownership};
use staging::report::{Exit, Failure, Format, line};
use staging::retention::{self, Judged, Names, TakenOut};
use staging::stage::StagingFolder;
use staging::update_state::{self, UpdateState};
use staging::version::PackageVersion;
use staging::{package, selection};

use crate::before::LOCK_TIMEOUT;
use crate::settings::Settings;

/// The supervisor is asked while the state lock is held: it does not wait longer than that for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// A partial download that is older is not resumed any more.
const STALE: Duration = Duration::from_secs(7 * 86_400);

/// What `gc` was asked to do.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Packages to keep besides those that something names; none = as configured.
    pub keep: Option<usize>,
    /// Only say what would be removed.
    pub dry_run: bool,
    /// How to answer.
    pub format: Format,
}

/// What was removed, and what was not.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Collected {
    /// The packages, the newest first.
    pub removed: Vec<Removed>,
    /// Those that stay.
    pub kept: Vec<Kept>,
    /// Staging folders of dead jobs.
    pub staging_folders: usize,
    /// Downloads that nobody resumes.
    pub downloads: usize,
    /// Bytes that removing the packages gave back.
    pub bytes: u64,
}

/// A package that was removed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Removed {
    /// Its version.
    pub version: PackageVersion,
    /// Bytes that this gave back: of files that no other package shares.
    pub bytes: u64,
}

/// A package that stays.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Kept {
    /// Its version.
    pub version: PackageVersion,
    /// Why.
    pub why: String,
}

/// What `gc` answers in JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    schema: u32,
    dry_run: bool,
    keep: usize,
    #[serde(flatten)]
    collected: Collected,
}

/// Removes what nothing names, or says what that is.
///
/// # Errors
/// Another updater runs, or it is not known what the supervisor needs: nothing is removed then.
pub fn gc(home: &Home, options: &Options) -> Result<Exit, Failure> {
    home.check()?;
    let keep = match options.keep {
        Some(keep) => keep,
        None => Settings::read(home)?.keep,
    };
    let collected = if options.dry_run {
        would_go(home, keep)?
    } else {
        let lock = UpdaterLock::try_acquire(home)?;
        let nonce = lock.identity().nonce.replace('-', "");
        let staging_folders = StagingFolder::reap_dead(home)?;
        litter::reap(&lock, &StateLock::acquire(home, LOCK_TIMEOUT)?, home)?;
        Collected {
            staging_folders,
            ..collect(home, keep, nonce.get(..16).unwrap_or(&nonce))?
        }
    };
    match options.format {
        Format::Json => {
            let answer = Answer {
                schema: 1,
                dry_run: options.dry_run,
                keep,
                collected,
            };
            line(&serde_json::to_string(&answer).unwrap_or_default());
        }
        Format::Text => shown(&collected, options.dry_run)
            .iter()
            .for_each(|text| line(text)),
    }
    Ok(Exit::Done)
}

/// Removes packages that nothing names. The caller holds the updater's lock; `job` is not used twice.
///
/// # Errors
/// It is not known what the supervisor needs, and nothing was removed; or one could not be removed.
pub fn collect(home: &Home, keep: usize, job: &str) -> Result<Collected, Failure> {
    let lock = StateLock::acquire(home, LOCK_TIMEOUT)?;
    let state = update_state::read(home)?;
    let (kept, going) = split(judged(home, &state, keep)?);
    // First, for taking a package out needs a little room itself.
    let downloads = forget_downloads(home, &state)?;
    // All of them leave while what names them cannot change; removing takes its time without the lock.
    let taken = going.iter().enumerate().map(|(number, version)| {
        retention::take_out(&lock, home, version, &format!("gc-{job}-{number}"))
    });
    let taken: Vec<_> = taken.collect();
    drop(lock);
    let mut collected = Collected {
        kept,
        downloads,
        ..Collected::default()
    };
    let mut failed = None;
    for taken in taken {
        let removed = taken.map_err(Failure::from).and_then(|taken| {
            let version = taken.version.clone();
            let bytes = TakenOut::remove(taken)?;
            Ok(Removed { version, bytes })
        });
        match removed {
            Ok(removed) => {
                collected.bytes += removed.bytes;
                collected.removed.push(removed);
            }
            Err(failure) => failed = Some(failure),
        }
    }
    failed.map_or(Ok(collected), Err)
}

/// What [`collect`] would do. Writes nothing, and so takes no lock: it is true for this moment.
fn would_go(home: &Home, keep: usize) -> Result<Collected, Failure> {
    let state = update_state::read(home)?;
    let (kept, going) = split(judged(home, &state, keep)?);
    let removed: Vec<_> = going
        .into_iter()
        .map(|version| Removed {
            bytes: retention::bytes(&home.package(&version)),
            version,
        })
        .collect();
    Ok(Collected {
        bytes: removed.iter().map(|removed| removed.bytes).sum(),
        removed,
        kept,
        staging_folders: 0,
        downloads: stale_downloads(home, &state)?.len(),
    })
}

fn split(judged: Vec<Judged>) -> (Vec<Kept>, Vec<PackageVersion>) {
    let (mut kept, mut going) = (Vec::new(), Vec::new());
    for Judged { version, stays } in judged {
        match stays {
            Some(why) => kept.push(Kept { version, why }),
            None => going.push(version),
        }
    }
    (kept, going)
}

/// Judges every installed package; what runs stays, whatever else is known.
fn judged(home: &Home, state: &UpdateState, keep: usize) -> Result<Vec<Judged>, Failure> {
    let names = names(home, state)?;
    let mut judged = retention::judge(&package::list(home)?, &names, keep);
    for package in judged.iter_mut().filter(|judged| judged.stays.is_none()) {
        let running = retention::running(home, &package.version)?;
        if running > 0 {
            package.stays = Some(format!("{running} processes run from it"));
        }
    }
    Ok(judged)
}

/// What names a version: the selection, what waits, a job, and everything that the supervisor runs or is about to.
fn names(home: &Home, state: &UpdateState) -> Result<Names, Failure> {
    let mut names = Names::default();
    if let Some(selection) = selection::read(home)? {
        names.add(&selection.version, "selected");
        names.add_some(selection.previous.as_ref(), "selected before");
    }
    if let Some(pending) = &state.pending {
        names.add(&pending.version, "pending");
    }
    for job in journal::unfinished(home)? {
        names.add_some(job.version.as_ref(), &format!("job {}", job.job));
    }
    if Ownership::observe(home)?.supervisor().is_some() {
        if let Some(record) = ownership::read_supervisor(home)? {
            names.add(&record.version, "the supervisor");
            let within = stands_in(home, &record.executable);
            names.add_some(within.as_ref(), "the supervisor's program");
        }
        let deadlines = Deadlines {
            answer: PATIENCE,
            ..Deadlines::default()
        };
        let status = Client::new(home).with_deadlines(deadlines).status();
        let status = status.map_err(|error| {
            Failure::new(
                "SUPERVISOR_UNREADABLE",
                format!("a supervisor runs, and what it needs is not known, so nothing was removed: {error}"),
                Exit::Deferred,
                true,
            )
        })?;
        of_status(&mut names, &status);
    }
    Ok(names)
}

/// What a supervisor names.
fn of_status(names: &mut Names, status: &Status) {
    names.add(&status.supervisor_version, "the supervisor");
    names.add_some(status.worker_version.as_ref(), "the active worker");
    names.add_some(status.candidate_version.as_ref(), "the candidate");
    names.add_some(status.pending_version.as_ref(), "pending");
    names.add_some(status.selected_package_version.as_ref(), "selected");
    for (place, generation) in status.rolling.places() {
        let number = generation.generation;
        let word = place.word();
        names.add(&generation.version, format!("generation {number} ({word})"));
    }
    if let Some(rollout) = &status.rolling.last_rollout
        && rollout.verdict.is_none()
    {
        names.add(&rollout.version, format!("rollout {}", rollout.id));
    }
}

/// The version whose package a program lies in.
fn stands_in(home: &Home, program: &Path) -> Option<PackageVersion> {
    let within = program.strip_prefix(home.packages()).ok()?;
    within.iter().next()?.to_str()?.parse().ok()
}

/// Downloads that nobody comes back for: old ones, and those of what is installed.
fn stale_downloads(home: &Home, state: &UpdateState) -> Result<Vec<std::path::PathBuf>, Failure> {
    let entries = match std::fs::read_dir(home.downloads()) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            let what = format!("listing {}: {error}", home.downloads().display());
            return Err(Failure::new("DOWNLOADS_LIST", what, Exit::Failed, true));
        }
    };
    let installed: BTreeSet<&str> = package::list(home)?
        .iter()
        .filter_map(|version| state.archives.get(version))
        .map(String::as_str)
        .collect();
    let now = SystemTime::now();
    let stale = entries.flatten().map(|entry| entry.path()).filter(|path| {
        // The tag beside a part goes with it.
        if path.extension() == Some(OsStr::new("tag")) {
            return !path.with_extension("").exists();
        }
        let is_part = path.extension() == Some(OsStr::new("part"));
        let digest = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
        let written = std::fs::symlink_metadata(path).and_then(|metadata| metadata.modified());
        let age = written
            .ok()
            .and_then(|written| now.duration_since(written).ok());
        is_part && (installed.contains(digest) || age.is_some_and(|age| age > STALE))
    });
    Ok(stale.collect())
}

/// Removes downloads that nobody comes back for. Says how many there were.
///
/// # Errors
/// They cannot be listed.
pub fn forget_downloads(home: &Home, state: &UpdateState) -> Result<usize, Failure> {
    let stale = stale_downloads(home, state)?;
    let removed = stale
        .iter()
        .filter(|path| std::fs::remove_file(path).is_ok());
    Ok(removed.count())
}

/// The lines about it.
pub fn shown(collected: &Collected, dry_run: bool) -> Vec<String> {
    let (removed, gave) = if dry_run {
        ("would remove", "would give back")
    } else {
        ("removed", "gave back")
    };
    let mut lines: Vec<String> = (collected.removed.iter())
        .map(|package| format!("{removed} {} ({} bytes)", package.version, package.bytes))
        .collect();
    lines.extend(
        (collected.kept.iter())
            .map(|package| format!("{} stays: {}", package.version, package.why)),
    );
    if collected.staging_folders + collected.downloads > 0 {
        lines.push(format!(
            "{removed} {} staging folders of dead jobs and {} stale downloads",
            collected.staging_folders, collected.downloads
        ));
    }
    lines.push(match collected.removed.len() {
        0 => "no package is without a reason to stay".to_owned(),
        count => format!("{count} packages {gave} {} bytes", collected.bytes),
    });
    lines
}
