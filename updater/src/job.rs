//! One check, top to bottom: lock, feed, policy, journal, staging, publish, pending, rollout, verdict.
//!
//! Nothing here writes the selection while a supervisor runs: that is the supervisor's, when the verdict is kept. So
//! wherever this process dies, what is selected is a proven version.

use std::path::Path;
use std::time::Instant;

use control::Verdict;
use staging::clock;
use staging::home::Home;
use staging::journal::{self, Journal, State};
use staging::locks::{StateLock, UpdaterLock};
use staging::ownership::ProcessIdentity;
use staging::publish;
use staging::report::{Exit, Failure, Format, line, note};
use staging::selection::{self, Change};
use staging::stage::StagingFolder;
use staging::update_state::{self, LastCheck};
use staging::version::PackageVersion;

use crate::adopt;
use crate::answer::{Answer, millis};
use crate::ask::{self, Seen};
use crate::before::{Before, LOCK_TIMEOUT};
use crate::bring::{self, Brought};
use crate::feed::FeedSettings;
use crate::interrupt::{self, Interrupt};
use crate::look::{Found, Look};
use crate::policy;
use crate::retry;
use crate::settings::Settings;

/// Finished jobs that the journal remembers.
const JOBS_KEPT: usize = 50;

/// What a check was asked to do.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Only say whether an update is available.
    pub dry_run: bool,
    /// Ask the feed even before the next attempt is due.
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
    let feed = FeedSettings::new(settings.feed()?)?;
    let mut interrupt = Interrupt::listen().map_err(|source| {
        let why = format!("listening for signals: {source}");
        Failure::new("SIGNALS", why, Exit::Failed, true)
    })?;
    let lock = UpdaterLock::try_acquire(home)?;
    let before = Before::look(home)?;
    answer.previous = before.selected().cloned();
    let look = Look {
        home,
        options,
        settings: &settings,
        feed: &feed,
        before: &before,
    };
    if options.dry_run {
        return look.look(&mut interrupt, answer).await.map(drop);
    }
    tidy(home)?;
    let update = Update {
        home,
        options,
        settings: &settings,
        before: &before,
        identity: lock.identity(),
    };
    if let Some(failure) = early(home, options) {
        return Err(failure);
    }
    let result = match look.look(&mut interrupt, answer).await {
        Ok(Some(found)) => update.install(found, &mut interrupt, answer).await,
        Ok(None) => Ok(()),
        Err(failure) => Err(failure),
    };
    let written = remember(home, answer, result.as_ref().err());
    weigh(result, written, answer)
}

