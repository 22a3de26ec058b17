//! The new image's first moments. Until all that was handed over is known to be good, nothing of it is touched: then the
//! image before can be executed again and finds everything as it left it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use rustix::net::{SocketType, sockopt};
use staging::home::Home;
use staging::locks::SupervisorLock;
use staging::report::{Exit, Failure};

use crate::channel::Channel;
use crate::clock::Moment;
use crate::config::Config;
use crate::descriptors::{inherited, keep_inherited_from_workers, looked_at};

use super::super::client::Client;
use super::super::error::SupervisorError;
use super::super::link::Link;
use super::super::listener::Listeners;
use super::super::origin::Origin;
use super::super::process::{Process, open_pidfd};
use super::super::rollout::Generation;
use super::super::signals::Blocked;
use super::super::snapshot::Snapshot;
use super::super::start::{Essentials, in_runtime};
use super::super::state::Supervisor;
use super::super::switchboard::Switchboard;
use super::exec::{Inheritance, go_back};
use super::state::State;
use super::{Handover, HandoverPhase};

/// What the image before says by its arguments.
#[derive(Debug)]
pub struct Handed {
    /// The state's descriptor.
    pub state: i32,
    /// The executable of the image before; none when this is that image again.
    pub back: Option<i32>,
    /// Why the other image gave everything back.
    pub came_back: Option<String>,
}

/// Why what was handed over cannot be used.
#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error("the state cannot be read: {0}")]
    Memory(std::io::Error),
    #[error(transparent)]
    State(#[from] super::state::StateError),
    #[error("descriptor {0} is not open")]
    NotOpen(i32),
    #[error("descriptor {0} is not the kind of socket that the state says")]
    OtherKind(i32),
    #[error("descriptor {0} is not a lock that is held here")]
    NotOurs(i32),
    #[error("descriptor {0} stands in the state twice")]
    Twice(i32),
    #[error("worker {pid} cannot be watched: {source}")]
    Worker { pid: u32, source: std::io::Error },
    #[error("it panicked while it read the state")]
    Panicked,
}

/// All that was handed over, known to be good; nothing was touched.
struct Loaded {
    state: State,
    configs: Vec<(String, Config)>,
    pidfds: BTreeMap<u32, OwnedFd>,
}

/// `rollproxy serve --resume`: goes on as the supervisor that the image before was.
///
/// # Errors
/// When it cannot, and the image before could not be executed again, either.
pub fn resume(handed: &Handed, blocked: &Blocked) -> Result<(), SupervisorError> {
    let failed = SupervisorError::system;
    let memory = inherited(handed.state).map_err(failed("take over the state"))?;
    let back = match handed.back {
        Some(number) => Some(inherited(number).map_err(failed("take over the executable"))?),
        None => None,
    };
    let loaded =
        catch_unwind(AssertUnwindSafe(|| load(memory.as_fd()))).unwrap_or(Err(LoadError::Panicked));
    match (loaded, back) {
        (Ok(loaded), back) => {
            // Not held for nothing as long as we live.
            drop((memory, back));
            go_on(loaded, handed.came_back.clone(), blocked)
        }
        (Err(error), Some(back)) => {
            let why = error.to_string();
            tracing::error!(why, "cannot take over; the image before is executed again");
            let inheritance = Inheritance {
                state: memory.as_fd(),
                back: back.as_fd(),
            };
            // Everything else is still as inheritable as it came.
            let source = go_back(inheritance, &[], &why);
            Err(SupervisorError::System {
                what: "execute the image before again",
                source,
            })
        }
        (Err(error), None) => Err(SupervisorError::System {
            what: "take over again what was handed on",
            source: std::io::Error::other(error.to_string()),
        }),
    }
}

fn load(memory: BorrowedFd<'_>) -> Result<Loaded, LoadError> {
    let memory = memory.try_clone_to_owned().map_err(LoadError::Memory)?;
    let bytes = super::memory::read(memory).map_err(LoadError::Memory)?;
    let (state, configs) = State::parse(&bytes)?;
    let mut seen = BTreeSet::new();
    for number in state.sockets().into_iter().chain([state.lock]) {
        if !seen.insert(number) {
            return Err(LoadError::Twice(number));
        }
    }
    for link in &state.links {
        if let Some(channel) = link.channel {
            is_socket(channel, SocketType::SEQPACKET)?;
        }
    }
    for number in state.sockets() {
        looked_at(number, |socket| sockopt::socket_type(socket))
            .ok_or(LoadError::NotOpen(number))?
            .map_err(|_| LoadError::OtherKind(number))?;
    }
    let listening = state.listeners.iter().map(|listener| listener.socket);
    for number in listening.chain([state.control]) {
        let listens = looked_at(number, |socket| sockopt::socket_acceptconn(socket));
        if listens != Some(Ok(true)) {
            return Err(LoadError::OtherKind(number));
        }
    }
    // Taken already by this very open file: that succeeds at once.
    let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    looked_at(state.lock, |file| rustix::fs::flock(file, lock))
        .ok_or(LoadError::NotOpen(state.lock))?
        .map_err(|_| LoadError::NotOurs(state.lock))?;
    let mut pidfds = BTreeMap::new();
    for link in &state.links {
        let pid = link.pid;
        let pidfd = open_pidfd(pid).map_err(|source| LoadError::Worker { pid, source })?;
        pidfds.insert(pid, pidfd);
    }
    Ok(Loaded {
        state,
        configs,
        pidfds,
    })
}

