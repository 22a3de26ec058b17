//! One check: lock, feed, policy, and if there is something to do, [`crate::update`].
//!
//! Nothing here writes the selection while a supervisor runs: that is the supervisor's, when the verdict is kept. So
//! wherever this process dies, what is selected is a proven version.

use std::time::Instant;

use jiff::SignedDuration;
use staging::clock;
use staging::home::Home;
use staging::journal::{self, Journal, State};
use staging::litter;
use staging::locks::{StateLock, UpdaterLock};
use staging::node;
use staging::publish;
use staging::report::{Exit, Failure, Format, line, note};
use staging::selection;
use staging::stage::StagingFolder;
use staging::update_state::{self, LastCheck};
use staging::version::PackageVersion;

use crate::answer::{Answer, Interrupted, millis};
use crate::before::{Before, LOCK_TIMEOUT};
use crate::gc;
use crate::hold;
use crate::interrupt::Interrupt;
use crate::look::Look;
use crate::policy;
use crate::retry;
use crate::settings::Settings;
use crate::slot;
use crate::update::Update;

/// Finished jobs that the journal remembers.
const JOBS_KEPT: usize = 50;

/// What a check was asked to do.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Only say whether an update is available.
    pub dry_run: bool,
    /// A person does not wait: for the next attempt, this host's turn, a window; and has what was refused tried again.
    pub now: bool,
    /// How to answer.
    pub format: Format,
}

/// One check, and what came of it. Never an `Err`: a failure is an answer too.
pub async fn check(home: &Home, options: &Options) -> Answer {
    let begun = Instant::now();
    let mut answer = Answer::default();
    if let Err(failure) = run(home, options, &mut answer).await {
        answer.fail(failure);
    }
    answer.total_ms = millis(begun.elapsed());
    answer
}

async fn run(home: &Home, options: &Options, answer: &mut Answer) -> Result<(), Failure> {
    home.check()?;
    let settings = Settings::read(home)?;
    for key in &settings.unknown {
        note(&format!(
            "warning: {}: update.{key} is unknown here and not used",
            settings.file.display()
        ));
    }
    let feed = settings.feed_settings()?;
    let mut interrupt = Interrupt::listen().map_err(|source| {
        let why = format!("listening for signals: {source}");
        Failure::new("SIGNALS", why, Exit::Failed, true)
    })?;
    let lock = UpdaterLock::try_acquire(home)?;
    answer.interrupted = interrupted(home)?;
    for job in &answer.interrupted {
        say(options, &job.to_string());
    }
    for unreadable in journal::unreadable(home)? {
        note(&format!(
            "warning: {unreadable}; the record of that job is left alone, remove it if nobody needs it"
        ));
    }
    if !options.dry_run {
        tidy(home, &lock)?;
    }
    let node = node::ensure(home)?;
    let fleet = slot::configured(&settings, &node)?;
    let before = Before::look(home)?;
    answer.previous = before.selected().cloned();
    answer.hold_until = update_state::read(home)?.held(clock::now());
    let look = Look {
        home,
        options,
        settings: &settings,
        feed: &feed,
        node: &node,
        before: &before,
    };
    if options.dry_run {
        look.look(&mut interrupt, answer).await?;
        say_held(options, answer);
        return Ok(());
    }
    slot::settle(home, fleet.as_ref()).await;
    if let Some(failure) = early(home, options) {
        return Err(failure);
    }
    let update = Update {
        look: &look,
        fleet: fleet.as_ref(),
        identity: lock.identity(),
    };
    let result = match look.look(&mut interrupt, answer).await {
        Ok(Some(found)) => update.install(found, &mut interrupt, answer).await,
        Ok(None) => {
            say_held(options, answer);
            Ok(())
        }
        Err(failure) => Err(failure),
    };
    let written = remember(home, answer, result.as_ref().err());
    weigh(result, written, answer)
}

/// A hold is said by every check, unless it is the reason for the outcome and so is said already.
fn say_held(options: &Options, answer: &Answer) {
    if answer.hold_until.is_some() && answer.outcome != "held" {
        say(options, &hold::said(answer.hold_until));
    }
}

/// What a check ended with weighs more than that it could not be written down: that is only told, unless there is
/// nothing else to tell. If a job ended well, something was changed: then it must not read as "failed, nothing changed".
pub fn weigh(
    result: Result<(), Failure>,
    written: Result<(), Failure>,
    answer: &Answer,
) -> Result<(), Failure> {
    let Err(unwritten) = written else {
        return result;
    };
    match (result, &answer.version) {
        (Err(failure), _) => {
            note(&format!(
                "warning: how this check ended could not be written down: {}",
                unwritten.message
            ));
            Err(failure)
        }
        (Ok(()), Some(version)) if answer.job.is_some() => Err(Failure {
            message: format!(
                "{version} is {}, but that could not be written down: {}",
                answer.outcome, unwritten.message
            ),
            exit: Exit::Unverified,
            ..unwritten
        }),
        (Ok(()), _) => Err(unwritten),
    }
}

/// What earlier jobs left unfinished. We hold the updater's lock: none of them still runs.
fn interrupted(home: &Home) -> Result<Vec<Interrupted>, Failure> {
    let unfinished = journal::unfinished(home)?;
    Ok(unfinished.into_iter().map(Interrupted::from).collect())
}

