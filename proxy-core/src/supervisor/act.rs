//! Carries out what the rollout machine asks for, and tells it what happened.

use std::os::fd::OwnedFd;

use control::types::{Outcome, Verdict};

use crate::channel::{Channel, ToSupervisor, ToWorker, pair};
use crate::clock::Moment;

use super::clerk::{Filed, Paper};
use super::link::{Heard, Link, Load};
use super::liveness::Liveness;
use super::on_event::Notice;
use super::process::{Plan, Process};
use super::record::shortened;
use super::rollout::{Conclusion, Effect, Event, Generation, Target};
use super::run::settings;
use super::state::{LastFailure, Supervisor};

/// Sockets that may be on their way to one worker at a time.
const CREDITS: usize = 64;

/// Connections that one worker may have given back before it is told that they were taken.
const RETURNS: u32 = 64;

impl Supervisor {
    /// Carries out every effect; one may bring an event, and so the next effect.
    pub(super) fn carry_out(&mut self) {
        while !self.effects.is_empty() {
            for effect in std::mem::take(&mut self.effects) {
                self.carry_out_one(effect);
            }
        }
    }

    fn carry_out_one(&mut self, effect: Effect) {
        match effect {
            Effect::Spawn { generation, target } => self.spawn(generation, &target),
            Effect::Activate(generation) => self.say(generation, &ToWorker::Activate),
            Effect::Drain(generation) => {
                tracing::info!(generation, "drains");
                let close = self.machine.is_stopping();
                self.say(
                    generation,
                    &ToWorker::Drain {
                        close,
                        returns: Some(RETURNS),
                    },
                );
            }
            Effect::Standby(generation) => {
                tracing::info!(generation, "stands by");
                self.say(
                    generation,
                    &ToWorker::Standby {
                        returns: Some(RETURNS),
                    },
                );
            }
            Effect::Shutdown(generation) => {
                tracing::info!(generation, "is told to shut down");
                self.say(generation, &ToWorker::Shutdown);
            }
            Effect::Kill(generation) => {
                if let Some(link) = self.links.get(&generation) {
                    tracing::warn!(generation, pid = link.process.pid(), "is killed");
                    link.process.kill();
                }
            }
            Effect::Step {
                rollout,
                step,
                generation,
                version,
            } => {
                tracing::info!(rollout, generation, step);
                if step == "activated" {
                    self.listeners_open(rollout);
                }
                // Whoever waits would otherwise hear nothing for that long, and not know why.
                let detail = (self.machine.probation())
                    .filter(|_| step == "probation")
                    .map(|probation| {
                        let left = probation.until.until(Moment::now()).as_secs_f64();
                        format!("kept in {left:.0} s if nothing goes wrong until then")
                    });
                self.rollouts
                    .step(rollout, step, generation, version, detail);
            }
            Effect::Conclude(conclusion) => self.conclude(conclusion),
            Effect::Recovered { generation, target } => {
                tracing::info!(generation, version = %target.version, "serves");
                self.clerk.file(Paper::Proven(target));
            }
            Effect::Lost {
                generation,
                target,
                failure,
            } => {
                self.remember_failure(format!(
                    "{}: generation {generation}, version {}: {failure}",
                    failure.code(),
                    target.version
                ));
            }
        }
    }

    fn say(&mut self, generation: Generation, message: &ToWorker) {
        if let Some(link) = self.links.get_mut(&generation) {
            link.say(message);
        }
    }

    fn spawn(&mut self, generation: Generation, target: &Target) {
        match self.try_spawn(generation, target) {
            Ok(link) => {
                let pid = link.process.pid();
                tracing::info!(generation, pid, version = %target.version, "starts");
                self.links.insert(generation, link);
                self.happened(generation, Event::Spawned { pid });
            }
            Err(reason) => self.happened(generation, Event::SpawnFailed { reason }),
        }
    }

