//! HTTP/2 connections to upstreams, each shared by many streams.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, Shared as SharedFuture};
use h2::client::{Builder, Connection, SendRequest};
use h2::{Ping, PingPong};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::connect::{Refused, Stream};
use super::http1::KEPT;
use crate::gateway::Target;
use crate::gateway::answers::Failure;

/// The most streams on one connection; what the upstream allows may be less. Requests beyond that open another one.
const STREAMS: u32 = 100;
/// How much of one answer may wait here, unread by its client.
const STREAM_WINDOW: u32 = 128 * 1024;
/// All streams together may fill their windows: a client that does not read must never stop another one's stream.
const CONNECTION_WINDOW: u32 = STREAMS * STREAM_WINDOW;
/// For the same reason events may be small: what h2 allows by default, a few dozen clients that do not read would exhaust.
const SMALL_FRAMES: usize = STREAMS as usize * 1024 * 1024;
/// How much of one request's body may wait to be written.
const SEND_BUFFER: usize = 64 * 1024;
/// The largest head of an answer.
const HEAD_LIMIT: u32 = 64 * 1024;
/// Streams that were reset are remembered, for frames of them may still be on their way.
const RESETS: usize = 1024;
const RESETS_FOR: Duration = Duration::from_secs(10);

/// When an upstream is asked whether it is there, and how long its answer to that may take.
pub(super) const PULSE: Pulse = Pulse {
    after: Duration::from_secs(30),
    within: Duration::from_secs(20),
};
/// How long a connection that nobody wants any more may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(5);

/// h2's number of streams before the upstream has said how many it allows.
const UNKNOWN: usize = 0;

/// The connections of one thread.
#[derive(Default)]
pub(super) struct Shared {
    links: RefCell<HashMap<String, Vec<Rc<Link>>>>,
    opening: RefCell<HashMap<String, Opening>>,
}

/// A connection being made, for all who wait for it.
type Opening = SharedFuture<LocalBoxFuture<'static, Result<(), Failure>>>;

/// One connection; said goodbye to when dropped.
pub(super) struct Link {
    pub(super) sender: SendRequest<Bytes>,
    /// Streams in use, and since when there is none.
    open: Cell<usize>,
    idle_since: Cell<Instant>,
    /// It takes no new streams.
    retired: Cell<bool>,
    facts: Rc<Facts>,
    _released: oneshot::Sender<Infallible>,
}

/// What the task that drives a connection says about it, and what it is told.
struct Facts {
    /// How many streams the upstream allows.
    most: Cell<usize>,
    closed: Cell<bool>,
    /// Whether anything came on a stream since this was last looked at.
    heard: Cell<bool>,
    /// Whether anything is waited for.
    waiting: Cell<bool>,
}

/// How the other end of a connection is watched.
#[derive(Clone, Copy)]
pub(super) struct Pulse {
    /// After so long without a word on streams that wait for one, a ping goes out.
    pub(super) after: Duration,
    pub(super) within: Duration,
}

/// One stream of a connection, counted until dropped.
pub(super) struct Slot(Rc<Link>);

impl Shared {
    /// A stream of a connection that has room, but not of the one to `avoid`.
    pub(super) fn take(&self, target: &Target, avoid: Option<&Slot>) -> Option<Rc<Slot>> {
        let mut links = self.links.borrow_mut();
        let links = links.get_mut(&target.name)?;
        links.retain(|link| !link.is_over());
        let avoided = |link: &Rc<Link>| avoid.is_some_and(|slot| Rc::ptr_eq(&slot.0, link));
        let link = links
            .iter()
            .find(|link| link.has_room() && !avoided(link))?;
        Some(Rc::new(Slot::of(link)))
    }

    /// Makes a connection; whoever comes while that is under way waits for the same one.
    pub(super) fn open<F>(
        self: &Rc<Self>,
        target: &Arc<Target>,
        connect: impl FnOnce() -> F,
    ) -> Opening
    where
        F: Future<Output = Result<Rc<Link>, Failure>> + 'static,
    {
        let mut opening = self.opening.borrow_mut();
        if let Some(opening) = opening.get(&target.name) {
            return opening.clone();
        }
        let connect = connect();
        let (this, target) = (Rc::downgrade(self), Arc::clone(target));
        let name = target.name.clone();
        let made = async move {
            let made = connect.await;
            if let Some(this) = this.upgrade() {
                this.opening.borrow_mut().remove(&target.name);
                if let Ok(link) = &made {
                    let mut links = this.links.borrow_mut();
                    links
                        .entry(target.name.clone())
                        .or_default()
                        .push(Rc::clone(link));
                }
            }
            made.map(drop)
        };
        let made = made.boxed_local().shared();
        opening.insert(name, made.clone());
        made
    }

