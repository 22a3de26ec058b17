//! Which addresses are listened on follows the rollouts: bound at the request, accepted from once the new generation takes
//! sockets, closed when another configuration is kept.

use staging::ownership::{ProcessIdentity, SupervisorRecord};
use staging::report::Failure;

use control::types::Outcome;

use crate::clock::Moment;
use crate::config::Server;

use super::clerk::Paper;
use super::client::Client;
use super::listener::{ListenError, Listener, Listeners, Prepared};
use super::origin::Origin;
use super::rollout::{Conclusion, RolloutId};
use super::snapshot::Snapshot;
use super::state::Supervisor;

impl Supervisor {
    /// Binds what the configuration of a rollout adds. A failure refuses the rollout.
    pub(super) fn prepare_listeners(&self, wanted: &Snapshot) -> Result<Prepared, Failure> {
        let server = &wanted.config.server;
        Ok(self.listeners.prepare(&server.listen, server.unix_mode)?)
    }

    /// The rollout's generation takes sockets: its listeners do, too.
    pub(super) fn listeners_open(&mut self, rollout: RolloutId) {
        if self.listeners.activated(rollout) {
            self.service_manager.store(&mut self.listeners);
            self.announce_listeners();
        }
    }

    /// A rollout has its verdict.
    pub(super) fn listeners_follow(&mut self, conclusion: &Conclusion) {
        let kept = conclusion.verdict == Outcome::Kept;
        if kept {
            // Usually said before, at `activated`.
            self.listeners_open(conclusion.rollout);
            self.listeners.permit(self.config.config.server.unix_mode);
        }
        let closing = self
            .listeners
            .concluded(conclusion.rollout, conclusion.verdict);
        if !closing.is_empty() {
            self.close_listeners(closing);
            self.announce_listeners();
        }
    }

    /// Takes what waits in the backlogs, then closes.
    pub(super) fn close_listeners(&mut self, closing: Vec<(Listener, bool)>) {
        for (listener, accepted_from) in closing {
            if accepted_from {
                self.receive_rest(&listener);
                tracing::info!(address = %listener.address(), "listens no more");
            }
            self.service_manager.forget(&listener);
            listener.close();
        }
    }

    /// Whoever the kernel has let in is served, as far as descriptors reach.
    fn receive_rest(&mut self, listener: &Listener) {
        loop {
            match listener.accept_now() {
                Ok(Some(socket)) => {
                    let client = Client::accepted(socket);
                    self.board.arrived_last(Moment::now(), client);
                }
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, address = %listener.address(), "cannot accept what still waits; it is reset");
                    return;
                }
            }
        }
    }

    /// Status and `run/supervisor.json` follow.
    pub(super) fn announce_listeners(&mut self) {
        let addresses = self.listeners.addresses();
        tracing::info!(listen = addresses.join(", "), "listens");
        let record = record(&self.identity, &self.origin, addresses, self.since);
        self.clerk
            .file(Paper::Announcement(self.lock.clone(), Box::new(record)));
    }
}

/// Everything that `server` asks for, and what was given beside that.
pub(super) fn open_listeners(
    server: &Server,
    given: Vec<Listener>,
) -> Result<Listeners, ListenError> {
    let listeners = Listeners::open(&server.listen, server.unix_mode, given)?;
    for listener in listeners.beside() {
        tracing::info!(address = %listener.address(), "listens, too: it was given, though [server] listen does not name it");
    }
    Ok(listeners)
}

/// What `run/supervisor.json` says.
pub(super) fn record(
    identity: &ProcessIdentity,
    origin: &Origin,
    listeners: Vec<String>,
    since: jiff::Timestamp,
) -> SupervisorRecord {
    SupervisorRecord {
        schema: 1,
        identity: identity.clone(),
        version: origin.version.clone(),
        executable: origin.executable.clone(),
        listeners,
        since,
    }
}
