//! The main loop: waits for everything at once, then lets it take effect in a fixed order.
//!
//! Channels are read before deadlines are believed, so that a supervisor that was stopped for a
//! while, anywhere in its turn, blames nobody for answers that lie there already.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use staging::home::Home;
use staging::locks::SupervisorLock;
use staging::ownership::{ProcessIdentity, SupervisorRecord};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};

use crate::clock::Moment;
use crate::config::{self, Config};
use crate::descriptors::keep_inherited_from_workers;

use super::api::{self, Command, Door};
use super::clerk::{Clerk, Filed};
use super::error::SupervisorError;
use super::handoff::DEATH_FOLLOWS;
use super::held::{Confirmations, Inquiries};
use super::link::Heard;
use super::listener::{ListenError, Listener};
use super::on_event::Runner;
use super::origin::Origin;
use super::rollout::{Generation, Machine, Settings, Target};
use super::rollouts::Rollouts;
use super::signals::{Blocked, Said};
use super::snapshot::Snapshot;
use super::state::Supervisor;
use super::switchboard::Switchboard;

/// Connections taken from one listener before anything else gets a turn.
const ACCEPTS_A_TURN: usize = 64;

/// How soon the listeners are looked at again when the system had no descriptor for a connection.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Runs a supervisor until SIGTERM.
///
/// # Errors
/// When it cannot start.
pub fn serve(home: Home, blocked: &Blocked) -> Result<(), SupervisorError> {
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
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(SupervisorError::system("start the runtime"))?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let mut supervisor = Supervisor::start(home, lock, origin, loaded.config, blocked)?;
        supervisor.run().await;
        supervisor.clerk.finish();
        supervisor.on_event.end();
        Ok(())
    })
}

/// What ended a wait. The order of the fields is the order in which they take effect.
#[derive(Default)]
struct Woken {
    heard: Vec<(Generation, Heard)>,
    exited: Vec<(Generation, String)>,
    filed: Vec<Filed>,
    accepted: Vec<OwnedFd>,
    accept_failed: bool,
    said: Vec<Said>,
    commands: Vec<Command>,
    timer: bool,
}

impl Woken {
    fn is_empty(&self) -> bool {
        self.heard.is_empty()
            && self.exited.is_empty()
            && self.filed.is_empty()
            && self.said.is_empty()
            && self.commands.is_empty()
            && self.accepted.is_empty()
            && !self.accept_failed
            && !self.timer
    }
}

