//! Moves the bytes between clients and upstreams.
//!
//! The face is [`Relay`]: adopt a socket, and it is served until its end. What becomes of a request is asked of the
//! [`Gateway`]; who gives us sockets, and why we drain, is nobody's business here.
//!
//! The walk of one request: `connection` (request after request on one socket), `request` (from a head's bytes to what
//! is to be done), `exchange` (one request and its answer), `upstream` (the other side) and `flow` (both directions at
//! once). What is pure, `head`, `framing` and `chunked`, decides about bytes and knows no socket. HTTP/2
//! is spoken by hyper and h2, in `http2`.

mod answer;
mod bridge;
mod buffers;
mod chunked;
mod client;
mod connection;
mod counters;
mod ending;
mod exchange;
mod flow;
mod framing;
#[doc(hidden)]
pub mod fuzzing;
mod head;
mod held;
mod http2;
mod leaving;
mod phase;
mod pool;
mod request;
mod selftest;
mod start;
mod stream;
mod table;
mod terms;
mod thread;
mod timeouts;
mod tls;
mod trailers;
mod tunnel;
mod upstream;
mod websocket;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use staging::report::{Exit, Report};
use tokio::sync::{mpsc, oneshot, watch};

use crate::config::Config;
use crate::gateway::Gateway;
pub use counters::Load;
use counters::{Admitted, Counters};
pub use held::{Held, Kind, Listing};
pub use phase::Drain;
use phase::Phase;
pub use selftest::SelfTestError;

/// A handle on the relay threads; cheap to clone. When the last handle is dropped, what is left is cut as by [`Relay::abort`].
#[derive(Clone)]
pub struct Relay {
    shared: Arc<Shared>,
}

struct Shared {
    threads: Vec<mpsc::UnboundedSender<Errand>>,
    next: AtomicUsize,
    phase: watch::Sender<Phase>,
    counters: Arc<Counters>,
}

/// What a thread is asked to do.
enum Errand {
    Serve(Adopted),
    /// So many of what is in flight.
    List(usize, oneshot::Sender<Listing>),
}

/// A socket on its way to its thread, already counted.
struct Adopted {
    socket: OwnedFd,
    admitted: Admitted,
}

/// What no configuration says, but a test must be able to say.
#[derive(Default)]
struct Tuning {
    tls: tls::Tls,
}

/// Why the relay cannot do its work.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// A thread's runtime could not be made.
    #[error(
        "cannot make the runtime of relay thread {thread}: {source}; check the limits on open files"
    )]
    BuildRuntime {
        /// The thread's number.
        thread: usize,
        /// Why.
        source: std::io::Error,
    },
    /// A thread could not be started.
    #[error(
        "cannot start relay thread {thread}: {source}; check the limits on processes and memory"
    )]
    StartThread {
        /// The thread's number.
        thread: usize,
        /// Why.
        source: std::io::Error,
    },
    /// A thread is gone; the socket was closed.
    #[error("relay thread {thread} is gone, the connection was closed; restart the worker")]
    AdoptSocket {
        /// The thread's number.
        thread: usize,
    },
}

impl Report for RelayError {
    fn code(&self) -> &'static str {
        match self {
            Self::BuildRuntime { .. } => "RELAY_RUNTIME",
            Self::StartThread { .. } => "RELAY_THREAD",
            Self::AdoptSocket { .. } => "RELAY_GONE",
        }
    }

    fn exit(&self) -> Exit {
        Exit::Failed
    }

    fn retry(&self) -> bool {
        true
    }
}

impl Relay {
    /// Starts `threads` relay threads (at least one), each with its own single-threaded runtime. Needs no runtime around it.
    ///
    /// `config` is read for the limits of the client's side; routes and upstreams come through `gateway`.
    ///
    /// # Errors
    /// [`RelayError::BuildRuntime`] and [`RelayError::StartThread`] when the system refuses; nothing runs then.
    pub fn start(
        config: Arc<Config>,
        gateway: Arc<Gateway>,
        threads: usize,
    ) -> Result<Self, RelayError> {
        Self::start_with(config, gateway, threads, &Tuning::default())
    }

