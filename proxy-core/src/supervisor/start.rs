//! How a supervisor begins: on its own, or with what another image of its process hands over (`handover::resume`).

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use staging::home::Home;
use staging::locks::SupervisorLock;
use staging::ownership::ProcessIdentity;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;

use crate::clock::Moment;
use crate::config;
use crate::descriptors::{inherited, keep_inherited_from_workers};

use super::api::{self, Answering, Door};
use super::clerk::Clerk;
use super::client::Client;
use super::error::SupervisorError;
use super::handover::{self, AdmissionState, Handover};
use super::held::{Confirmations, Inquiries};
use super::listener::Listeners;
use super::listening::{open_listeners, record};
use super::on_event::{self, Runner};
use super::origin::Origin;
use super::rollout::{Effect, Machine, Target};
use super::rollouts::Rollouts;
use super::run::settings;
use super::signals::Blocked;
use super::snapshot::Snapshot;
use super::state::Supervisor;
use super::switchboard::Switchboard;

/// What a supervisor cannot be without.
pub(super) struct Essentials {
    pub(super) home: Home,
    pub(super) lock: SupervisorLock,
    pub(super) origin: Origin,
    pub(super) identity: ProcessIdentity,
    pub(super) since: jiff::Timestamp,
    pub(super) started: Moment,
    pub(super) listeners: Listeners,
    pub(super) control: OwnedFd,
    pub(super) config: Rc<Snapshot>,
    pub(super) snapshots: HashMap<String, Rc<Snapshot>>,
    pub(super) machine: Machine,
    pub(super) effects: Vec<Effect>,
    pub(super) board: Switchboard<Client>,
    /// What is still to be told, and to whom it is just being told.
    pub(super) on_event: on_event::Carried,
}

/// A socket that was left open for a supervisor which knows nothing else of who had it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// `listener`, or `connection` for a client that waits.
    pub name: String,
    /// Its number.
    pub descriptor: i32,
}

impl std::str::FromStr for Given {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parts = text
            .split_once('=')
            .and_then(|(name, number)| Some((name, number.parse::<i32>().ok()?)));
        match parts {
            Some((name @ ("listener" | "connection"), descriptor)) => Ok(Self {
                name: name.to_owned(),
                descriptor,
            }),
            _ => Err(format!(
                "`{text}` is neither listener=<descriptor> nor connection=<descriptor>"
            )),
        }
    }
}

/// Runs a supervisor until SIGTERM.
///
/// # Errors
/// When it cannot start.
pub fn serve(home: Home, given: &[Given], blocked: &Blocked) -> Result<(), SupervisorError> {
    let given = given
        .iter()
        .map(|given| Ok((given.name.as_str(), inherited(given.descriptor)?)))
        .collect::<std::io::Result<Vec<_>>>()
        .map_err(SupervisorError::system(
            "take over what was left open for it",
        ))?;
    keep_inherited_from_workers().map_err(SupervisorError::system("look at its descriptors"))?;
    home.create()?;
    home.check()?;
    raise_descriptor_limit();
    let lock = SupervisorLock::try_acquire(&home)?;
    let origin =
        Origin::detect().map_err(SupervisorError::system("find this program's own file"))?;
    let loaded = config::load(&home, &|name| std::env::var_os(name))?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    in_runtime(async || {
        let (listeners, clients): (Vec<_>, Vec<_>) =
            given.into_iter().partition(|(name, _)| *name == "listener");
        let listeners = listeners.into_iter().map(|(_, socket)| socket).collect();
        let listeners = open_listeners(&loaded.config.server, listeners)?;
        let control = api::bind(&home)?;
        let identity = ProcessIdentity::current()?;
        let since = staging::clock::now();
        let addresses = listeners.addresses();
        lock.announce(&home, &record(&identity, &origin, addresses.clone(), since))?;
        let config = Rc::new(Snapshot::seal(loaded.config)?);
        let target = Target {
            version: origin.version.clone(),
            config: config.digest.clone(),
        };
        let mut effects = Vec::new();
        let rollout = &config.config.rollout;
        let machine = Machine::start(Moment::now(), settings(rollout), target, &mut effects);
        let mut board = Switchboard::new(rollout.queue_limit, rollout.queue_timeout);
        for (_, socket) in clients {
            board.arrived_last(Moment::now(), Client::returned(socket));
        }
        tracing::info!(
            version = %origin.version,
            listen = addresses.join(", "),
            home = %home.root().display(),
            "the supervisor runs"
        );
        let strays = handover::strays(&BTreeMap::new(), None);
        let mut supervisor = Supervisor::assemble(
            Essentials {
                home,
                lock,
                origin,
                identity,
                since,
                started: Moment::now(),
                listeners,
                control,
                snapshots: HashMap::from([(config.digest.clone(), config.clone())]),
                config,
                machine,
                effects,
                board,
                on_event: on_event::Carried::default(),
            },
            blocked,
        )?;
        supervisor.handover = Handover::with_strays(strays);
        supervisor.run_to_the_end().await;
        Ok(())
    })
}

