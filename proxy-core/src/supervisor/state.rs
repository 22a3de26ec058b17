//! What a supervisor holds. `run` waits for it all; `act`, `handoff`, `requests` and `status` are its hands.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use staging::home::Home;
use staging::locks::SupervisorLock;
use staging::ownership::ProcessIdentity;
use tokio::sync::{mpsc, watch};
use tokio::time::Sleep;

use crate::clock::Moment;

use super::api::{Answering, Command};
use super::clerk::{Clerk, Filed};
use super::client::Client;
use super::handover::{AdmissionState, Handover};
use super::held::{Confirmations, Inquiries};
use super::link::Link;
use super::listener::Listeners;
use super::on_event::Runner;
use super::origin::Origin;
use super::rollout::{Effect, Event, Generation, Machine};
use super::rollouts::Rollouts;
use super::service_manager::ServiceManager;
use super::signals::Signals;
use super::snapshot::Snapshot;
use super::stopping::Stopping;
use super::switchboard::Switchboard;

/// Why a generation or a rollout last failed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LastFailure {
    /// For a person, the stable code in front.
    pub(super) text: String,
    /// When.
    pub(super) at: jiff::Timestamp,
}

/// Everything one supervisor holds.
pub(super) struct Supervisor {
    pub(super) home: Home,
    /// Held for life: whoever has it owns the home.
    pub(super) lock: Arc<SupervisorLock>,
    pub(super) identity: ProcessIdentity,
    pub(super) origin: Origin,
    pub(super) since: jiff::Timestamp,
    /// The same moment on the other clock.
    pub(super) started: Moment,
    pub(super) config: Rc<Snapshot>,
    /// The configurations that some generation, or a recovery, may still need, by digest.
    pub(super) snapshots: HashMap<String, Rc<Snapshot>>,
    pub(super) machine: Machine,
    pub(super) effects: Vec<Effect>,
    pub(super) links: BTreeMap<Generation, Link>,
    pub(super) board: Switchboard<Client>,
    pub(super) listeners: Listeners,
    pub(super) service_manager: ServiceManager,
    pub(super) stopping: Stopping,
    pub(super) rollouts: Rollouts,
    /// Channel messages that were dropped.
    pub(super) dropped_messages: u64,
    pub(super) last_failure: Option<LastFailure>,
    pub(super) inquiries: Inquiries,
    pub(super) confirmations: Confirmations,
    /// The control socket, to be handed over.
    pub(super) control: OwnedFd,
    pub(super) handover: Handover,
    pub(super) admission: AdmissionState,
    /// How many requests of the control socket are being answered.
    pub(super) answering: Answering,
    pub(super) clerk: Clerk,
    pub(super) on_event: Runner,
    pub(super) retry_at: Option<Moment>,
    /// How many clients' descriptors this process may hold at a time.
    pub(super) socket_budget: usize,
    /// Until when nothing is accepted: the system had no descriptor left.
    pub(super) accept_again_at: Option<Moment>,
    pub(super) pending_was_looked_at: bool,
    pub(super) changes: watch::Sender<u64>,
    pub(super) seen: Option<u64>,
    pub(super) filed: mpsc::UnboundedReceiver<Filed>,
    pub(super) commands: mpsc::UnboundedReceiver<Command>,
    pub(super) signals: Signals,
    pub(super) timer: Pin<Box<Sleep>>,
}

impl Supervisor {
    /// Something happened to a worker.
    pub(super) fn happened(&mut self, generation: Generation, event: Event) {
        self.machine
            .handle(Moment::now(), generation, event, &mut self.effects);
    }
}
