//! A generation: takes sockets from its supervisor and serves HTTP on them.
//!
//! Started by the supervisor only, with its channel on descriptor 3 and its configuration on 4.
//! It proves itself with a request of its own, says `ready`, and does what the channel says until
//! it is drained. When the supervisor is gone it finishes what it serves and exits.

mod adopt;
mod vitals;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use staging::home::Home;
use tokio::sync::mpsc;

use crate::channel::{
    Addressee, Blame, Channel, Datagram, SendFailure, ToSupervisor, ToWorker, decode, encode,
};
use crate::config::Config;
use crate::descriptors::take_worker_descriptors;
use crate::gateway::Gateway;
use crate::relay::{Drain, Load, Relay};

use adopt::{Adoptions, Offer};
use vitals::WorkerVitals;

/// How often `load` is said while something changes.
const LOAD_INTERVAL: Duration = Duration::from_millis(250);

/// How long a message may wait for a supervisor that does not read before the worker looks again.
const SEND_RETRY: Duration = Duration::from_millis(2);

/// Why a worker could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Not started by a supervisor.
    #[error("cannot take over the channel: {0}")]
    Inherit(std::io::Error),
    /// The runtime did not start.
    #[error("cannot start the runtime: {0}")]
    Runtime(std::io::Error),
    /// Said to the supervisor as `fatal`, too.
    #[error("generation {generation} cannot serve: {reason}")]
    Fatal {
        /// This worker.
        generation: u64,
        /// Why.
        reason: String,
    },
}

/// Runs a worker from `ready` to its end.
///
/// # Errors
/// When it could not start, or had to say `fatal`.
pub fn run(generation: u64, home: Home) -> Result<(), WorkerError> {
    let descriptors = take_worker_descriptors().map_err(WorkerError::Inherit)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(WorkerError::Runtime)?;
    runtime.block_on(async {
        let mut worker = Worker::connect(generation, descriptors.channel)?;
        match worker.serve(descriptors.config, home).await {
            Ok(()) => Ok(()),
            Err(Trouble { reason, blame }) => {
                worker
                    .say(&ToSupervisor::Fatal {
                        reason: reason.clone(),
                        blame,
                    })
                    .await;
                Err(WorkerError::Fatal { generation, reason })
            }
        }
    })
}

/// Why this worker says `fatal`.
struct Trouble {
    reason: String,
    blame: Blame,
}

impl Trouble {
    fn of(blame: Blame) -> impl Fn(String) -> Self {
        move |reason| Self { reason, blame }
    }
}

struct Worker {
    us: Addressee,
    channel: Channel,
    /// How many connections were given back.
    returned: u64,
}

/// What messages of the supervisor act on.
struct Duties {
    room: Room,
    relay: Relay,
    vitals: Arc<WorkerVitals>,
    adoptions: Adoptions,
    give_back: mpsc::UnboundedSender<OwnedFd>,
}

/// What ends the wait of the main loop.
enum Wake {
    Said(std::io::Result<Option<Datagram>>),
    Returned(OwnedFd),
    LoadIsDue,
    NothingLeft,
}

impl Worker {
    fn connect(generation: u64, channel: OwnedFd) -> Result<Self, WorkerError> {
        Ok(Self {
            us: Addressee {
                generation,
                pid: std::process::id(),
            },
            channel: Channel::new(channel).map_err(WorkerError::Inherit)?,
            returned: 0,
        })
    }

