//! One update, from a release to a verdict: journal, staging, publish, place in the fleet, pending, rollout, verdict.

use std::path::Path;

use control::{Client, Verdict};
use staging::clock;
use staging::home::Home;
use staging::journal::{Journal, State};
use staging::launch;
use staging::locks::StateLock;
use staging::ownership::ProcessIdentity;
use staging::package::Package;
use staging::publish;
use staging::report::{Exit, Failure, note};
use staging::selection::{self, Change};
use staging::update_state::{self, Refused};
use staging::version::PackageVersion;

use crate::adopt;
use crate::answer::{Answer, millis};
use crate::ask::{self, Seen};
use crate::before::{Before, LOCK_TIMEOUT};
use crate::bring::{self, Brought};
use crate::fleet::FleetLock;
use crate::gc;
use crate::interrupt::{self, Interrupt};
use crate::job::{say, shown, weigh};
use crate::look::{Found, Look, Task};
use crate::policy;
use crate::slot;

/// The program that a package brings to start others.
const LAUNCHER: &str = "rollproxy-launcher";

/// One update, from a release to a verdict.
pub struct Update<'a> {
    /// What was asked, and what stood then.
    pub look: &'a Look<'a>,
    /// The lock of the fleet, if it has one.
    pub fleet: Option<&'a FleetLock>,
    /// This process.
    pub identity: &'a ProcessIdentity,
}