/// Ends what earlier jobs left unfinished, and does nothing of theirs again. We hold the updater's lock: none of them still runs.
fn tidy(home: &Home, updater: &UpdaterLock) -> Result<(), Failure> {
    // What only removes comes first: on a full disk it makes the room that the rest needs.
    StagingFolder::reap_dead(home)?;
    let lock = StateLock::acquire(home, LOCK_TIMEOUT)?;
    publish::finish_interrupted(&lock, home)?;
    litter::reap(updater, &lock, home)?;
    // A job that died after its end left what it had downloaded. A state that cannot be read is told where it is needed.
    if let Ok(state) = update_state::read(home) {
        gc::forget_downloads(home, &state)?;
    }
    for record in journal::unfinished(home)? {
        let step = record.step.clone();
        Journal::resume(home, record)?.record(
            State::Interrupted,
            &step,
            Some(journal::PROCESS_ENDED),
        )?;
    }
    journal::prune(home, JOBS_KEPT, clock::now())?;
    forget_pending(&lock, home)
}

/// What is selected is not pending as well: whoever selected it died before writing that down.
fn forget_pending(lock: &StateLock, home: &Home) -> Result<(), Failure> {
    // What cannot be read is told by the step that needs it.
    let (Ok(Some(selection)), Ok(state)) = (selection::read(home), update_state::read(home)) else {
        return Ok(());
    };
    if state
        .pending
        .is_some_and(|pending| pending.version == selection.version)
    {
        update_state::modify(lock, home, |state| state.pending = None)?;
    }
    Ok(())
}

/// The refusal of a run that comes before its time.
fn early(home: &Home, options: &Options) -> Option<Failure> {
    let state = update_state::read(home).ok()?;
    let until = policy::too_early(&state, clock::now()).filter(|_| !options.now)?;
    Some(Failure::new(
        "TOO_EARLY",
        format!(
            "the last check failed for a passing cause; the next one is due at {until} (--now does not wait)"
        ),
        Exit::Deferred,
        true,
    ))
}

/// Writes what came of the check, and when the next one may begin.
fn remember(home: &Home, answer: &Answer, failure: Option<&Failure>) -> Result<(), Failure> {
    let now = clock::now();
    let lock = StateLock::acquire(home, LOCK_TIMEOUT)?;
    update_state::modify(&lock, home, |state| {
        // Deferred is nobody's failure: whoever comes next may try at once.
        let passing = failure.is_some_and(|failure| failure.retry && failure.exit == Exit::Failed);
        if passing {
            state.failed_attempts = state.failed_attempts.saturating_add(1);
            let ours = retry::next_attempt(now, state.failed_attempts);
            let theirs = failure
                .and_then(|failure| failure.retry_after)
                .and_then(|wait| SignedDuration::try_from(wait).ok())
                .and_then(|wait| now.checked_add(wait).ok());
            state.next_attempt = Some(theirs.map_or(ours, |theirs| theirs.max(ours)));
        } else {
            state.failed_attempts = 0;
            state.next_attempt = None;
        }
        state.last_check = Some(LastCheck {
            at: now,
            outcome: failure.map_or_else(|| answer.outcome.clone(), |failure| failure.code.clone()),
            offered: answer.version.clone(),
        });
    })?;
    Ok(())
}

/// Says something to a person, if one is to read it.
pub fn say(options: &Options, text: &str) {
    if options.format == Format::Text {
        line(text);
    }
}

/// A version, or that there is none.
pub fn shown(version: Option<&PackageVersion>) -> String {
    version.map_or_else(|| "nothing".to_owned(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(code: &str, exit: Exit) -> Failure {
        Failure::new(code, format!("{code} happened"), exit, false)
    }

    fn unwritten() -> Result<(), Failure> {
        Err(Failure::new(
            "DOCUMENT_WRITE",
            "disk full",
            Exit::Failed,
            true,
        ))
    }

    #[test]
    fn what_really_happened_is_told_even_if_it_cannot_be_written_down() {
        for exit in [
            Exit::Failed,
            Exit::Unverified,
            Exit::RolledBack,
            Exit::Deferred,
            Exit::Configuration,
        ] {
            let real = failure("REAL", exit);
            for job in [None, Some("j".to_owned())] {
                let answer = Answer {
                    job,
                    ..Answer::default()
                };
                assert_eq!(
                    weigh(Err(real.clone()), unwritten(), &answer),
                    Err(real.clone())
                );
                assert_eq!(weigh(Err(real.clone()), Ok(()), &answer), Err(real.clone()));
                assert_eq!(weigh(Ok(()), Ok(()), &answer), Ok(()));
            }
        }
    }

    #[test]
    fn a_job_that_ended_well_is_never_taken_for_nothing_changed() {
        let mut answer = Answer {
            version: Some(PackageVersion::new(1, 2, 3)),
            ..Answer::default()
        };
        answer.end("upToDate", Exit::Done);
        assert_eq!(weigh(Ok(()), unwritten(), &answer), unwritten());

        answer.job = Some("j".to_owned());
        answer.end("updated", Exit::Done);
        let told = weigh(Ok(()), unwritten(), &answer).unwrap_err();
        assert_eq!(
            (told.code.as_str(), told.exit, told.retry),
            ("DOCUMENT_WRITE", Exit::Unverified, true)
        );
        assert_eq!(
            told.message,
            "1.2.3 is updated, but that could not be written down: disk full"
        );
    }
}