    fn start_with(
        config: Arc<Config>,
        gateway: Arc<Gateway>,
        threads: usize,
        tuning: &Tuning,
    ) -> Result<Self, RelayError> {
        table::grow();
        let counters = Arc::new(Counters::default());
        let (phase, watched) = watch::channel(Phase::Serving);
        let mut senders = Vec::new();
        for number in 0..threads.max(1) {
            let (sender, receiver) = mpsc::unbounded_channel();
            let setup = thread::Setup {
                number,
                config: Arc::clone(&config),
                gateway: Arc::clone(&gateway),
                counters: Arc::clone(&counters),
                phase: watched.clone(),
                tls: tuning.tls.clone(),
            };
            start::start(setup, receiver)?;
            senders.push(sender);
        }
        Ok(Self {
            shared: Arc::new(Shared {
                threads: senders,
                next: AtomicUsize::new(0),
                phase,
                counters,
            }),
        })
    }

    /// Takes over a connected stream socket (TCP or Unix) and serves HTTP/1.1 on it until its end. Returns at once.
    ///
    /// While idle connections are given back or drained, so is this one: at once, or after its first exchange.
    ///
    /// # Errors
    /// [`RelayError::AdoptSocket`] when the thread is gone; the socket is closed then.
    pub fn adopt(&self, socket: OwnedFd) -> Result<(), RelayError> {
        let shared = &*self.shared;
        let thread = shared.next.fetch_add(1, Ordering::Relaxed) % shared.threads.len();
        let admitted = Counters::admit(&shared.counters);
        shared.threads[thread]
            .send(Errand::Serve(Adopted { socket, admitted }))
            .map_err(|_| RelayError::AdoptSocket { thread })
    }

    /// Goes on as usual, sends connections that are between two requests to `to`, open and without a byte lost, and lets no
    /// answer say anything. HTTP/2 connections stay. Returns at once; [`Relay::serve`] takes it back. After a drain nothing.
    pub fn give_back(&self, to: mpsc::UnboundedSender<OwnedFd>) {
        self.shared
            .phase
            .send_if_modified(|phase| phase.give_back(to));
    }

    /// Keeps connections again. Returns at once, so that some may still be sent that were on their way. After a drain nothing.
    pub fn serve(&self) {
        self.shared.phase.send_if_modified(Phase::serve);
    }

    /// Lets requests in flight finish and gets rid of idle connections; returns at once, see [`Relay::drained`]. Who gives
    /// back may be told to close instead.
    pub fn drain(&self, how: Drain) {
        self.shared.phase.send_if_modified(|phase| phase.drain(how));
        self.shared.counters.wake();
    }

    /// Cuts every connection: an answer in flight is aborted and never looks complete. WebSockets are told first, between
    /// two frames, so that the end may take up to three seconds. Returns at once, see [`Relay::drained`].
    pub fn abort(&self) {
        self.shared.phase.send_replace(Phase::Aborted);
        self.shared.counters.wake();
    }

    /// Waits until [`Relay::drain`] or [`Relay::abort`] was called and no connection is left. Any runtime will do.
    pub async fn drained(&self) {
        let ended = || self.shared.phase.borrow().is_last();
        self.shared
            .counters
            .wait_until(|counters| ended() && counters.connections() == 0)
            .await;
    }

    /// What is being done right now, and what was done; never blocks.
    #[must_use]
    pub fn load(&self) -> Load {
        self.shared.counters.load()
    }

    /// What is in flight: how much, and of it the `most` oldest. Any runtime will do.
    pub async fn held(&self, most: usize) -> Listing {
        let mut all = Listing::default();
        let mut answers = Vec::new();
        for thread in &self.shared.threads {
            let (reply, answer) = oneshot::channel();
            // A thread that is gone has nothing in flight.
            if thread.send(Errand::List(most, reply)).is_ok() {
                answers.push(answer);
            }
        }
        for answer in answers {
            if let Ok(listing) = answer.await {
                all.add(listing, most);
            }
        }
        all
    }

    /// Serves one `GET /health` to ourselves over a socket pair, through everything that a client's request goes through here.
    ///
    /// Needs a tokio runtime with I/O and time around it.
    ///
    /// # Errors
    /// [`SelfTestError`] when the answer is not 200, or does not come within five seconds.
    pub async fn self_test(&self) -> Result<(), SelfTestError> {
        selftest::run(self).await
    }
}

#[cfg(test)]
mod tests;
