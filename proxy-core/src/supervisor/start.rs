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
use super::service_manager::{self, Given, ServiceManager};
use super::signals::Blocked;
use super::snapshot::Snapshot;
use super::state::Supervisor;
use super::stopping::Stopping;
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

/// A socket that was left open for a supervisor which knows nothing else of who had it: named as a service manager
/// names what it gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOpen {
    /// What it is called.
    pub name: String,
    /// Its number.
    pub descriptor: i32,
}

impl std::str::FromStr for LeftOpen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.rsplit_once('=')
            .and_then(|(name, number)| {
                Some(Self {
                    name: name.to_owned(),
                    descriptor: number.parse().ok()?,
                })
            })
            .ok_or_else(|| format!("`{text}` is not <name>=<descriptor>"))
    }
}

/// Runs a supervisor until SIGTERM.
///
/// # Errors
/// When it cannot start.
pub fn serve(
    home: Home,
    left_open: Vec<LeftOpen>,
    blocked: &Blocked,
) -> Result<(), SupervisorError> {
    let failed = SupervisorError::system("take what it was given");
    let mut given = Vec::new();
    if left_open.is_empty() {
        // What a service manager said at the start of this process still stands there after an exec, and is true no more.
        given = service_manager::take(&|name| std::env::var_os(name)).map_err(failed)?;
    }
    for LeftOpen { name, descriptor } in left_open {
        let descriptor = inherited(descriptor).map_err(failed)?;
        given.push(Given { name, descriptor });
    }
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
        let given = service_manager::sort(given);
        let listeners = open_listeners(&loaded.config.server, given.listeners)?;
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
        for client in given.connections {
            board.arrived_last(Moment::now(), Client::returned(client));
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
        mut essentials: Essentials,
        blocked: &Blocked,
    ) -> Result<Self, SupervisorError> {
        let mut service_manager =
            ServiceManager::find(&|name| std::env::var_os(name), Moment::now());
        service_manager.store(&mut essentials.listeners);
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
            service_manager,
            stopping: Stopping::default(),
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
    use super::LeftOpen;

    #[test]
    fn what_is_left_open_has_a_name_and_a_number() {
        for (text, name) in [("listener=12", "listener"), ("=12", ""), ("a=b=12", "a=b")] {
            let given: LeftOpen = text.parse().unwrap();
            assert_eq!((given.name.as_str(), given.descriptor), (name, 12));
        }
        for bad in ["", "listener", "listener=", "listener=x", "12"] {
            assert!(bad.parse::<LeftOpen>().is_err(), "{bad}");
        }
    }
}