impl Supervisor {
    fn start(
        home: Home,
        lock: SupervisorLock,
        origin: Origin,
        config: Config,
        blocked: &Blocked,
    ) -> Result<Self, SupervisorError> {
        let listeners = listen(&config)?;
        let addresses: Vec<String> = listeners.iter().map(|l| l.address().to_string()).collect();
        let control = api::bind(&home)?;
        let identity = ProcessIdentity::current()?;
        let since = staging::clock::now();
        let started = Moment::now();
        lock.announce(
            &home,
            &SupervisorRecord {
                schema: 1,
                identity: identity.clone(),
                version: origin.version.clone(),
                executable: origin.executable.clone(),
                listeners: addresses.clone(),
                since,
            },
        )?;
        let signals = blocked
            .listen()
            .map_err(SupervisorError::system("read signals"))?;
        let (filed_sender, filed) = mpsc::unbounded_channel();
        let clerk = Clerk::start(home.clone(), filed_sender)
            .map_err(SupervisorError::system("start a thread"))?;
        let (changes, door_changes) = watch::channel(0);
        let commands = open_door(control, door_changes);
        let config = Rc::new(Snapshot::seal(config)?);
        let target = Target {
            version: origin.version.clone(),
            config: config.digest.clone(),
        };
        let on_event = Runner::new(&home, &config.config.rollout.on_event);
        let mut effects = Vec::new();
        let machine = Machine::start(
            Moment::now(),
            settings(&config.config.rollout),
            target,
            &mut effects,
        );
        tracing::info!(
            version = %origin.version,
            listen = addresses.join(", "),
            home = %home.root().display(),
            "the supervisor runs"
        );
        Ok(Self {
            board: Switchboard::new(
                config.config.rollout.queue_limit,
                config.config.rollout.queue_timeout,
            ),
            snapshots: HashMap::from([(config.digest.clone(), config.clone())]),
            home,
            _lock: lock,
            identity,
            origin,
            since,
            started,
            bound: config.config.server.listen.clone(),
            config,
            machine,
            effects,
            links: BTreeMap::new(),
            listeners,
            addresses,
            rollouts: Rollouts::default(),
            dropped_messages: 0,
            last_failure: None,
            inquiries: Inquiries::default(),
            confirmations: Confirmations::default(),
            on_event,
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

    /// One turn after the other, until everything has ended.
    async fn run(&mut self) {
        loop {
            self.settle_turn();
            if self.machine.is_finished() {
                break;
            }
            let woken = self.wait().await;
            for (generation, heard) in woken.heard {
                self.hear(generation, heard);
            }
            for (generation, how) in woken.exited {
                self.bury(generation, how);
            }
            for filed in woken.filed {
                self.note_filed(filed);
            }
            // Before the signals: who connected before SIGTERM is still served.
            for socket in woken.accepted {
                self.receive(socket);
            }
            if woken.accept_failed {
                self.accept_again_at = Some(Moment::now() + ACCEPT_RETRY);
            }
            for said in woken.said {
                self.obey_signal(said);
            }
            for command in woken.commands {
                self.answer(command);
            }
        }
        self.publish();
        tracing::info!("the supervisor ends");
    }

    /// What every turn ends with: deadlines, effects, offers, and the news to whoever watches.
    fn settle_turn(&mut self) {
        let now = Moment::now();
        self.check_deadlines(now);
        self.tick(now);
        self.carry_out();
        self.offer_waiting(now);
        self.credit_returns();
        self.turn_away(now);
        self.carry_out();
        self.publish();
    }

    /// Lets the machine's deadlines take effect, once everything that was said before they passed is heard.
    fn tick(&mut self, now: Moment) {
        if self.machine.next_deadline().is_some_and(|at| at <= now) {
            let generations: Vec<Generation> = self.links.keys().copied().collect();
            for generation in generations {
                self.hear_rest(generation);
            }
        }
        self.machine.tick(now, &mut self.effects);
    }

    /// Waits until at least one thing is to be done, and takes all of them.
    async fn wait(&mut self) -> Woken {
        let deadline = self.next_deadline();
        let now = Moment::now();
        // Without any deadline one look an hour costs nothing and needs no second way to sleep.
        let wait = deadline.map_or(Duration::from_secs(3600), |at| at.until(now));
        self.timer
            .as_mut()
            .reset(tokio::time::Instant::now() + wait);
        std::future::poll_fn(|context| {
            let woken = self.poll_woken(context);
            if woken.is_empty() {
                Poll::Pending
            } else {
                Poll::Ready(woken)
            }
        })
        .await
    }

    fn poll_woken(&mut self, context: &mut Context<'_>) -> Woken {
        let mut woken = Woken::default();
        for (generation, link) in &mut self.links {
            if let Poll::Ready(heard) = link.poll_hear(context) {
                woken.heard.push((*generation, heard));
            }
            if let Poll::Ready(how) = link.process.poll_exit(context) {
                woken.exited.push((*generation, how));
            }
        }
        while let Poll::Ready(Some(filed)) = self.filed.poll_recv(context) {
            woken.filed.push(filed);
        }
        while let Poll::Ready(said) = self.signals.poll_next(context) {
            woken.said.push(said);
        }
        while let Poll::Ready(Some(command)) = self.commands.poll_recv(context) {
            woken.commands.push(command);
        }
        let mut room = self.accept_room();
        for listener in &self.listeners {
            for _ in 0..room.min(ACCEPTS_A_TURN) {
                match listener.poll_accept(context) {
                    Poll::Ready(Ok(socket)) => {
                        woken.accepted.push(socket);
                        room -= 1;
                    }
                    Poll::Ready(Err(error)) => {
                        tracing::warn!(%error, "cannot accept; trying again soon");
                        woken.accept_failed = true;
                        break;
                    }
                    Poll::Pending => break,
                }
            }
        }
        woken.timer = std::future::Future::poll(self.timer.as_mut(), context).is_ready();
        woken
    }

    fn next_deadline(&self) -> Option<Moment> {
        let links = self.links.values().flat_map(|link| {
            let closed = link.closed_at.map(|at| at + DEATH_FOLLOWS);
            [closed, link.liveness.next_deadline()]
        });
        let turn_away = match self.machine.active() {
            Some(_) => None,
            None => self.board.next_expiry(),
        };
        links
            .chain([
                self.machine.next_deadline(),
                self.board.next_deadline(),
                turn_away,
                self.retry_at,
                self.accept_again_at,
            ])
            .flatten()
            .min()
    }
}

/// The control socket's way to the main loop.
fn open_door(
    control: UnixListener,
    changes: watch::Receiver<u64>,
) -> mpsc::UnboundedReceiver<Command> {
    let (commands, receiver) = mpsc::unbounded_channel();
    tokio::task::spawn_local(api::serve(control, Door { commands, changes }));
    receiver
}

pub(super) fn settings(rollout: &config::Rollout) -> Settings {
    Settings {
        ready_timeout: rollout.ready_timeout,
        drain_deadline: (!rollout.drain_deadline.is_zero()).then_some(rollout.drain_deadline),
        drain_cap: rollout.drain_cap,
        recovery_min: rollout.recovery_min,
        recovery_max: rollout.recovery_max,
        kill_grace: Duration::from_secs(5),
        probation: rollout.probation,
        probation_error_percent: rollout.probation_error_percent as u64,
        probation_min_requests: rollout.probation_min_requests as u64,
    }
}

/// All addresses or none; only a loopback address of a family that this host does not have is left out.
fn listen(config: &Config) -> Result<Vec<Listener>, SupervisorError> {
    let mut listeners = Vec::new();
    for address in &config.server.listen {
        let address = address.socket_addr();
        match Listener::bind(address) {
            Ok(listener) => listeners.push(listener),
            Err(error @ ListenError::NoSuchAddress(..))
                if address.ip().is_loopback() && config.server.listen.len() > 1 =>
            {
                tracing::warn!("{error}; going on without it");
            }
            Err(error) => return Err(error.into()),
        }
    }
    match (listeners.is_empty(), config.server.listen.first()) {
        (true, Some(address)) => Err(ListenError::NoSuchAddress(
            address.socket_addr(),
            rustix::io::Errno::ADDRNOTAVAIL,
        )
        .into()),
        _ => Ok(listeners),
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
