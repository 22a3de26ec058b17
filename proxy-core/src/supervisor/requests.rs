//! What people, jobs and signals ask for: checked first, then given to the rollout machine.

use std::rc::Rc;

use control::types::{By, Outcome, RolloutRecord, RolloutRequest};
use staging::home::Home;
use staging::report::{Exit, Failure};
use staging::version::PackageVersion;
use staging::{selection, update_state};

use crate::clock::Moment;
use crate::config;

use super::api::Command;
use super::on_event::Notice;
use super::record::digest_of;
use super::rollout::{Answer, Conclusion, Mark, Request, RolloutId, Target};
use super::rollouts::Lines;
use super::signals::Said;
use super::snapshot::Snapshot;
use super::state::Supervisor;

impl Supervisor {
    /// A client of the control socket asked.
    pub(super) fn answer(&mut self, command: Command) {
        // Whoever asked may have gone away: then nobody reads the answer.
        match command {
            Command::Status(reply) => {
                let _ = reply.send(self.status());
            }
            Command::Rollout(id, nonce, reply) => {
                let _ = reply.send(self.rollout(id, nonce.as_deref()));
            }
            Command::Handover(request, reply) => {
                let _ = reply.send(self.ask_handover(&request));
            }
            Command::Preflight(version, reply) => self.ask_preflight(version.as_deref(), reply),
            Command::Admission(request, reply) => {
                let _ = reply.send(self.admit(request));
            }
            Command::Streams(generation, reply) => {
                let _ = reply.send(self.ask_streams(generation));
            }
            Command::Drain(request, reply) => {
                let _ = reply.send(self.drain_now(request));
            }
            Command::Roll(request, reply) => {
                let lines = self.roll(request).and_then(|id| self.watch(id));
                let _ = reply.send(lines);
            }
        }
    }

    /// A signal asked.
    pub(super) fn obey_signal(&mut self, said: Said) {
        match said {
            Said::Stop => self.stop(Moment::now()),
            Said::Reload => {
                self.service_manager.reload_asked();
                self.roll_by_signal(RolloutRequest::new(By::Signal));
            }
            Said::Update => match update_state::read(&self.home) {
                Ok(state) => match state.pending {
                    Some(pending) => self.roll_to(pending.version, By::Signal),
                    None => tracing::info!("SIGUSR2: no version is pending, nothing to do"),
                },
                Err(error) => self.remember_failure(format!("SIGUSR2: {error}")),
            },
        }
    }

    /// At the start: the selection serves, and a version is still to be proven.
    pub(super) fn roll_to_pending(&mut self, version: PackageVersion) {
        if self
            .machine
            .active()
            .is_some_and(|active| active.target.version == version)
        {
            return;
        }
        self.roll_to(version, By::Pending);
    }

    fn roll_to(&mut self, version: PackageVersion, by: By) {
        let mut request = RolloutRequest::new(by);
        request.version = Some(version.to_string());
        self.roll_by_signal(request);
    }

    /// Nobody waits for the answer: it goes to `lastFailure` and the log.
    fn roll_by_signal(&mut self, request: RolloutRequest) {
        if let Err(failure) = self.roll(request) {
            self.remember_failure(format!("{}: {}", failure.code, failure.message));
        }
    }

    fn watch(&mut self, id: RolloutId) -> Result<Lines, Failure> {
        self.rollouts.watch(id).ok_or_else(|| not_remembered(id))
    }

    /// A rollout as far as it came, for whoever meant this supervisor.
    fn rollout(&self, id: RolloutId, nonce: Option<&str>) -> Result<RolloutRecord, Failure> {
        self.check_nonce(nonce)?;
        let record = self.rollouts.record(id).cloned();
        record.ok_or_else(|| not_remembered(id))
    }

    /// Begins or joins a rollout; a refusal is told to the command of `on_event`, too.
    fn roll(&mut self, request: RolloutRequest) -> Result<RolloutId, Failure> {
        let (wanted, by) = (request.version.clone(), request.by);
        self.begin(request).inspect_err(|failure| {
            let now = staging::clock::now();
            let notice = Notice::of_refusal(failure, wanted.as_deref(), by, now);
            self.on_event.tell(notice);
        })
    }

    /// Checks everything that can be checked before a process is started, then begins or joins a rollout.
    fn begin(&mut self, request: RolloutRequest) -> Result<RolloutId, Failure> {
        self.check_nonce(request.nonce.as_deref())?;
        self.refuse_while_stopping()?;
        if let Some(id) = (request.key.as_deref()).and_then(|key| self.rollouts.with_key(key)) {
            // The very same request once more: its first answer was lost on the way.
            return Ok(id);
        }
        self.check_selection(&request)?;
        let version = match &request.version {
            Some(text) => text.parse::<PackageVersion>()?,
            None => self.machine.desired().version.clone(),
        };
        self.origin.executable_of(&self.home, &version)?;
        refuse_known_bad(&self.home, &request, &version)?;
        let (snapshot, notes) = self.read_configuration()?;
        let target = Target {
            version: version.clone(),
            config: snapshot.digest.clone(),
        };
        if request.pin.is_some() && self.runs_already(&target) {
            return Ok(self.keep_as_it_is(request, target));
        }
        let prepared = self.prepare_listeners(&snapshot)?;
        self.snapshots.insert(snapshot.digest.clone(), snapshot);
        let by = request.by;
        match self
            .machine
            .replace(Moment::now(), Request { target, by }, &mut self.effects)
        {
            Answer::Started(id) => {
                tracing::info!(rollout = id, %version, ?by, "rollout");
                self.rollouts.begin(id, version, request);
                self.listeners.begin(id, prepared);
                if !notes.is_empty() {
                    self.rollouts.set_note(id, notes.join("; "));
                }
                Ok(id)
            }
            Answer::Joined(id) => {
                self.rollouts.join(id, &request);
                prepared.withdraw();
                Ok(id)
            }
            Answer::Refused(refusal) => {
                prepared.withdraw();
                Err(Failure::new(
                    refusal.code(),
                    refusal.to_string(),
                    Exit::Deferred,
                    true,
                ))
            }
        }
    }

