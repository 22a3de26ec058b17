//! The life of one client connection: request after request, until either side has enough.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Version;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};

use super::Phase;
use super::exchange::exchange;
use super::socket::{Socket, SocketIo};
use super::thread::Thread;

/// How long a client may take for a head, from its first byte to its last.
pub(super) const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest request line and fields together; more is answered 431.
const HEAD_LIMIT: usize = 64 * 1024;
/// The most fields in a request; more is answered 431.
const FIELD_LIMIT: usize = 256;

const TIMED_OUT: &[u8] =
    b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// Where a connection stands between and in its exchanges.
pub(super) struct Standing {
    socket: Rc<Socket>,
    /// A request is being answered.
    busy: Cell<bool>,
    /// At least one request came.
    used: Cell<bool>,
    /// The answer ends where the connection does (HTTP/1.0): an early end must be a reset.
    ends_by_close: Cell<bool>,
    begun: Notify,
    head_deadline: RefCell<Option<Pin<Box<Sleep>>>>,
}

/// Serves the socket until its end.
pub(super) async fn serve(thread: &Rc<Thread>, socket: OwnedFd) {
    let socket = match Socket::adopt(socket) {
        Ok(socket) => socket,
        Err(error) => {
            tracing::warn!(%error, "a connection could not be taken over and was closed");
            return;
        }
    };
    let standing = Rc::new(Standing::new(Rc::clone(&socket)));
    let service = service_fn(|request| exchange(Rc::clone(thread), Rc::clone(&standing), request));
    let mut connection = std::pin::pin!(
        Builder::new()
            .preserve_header_case(true)
            .auto_date_header(false)
            .max_header_size(HEAD_LIMIT)
            .max_headers(FIELD_LIMIT)
            .serve_connection(TokioIo::new(SocketIo(socket)), service)
    );

    let mut phase = thread.phase.clone();
    let mut draining = false;
    // Whether hyper was told that this exchange is the last one.
    let mut closing = false;
    let mut grace = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
    phase.mark_changed();
    loop {
        tokio::select! {
            biased;
            // The end of a connection is nobody's error here: a client may leave at any time.
            _ended = connection.as_mut() => break,
            () = poll_fn(|cx| standing.poll_head_deadline(cx)) => {
                standing.socket.write_now(TIMED_OUT);
                break;
            }
            changed = phase.changed() => {
                let now = *phase.borrow_and_update();
                if changed.is_err() || now == Phase::Aborted {
                    break;
                }
                if now == Phase::Draining && !draining {
                    draining = true;
                    if standing.expects_request() {
                        grace.as_mut().reset(Instant::now() + HEAD_TIMEOUT);
                    } else {
                        closing = true;
                        connection.as_mut().graceful_shutdown();
                    }
                }
            }
            () = standing.begun.notified(), if draining && !closing => {
                closing = true;
                connection.as_mut().graceful_shutdown();
            }
            () = grace.as_mut(), if draining && !closing => {
                closing = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
    if standing.ends_by_close.get() {
        standing.socket.reset_on_close();
    }
}

impl Standing {
    fn new(socket: Rc<Socket>) -> Self {
        Self {
            socket,
            busy: Cell::new(false),
            used: Cell::new(false),
            ends_by_close: Cell::new(false),
            begun: Notify::new(),
            head_deadline: RefCell::new(None),
        }
    }

    /// A request's head is whole.
    pub(super) fn begin(&self, version: Version) {
        self.busy.set(true);
        self.used.set(true);
        self.ends_by_close.set(version < Version::HTTP_11);
        self.head_deadline.take();
        // Not `notify_one`: its permit would outlive this request, and a later drain would take it for a new one.
        self.begun.notify_waiters();
    }

    /// The answer was given to hyper to its end.
    pub(super) fn answered(&self) {
        self.ends_by_close.set(false);
    }

    /// The exchange is over, however it ended.
    pub(super) fn end(&self) {
        self.busy.set(false);
        self.socket.forget_reads();
    }

    /// Whether closing now would most likely cut a request: one never came on this connection, or has begun to.
    fn expects_request(&self) -> bool {
        !self.busy.get() && (!self.used.get() || self.socket.has_read() || self.socket.has_unread())
    }

    /// Ready when a head was begun and did not end in time. No timer exists while nothing is begun: an idle
    /// connection may stay as long as it likes.
    fn poll_head_deadline(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.busy.get() || !self.socket.has_read() {
            return Poll::Pending;
        }
        let mut deadline = self.head_deadline.borrow_mut();
        deadline
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(HEAD_TIMEOUT)))
            .as_mut()
            .poll(cx)
    }
}
