//! A generation: takes sockets from its supervisor and serves HTTP on them.
//!
//! Started by the supervisor only, with its channel on descriptor 3 and its configuration on 4.
//! It proves itself with a request of its own, says `ready`, and does what the channel says until
//! it is drained. When the supervisor is gone it finishes what it serves and exits.

mod adopt;
mod duties;
mod returns;
mod room;
mod stance;
mod streams;
mod vitals;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use staging::home::Home;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::channel::{
    Addressee, Blame, Channel, Datagram, SendFailure, ToSupervisor, ToWorker, decode, encode,
};
use crate::config::Config;
use crate::descriptors::{WorkerDescriptors, take_worker_descriptors};
use crate::gateway::Gateway;
use crate::relay::{Load, Relay};

use adopt::Offer;
use duties::Duties;
use returns::Fate;
use room::Room;
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
    run_on(descriptors, generation, home)
}

/// [`run`] on descriptors that were taken over already.
///
/// # Errors
/// As [`run`].
pub fn run_on(
    descriptors: WorkerDescriptors,
    generation: u64,
    home: Home,
) -> Result<(), WorkerError> {
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
    /// Questions whose answer the relay's threads are collecting.
    questions: JoinSet<ToSupervisor>,
}

/// What ends the wait of the main loop.
enum Wake {
    Said(std::io::Result<Option<Datagram>>),
    LetGo(OwnedFd),
    Listed(ToSupervisor),
    LeaseIsOver,
    LoadIsDue,
    NothingLeft,
}

