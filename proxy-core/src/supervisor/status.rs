//! What the supervisor says about itself.

use std::hash::{DefaultHasher, Hash, Hasher};

use control::types::{Place, Probation, Rolling, Status};
use staging::{journal, package, selection, update_state};

use crate::clock::Moment;

use super::clerk::Paper;
use super::rollout::Worker;
use super::state::Supervisor;

impl Supervisor {
    /// The status now; what lies on disk is read for it, and left out where it cannot be.
    pub(super) fn status(&self) -> Status {
        let selection = selection::read(&self.home).ok().flatten();
        let state = update_state::read(&self.home).unwrap_or_default();
        let newest = package::list(&self.home)
            .ok()
            .and_then(|versions| versions.into_iter().next_back());
        Status {
            schema: control::types::SCHEMA,
            supervisor_version: self.origin.version.clone(),
            supervisor_pid: self.identity.pid,
            nonce: self.identity.nonce.clone(),
            listeners: self.listeners.addresses(),
            home: self.home.root().display().to_string(),
            since: self.since,
            worker_version: self
                .machine
                .active()
                .map(|active| active.target.version.clone()),
            disk_package_version: newest,
            selected_package_version: selection.as_ref().map(|s| s.version.clone()),
            selected_serial: selection.as_ref().map(|s| s.serial),
            pinned: selection.is_some_and(|s| s.pinned),
            validated_version: state.validated.clone(),
            pending_version: state
                .pending
                .as_ref()
                .map(|pending| pending.version.clone()),
            candidate_version: self.machine.candidate().map(|c| c.target.version.clone()),
            rolling: self.rolling(),
            update: serde_json::json!({
                "floor": state.floor,
                "knownBad": state.known_bad.values().map(|bad| &bad.version).collect::<Vec<_>>(),
                "lastCheck": state.last_check,
                "nextAttempt": state.next_attempt,
                "holdUntil": state.held(staging::clock::now()),
                "refused": state.refused,
                "fleetLock": state.fleet_lock,
                "lastJob": self.last_job(),
            }),
            handover: self.handover.record().cloned(),
            budget: serde_json::json!({}),
            telemetry: serde_json::json!({}),
        }
    }

    /// The updater's last job; one that was cut short says so, before any later one has noted it.
    fn last_job(&self) -> Option<serde_json::Value> {
        let job = journal::latest(&self.home).ok().flatten()?.as_it_is();
        Some(serde_json::json!({
            "job": job.job,
            "state": job.state,
            "step": job.step,
            "version": job.version,
            "cause": job.cause,
            "startedAt": job.started_at,
            "updatedAt": job.updated_at,
        }))
    }

    pub(super) fn rolling(&self) -> Rolling {
        let machine = &self.machine;
        let counters = self.board.counters();
        Rolling {
            generation: machine.active().map(|active| active.generation),
            active: machine.active().map(|worker| self.place(worker)),
            candidate: machine.candidate().map(|worker| self.place(worker)),
            standby: machine
                .standby()
                .or(machine.taking_over())
                .map(|worker| self.place(worker)),
            probation: machine.probation().map(|probation| Probation {
                rollout: probation.rollout,
                until: self.time_of(probation.until),
                requests: probation.answered,
                local_5xx: probation.local_5xx,
            }),
            draining: machine
                .draining()
                .map(|worker| self.place(worker))
                .collect(),
            queued_sockets: self.board.queued() as u64,
            pending_transfers: self.board.on_their_way() as u64,
            rejected_sockets: counters.rejected_sockets,
            failed_transfers: counters.failed_transfers,
            closed_sockets: counters.closed_sockets,
            returned_sockets: counters.returned_sockets,
            dropped_messages: self.dropped_messages,
            last_failure: self.last_failure.as_ref().map(|last| last.text.clone()),
            last_failure_at: self.last_failure.as_ref().map(|last| last.at),
            last_rollout: self.rollouts.latest().cloned(),
        }
    }

    fn place(&self, worker: &Worker) -> Place {
        let since = self.time_of(worker.since);
        let load = self
            .links
            .get(&worker.generation)
            .map(|link| link.load)
            .unwrap_or_default();
        Place {
            generation: worker.generation,
            version: worker.target.version.clone(),
            pid: worker.pid.unwrap_or(0),
            since,
            streams: load.exchanges,
            connections: load.connections,
            deadline: self
                .machine
                .cut_at(worker.generation)
                .map(|at| self.time_of(at)),
        }
    }

    /// The time of day of a moment: counted from our own start, so that it is the same whenever it is told.
    fn time_of(&self, moment: Moment) -> jiff::Timestamp {
        let after = moment.since(self.started).as_millis();
        let after = jiff::SignedDuration::from_millis(i64::try_from(after).unwrap_or(i64::MAX));
        self.since.checked_add(after).unwrap_or(self.since)
    }

    /// Tells whoever watches, and the snapshot on disk, when something a person would notice changed.
    pub(super) fn publish(&mut self) {
        let digest = self.digest();
        if self.seen == Some(digest) {
            return;
        }
        self.seen = Some(digest);
        self.changes.send_modify(|count| *count += 1);
        self.clerk.file(Paper::Snapshot(Box::new(self.status())));
    }

    /// Of everything that changes at rollouts and failures, not with every connection.
    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let machine = &self.machine;
        let workers = machine
            .active()
            .into_iter()
            .chain(machine.candidate())
            .chain(machine.standby())
            .chain(machine.taking_over())
            .chain(machine.draining());
        for worker in workers {
            (worker.generation, worker.pid, worker.since).hash(&mut hasher);
        }
        (
            machine.active().map(|a| a.generation),
            machine.candidate().map(|c| c.generation),
            machine.standby().map(|s| s.generation),
            machine.probation().map(|p| (p.until, p.local_5xx)),
        )
            .hash(&mut hasher);
        self.board.counters().hash(&mut hasher);
        self.dropped_messages.hash(&mut hasher);
        self.last_failure.hash(&mut hasher);
        self.rollouts
            .latest()
            .map(|record| (record.id, record.steps.len(), record.verdict.is_some()))
            .hash(&mut hasher);
        self.handover
            .record()
            .map(|record| (record.id, record.at))
            .hash(&mut hasher);
        hasher.finish()
    }
}
