//! The old image's last moments: everything is written down as it is, and the next image is executed.
//!
//! Nothing is waited for in here. The loop stands in one place: nothing is accepted, spawned or heard; what it owes a
//! worker is written down as well.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use staging::protocol::STATE_PROTOCOL;

use crate::clock::Moment;

use super::super::state::Supervisor;
use super::exec::{Inheritance, become_image};
use super::memory::sealed;
use super::state::{CarriedClient, CarriedListener, CarriedOrigin, CarriedSnapshot, State};

impl Supervisor {
    /// Executes `program` with all that this image holds. Returns only when that did not work, with everything as it
    /// was; why.
    pub(super) fn become_image(&mut self, program: &Path) -> String {
        tracing::info!(program = %program.display(), "the supervisor moves");
        // The next program does not know of it, and nobody else would tell the workers.
        if self.admission.until().is_some() {
            self.set_admission(None);
        }
        let state = match self.written_state(Moment::now()) {
            Ok(state) => state,
            Err(why) => return why,
        };
        let memory = match sealed("rollproxy-state", &state) {
            Ok(memory) => memory,
            Err(error) => return format!("the state cannot be kept: {error}"),
        };
        let inheritance = Inheritance {
            state: memory.as_fd(),
            back: self.origin.file(),
        };
        let error = become_image(program, inheritance, &self.kept_descriptors());
        format!("{}: {error}", program.display())
    }

    /// Everything, as the next image reads it.
    pub(super) fn written_state(&self, now: Moment) -> Result<Vec<u8>, String> {
        let snapshots = self
            .snapshots
            .values()
            .map(|snapshot| {
                let text = snapshot
                    .text()
                    .map_err(|error| format!("configuration {}: {error}", snapshot.digest))?;
                Ok(CarriedSnapshot {
                    digest: snapshot.digest.clone(),
                    text,
                })
            })
            .collect::<Result<_, String>>()?;
        let (listen, listeners) = self.listeners.carried();
        let state = State {
            schema: STATE_PROTOCOL,
            origin: CarriedOrigin {
                version: self.origin.version.clone(),
                executable: self.origin.executable.clone(),
            },
            frozen_at: now,
            home: self.home.root().to_owned(),
            identity: self.identity.clone(),
            since: self.since,
            started: self.started,
            config: self.config.digest.clone(),
            snapshots,
            machine: self.machine.clone(),
            board: self.board.carry(|client| CarriedClient {
                socket: client.as_fd().as_raw_fd(),
                came: client.came(),
            }),
            links: self
                .links
                .values()
                .map(super::super::link::Link::carry)
                .collect(),
            listen: listen.to_vec(),
            listeners: listeners
                .into_iter()
                .map(|(socket, named)| CarriedListener {
                    socket: socket.as_raw_fd(),
                    named: named.clone(),
                })
                .collect(),
            control: self.control.as_fd().as_raw_fd(),
            lock: self.lock.as_fd().as_raw_fd(),
            rollouts: self.rollouts.clone(),
            handovers: self.handover.book.clone(),
            dropped_messages: self.dropped_messages,
            last_failure: self.last_failure.clone(),
            on_event: self.on_event.carry(),
            pending_was_looked_at: self.pending_was_looked_at,
        };
        serde_json::to_vec(&state).map_err(|error| format!("the state cannot be written: {error}"))
    }

    /// Exactly the descriptors that the state names.
    fn kept_descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let (_, listeners) = self.listeners.carried();
        let channels = self.links.values().filter_map(|link| link.channel());
        let clients = self.board.sockets().map(AsFd::as_fd);
        listeners
            .into_iter()
            .map(|(socket, _)| socket)
            .chain(channels)
            .chain(clients)
            .chain([self.control.as_fd(), self.lock.as_fd()])
            .collect()
    }
}