    /// The life of a generation, top to bottom.
    async fn serve(&mut self, config: OwnedFd, home: Home) -> Result<(), Trouble> {
        let config = Arc::new(read_config(config)?);
        let version = staging::package::own_version(crate::COMPILED_VERSION).to_string();
        let vitals = Arc::new(WorkerVitals::new(self.us, version.clone(), home));
        let gateway = Arc::new(
            Gateway::new(&config, vitals.clone())
                .map_err(|e| Trouble::of(Blame::Configuration)(e.to_string()))?,
        );
        let room = Room::of(&config);
        let relay = Relay::start(config, gateway, threads())
            .map_err(|e| Trouble::of(Blame::Host)(e.to_string()))?;
        vitals.watch(&relay);
        relay.self_test().await.map_err(|e| {
            Trouble::of(Blame::Package)(format!("the self-test request failed: {e}"))
        })?;
        self.say(&ToSupervisor::Ready {
            version,
            protocol: staging::protocol::CHANNEL_PROTOCOL,
        })
        .await;

        let (give_back, mut returns) = mpsc::unbounded_channel();
        let mut duties = Duties {
            room,
            relay,
            vitals,
            adoptions: Adoptions::default(),
            give_back,
        };
        let mut last_load = Load::default();
        let mut load_due = tokio::time::interval(LOAD_INTERVAL);
        load_due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let wake = tokio::select! {
                biased;
                said = std::future::poll_fn(|context| self.channel.poll_recv(context)) => Wake::Said(said),
                Some(socket) = returns.recv() => Wake::Returned(socket),
                () = duties.relay.drained(), if duties.adoptions.is_over() => Wake::NothingLeft,
                _ = load_due.tick() => Wake::LoadIsDue,
            };
            match wake {
                Wake::Said(Ok(Some(datagram))) => match self.obey(datagram, &mut duties).await {
                    Obeyed::GoOn => {}
                    Obeyed::Failed(trouble) => return Err(trouble),
                    Obeyed::Shutdown => {
                        duties.relay.abort();
                        duties.relay.drained().await;
                        return Ok(());
                    }
                },
                Wake::Said(Ok(None) | Err(_)) => {
                    // The supervisor is gone: nobody can take over, so finish and exit.
                    drop(returns);
                    duties.relay.drain(Drain::Close);
                    duties.relay.drained().await;
                    return Ok(());
                }
                Wake::Returned(socket) => self.give_back(&socket).await,
                Wake::LoadIsDue => {
                    let load = duties.relay.load();
                    if load != last_load {
                        last_load = load;
                        self.say_load(load).await;
                    }
                }
                Wake::NothingLeft => {
                    while let Ok(socket) = returns.try_recv() {
                        self.give_back(&socket).await;
                    }
                    self.say_load(duties.relay.load()).await;
                    self.say(&ToSupervisor::Drained).await;
                    return Ok(());
                }
            }
        }
    }

    async fn obey(&mut self, datagram: Datagram, duties: &mut Duties) -> Obeyed {
        let Duties {
            room,
            relay,
            vitals,
            adoptions,
            give_back,
        } = duties;
        let message = match decode::<ToWorker>(&datagram.bytes, self.us) {
            Ok(message) => message,
            Err(dropped) => {
                tracing::debug!(%dropped, "dropped what the supervisor said");
                vitals.count_dropped();
                return Obeyed::GoOn;
            }
        };
        match message {
            ToWorker::Activate => {
                vitals.set_active(true);
                self.say(&ToSupervisor::Activated).await;
            }
            ToWorker::Drain { close, .. } => {
                vitals.set_active(false);
                adoptions.drain();
                relay.drain(if close {
                    Drain::Close
                } else {
                    Drain::GiveBack(give_back.clone())
                });
            }
            // Said by nobody yet.
            ToWorker::Standby { .. }
            | ToWorker::ReturnCredit { .. }
            | ToWorker::Unready
            | ToWorker::Streams { .. }
            | ToWorker::Admission { .. } => {}
            ToWorker::Shutdown => return Obeyed::Shutdown,
            ToWorker::Ping { id } => self.say(&ToSupervisor::Pong { id }).await,
            ToWorker::Socket { id } => match adoptions.offered(
                id,
                datagram.descriptor,
                room.has_room(relay.load().connections, adoptions.held()),
            ) {
                Offer::Accepted => self.say(&ToSupervisor::SocketAccepted { id }).await,
                Offer::Refused(reason) => {
                    self.say(&ToSupervisor::SocketRefused {
                        id,
                        reason: reason.to_owned(),
                    })
                    .await;
                }
            },
            ToWorker::SocketCommit { id } => {
                if let Some(socket) = adoptions.committed(id) {
                    // Said before a byte is read: whoever finds no `socket-owned` may serve it instead.
                    self.say(&ToSupervisor::SocketOwned { id }).await;
                    if let Err(error) = relay.adopt(socket) {
                        return Obeyed::Failed(Trouble::of(Blame::Package)(error.to_string()));
                    }
                }
            }
            ToWorker::SocketCancel { id } => drop(adoptions.committed(id)),
        }
        Obeyed::GoOn
    }

    async fn say_load(&mut self, load: Load) {
        self.say(&ToSupervisor::Load {
            connections: load.connections,
            exchanges: load.exchanges,
            requests: load.requests,
            local_5xx: load.local_5xx,
        })
        .await;
    }

    /// Our copy is closed only after the supervisor's is on its way.
    async fn give_back(&mut self, socket: &OwnedFd) {
        self.returned += 1;
        let message = ToSupervisor::SocketReturned { id: self.returned };
        self.send(&message, Some(socket.as_fd())).await;
    }

    async fn say(&mut self, message: &ToSupervisor) {
        self.send(message, None).await;
    }

    /// In order, and not lost while the supervisor lives; one that is gone is noticed by reading.
    async fn send(&mut self, message: &ToSupervisor, socket: Option<BorrowedFd<'_>>) {
        let bytes = encode(message, self.us);
        while self.channel.try_send(&bytes, socket) == Err(SendFailure::BackPressure) {
            tokio::time::sleep(SEND_RETRY).await;
        }
    }
}