fn is_socket(number: i32, kind: SocketType) -> Result<(), LoadError> {
    match looked_at(number, |socket| sockopt::socket_type(socket)) {
        None => Err(LoadError::NotOpen(number)),
        Some(Ok(found)) if found == kind => Ok(()),
        Some(_) => Err(LoadError::OtherKind(number)),
    }
}

/// From here on it is ours. What can still fail is what fails for want of memory or descriptors only.
fn go_on(
    loaded: Loaded,
    came_back: Option<String>,
    blocked: &Blocked,
) -> Result<(), SupervisorError> {
    in_runtime(async || {
        let mut supervisor = take_over(loaded, came_back, blocked)?;
        supervisor.run_to_the_end().await;
        Ok(())
    })
}

fn take_over(
    loaded: Loaded,
    came_back: Option<String>,
    blocked: &Blocked,
) -> Result<Supervisor, SupervisorError> {
    let failed = SupervisorError::system("take over a descriptor");
    let take = |number: i32| inherited(number);
    let Loaded {
        state,
        configs,
        mut pidfds,
    } = loaded;
    let home = Home::at(state.home.clone());
    let lock = SupervisorLock::inherited(take(state.lock).map_err(failed)?);
    let control = take(state.control).map_err(failed)?;
    let listeners = state
        .listeners
        .into_iter()
        .map(|listener| Ok((take(listener.socket)?, listener.named)))
        .collect::<std::io::Result<Vec<_>>>()
        .map_err(failed)?;
    let listeners = Listeners::from_inherited(state.listen, listeners)?;
    let board = Switchboard::resume(state.board, |client| {
        Ok(Client::carried(take(client.socket)?, client.came))
    })
    .map_err(failed)?;
    let mut links = BTreeMap::new();
    for carried in state.links {
        let channel = match carried.channel {
            Some(number) => Some(take(number).and_then(Channel::new).map_err(failed)?),
            None => None,
        };
        let pid = carried.pid;
        let pidfd = match pidfds.remove(&pid) {
            Some(pidfd) => pidfd,
            None => open_pidfd(pid).map_err(failed)?,
        };
        let process = Process::watched(pidfd, pid).map_err(failed)?;
        links.insert(carried.generation, Link::resume(carried, process, channel));
    }
    // The state, the executable before, and whatever else came with us.
    keep_inherited_from_workers().map_err(failed)?;
    let mut snapshots = HashMap::new();
    let texts: HashMap<String, String> = state
        .snapshots
        .into_iter()
        .map(|snapshot| (snapshot.digest, snapshot.text))
        .collect();
    for (digest, config) in configs {
        let text = texts.get(&digest).map_or(&[][..], |text| text.as_bytes());
        let snapshot = Snapshot::carried(config, digest.clone(), text)?;
        snapshots.insert(digest, Rc::new(snapshot));
    }
    let config = snapshots
        .get(&state.config)
        .cloned()
        .ok_or_else(|| SupervisorError::System {
            what: "find the configuration that holds",
            source: std::io::ErrorKind::NotFound.into(),
        })?;
    let origin = match &came_back {
        // The file may be gone, and the name with it; the state knows who we are.
        Some(_) => Origin::carried(state.origin.version, state.origin.executable),
        // Removed in this very moment: what it is stands in the book.
        None if staging::package::own().is_none() => {
            let to = state.handovers.last().map(|last| last.to.clone());
            std::env::current_exe().and_then(|executable| {
                Origin::carried(to.unwrap_or(state.origin.version), executable)
            })
        }
        None => Origin::detect(),
    }
    .map_err(SupervisorError::system("find this program's own file"))?;
    let mut book = state.handovers;
    let now = staging::clock::now();
    match came_back {
        Some(why) => book.end(
            now,
            HandoverPhase::Failed,
            &Failure::new(
                "HANDOVER_CAME_BACK",
                format!("the new program could not take over and gave everything back: {why}"),
                Exit::Failed,
                false,
            ),
        ),
        None => {
            let frozen = Moment::now().since(state.frozen_at).as_micros();
            book.moved(now, u64::try_from(frozen).unwrap_or(u64::MAX));
        }
    }
    let strays = strays(&links, state.on_event.pid());
    let mut supervisor = Supervisor::assemble(
        Essentials {
            home,
            lock,
            origin,
            identity: state.identity,
            since: state.since,
            started: state.started,
            listeners,
            control,
            config,
            snapshots,
            machine: state.machine,
            effects: Vec::new(),
            board,
            on_event: state.on_event,
        },
        blocked,
    )?;
    supervisor.links = links;
    supervisor.rollouts = state.rollouts;
    supervisor.dropped_messages = state.dropped_messages;
    supervisor.last_failure = state.last_failure;
    supervisor.pending_was_looked_at = state.pending_was_looked_at;
    supervisor.handover = Handover::resumed(book, strays);
    supervisor.announce_listeners();
    tracing::info!(version = %supervisor.origin.version, "the supervisor goes on");
    Ok(supervisor)
}

/// Children of the images before that are nobody's worker, nor the command that is being told something: they are
/// reaped when they end.
pub(in super::super) fn strays(
    links: &BTreeMap<Generation, Link>,
    told: Option<u32>,
) -> Vec<Process> {
    let workers = links.values().map(|link| link.process.pid());
    let known: BTreeSet<u32> = workers.chain(told).collect();
    let mut strays = Vec::new();
    let own = std::process::id();
    let children = std::fs::read_to_string(format!("/proc/self/task/{own}/children"));
    for word in children.unwrap_or_default().split_ascii_whitespace() {
        let pid = word.parse::<u32>().ok().filter(|pid| !known.contains(pid));
        strays.extend(pid.and_then(|pid| Process::adopt(pid).ok()));
    }
    strays
}