    fn try_spawn(&mut self, generation: Generation, target: &Target) -> Result<Link, String> {
        let executable = self
            .origin
            .executable_of(&self.home, &target.version)
            .map_err(|failure| failure.message)?;
        let snapshot = self
            .snapshots
            .get(&target.config)
            .ok_or_else(|| format!("configuration {} is no longer held", target.config))?;
        let said = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
        let (ours, theirs) = pair().map_err(said("cannot make a channel"))?;
        let config = snapshot
            .descriptor()
            .map_err(said("cannot hand over the configuration"))?;
        // Before the process: one that is started is watched.
        let channel = Channel::new(ours).map_err(said("cannot watch the channel"))?;
        let process = Process::spawn(Plan {
            executable: &executable,
            generation,
            version: &target.version,
            channel: theirs,
            config,
            home: self.home.root(),
        })
        .map_err(|error| format!("{}: {error}", executable.display()))?;
        let rollout = &snapshot.config.rollout;
        self.board
            .open(generation, CREDITS, rollout.transfer_timeout);
        Ok(Link::new(
            generation,
            process,
            channel,
            Liveness::new(rollout.ping_interval, rollout.ping_timeout),
        ))
    }

    /// What a worker said takes effect.
    pub(super) fn hear(&mut self, generation: Generation, heard: Heard) {
        self.dropped_messages += heard.dropped;
        for (message, descriptor) in heard.messages {
            self.hear_one(generation, message, descriptor);
        }
        if heard.closed
            && let Some(link) = self.links.get_mut(&generation)
        {
            link.closed_at.get_or_insert(Moment::now());
        }
    }

    /// Everything that a worker has said until now takes effect.
    pub(super) fn hear_rest(&mut self, generation: Generation) {
        if let Some(link) = self.links.get_mut(&generation) {
            let heard = link.hear_rest();
            self.hear(generation, heard);
        }
    }

    fn hear_one(
        &mut self,
        generation: Generation,
        message: ToSupervisor,
        descriptor: Option<OwnedFd>,
    ) {
        match message {
            ToSupervisor::Ready { version, protocol } => {
                if let Some(link) = self.links.get_mut(&generation) {
                    link.liveness.begin(Moment::now());
                }
                self.happened(generation, Event::Ready { version, protocol });
            }
            ToSupervisor::Activated => self.happened(generation, Event::Activated),
            ToSupervisor::Drained => self.happened(generation, Event::Drained),
            ToSupervisor::Fatal { reason, blame } => {
                let reason = shortened(&reason);
                self.happened(generation, Event::Fatal { reason, blame });
            }
            ToSupervisor::Load {
                connections,
                exchanges,
                requests,
                local_5xx,
            } => {
                if let Some(link) = self.links.get_mut(&generation) {
                    link.load = Load {
                        connections,
                        exchanges,
                    };
                }
                let answered = requests.saturating_sub(exchanges);
                self.happened(
                    generation,
                    Event::Load {
                        answered,
                        local_5xx,
                    },
                );
            }
            ToSupervisor::Pong { id } => {
                if let Some(link) = self.links.get_mut(&generation) {
                    link.liveness.ponged(Moment::now(), id);
                }
            }
            ToSupervisor::SocketAccepted { id } => self.socket_accepted(generation, id),
            ToSupervisor::SocketRefused { id, reason } => {
                self.socket_refused(generation, id, &reason)
            }
            ToSupervisor::SocketOwned { id } => self.socket_owned(generation, id),
            ToSupervisor::Streams { id, total, streams } => {
                self.inquiries.answered(generation, id, total, streams);
            }
            // Asked for by nobody yet.
            ToSupervisor::Admission {
                id,
                connections,
                exchanges,
            } => self.heard_admission(generation, id, connections, exchanges),
            ToSupervisor::SocketReturned { id } => self.socket_returned(generation, id, descriptor),
        }
    }

    /// A worker ended: first everything it still said, then the sockets it never owned, then the machine.
    pub(super) fn bury(&mut self, generation: Generation, how: String) {
        self.hear_rest(generation);
        let Some(link) = self.links.remove(&generation) else {
            return;
        };
        self.inquiries.forget(generation);
        self.settle_lost(generation);
        self.board.close(generation);
        let how = match link.load.exchanges {
            0 => how,
            lost => format!("{how}; requests in flight that were lost with it: {lost}"),
        };
        tracing::info!(generation, how, "ended");
        self.happened(generation, Event::Exited { how });
        self.forget_snapshots();
    }

