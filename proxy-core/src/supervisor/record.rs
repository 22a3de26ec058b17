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
    let pinned = selection::read(home)?.is_some_and(|selection| selection.pinned);
    let now = staging::clock::now();
    let pending = update_state::modify(&lock, home, |state| {
        if installed {
            state.kept(version);
        }
        settle_pending(state, version, pinned);
        if let Some(until) = state.held(now) {
            // What a job has brought waits for a job: a start is none.
            tracing::info!(%until, "on hold: what is pending stays so");
            return None;
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
        settle_pending(state, version, request.pin == Some(true));
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

/// What was pending before a person pinned a version, or before a newer one was kept, is not to be rolled to any more: the next
/// start would undo that.
fn settle_pending(state: &mut UpdateState, kept: &PackageVersion, pinned: bool) {
    let is_over = |pending: &update_state::Pending| pinned || pending.version <= *kept;
    state.pending = state.pending.take().filter(|pending| !is_over(pending));
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

#[cfg(test)]
mod tests {
    use staging::update_state::Pending;

    use super::*;

    fn v(text: &str) -> PackageVersion {
        text.parse().unwrap()
    }

    /// A home in which a job's version waits.
    fn waiting(version: &str) -> (tempfile::TempDir, Home) {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::at(folder.path().join("home"));
        home.create().unwrap();
        let lock = StateLock::acquire(&home, LOCK_TIMEOUT).unwrap();
        update_state::set_pending(&lock, &home, &v(version), "job", "aa").unwrap();
        drop(lock);
        (folder, home)
    }

    fn select(home: &Home, version: &str, pinned: bool) {
        let lock = StateLock::acquire(home, LOCK_TIMEOUT).unwrap();
        let change = Change {
            version: v(version),
            pinned,
            by: "person".to_owned(),
        };
        selection::write(&lock, home, change).unwrap();
    }

    fn pending(home: &Home) -> Option<PackageVersion> {
        let state = update_state::read(home).unwrap();
        state.pending.map(|pending| pending.version)
    }

    #[test]
    fn a_start_rolls_to_what_a_job_left_but_never_past_a_pin_nor_back() {
        for (waits, pinned, rolls_to) in [
            ("1.2.0", false, Some("1.2.0")),
            ("1.2.0", true, None),
            ("1.0.0", false, None),
            ("0.9.0", false, None),
        ] {
            let (_folder, home) = waiting(waits);
            select(&home, "1.0.0", pinned);
            let found = proven(&home, &v("1.0.0")).unwrap();
            assert_eq!(found, rolls_to.map(v), "{waits} {pinned}");
            assert_eq!(pending(&home), found, "{waits} {pinned}");
        }
    }

    #[test]
    fn a_start_on_hold_rolls_to_nothing_and_forgets_nothing() {
        let (_folder, home) = waiting("1.2.0");
        select(&home, "1.0.0", false);
        let lock = StateLock::acquire(&home, LOCK_TIMEOUT).unwrap();
        update_state::modify(&lock, &home, |state| {
            let day = jiff::SignedDuration::from_hours(24);
            state.hold_until = Some(staging::clock::now() + day);
        })
        .unwrap();
        drop(lock);
        assert_eq!(proven(&home, &v("1.0.0")).unwrap(), None);
        assert_eq!(pending(&home), Some(v("1.2.0")));
    }

    #[test]
    fn a_pin_leaves_nothing_to_undo_it_at_the_next_start() {
        let mut state = UpdateState {
            pending: Some(Pending {
                version: v("1.2.0"),
                job: "job".to_owned(),
                at: staging::clock::now(),
            }),
            ..UpdateState::default()
        };
        settle_pending(&mut state, &v("1.0.0"), false);
        assert!(
            state.pending.is_some(),
            "what a job has brought still waits"
        );
        settle_pending(&mut state, &v("1.0.0"), true);
        assert!(state.pending.is_none());
    }
}