impl Update<'_> {
    fn home(&self) -> &Home {
        self.look.home
    }

    fn before(&self) -> &Before {
        self.look.before
    }

    /// The journal around the update.
    ///
    /// # Errors
    /// Every end but a good one.
    pub async fn install(
        &self,
        found: Found,
        interrupt: &mut Interrupt,
        answer: &mut Answer,
    ) -> Result<(), Failure> {
        let job = job_id(self.identity);
        let mut journal = Journal::open(self.home(), &job, "check", self.identity)?;
        journal.set_version(&found.release.version);
        journal.record(State::Started, "begin", None)?;
        answer.job = Some(job.clone());
        let result = self
            .steps(&job, &found, &mut journal, interrupt, answer)
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
        let result = weigh(result, written.map_err(Failure::from), answer);
        if answer.outcome == "updated" && result.is_ok() {
            self.collect(&job, answer);
        }
        result
    }

    async fn steps(
        &self,
        job: &str,
        found: &Found,
        journal: &mut Journal,
        interrupt: &mut Interrupt,
        answer: &mut Answer,
    ) -> Result<(), Failure> {
        let version = &found.release.version;
        if let Some(supervisor) = &self.before().supervisor
            && found.task != Task::Repair
        {
            let validator = self.look.settings.validator();
            let unchanged = || self.before().unchanged(self.home(), job);
            let selected = self.before().selected();
            adopt::ensure(
                self.home(),
                supervisor,
                selected,
                job,
                &validator,
                unchanged,
            )?;
        }
        if found.task != Task::Roll {
            journal.record(State::Started, "stage", None)?;
            let brought = self.bring(job, found, interrupt, answer).await;
            let brought = brought.map_err(|failure| self.held_against(found, failure))?;
            journal.record(State::Started, "publish", None)?;
            let published = self.publish(job, brought, &found.release.sha256);
            published.map_err(|failure| self.held_against(found, failure))?;
        }
        if found.task == Task::Repair && !self.runs_another(version).await {
            self.say(&format!("{version} is whole again"));
            answer.end("repaired", Exit::Done);
            return Ok(());
        }
        self.launcher_is_new_enough(version)?;
        if self.is_not_time(found, answer)? {
            return Ok(());
        }
        if let (Some(fleet), Some(_)) = (self.fleet, self.before().ownership.supervisor()) {
            journal.record(State::Waiting, "fleet", None)?;
            slot::take(self.home(), fleet, job, interrupt).await?;
        }
        let rolled = self.roll(job, found, journal, interrupt, answer).await;
        if answer.verdict.is_some() {
            slot::give_back(self.home(), self.fleet).await;
        } else {
            // Called off, or nobody knows how it ended: a rollout that still runs keeps the place.
            slot::settle(self.home(), self.fleet).await;
        }
        rolled
    }

    /// Sets the version pending, asks for the rollout, and believes what it sees afterwards.
    async fn roll(
        &self,
        job: &str,
        found: &Found,
        journal: &mut Journal,
        interrupt: &mut Interrupt,
        answer: &mut Answer,
    ) -> Result<(), Failure> {
        let version = &found.release.version;
        journal.record(State::Started, "pending", None)?;
        let Some(supervisor) = self.set_pending(version, job, &found.release.sha256)? else {
            return self.without_supervisor(version, job, answer);
        };
        journal.record(State::Waiting, "rollout", None)?;
        let asked = self.ask(version, job, supervisor);
        let verdict = interrupt.unless(asked).await?;
        answer.verdict = Some(verdict.clone());
        ask::kept(&verdict, self.before().selected())?;
        ask::verify(self.home(), version)?;
        self.say(&format!(
            "{version} is active and selected (before: {})",
            shown(self.before().selected())
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
        let less = match release.custom.deltas.is_empty() || !self.look.settings.delta {
            true => "",
            false => ", unless a patch will do",
        };
        self.say(&format!(
            "downloading {} ({} bytes{less})",
            release.version, release.length
        ));
        let validator = self.look.settings.validator();
        let order = self.look.order(found, job, &validator);
        let brought = bring::bring(order, interrupt).await?;
        if let Some(why) = &brought.fell_back {
            note(&format!("the whole archive was taken, for {why}"));
        }
        answer.bytes = brought.fetched;
        answer.saved_bytes = brought.saved;
        answer.shared_bytes = brought.shared;
        answer.delta_from.clone_from(&brought.delta_from);
        answer.download_ms = millis(brought.downloading);
        answer.staging_ms = millis(brought.staging);
        let mut extra = String::new();
        if let Some(from) = &brought.delta_from {
            extra = format!(", {} saved by the patch from {from}", brought.saved);
        }
        if brought.shared > 0 {
            extra = format!("{extra}, {} shared with installed versions", brought.shared);
        }
        self.say(&format!(
            "{} is validated ({} bytes fetched in {} ms, staged in {} ms{extra})",
            release.version, answer.bytes, answer.download_ms, answer.staging_ms
        ));
        Ok(brought)
    }

    /// Moves the staging folder to its place among the packages, if everything is still as it was.
    fn publish(&self, job: &str, brought: Brought, digest: &str) -> Result<(), Failure> {
        let lock = self.before().unchanged(self.home(), job)?;
        publish::replace_damaged(&lock, self.home(), brought.folder, &brought.manifest)?;
        // It may be long until it is pending, and need not be brought again then.
        update_state::modify(&lock, self.home(), |state| {
            let version = brought.manifest.version.clone();
            state.archives.insert(version, digest.to_owned());
        })?;
        drop(lock);
        remove_download(&brought.archive);
        Ok(())
    }

    /// What is wrong with the archive itself is remembered, so that the same bytes are not brought at every check.
    fn held_against(&self, found: &Found, failure: Failure) -> Failure {
        if !policy::is_the_archives(&failure) {
            return failure;
        }
        let refused = Refused {
            archive: found.release.sha256.clone(),
            version: found.release.version.clone(),
            code: failure.code.clone(),
            message: failure.message.clone(),
            at: clock::now(),
            by: policy::JUDGE.to_owned(),
        };
        let write = || -> Result<(), Failure> {
            let lock = StateLock::acquire(self.home(), LOCK_TIMEOUT)?;
            update_state::modify(&lock, self.home(), |state| state.refused = Some(refused))?;
            Ok(())
        };
        if let Err(unwritten) = write() {
            note(&format!(
                "warning: what is wrong with the archive could not be written down: {}",
                unwritten.message
            ));
        }
        failure
    }

    /// Whether a supervisor serves another version than this one.
    async fn runs_another(&self, version: &PackageVersion) -> bool {
        if self.before().ownership.supervisor().is_none() {
            return false;
        }
        let client = Client::new(self.home());
        let status = tokio::task::spawn_blocking(move || client.status()).await;
        // Who does not answer is not asked for a rollout either.
        status.is_ok_and(|status| {
            status.is_ok_and(|status| status.worker_version.as_ref() != Some(version))
        })
    }

    /// A package that needs a newer launcher is here, and waits for a person to install that.
    fn launcher_is_new_enough(&self, version: &PackageVersion) -> Result<(), Failure> {
        let package = Package::open(self.home(), version)?;
        let needed = &package.manifest.min_launcher;
        let have = launch::launcher_version(&|name| std::env::var_os(name));
        if !launch::too_old(needed, have.as_ref()) {
            return Ok(());
        }
        let launcher = package.entry(LAUNCHER).map_or_else(
            |_| "a newer rollproxy-launcher: `rollproxy-launcher install`".to_owned(),
            |path| format!("`{} install`", path.display()),
        );
        Err(Failure::new(
            "LAUNCHER_TOO_OLD",
            format!(
                "{version} is installed and needs launcher {needed}, and {} started this: run {launcher}, then check again",
                shown(have.as_ref())
            ),
            Exit::Failed,
            false,
        ))
    }

    /// Bringing may have taken long: whether it still is time, and the answer if it is not.
    fn is_not_time(&self, found: &Found, answer: &mut Answer) -> Result<bool, Failure> {
        let is_first = self.before().selected().is_none() && self.before().running().is_none();
        if is_first || found.task == Task::Repair {
            return Ok(false);
        }
        let state = update_state::read(self.home())?;
        let Some(waiting) = policy::waits(&state, self.look.terms(&found.release)) else {
            return Ok(false);
        };
        self.say(&format!(
            "{} is here and waits: {waiting}",
            found.release.version
        ));
        if let Some(offer) = &mut answer.offer {
            offer.at = waiting.at;
        }
        answer.end(waiting.word(), Exit::Done);
        Ok(true)
    }

    /// Sets the version pending, if everything is still as it was. Says who is to be asked for the rollout.
    fn set_pending(
        &self,
        version: &PackageVersion,
        job: &str,
        digest: &str,
    ) -> Result<Option<&ProcessIdentity>, Failure> {
        let lock = self.before().unchanged(self.home(), job)?;
        update_state::set_pending(&lock, self.home(), version, job, digest)?;
        Ok(self.before().ownership.supervisor())
    }

    async fn ask(
        &self,
        version: &PackageVersion,
        job: &str,
        supervisor: &ProcessIdentity,
    ) -> Result<Verdict, Failure> {
        let (home, version, job) = (self.home().clone(), version.clone(), job.to_owned());
        let seen = Seen {
            nonce: supervisor.nonce.clone(),
            serial: self.before().serial(),
        };
        let options = *self.look.options;
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
        job: &str,
        answer: &mut Answer,
    ) -> Result<(), Failure> {
        if self.before().selection.is_some() {
            self.say(&format!(
                "{version} is pending: no supervisor runs, the next one starts {} and then rolls to it",
                shown(self.before().selected())
            ));
            answer.end("pending", Exit::Done);
            return Ok(());
        }
        let lock = self.before().unchanged(self.home(), job)?;
        let change = Change {
            version: version.clone(),
            pinned: false,
            by: "job".to_owned(),
        };
        selection::write_if_serial(&lock, self.home(), None, change)?;
        update_state::modify(&lock, self.home(), |state| state.pending = None)?;
        self.say(&format!(
            "{version} is installed and selected; start it with `rollproxy serve`"
        ));
        answer.end("installed", Exit::Done);
        Ok(())
    }

    /// Removes what nothing names any more. The update is kept, whatever comes of this.
    fn collect(&self, job: &str, answer: &mut Answer) {
        match gc::collect(self.home(), self.look.settings.keep, job) {
            Ok(collected) => {
                for package in &collected.removed {
                    self.say(&format!(
                        "removed {} ({} bytes)",
                        package.version, package.bytes
                    ));
                }
                answer.collected = Some(collected);
            }
            Err(failure) => note(&format!(
                "warning: old packages were not removed, the next update or `rollproxy-updater gc` tries again: {}",
                failure.message
            )),
        }
    }

    fn say(&self, text: &str) {
        say(self.look.options, text);
    }
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
