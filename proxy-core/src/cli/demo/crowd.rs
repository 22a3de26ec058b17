//! The clients: long streams that live through everything, short ones that begin in each act, and
//! keep-alive clients that never stop asking.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fixtures::client::{End, KeepAlive, KeepAliveCounts, StreamOutcome, StreamRequest, stream};
use fixtures::script::Script;
use fixtures::upstream::Upstream;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Streams that begin before the first release and end after the last.
const LONG_STREAMS: u64 = 40;
/// Streams that begin in each act.
const STREAMS_AN_ACT: u64 = 15;
/// Clients that send one request after the other.
const KEEP_ALIVE_CLIENTS: u64 = 12;

/// The pause between two events of a stream.
const EVENT_INTERVAL: Duration = Duration::from_millis(50);
/// The pause between two requests of a keep-alive client.
const REQUEST_INTERVAL: Duration = Duration::from_millis(40);

/// Everybody.
pub struct Crowd {
    address: SocketAddr,
    streams: Mutex<Vec<JoinHandle<StreamOutcome>>>,
    keep_alive: Vec<JoinHandle<KeepAliveCounts>>,
    enough: watch::Sender<bool>,
    /// Shared with the display.
    pub seen: Seen,
}

/// What the display shows while they run.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Streams opened.
    pub opened: Arc<AtomicU64>,
    /// Streams ended well.
    pub finished: Arc<AtomicU64>,
    /// Streams ended otherwise.
    pub lost: Arc<AtomicU64>,
    /// Events received.
    pub events: Arc<AtomicU64>,
}

/// What all of it came to.
#[derive(Debug, Default)]
pub struct Totals {
    /// Streams opened.
    pub streams: u64,
    /// Streams with every event in order, every byte right and a clean end.
    pub perfect: u64,
    /// Events received.
    pub events: u64,
    /// Bytes received, each checked.
    pub bytes: u64,
    /// Streams that were refused.
    pub refused: u64,
    /// Streams that were cut.
    pub cut: u64,
    /// Streams that were reset.
    pub reset: u64,
    /// Streams that came out wrong in another way.
    pub wrong: u64,
    /// The keep-alive clients.
    pub keep_alive: KeepAliveCounts,
    /// Streams that the upstream saw abandoned: the proxy let go of one that its client still wanted.
    pub abandoned: u64,
}

impl Totals {
    /// Nobody lost anything.
    pub fn nothing_lost(&self) -> bool {
        self.perfect == self.streams && self.keep_alive.lost() == 0 && self.abandoned == 0
    }

    fn count(&mut self, outcome: &StreamOutcome) {
        self.streams += 1;
        self.events += u64::from(outcome.events);
        self.bytes += outcome.bytes;
        if outcome.is_perfect() {
            self.perfect += 1;
            return;
        }
        match outcome.end {
            End::Refused => self.refused += 1,
            End::Cut => self.cut += 1,
            End::Reset => self.reset += 1,
            _ => self.wrong += 1,
        }
    }
}

impl Crowd {
    /// Opens the long streams, which take `life`, and starts the keep-alive clients.
    pub fn gather(address: SocketAddr, life: Duration) -> Self {
        let (enough, told) = watch::channel(false);
        let keep_alive = (0..KEEP_ALIVE_CLIENTS)
            .map(|seed| {
                let mut told = told.clone();
                let client = KeepAlive::new(address, seed).asking_version();
                tokio::spawn(client.run(REQUEST_INTERVAL, async move {
                    // The sender lives until `finish`.
                    let _ = told.wait_for(|enough| *enough).await;
                }))
            })
            .collect();
        let crowd = Self {
            address,
            streams: Mutex::default(),
            keep_alive,
            enough,
            seen: Seen::default(),
        };
        crowd.open(LONG_STREAMS, life, 1_000);
        crowd
    }

    /// Lets one act pass; new streams begin in it, each longer than the act.
    pub async fn join_in(&self, act: Duration) {
        let first = self.seen.opened.load(Ordering::Relaxed) * 7919;
        for part in 0..3 {
            self.open(STREAMS_AN_ACT / 3, act + act / 2, first + part * 100);
            tokio::time::sleep(act / 3).await;
        }
    }

    fn open(&self, count: u64, life: Duration, first_seed: u64) {
        let deltas =
            u32::try_from(life.as_millis() / EVENT_INTERVAL.as_millis()).unwrap_or(u32::MAX);
        let mut streams = self
            .streams
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        for n in 0..count {
            let request = StreamRequest {
                progress: Some(self.seen.events.clone()),
                ..StreamRequest::from(Script::new(deltas, EVENT_INTERVAL, first_seed + n))
            };
            let (address, seen) = (self.address, self.seen.clone());
            seen.opened.fetch_add(1, Ordering::Relaxed);
            streams.push(tokio::spawn(async move {
                let outcome = stream(address, &request).await;
                let counter = if outcome.is_perfect() {
                    &seen.finished
                } else {
                    &seen.lost
                };
                counter.fetch_add(1, Ordering::Relaxed);
                outcome
            }));
        }
    }

    /// Waits for the last stream and stops the keep-alive clients.
    pub async fn finish(self, upstream: &Upstream) -> Totals {
        let mut totals = Totals::default();
        let streams = std::mem::take(
            &mut *self
                .streams
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner),
        );
        for stream in streams {
            match stream.await {
                Ok(outcome) => totals.count(&outcome),
                Err(_) => {
                    totals.streams += 1;
                    totals.wrong += 1;
                }
            }
        }
        self.enough.send_replace(true);
        for client in self.keep_alive {
            match client.await {
                Ok(counts) => totals.keep_alive.add(&counts),
                Err(_) => totals.keep_alive.wrong += 1,
            }
        }
        totals.abandoned = upstream.counts().cancelled;
        totals
    }
}
