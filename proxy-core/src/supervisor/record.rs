//! What a verdict means on disk, written under the state lock.
//!
//! `kept`: the selection names the version, the floor rises, nothing is pending any more.
//! `failed`, `rolled back`: the package gets its mark, if the failure was its own.

use std::time::Duration;

use control::types::{By, Outcome, RolloutRequest, Verdict};
use staging::home::Home;
use staging::locks::StateLock;
use staging::package::Package;
use staging::report::Failure;
use staging::selection::{self, Change};
use staging::update_state::{self, UpdateState};
use staging::version::PackageVersion;

use super::rollout::{Conclusion, Mark};

/// How long a verdict waits for an updater that holds the state lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest text of a failure, in characters (DESIGN, section 10).
pub const MAX_REASON: usize = 1_000;

/// Writes down what `conclusion` means and says it as the verdict.
///
/// What cannot be written does not change what runs: the verdict then carries the code of what
/// went wrong, and a command that reads `kept` with a code ends with exit code 2.
pub fn conclude(home: &Home, conclusion: &Conclusion, request: &RolloutRequest) -> Verdict {
    let written = match conclusion.verdict {
        Outcome::Kept => keep(home, &conclusion.target.version, request),
        Outcome::Failed | Outcome::RolledBack => {
            let cause = conclusion
                .why
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default();
            blame(home, &conclusion.target.version, conclusion.mark, &cause).map(|()| None)
        }
        Outcome::Deferred | Outcome::Superseded => Ok(None),
    };
    let (serial, problem) = match written {
        Ok(serial) => (serial, None),
        Err(failure) => (None, Some(failure)),
    };
    let (code, reason) = match (&conclusion.why, problem) {
        (Some(why), _) => (Some(why.code().to_owned()), Some(why.to_string())),
        (None, Some(problem)) => (Some(problem.code), Some(problem.message)),
        (None, None) => (None, conclusion.note.clone()),
    };
    Verdict {
        rollout: conclusion.rollout,
        verdict: conclusion.verdict,
        version: conclusion.target.version.clone(),
        generation: Some(conclusion.generation),
        code,
        reason: reason.map(|reason| shortened(&reason)),
        serial,
    }
}

/// Takes note that a version serves without a rollout (the first start, a recovery). Says what is pending.
///
/// # Errors
/// When the state cannot be read or written.
pub fn proven(home: &Home, version: &PackageVersion) -> Result<Option<PackageVersion>, Failure> {
    let lock = StateLock::acquire(home, LOCK_TIMEOUT)?;
    let installed = Package::open(home, version).is_ok();
    let pending = update_state::modify(&lock, home, |state| {
        if installed {
            state.kept(version);
        }
        state
            .pending
            .as_ref()
            .map(|pending| pending.version.clone())
    })?;
    Ok(pending)
}

/// At most [`MAX_REASON`] characters.
pub fn shortened(text: &str) -> String {
    text.chars().take(MAX_REASON).collect()
}

fn keep(
    home: &Home,
    version: &PackageVersion,
    request: &RolloutRequest,
) -> Result<Option<u64>, Failure> {
    let lock = StateLock::acquire(home, LOCK_TIMEOUT)?;
    let selected = selection::read(home)?;
    // What is no package of this home (a build run from its own folder) cannot be selected.
    if Package::open(home, version).is_err() {
        return Ok(selected.map(|selection| selection.serial));
    }
    update_state::modify(&lock, home, |state| {
        if let Some(digest) = digest_of(home, state, version) {
            state.not_ready.remove(&digest);
        }
        state.kept(version);
        if request.clear_known_bad {
            state.clear_bad(version);
        }
    })?;
    // `restart` without a version changes what runs, not what is chosen.
    let Some(selection) = wanted(selected.as_ref(), version, request) else {
        return Ok(selected.map(|selection| selection.serial));
    };
    let selection = match request.serial {
        Some(serial) => selection::write_if_serial(&lock, home, Some(serial), selection)?,
        None => selection::write(&lock, home, selection)?,
    };
    Ok(Some(selection.serial))
}

/// The change of the selection that a kept rollout asks for, if any.
fn wanted(
    selected: Option<&selection::Selection>,
    version: &PackageVersion,
    request: &RolloutRequest,
) -> Option<Change> {
    request.version.as_ref()?;
    let was_pinned = selected.is_some_and(|selection| selection.pinned);
    let pinned = request.pin.unwrap_or(was_pinned);
    let same = selected
        .is_some_and(|selection| selection.version == *version && selection.pinned == pinned);
    (!same).then(|| Change {
        version: version.clone(),
        pinned,
        by: word(request.by).to_owned(),
    })
}

fn blame(home: &Home, version: &PackageVersion, mark: Mark, cause: &str) -> Result<(), Failure> {
    if mark == Mark::None {
        return Ok(());
    }
    let lock = StateLock::acquire(home, LOCK_TIMEOUT)?;
    update_state::modify(&lock, home, |state| {
        let Some(digest) = digest_of(home, state, version) else {
            return;
        };
        let now = staging::clock::now();
        let bad = match mark {
            Mark::KnownBad => {
                state.mark_bad(&digest, version, &shortened(cause), now);
                true
            }
            _ => state.count_not_ready(&digest, version, now),
        };
        if bad {
            forget_pending(state, version);
        }
    })?;
    Ok(())
}

/// What an installed version's marks are kept under: the digest of the archive it came from. One
/// packed on this host came from none: its manifest stands for it.
pub fn digest_of(home: &Home, state: &UpdateState, version: &PackageVersion) -> Option<String> {
    let package = Package::open(home, version).ok()?;
    let archive = state.archives.get(version).cloned();
    Some(archive.unwrap_or_else(|| package.manifest.digest().to_owned()))
}

/// A known-bad version is not tried again at the next start.
fn forget_pending(state: &mut UpdateState, version: &PackageVersion) {
    if state
        .pending
        .as_ref()
        .is_some_and(|pending| pending.version == *version)
    {
        state.pending = None;
    }
}

fn word(by: By) -> &'static str {
    match by {
        By::Person => "person",
        By::Job => "job",
        By::Signal => "signal",
        By::Recovery => "recovery",
        By::Pending => "pending",
        By::Selection => "selection",
    }
}