/// What follows from a message.
enum Obeyed {
    GoOn,
    Shutdown,
    Failed(Trouble),
}

/// Reads by offset: all workers of one configuration share the descriptor's position.
fn read_config(config: OwnedFd) -> Result<Config, Trouble> {
    let trouble = |text: String| {
        Trouble::of(Blame::Configuration)(format!(
            "the configuration snapshot cannot be read: {text}"
        ))
    };
    let file = std::fs::File::from(config);
    let size = file.metadata().map_err(|e| trouble(e.to_string()))?.len();
    let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
    file.read_exact_at(&mut bytes, 0)
        .map_err(|e| trouble(e.to_string()))?;
    Config::from_snapshot(&bytes).map_err(|e| trouble(e.to_string()))
}

/// How many connections this worker takes.
#[derive(Debug, Clone, Copy)]
struct Room {
    /// How many descriptors this process may have open.
    descriptors: u64,
    /// `[server] max_connections`; zero is as many as the descriptors allow.
    max_connections: u64,
}

impl Room {
    fn of(config: &Config) -> Self {
        Self {
            descriptors: rustix::process::getrlimit(rustix::process::Resource::Nofile)
                .current
                .unwrap_or(u64::MAX),
            max_connections: config.server.max_connections as u64,
        }
    }

    /// Whether one more connection is within the limit, and leaves descriptors for the upstream of each and
    /// some for the rest. A socket that is refused waits its turn in the supervisor's queue; one that is
    /// taken without room for its upstream could only be answered with an error.
    fn has_room(self, connections: u64, held: usize) -> bool {
        let connections = connections.saturating_add(held as u64);
        if self.max_connections != 0 && connections >= self.max_connections {
            return false;
        }
        let reserve = (self.descriptors / 4).min(64);
        connections.saturating_mul(2).saturating_add(2 + reserve) <= self.descriptors
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_room(descriptors: u64, connections: u64, held: usize) -> bool {
        let room = Room {
            descriptors,
            max_connections: 0,
        };
        room.has_room(connections, held)
    }

    #[test]
    fn a_worker_keeps_a_descriptor_for_each_upstream_and_some_for_the_rest() {
        assert!(has_room(1024, 478, 0));
        assert!(!has_room(1024, 480, 0));
        assert!(!has_room(1024, 400, 80));
        assert!(has_room(40, 10, 0));
        assert!(!has_room(40, 15, 0));
        assert!(has_room(u64::MAX, 1_000_000, 64));
    }

    #[test]
    fn a_worker_takes_no_more_than_its_configured_connections() {
        let room = Room {
            descriptors: 1024,
            max_connections: 3,
        };
        assert!(room.has_room(2, 0));
        assert!(!room.has_room(2, 1));
        assert!(!room.has_room(3, 0));
        let more_than_descriptors = Room {
            descriptors: 40,
            max_connections: 1000,
        };
        assert!(!more_than_descriptors.has_room(15, 0));
    }
}