    /// Configurations that no generation and no recovery can need any more.
    fn forget_snapshots(&mut self) {
        let machine = &self.machine;
        let current = &self.config.digest;
        let places = [
            machine.active(),
            machine.candidate(),
            machine.standby(),
            machine.taking_over(),
        ];
        self.snapshots.retain(|digest, _| {
            let mut targets = places.iter().flatten().map(|worker| &worker.target);
            digest == current
                || *digest == machine.desired().config
                || *digest == machine.fallback().config
                || targets.any(|target| target.config == *digest)
        });
    }

    fn conclude(&mut self, mut conclusion: Conclusion) {
        if let Some(why) = &conclusion.why {
            self.remember_failure(format!(
                "{}: rollout {} to {}: {why}",
                why.code(),
                conclusion.rollout,
                conclusion.target.version
            ));
        }
        if conclusion.verdict == Outcome::Kept
            && let Some(snapshot) = self.snapshots.get(&conclusion.target.config)
        {
            self.config = snapshot.clone();
            let rollout = &snapshot.config.rollout;
            self.machine.configure(settings(rollout));
            self.on_event.configure(&rollout.on_event);
            self.board
                .configure(rollout.queue_limit, rollout.queue_timeout);
        }
        self.listeners_follow(&conclusion);
        if conclusion.verdict == Outcome::Kept && conclusion.note.is_none() {
            conclusion.note = self.rollouts.note(conclusion.rollout);
        }
        let Some(request) = self.rollouts.request(conclusion.rollout).cloned() else {
            return;
        };
        self.clerk
            .file(Paper::Conclusion(Box::new(conclusion), Box::new(request)));
    }

    /// The clerk wrote something down.
    pub(super) fn note_filed(&mut self, filed: Filed) {
        match filed {
            Filed::Verdict(verdict) => self.announce(verdict),
            Filed::Proven { pending } => {
                if !std::mem::replace(&mut self.pending_was_looked_at, true)
                    && let Some(version) = pending
                {
                    if waits_for_a_check(&self.config.config.update) {
                        tracing::info!(%version, "pending; update windows or a fleet's lock are configured, so the next check rolls to it");
                        return;
                    }
                    self.roll_to_pending(version);
                }
            }
        }
    }

    fn announce(&mut self, verdict: Verdict) {
        tracing::info!(
            rollout = verdict.rollout,
            version = %verdict.version,
            verdict = %verdict.verdict,
            code = verdict.code.as_deref().unwrap_or(""),
            reason = verdict.reason.as_deref().unwrap_or(""),
            "verdict"
        );
        let by = self
            .rollouts
            .request(verdict.rollout)
            .map(|request| request.by);
        self.on_event
            .tell(Notice::of_verdict(&verdict, by, staging::clock::now()));
        let kept = verdict.verdict == Outcome::Kept;
        self.rollouts.conclude(verdict);
        if kept {
            self.follow_selection();
        }
    }

    pub(super) fn remember_failure(&mut self, text: String) {
        tracing::warn!("{text}");
        self.last_failure = Some(LastFailure {
            text: shortened(&text),
            at: staging::clock::now(),
        });
    }
}

/// Whether only the updater knows when a job's version may be rolled to: it has the windows, and asks the fleet's lock.
fn waits_for_a_check(update: &serde_json::Value) -> bool {
    let is_set = |key: &str| match update.get(key) {
        None | Some(serde_json::Value::Null) => false,
        Some(serde_json::Value::String(text)) => !text.is_empty(),
        Some(serde_json::Value::Array(list)) => !list.is_empty(),
        Some(_) => true,
    };
    is_set("windows") || is_set("fleet_lock")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::waits_for_a_check;

    #[test]
    fn a_start_leaves_to_the_updater_what_only_that_knows() {
        for (update, waits) in [
            (json!({}), false),
            (
                json!({"feed": "https://x", "windows": [], "fleet_lock": ""}),
                false,
            ),
            (json!({"windows": ["mon 02:00-04:00"]}), true),
            (json!({"fleet_lock": "https://lock"}), true),
        ] {
            assert_eq!(waits_for_a_check(&update), waits, "{update}");
        }
    }
}
