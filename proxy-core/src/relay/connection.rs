//! The life of one client connection: request after request, until either side has enough.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Version;
use hyper::body::Incoming;
use hyper::server::conn::http1::{Builder, Connection};
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::TokioIo;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};

use super::body::AnswerBody;
use super::exchange::exchange;
use super::socket::{Socket, SocketIo};
use super::thread::Thread;
use super::{Drain, Phase};

/// The longest request line and fields together; more is answered 431.
const HEAD_LIMIT: usize = 64 * 1024;
/// The most fields in a request; more is answered 431. An upstream's answer may have as many.
pub(super) const FIELD_LIMIT: usize = 256;

/// How long a drain that closes waits for the first request of a connection.
const FIRST_REQUEST: Duration = Duration::from_secs(1);

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
    let serve_on = |socket: Rc<Socket>| {
        Builder::new()
            .preserve_header_case(true)
            .auto_date_header(false)
            .max_header_size(HEAD_LIMIT)
            .max_headers(FIELD_LIMIT)
            .serve_connection(
                TokioIo::new(SocketIo(socket)),
                service_fn(|request| {
                    Box::pin(exchange(Rc::clone(thread), Rc::clone(&standing), request))
                }),
            )
    };
    let mut connection = serve_on(Rc::clone(&socket));

    let mut phase = thread.phase.clone();
    let mut drain: Option<Drain> = None;
    // Whether hyper was told that this exchange is the last one.
    let mut closing = false;
    let mut grace = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
    phase.mark_changed();
    loop {
        tokio::select! {
            biased;
            // The end of a connection is nobody's error here: a client may leave at any time.
            _ended = Pin::new(&mut connection) => break,
            () = poll_fn(|cx| standing.poll_head_deadline(cx, thread.head_timeout)) => {
                standing.socket.write_now(TIMED_OUT);
                break;
            }
            changed = phase.changed() => {
                let now = phase.borrow_and_update().clone();
                match now {
                    _ if changed.is_err() => break,
                    Phase::Aborted => break,
                    Phase::Serving => {}
                    Phase::Draining(_) if drain.is_some() => {}
                    Phase::Draining(asked) => {
                        if matches!(asked, Drain::Close) {
                            if let Some(wait) = standing.expects_request(thread.head_timeout) {
                                grace.as_mut().reset(Instant::now() + wait);
                            } else {
                                closing = true;
                                Pin::new(&mut connection).graceful_shutdown();
                            }
                        }
                        drain = Some(asked);
                    }
                }
            }
            // Looked at whenever this task runs, which it does whenever an exchange or a write ends.
            () = poll_fn(|_| ready_if(standing.is_returnable())), if !closing && is_giving_back(drain.as_ref()) => {
                match take_out(connection, &standing) {
                    Taken::Out => {
                        if let (Some(Drain::GiveBack(to)), Some(socket)) = (&drain, socket.release()) {
                            // Nobody there to take it: closed, which between two exchanges cuts nothing.
                            let _closed = to.send(socket);
                        }
                        return;
                    }
                    Taken::Begun => connection = serve_on(Rc::clone(&socket)),
                    Taken::Busy(busy) => {
                        closing = true;
                        connection = busy;
                    }
                }
            }
            () = standing.begun.notified(), if matches!(drain, Some(Drain::Close)) && !closing => {
                closing = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
            () = grace.as_mut(), if matches!(drain, Some(Drain::Close)) && !closing => {
                closing = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
        }
    }
    if standing.ends_by_close.get() {
        standing.socket.reset_on_close();
    }
}

/// What came of taking a connection out of hyper's hands.
enum Taken<C> {
    /// Nothing of it is left in here.
    Out,
    /// The next request has begun to arrive and was read: it is served here first.
    Begun,
    /// hyper is not done with it after all; it closes it after this exchange.
    Busy(C),
}

/// Takes a connection between two exchanges out of hyper's hands, without a byte written or lost.
///
/// hyper itself is the judge: told to shut down, it is done at once only if the last request was
/// read to its end, the last answer was written to its end, and both sides wanted to go on.
fn take_out<S>(
    mut connection: Connection<TokioIo<SocketIo>, S>,
    standing: &Standing,
) -> Taken<Connection<TokioIo<SocketIo>, S>>
where
    S: HttpService<Incoming, ResBody = AnswerBody, Future: Unpin> + Unpin,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if standing.used.get() {
        Pin::new(&mut connection).graceful_shutdown();
        let mut context = Context::from_waker(std::task::Waker::noop());
        match connection.poll_without_shutdown(&mut context) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(_)) | Poll::Pending => return Taken::Busy(connection),
        }
    }
    let read = connection.into_parts().read_buf;
    if read.is_empty() {
        return Taken::Out;
    }
    standing.socket.read_again(read);
    Taken::Begun
}

fn is_giving_back(drain: Option<&Drain>) -> bool {
    matches!(drain, Some(Drain::GiveBack(_)))
}

fn ready_if(condition: bool) -> Poll<()> {
    if condition {
        Poll::Ready(())
    } else {
        Poll::Pending
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

    /// How long a request is waited for before closing: one that has begun to arrive as long as a head
    /// may take; on a connection that never had one just a moment, for it may be one that another
    /// worker gave back and that stays idle for hours.
    fn expects_request(&self, head_timeout: Duration) -> Option<Duration> {
        if self.busy.get() {
            None
        } else if self.socket.has_read() || self.socket.has_unread() {
            Some(head_timeout)
        } else {
            (!self.used.get()).then_some(FIRST_REQUEST.min(head_timeout))
        }
    }

    /// Between two exchanges, or before the first: nothing of a request was read, nothing of an answer is unwritten.
    fn is_returnable(&self) -> bool {
        !self.busy.get() && !self.socket.has_read() && !self.socket.is_blocked()
    }

    /// Ready when a head was begun and did not end in time. No timer exists while nothing is begun: an idle
    /// connection may stay as long as it likes.
    fn poll_head_deadline(&self, cx: &mut Context<'_>, limit: Duration) -> Poll<()> {
        if self.busy.get() || !self.socket.has_read() {
            return Poll::Pending;
        }
        let mut deadline = self.head_deadline.borrow_mut();
        deadline
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)))
            .as_mut()
            .poll(cx)
    }
}