/// What follows from a message, or from what became of a connection.
enum Obeyed {
    GoOn,
    Shutdown,
    Failed(Trouble),
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
            questions: JoinSet::new(),
        })
    }

    /// The life of a generation, top to bottom.
    async fn serve(&mut self, config: OwnedFd, home: Home) -> Result<(), Trouble> {
        let config = Arc::new(read_config(config)?);
        let version = own_version();
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

        let (duties, let_go) = Duties::new(room, relay, vitals);
        match self.work(duties, let_go).await {
            Obeyed::Failed(trouble) => Err(trouble),
            Obeyed::GoOn | Obeyed::Shutdown => Ok(()),
        }
    }

    /// Does what the channel says, to the end.
    async fn work(
        &mut self,
        mut duties: Duties,
        mut let_go: mpsc::UnboundedReceiver<OwnedFd>,
    ) -> Obeyed {
        let mut last_load = Load::default();
        let mut load_due = tokio::time::interval(LOAD_INTERVAL);
        load_due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut supervised = true;
        loop {
            let wake = tokio::select! {
                biased;
                said = std::future::poll_fn(|context| self.channel.poll_recv(context)), if supervised => Wake::Said(said),
                Some(socket) = let_go.recv() => Wake::LetGo(socket),
                () = duties.drained() => Wake::NothingLeft,
                Some(Ok(answer)) = self.questions.join_next() => Wake::Listed(answer),
                () = duties.lease_over() => Wake::LeaseIsOver,
                _ = load_due.tick(), if supervised => Wake::LoadIsDue,
            };
            let obeyed = match wake {
                Wake::Said(Ok(Some(datagram))) => self.obey(datagram, &mut duties, &let_go).await,
                Wake::Said(Ok(None) | Err(_)) => {
                    // The supervisor is gone: nobody can take over, so finish and exit.
                    supervised = false;
                    duties.adoptions.forget();
                    duties.stance.drain(true);
                    self.take_stance(&mut duties).await
                }
                Wake::LetGo(socket) => self.settle(socket, &mut duties).await,
                Wake::Listed(answer) => {
                    self.say(&answer).await;
                    Obeyed::GoOn
                }
                Wake::LeaseIsOver => {
                    tracing::info!("the pause was not renewed and is over");
                    duties.resume();
                    self.take_stance(&mut duties).await
                }
                Wake::LoadIsDue => {
                    let load = duties.load(&let_go);
                    if load != last_load {
                        last_load = load;
                        self.say_load(load).await;
                    }
                    Obeyed::GoOn
                }
                // Whoever let a connection go did so before it was no longer counted.
                Wake::NothingLeft => match let_go.try_recv() {
                    Ok(socket) => self.settle(socket, &mut duties).await,
                    Err(_) => {
                        self.say_load(duties.load(&let_go)).await;
                        self.say(&ToSupervisor::Drained).await;
                        return Obeyed::GoOn;
                    }
                },
            };
            match obeyed {
                Obeyed::GoOn => {}
                Obeyed::Failed(trouble) => return Obeyed::Failed(trouble),
                Obeyed::Shutdown => {
                    duties.relay.abort();
                    duties.relay.drained().await;
                    return Obeyed::Shutdown;
                }
            }
        }
    }

    async fn obey(
        &mut self,
        datagram: Datagram,
        duties: &mut Duties,
        let_go: &mpsc::UnboundedReceiver<OwnedFd>,
    ) -> Obeyed {
        let message = match decode::<ToWorker>(&datagram.bytes, self.us) {
            Ok(message) => message,
            Err(dropped) => {
                tracing::debug!(%dropped, "dropped what the supervisor said");
                duties.vitals.count_dropped();
                return Obeyed::GoOn;
            }
        };
        match message {
            ToWorker::Activate => {
                if !duties.stance.activate() {
                    tracing::debug!("told to be active while it ends");
                    return Obeyed::GoOn;
                }
                // First: whoever hears `activated` may send back here what we gave back.
                let taken = self.take_stance(duties).await;
                self.say(&ToSupervisor::Activated).await;
                return taken;
            }
            ToWorker::Standby { returns } => {
                duties.stance.stand_by();
                duties.window = returns;
                return self.take_stance(duties).await;
            }
            ToWorker::Drain { close, returns } => {
                duties.stance.drain(close);
                duties.window = returns;
                return self.take_stance(duties).await;
            }
            ToWorker::ReturnCredit { count } => {
                for socket in duties.returns.credit(count) {
                    self.give_back(&socket).await;
                }
            }
            ToWorker::Unready => {
                duties.stance.unready = true;
                duties.vitals.set_stance(duties.stance);
            }
            ToWorker::Admission {
                id,
                paused,
                lease_ms,
            } => {
                match paused {
                    true => duties.pause(Duration::from_millis(lease_ms)),
                    false => duties.resume(),
                }
                let taken = self.take_stance(duties).await;
                let load = duties.load(let_go);
                self.say(&ToSupervisor::Admission {
                    id,
                    connections: load.connections,
                    exchanges: load.exchanges,
                })
                .await;
                return taken;
            }
            // Its threads answer when they can; nobody waits for that.
            ToWorker::Streams { id } => {
                let relay = duties.relay.clone();
                self.questions.spawn(async move {
                    let (total, streams) = streams::listed(&relay).await;
                    ToSupervisor::Streams { id, total, streams }
                });
            }
            ToWorker::Shutdown => return Obeyed::Shutdown,
            ToWorker::Ping { id } => self.say(&ToSupervisor::Pong { id }).await,
            ToWorker::Socket { id } => match duties.offered(id, datagram.descriptor) {
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
                if let Some(socket) = duties.adoptions.committed(id) {
                    // Said before a byte is read: whoever finds no `socket-owned` may serve it instead.
                    self.say(&ToSupervisor::SocketOwned { id }).await;
                    return duties.adopt(socket);
                }
            }
            ToWorker::SocketCancel { id } => drop(duties.adoptions.committed(id)),
        }
        Obeyed::GoOn
    }

    /// What was told takes effect on the connections that are between two requests.
    async fn take_stance(&mut self, duties: &mut Duties) -> Obeyed {
        let (give_back, serve) = duties.take_stance();
        for socket in give_back {
            self.give_back(&socket).await;
        }
        duties.adopt_all(serve)
    }

    /// The relay let a connection go.
    async fn settle(&mut self, socket: OwnedFd, duties: &mut Duties) -> Obeyed {
        match duties.returns.came(socket) {
            Fate::Return(socket) => self.give_back(&socket).await,
            Fate::Wait => {}
            Fate::Serve(socket) => return duties.adopt(socket),
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

/// The version of the package this worker stands in. Where that was removed, the supervisor tells: it started us from
/// its own executable, which is no package's any more.
fn own_version() -> String {
    let found = staging::package::own().map(|package| package.manifest.version.to_string());
    found
        .or_else(|| std::env::var(crate::supervisor::RUNS_AS).ok())
        .unwrap_or_else(|| crate::COMPILED_VERSION.to_owned())
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