    /// Says goodbye where nobody asked anything for long.
    pub(super) fn sweep(&self) {
        for links in self.links.borrow_mut().values_mut() {
            links.retain(|link| !link.is_over() && !link.is_old());
        }
    }
}

impl Link {
    /// Begins to speak on a new connection; it stands when the upstream has said how many streams it allows.
    pub(super) async fn begin(
        target: &Target,
        stream: Stream,
        pulse: Pulse,
    ) -> Result<Rc<Self>, Refused> {
        let no_http2 = |cause: String| match target.is_tls() {
            // There the protocol was agreed on.
            true => (Failure::Unreachable, cause),
            false => (Failure::NoHttp2, cause),
        };
        let (sender, mut connection) = Builder::new()
            .enable_push(false)
            .initial_max_send_streams(UNKNOWN)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .data_frame_budget(SMALL_FRAMES)
            .max_send_buffer_size(SEND_BUFFER)
            .max_header_list_size(HEAD_LIMIT)
            .max_concurrent_reset_streams(RESETS)
            .reset_stream_duration(RESETS_FOR)
            .handshake::<_, Bytes>(stream)
            .await
            .map_err(|error| no_http2(error.to_string()))?;
        let pings = connection.ping_pong().map(|pings| (pings, pulse));
        poll_fn(|cx| match Pin::new(&mut connection).poll(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(Err(no_http2("it closed the connection".into()))),
            Poll::Ready(Err(error)) => Poll::Ready(Err(no_http2(error.to_string()))),
            Poll::Pending if connection.max_concurrent_send_streams() != UNKNOWN => {
                Poll::Ready(Ok(()))
            }
            Poll::Pending => Poll::Pending,
        })
        .await?;
        let facts = Rc::new(Facts {
            most: Cell::new(connection.max_concurrent_send_streams()),
            closed: Cell::new(false),
            heard: Cell::new(false),
            waiting: Cell::new(false),
        });
        let (released, when_released) = oneshot::channel();
        tokio::task::spawn_local(drive(connection, pings, Rc::clone(&facts), when_released));
        Ok(Rc::new(Self {
            sender,
            open: Cell::new(0),
            idle_since: Cell::new(Instant::now()),
            retired: Cell::new(false),
            facts,
            _released: released,
        }))
    }

    fn has_room(&self) -> bool {
        self.open.get() < self.facts.most.get().min(STREAMS as usize)
    }

    fn is_over(&self) -> bool {
        self.retired.get() || self.facts.closed.get()
    }

    fn is_old(&self) -> bool {
        self.open.get() == 0 && self.idle_since.get().elapsed() >= KEPT
    }
}

impl Slot {
    pub(super) fn of(link: &Rc<Link>) -> Self {
        link.open.set(link.open.get() + 1);
        link.facts.waiting.set(true);
        Self(Rc::clone(link))
    }

    pub(super) fn sender(&self) -> SendRequest<Bytes> {
        self.0.sender.clone()
    }

    /// The connection is not used for new streams any more.
    pub(super) fn retire(&self) {
        self.0.retired.set(true);
    }

    /// The upstream lives.
    pub(super) fn heard(&self) {
        self.0.facts.heard.set(true);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let link = &self.0;
        link.open.set(link.open.get() - 1);
        if link.open.get() == 0 {
            link.idle_since.set(Instant::now());
            link.facts.waiting.set(false);
        }
    }
}

/// Reads and writes the connection until its end, and leaves it when its upstream is not there any more.
async fn drive(
    mut connection: Connection<Stream, Bytes>,
    pings: Option<(PingPong, Pulse)>,
    facts: Rc<Facts>,
    mut when_released: oneshot::Receiver<Infallible>,
) {
    let mut watched = pin!(watch(pings, &facts));
    let released = poll_fn(|cx| {
        let ended = Pin::new(&mut connection).poll(cx).is_ready();
        facts.most.set(connection.max_concurrent_send_streams());
        if ended || watched.as_mut().poll(cx).is_ready() {
            return Poll::Ready(false);
        }
        poll_released(&mut when_released, cx)
    })
    .await;
    facts.closed.set(true);
    if released {
        // Without streams and without a sender, h2 says GOAWAY and closes.
        let _goodbye = timeout(GOODBYE, connection).await;
    }
}

fn poll_released(
    when_released: &mut oneshot::Receiver<Infallible>,
    cx: &mut Context<'_>,
) -> Poll<bool> {
    Pin::new(when_released).poll(cx).map(|_released| true)
}

/// Ends when the upstream does not answer. A shared connection whose other end vanished without a word would otherwise
/// take one request after another into nothing.
async fn watch(pings: Option<(PingPong, Pulse)>, facts: &Facts) {
    let Some((mut pings, pulse)) = pings else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(pulse.after).await;
        if facts.heard.take() || !facts.waiting.get() {
            continue;
        }
        match timeout(pulse.within, pings.ping(Ping::opaque())).await {
            Ok(Ok(_pong)) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
}