/// What a check ended with weighs more than that it could not be written down: that is only told, unless there is
/// nothing else to tell. If a job ended well, something was changed: then it must not read as "failed, nothing changed".
fn weigh(
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

/// Ends what earlier jobs left unfinished. We hold the updater's lock: none of them still runs.
fn tidy(home: &Home) -> Result<(), Failure> {
    for record in journal::unfinished(home)? {
        let step = record.step.clone();
        Journal::resume(home, record)?.record(
            State::Interrupted,
            &step,
            Some(journal::PROCESS_ENDED),
        )?;
    }
    journal::prune(home, JOBS_KEPT)?;
    StagingFolder::reap_dead(home)?;
    let lock = StateLock::acquire(home, LOCK_TIMEOUT)?;
    publish::finish_interrupted(&lock, home)?;
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

/// One update, from a release to a verdict.
struct Update<'a> {
    home: &'a Home,
    options: &'a Options,
    settings: &'a Settings,
    before: &'a Before,
    identity: &'a ProcessIdentity,
}

impl Update<'_> {
    /// The journal around the update.
    async fn install(
        &self,
        found: Found,
        interrupt: &mut Interrupt,
        answer: &mut Answer,
    ) -> Result<(), Failure> {
        let job = job_id(self.identity);
        let mut journal = Journal::open(self.home, &job, "check", self.identity)?;
        journal.set_version(&found.release.version);
        journal.record(State::Started, "begin", None)?;
        answer.job = Some(job.clone());
        let result = self
            .steps(&job, found, &mut journal, interrupt, answer)
            .await;
        let step = journal.current().step.clone();
        let (state, cause) = match &result {
            Ok(()) => (State::Ended, answer.outcome.clone()),
            Err(failure) if failure.code == interrupt::CODE => {
                (State::Cancelled, failure.message.clone())
            }
            Err(failure) => (
                State::Ended,
                format!("{}: {}", failure.code, failure.message),
            ),
        };
        let written = journal.record(state, &step, Some(&cause));
        weigh(result, written.map_err(Failure::from), answer)
    }

    async fn steps(
        &self,
        job: &str,
        found: Found,
        journal: &mut Journal,
        interrupt: &mut Interrupt,
        answer: &mut Answer,
    ) -> Result<(), Failure> {
        let version = &found.release.version;
        if let Some(supervisor) = &self.before.supervisor {
            let validator = self.settings.validator();
            let unchanged = || self.before.unchanged(self.home);
            let selected = self.before.selected();
            adopt::ensure(self.home, supervisor, selected, job, &validator, unchanged)?;
        }
        if !found.here {
            journal.record(State::Started, "stage", None)?;
            let brought = self.bring(job, &found, interrupt, answer).await?;
            journal.record(State::Started, "publish", None)?;
            self.publish(brought)?;
        }
        journal.record(State::Started, "pending", None)?;
        let Some(supervisor) = self.set_pending(version, job, &found.release.sha256)? else {
            return self.without_supervisor(version, answer);
        };
        journal.record(State::Waiting, "rollout", None)?;
        let asked = self.ask(version, job, supervisor);
        let verdict = interrupt.unless(asked).await?;
        answer.verdict = Some(verdict.clone());
        ask::kept(&verdict, self.before.selected())?;
        ask::verify(self.home, version)?;
        self.say(&format!(
            "{version} is active and selected (before: {})",
            shown(self.before.selected())
        ));
        answer.end("updated", Exit::Done);
        Ok(())
    }

    /// Downloads, unpacks and validates.
    async fn bring(
        &self,
        job: &str,
        found: &Found,
        interrupt: &mut Interrupt,
        answer: &mut Answer,
    ) -> Result<Brought, Failure> {
        let release = &found.release;
        self.say(&format!(
            "downloading {} ({} bytes)",
            release.version, release.length
        ));
        let order = bring::Order {
            home: self.home,
            job,
            release,
            downloader: &found.downloader,
            limits: self.settings.limits,
            validator: &self.settings.validator(),
            format: self.options.format,
            reserve: bring::RESERVE,
            installed: &[],
            delta: true,
        };
        let brought = bring::bring(order, interrupt).await?;
        answer.bytes = brought.fetched;
        answer.download_ms = millis(brought.downloading);
        answer.staging_ms = millis(brought.staging);
        self.say(&format!(
            "{} is validated ({} bytes fetched in {} ms, staged in {} ms)",
            release.version, answer.bytes, answer.download_ms, answer.staging_ms
        ));
        Ok(brought)
    }

    /// Moves the staging folder to its place among the packages, if everything is still as it was.
    fn publish(&self, brought: Brought) -> Result<(), Failure> {
        let lock = self.before.unchanged(self.home)?;
        publish::publish(&lock, self.home, brought.folder, &brought.manifest)?;
        drop(lock);
        remove_download(&brought.archive);
        Ok(())
    }

    /// Sets the version pending, if everything is still as it was. Says who is to be asked for the rollout.
    fn set_pending(
        &self,
        version: &PackageVersion,
        job: &str,
        digest: &str,
    ) -> Result<Option<&ProcessIdentity>, Failure> {
        let lock = self.before.unchanged(self.home)?;
        update_state::set_pending(&lock, self.home, version, job, digest)?;
        Ok(self.before.ownership.supervisor())
    }

    async fn ask(
        &self,
        version: &PackageVersion,
        job: &str,
        supervisor: &ProcessIdentity,
    ) -> Result<Verdict, Failure> {
        let (home, version, job) = (self.home.clone(), version.clone(), job.to_owned());
        let seen = Seen {
            nonce: supervisor.nonce.clone(),
            serial: self.before.serial(),
        };
        let options = *self.options;
        let asked = tokio::task::spawn_blocking(move || {
            ask::rollout(&home, &version, &job, seen, &mut |step| {
                let detail = step.detail.as_ref().map(|detail| format!(": {detail}"));
                say(
                    &options,
                    &format!(
                        "{} {}{}",
                        step.step,
                        step.version,
                        detail.unwrap_or_default()
                    ),
                );
            })
        });
        asked.await.unwrap_or_else(|stopped| {
            let why = format!("asking for the rollout stopped: {stopped}");
            Err(Failure::new("ASKING", why, Exit::Unverified, true))
        })
    }

    /// Nobody runs: the first version is selected at once, for it has no traffic to prove itself on; any other waits.
    fn without_supervisor(
        &self,
        version: &PackageVersion,
        answer: &mut Answer,
    ) -> Result<(), Failure> {
        if self.before.selection.is_some() {
            self.say(&format!(
                "{version} is pending: no supervisor runs, the next one starts {} and then rolls to it",
                shown(self.before.selected())
            ));
            answer.end("pending", Exit::Done);
            return Ok(());
        }
        let lock = self.before.unchanged(self.home)?;
        let change = Change {
            version: version.clone(),
            pinned: false,
            by: "job".to_owned(),
        };
        selection::write_if_serial(&lock, self.home, None, change)?;
        update_state::modify(&lock, self.home, |state| state.pending = None)?;
        self.say(&format!(
            "{version} is installed and selected; start it with `rollproxy serve`"
        ));
        answer.end("installed", Exit::Done);
        Ok(())
    }

    fn say(&self, text: &str) {
        say(self.options, text);
    }
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
            state.next_attempt = Some(retry::next_attempt(now, state.failed_attempts));
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

/// A published archive is not needed again. If it cannot be removed, the next download removes it.
fn remove_download(archive: &Path) {
    let _ = std::fs::remove_file(archive);
}

/// Unique among all jobs: the time for people, the nonce for the rest.
fn job_id(identity: &ProcessIdentity) -> String {
    let nonce: String = identity
        .nonce
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .take(8)
        .collect();
    format!("{}-{nonce}", clock::now().strftime("%Y%m%dT%H%M%SZ"))
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