    /// The caller saw this supervisor, or does not care.
    fn check_nonce(&self, nonce: Option<&str>) -> Result<(), Failure> {
        if nonce.is_some_and(|nonce| nonce != self.identity.nonce) {
            return Err(Failure::new(
                "OWNERSHIP_CHANGED",
                "another supervisor was meant: this one started later; nothing was changed, look at the status and ask again",
                Exit::Deferred,
                true,
            ));
        }
        Ok(())
    }

    /// The caller saw this selection, or does not care.
    fn check_selection(&self, request: &RolloutRequest) -> Result<(), Failure> {
        // Selection and marks are about to change: what the caller saw, or what a job would be refused
        // for, is not decided yet.
        if (request.serial.is_some() || request.by == By::Job)
            && let Some(id) = self.being_filed()
        {
            return Err(Failure::new(
                "ROLLOUT_IN_PROGRESS",
                format!("the verdict of rollout {id} is being written; ask again in a moment"),
                Exit::Deferred,
                true,
            ));
        }
        if let Some(expected) = request.serial {
            let found = selection::read(&self.home)?.map(|selection| selection.serial);
            if found != Some(expected) {
                return Err(Failure::new(
                    "SERIAL_CHANGED",
                    format!(
                        "the selection changed meanwhile (serial {expected} was seen, {} is there); nothing was changed, look at the status and ask again",
                        found.map_or("none".to_owned(), |serial| serial.to_string())
                    ),
                    Exit::Deferred,
                    true,
                ));
            }
        }
        Ok(())
    }

    /// The rollout that is decided and not yet on disk: the selection's serial is about to change.
    pub(super) fn is_filing(&self) -> bool {
        self.being_filed().is_some()
    }

    fn being_filed(&self) -> Option<RolloutId> {
        let latest = self.rollouts.latest()?;
        (latest.verdict.is_none() && self.machine.under_way() != Some(latest.id))
            .then_some(latest.id)
    }

    /// The configuration as it now is. A wrong one refuses the rollout and changes nothing.
    /// With it comes what of it is ignored: keys that this version does not know.
    fn read_configuration(&self) -> Result<(Rc<Snapshot>, Vec<String>), Failure> {
        let loaded = config::load(&self.home, &|name| std::env::var_os(name))?;
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        let digest = loaded.config.digest()?;
        if let Some(known) = self.snapshots.get(&digest) {
            return Ok((known.clone(), loaded.warnings));
        }
        Snapshot::seal(loaded.config)
            .map(|snapshot| (Rc::new(snapshot), loaded.warnings))
            .map_err(|error| Failure::new("SYSTEM", error.to_string(), Exit::Failed, true))
    }

    fn runs_already(&self, target: &Target) -> bool {
        self.machine.is_settled()
            && self
                .machine
                .active()
                .is_some_and(|active| active.target == *target)
    }

    /// A person selects what runs already: the selection is written, no generation changes.
    fn keep_as_it_is(&mut self, request: RolloutRequest, target: Target) -> RolloutId {
        let rollout = self.machine.number_rollout();
        let generation = self.machine.active().map_or(0, |active| active.generation);
        self.rollouts
            .begin(rollout, target.version.clone(), request);
        self.effects
            .push(super::rollout::Effect::Conclude(Conclusion {
                rollout,
                target,
                generation,
                verdict: Outcome::Kept,
                why: None,
                note: None,
                mark: Mark::None,
            }));
        rollout
    }
}

fn not_remembered(id: RolloutId) -> Failure {
    Failure::new(
        "NOT_FOUND",
        format!("rollout {id} is not one that this supervisor remembers"),
        Exit::Failed,
        false,
    )
}

/// A job never tries a version again that a rollout proved bad; a person may.
fn refuse_known_bad(
    home: &Home,
    request: &RolloutRequest,
    version: &PackageVersion,
) -> Result<(), Failure> {
    if !matches!(request.by, By::Job | By::Pending) {
        return Ok(());
    }
    let state = update_state::read(home)?;
    match digest_of(home, &state, version).and_then(|digest| state.bad(&digest)) {
        None => Ok(()),
        Some(bad) => Err(Failure::new(
            "KNOWN_BAD",
            format!(
                "version {version} is known bad here ({}); wait for the next release, or try it again with `rollproxy select {version}`",
                bad.cause
            ),
            Exit::Failed,
            false,
        )),
    }
}