/// The one thread's runtime, with tasks of its own.
pub(super) fn in_runtime(
    body: impl AsyncFnOnce() -> Result<(), SupervisorError>,
) -> Result<(), SupervisorError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(SupervisorError::system("start the runtime"))?;
    LocalSet::new().block_on(&runtime, body())
}

impl Supervisor {
    /// Everything around what it cannot be without.
    pub(super) fn assemble(
        essentials: Essentials,
        blocked: &Blocked,
    ) -> Result<Self, SupervisorError> {
        let signals = blocked
            .listen()
            .map_err(SupervisorError::system("read signals"))?;
        let (filed_sender, filed) = mpsc::unbounded_channel();
        let clerk = Clerk::start(essentials.home.clone(), filed_sender)
            .map_err(SupervisorError::system("start a thread"))?;
        let (changes, door_changes) = watch::channel(0);
        let answering = Answering::default();
        let (commands_sender, commands) = mpsc::unbounded_channel();
        let door = Door {
            commands: commands_sender,
            changes: door_changes,
            _answering: answering.clone(),
        };
        let listener = essentials
            .control
            .try_clone()
            .map(std::os::unix::net::UnixListener::from)
            .and_then(UnixListener::from_std)
            .map_err(SupervisorError::system("watch the control socket"))?;
        tokio::task::spawn_local(api::serve(listener, door));
        let command = &essentials.config.config.rollout.on_event;
        let on_event = Runner::resume(&essentials.home, command, essentials.on_event);
        Ok(Self {
            on_event,
            home: essentials.home,
            lock: Arc::new(essentials.lock),
            identity: essentials.identity,
            origin: essentials.origin,
            since: essentials.since,
            started: essentials.started,
            config: essentials.config,
            snapshots: essentials.snapshots,
            machine: essentials.machine,
            effects: essentials.effects,
            links: BTreeMap::new(),
            board: essentials.board,
            listeners: essentials.listeners,
            control: essentials.control,
            rollouts: Rollouts::default(),
            dropped_messages: 0,
            last_failure: None,
            inquiries: Inquiries::default(),
            confirmations: Confirmations::default(),
            handover: Handover::default(),
            admission: AdmissionState::default(),
            answering,
            clerk,
            retry_at: None,
            socket_budget: socket_budget(),
            accept_again_at: None,
            pending_was_looked_at: false,
            changes,
            seen: None,
            filed,
            commands,
            signals,
            timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
        })
    }
}

/// All but a reserve: for channels, pidfds, the control socket's clients, files being written.
fn socket_budget() -> usize {
    use rustix::process::{Resource, getrlimit};
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let budget = limit - (limit / 2).min(128);
    usize::try_from(budget).unwrap_or(usize::MAX)
}

/// Streams are descriptors: takes as many as this host allows. Workers inherit it.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

#[cfg(test)]
mod tests {
    use super::Given;

    #[test]
    fn what_is_given_has_a_known_name_and_a_number() {
        let given: Given = "listener=12".parse().unwrap();
        assert_eq!((given.name.as_str(), given.descriptor), ("listener", 12));
        for bad in ["", "listener", "listener=", "listener=x", "lock=3"] {
            assert!(bad.parse::<Given>().is_err(), "{bad}");
        }
    }
}
