//! A generation: takes sockets from its supervisor and serves HTTP on them.
//!
//! Started by the supervisor only, with its channel on descriptor 3 and its configuration on 4.
//! It proves itself with a request of its own, says `ready`, and does what the channel says until
//! it is drained. When the supervisor is gone it finishes what it serves and exits.

mod adopt;
mod vitals;

use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use staging::home::Home;

use crate::channel::{Addressee, Blame, Channel, Datagram, SendFailure, ToSupervisor, ToWorker, decode, encode};
use crate::config::Config;
use crate::gateway::Gateway;
use crate::descriptors::take_worker_descriptors;
use crate::relay::{Load, Relay};

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
                worker.say(&ToSupervisor::Fatal { reason: reason.clone(), blame }).await;
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
}

/// What ends the wait of the main loop.
enum Wake {
    Said(std::io::Result<Option<Datagram>>),
    LoadIsDue,
    NothingLeft,
}

impl Worker {
    fn connect(generation: u64, channel: OwnedFd) -> Result<Self, WorkerError> {
        Ok(Self {
            us: Addressee { generation, pid: std::process::id() },
            channel: Channel::new(channel).map_err(WorkerError::Inherit)?,
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
        let relay = Relay::start(config, gateway, threads()).map_err(|e| Trouble::of(Blame::Host)(e.to_string()))?;
        vitals.watch(&relay);
        relay.self_test().await.map_err(|e| Trouble::of(Blame::Package)(format!("the self-test request failed: {e}")))?;
        self.say(&ToSupervisor::Ready { version, protocol: staging::protocol::CHANNEL_PROTOCOL }).await;

        let mut adoptions = Adoptions::default();
        let mut last_load = Load::default();
        let mut load_due = tokio::time::interval(LOAD_INTERVAL);
        load_due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let wake = tokio::select! {
                biased;
                said = std::future::poll_fn(|context| self.channel.poll_recv(context)) => Wake::Said(said),
                () = relay.drained(), if adoptions.is_draining() && adoptions.is_empty() => Wake::NothingLeft,
                _ = load_due.tick() => Wake::LoadIsDue,
            };
            match wake {
                Wake::Said(Ok(Some(datagram))) => {
                    match self.obey(datagram, &relay, &vitals, &mut adoptions).await {
                        Obeyed::GoOn => {}
                        Obeyed::Failed(trouble) => return Err(trouble),
                        Obeyed::Shutdown => {
                            relay.abort();
                            relay.drained().await;
                            return Ok(());
                        }
                    }
                }
                Wake::Said(Ok(None) | Err(_)) => {
                    // The supervisor is gone: nobody can take over, so finish and exit.
                    relay.drain();
                    relay.drained().await;
                    return Ok(());
                }
                Wake::LoadIsDue => {
                    let load = relay.load();
                    if load != last_load {
                        last_load = load;
                        self.say_load(load).await;
                    }
                }
                Wake::NothingLeft => {
                    self.say_load(relay.load()).await;
                    self.say(&ToSupervisor::Drained).await;
                    return Ok(());
                }
            }
        }
    }

    async fn obey(&mut self, datagram: Datagram, relay: &Relay, vitals: &WorkerVitals, adoptions: &mut Adoptions) -> Obeyed {
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
            ToWorker::Drain => {
                vitals.set_active(false);
                adoptions.drain();
                relay.drain();
            }
            ToWorker::Shutdown => return Obeyed::Shutdown,
            ToWorker::Ping { id } => self.say(&ToSupervisor::Pong { id }).await,
            ToWorker::Socket { id } => match adoptions.offered(id, datagram.descriptor) {
                Offer::Accepted => self.say(&ToSupervisor::SocketAccepted { id }).await,
                Offer::Refused(reason) => {
                    self.say(&ToSupervisor::SocketRefused { id, reason: reason.to_owned() }).await;
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

    /// In order, and not lost while the supervisor lives; one that is gone is noticed by reading.
    async fn say(&mut self, message: &ToSupervisor) {
        let bytes = encode(message, self.us);
        while self.channel.try_send(&bytes, None) == Err(SendFailure::BackPressure) {
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
    let trouble = |text: String| Trouble::of(Blame::Configuration)(format!("the configuration snapshot cannot be read: {text}"));
    let file = std::fs::File::from(config);
    let size = file.metadata().map_err(|e| trouble(e.to_string()))?.len();
    let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
    file.read_exact_at(&mut bytes, 0).map_err(|e| trouble(e.to_string()))?;
    Config::from_snapshot(&bytes).map_err(|e| trouble(e.to_string()))
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
