//! Traffic of clients, as the tests hold it open, interrupt it and judge it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fixtures::client::{StreamOutcome, StreamRequest, once, stream};
use fixtures::script::Script;
use fixtures::upstream::Upstream;
use tokio::task::JoinHandle;

use crate::until;

/// A stream that is in the middle for as long as the test wants: its upstream waits for a gate.
pub struct HeldStream {
    gate: String,
    task: JoinHandle<StreamOutcome>,
}

impl HeldStream {
    /// Opens a stream and waits until its first events have come through.
    pub async fn open(address: SocketAddr, upstream: &Upstream) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let gate = format!("held-{number}");
        let progress = Arc::new(AtomicU64::new(0));
        let request = StreamRequest {
            fields: vec![("x-fixture-gate".into(), gate.clone())],
            progress: Some(progress.clone()),
            ..StreamRequest::from(Script::new(40, Duration::ZERO, number))
        };
        upstream.open_gate(&gate, 3);
        let task = tokio::spawn(async move { stream(address, &request).await });
        until("a stream is in the middle", || {
            assert!(!task.is_finished(), "the stream ended before it was held");
            progress.load(Ordering::Relaxed) >= 3
        })
        .await;
        Self { gate, task }
    }

    /// Lets it go on to its end. It must be perfect.
    #[track_caller]
    pub fn finish(self, upstream: &Upstream) -> impl Future<Output = ()> {
        let from = std::panic::Location::caller();
        upstream.open_gate(&self.gate, 1_000);
        async move {
            let outcome = self.task.await.unwrap();
            assert!(outcome.is_perfect(), "{from}: {outcome:?}");
        }
    }

    /// Waits for the end that somebody else makes to it.
    pub async fn ended(self) -> StreamOutcome {
        self.task.await.unwrap()
    }
}

/// What came of one request on a connection of its own.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    /// An answer: its status and body.
    Answered(u16, String),
    /// The connection was reset.
    Reset,
    /// The connection ended without an answer.
    Closed,
    /// No connection could be made.
    Refused,
}

impl Asked {
    /// The one answer of a faulty worker that does this much right.
    pub fn by_faulty() -> Self {
        Self::Answered(200, "faulty".into())
    }

    /// Whether a real worker answered that it is well.
    pub fn is_well(&self) -> bool {
        matches!(self, Self::Answered(200, _))
    }
}

/// Asks a worker whether it is well: needs no upstream.
///
/// # Panics
/// When nothing at all comes for a minute.
pub async fn ask(address: SocketAddr) -> Asked {
    match once(address, "GET", "/health", &[("connection", "close")], b"").await {
        Ok((head, body)) => Asked::Answered(
            head.status().unwrap_or(0),
            String::from_utf8_lossy(&body).into_owned(),
        ),
        Err(error) => match error.kind() {
            std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe => Asked::Reset,
            std::io::ErrorKind::ConnectionRefused => Asked::Refused,
            std::io::ErrorKind::UnexpectedEof => Asked::Closed,
            _ => panic!("{error}"),
        },
    }
}

/// [`ask`] on a task of its own.
pub fn ask_soon(address: SocketAddr) -> JoinHandle<Asked> {
    tokio::spawn(ask(address))
}
