//! Answers that are made here, and the ways in which a connection with a client ends.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::timeout;

use super::buffers::Buffer;
use super::client::{After, Client};
use super::framing::{Body, Framing};
use super::head::Asked;
use super::terms::Terms;
use super::thread::Thread;
use super::timeouts::Direction;
use crate::gateway::Target;
use crate::gateway::answers::{self, Failure, LocalAnswer};

/// How much of a request that is answered early is read and forgotten.
const DISCARDED: u64 = 64 * 1024 * 1024;
/// For how long in all; a pause within it is bounded by itself.
const DISCARDING: Duration = Duration::from_secs(600);
/// How long a client that is to close may pause.
const LINGERING: Duration = Duration::from_secs(5);

/// What of a request is still to come when it is answered.
pub(super) struct Rest {
    /// Its body, as far as it was read.
    pub(super) body: Body,
    /// Whether the connection can go on when the body is over.
    pub(super) persistent: bool,
}

impl Rest {
    /// Nothing that follows can be believed.
    pub(super) fn unknown() -> Self {
        Self {
            body: Body::new(Framing::None),
            persistent: false,
        }
    }

    /// A request of which `body` was not yet read.
    pub(super) fn of(terms: &Terms, body: Body) -> Self {
        // Who waits for our word may send its body in spite of this answer, or not: where the next request begins is unknown.
        let known = body.is_done() || !terms.expects_continue;
        Self {
            body,
            persistent: terms.persistent && known,
        }
    }
}

/// Answers from here; the request's rest is then read and forgotten, for who sends it all before reading would never see
/// an answer on a connection that was reset.
pub(super) async fn answer(
    thread: &Thread,
    client: &mut Client,
    answer: &LocalAnswer,
    asked: Asked,
    rest: Rest,
) -> After {
    let close = !rest.persistent || thread.is_closing();
    let bytes = compose(answer, asked, close);
    client.alarm.clear(Direction::Up);
    client
        .alarm
        .set(Direction::Down, thread.config.server.send_timeout);
    let mut bytes = Some(bytes);
    let written = poll_fn(|cx| {
        client.alarm.register(cx);
        if client.alarm.has_fired(Direction::Down) {
            return Poll::Ready(false);
        }
        if ready!(client.stream.poll_flush(cx)).is_err() {
            return Poll::Ready(false);
        }
        if let Some(bytes) = bytes.take()
            && client.stream.write(cx, &[&bytes]).is_err()
        {
            return Poll::Ready(false);
        }
        client.stream.poll_flush(cx).map(|flushed| flushed.is_ok())
    })
    .await;
    client.alarm.clear(Direction::Down);
    match written {
        true if close => client.after_last(rest.body.is_done()),
        true => forget(thread, client, rest.body).await,
        false => After::Cut,
    }
}

/// Answers a request that could not be answered by its upstream.
pub(super) async fn fail(
    thread: &Thread,
    client: &mut Client,
    terms: &Terms,
    failure: Failure,
    rest: Body,
    target: &Target,
) -> After {
    if matches!(failure, Failure::BadBody | Failure::BodyTimeout) {
        return refuse(thread, client, terms, failure, target).await;
    }
    if failure.is_failure_to_serve() {
        thread.counters.local_5xx();
    }
    let local = answers::failure(terms.shape, failure, &target.name);
    answer(thread, client, &local, terms.asked, Rest::of(terms, rest)).await
}

/// Answers a request whose body cannot be read to its end.
pub(super) async fn refuse(
    thread: &Thread,
    client: &mut Client,
    terms: &Terms,
    failure: Failure,
    target: &Target,
) -> After {
    let local = answers::failure(terms.shape, failure, &target.name);
    answer(thread, client, &local, terms.asked, Rest::unknown()).await
}

/// Reads what is left of a request whose answer was given.
pub(super) async fn forget(thread: &Thread, client: &mut Client, mut body: Body) -> After {
    if body.is_done() {
        return After::Next;
    }
    let mut left = DISCARDED;
    let pause = thread.config.server.body_timeout;
    client.alarm.set(Direction::Up, pause);
    let reading = poll_fn(|cx| poll_forget(cx, thread, client, &mut body, &mut left, pause));
    let forgotten = timeout(DISCARDING, reading).await;
    client.alarm.clear(Direction::Up);
    match forgotten {
        Ok(true) => After::Next,
        Ok(false) | Err(_) => After::Cut,
    }
}

/// True when the body is over, false when it cannot be waited for.
fn poll_forget(
    cx: &mut Context<'_>,
    thread: &Thread,
    client: &mut Client,
    body: &mut Body,
    left: &mut u64,
    pause: Duration,
) -> Poll<bool> {
    while !body.is_done() {
        let mut buffer = thread.buffers.take();
        let Ok(count @ 1..) = ready!(poll_in_time(cx, client, &mut buffer, pause)) else {
            return Poll::Ready(false);
        };
        let Ok(taken) = body.accept(buffer.unread()) else {
            return Poll::Ready(false);
        };
        client.keep_ahead(&buffer.unread()[taken..]);
        *left = left.saturating_sub(count as u64);
        if *left == 0 {
            return Poll::Ready(false);
        }
    }
    Poll::Ready(true)
}

/// Closes so that the client sees all that was written: a socket closed on bytes that nobody read is reset, and the reset
/// overtakes the answer (RFC 9112, section 9.6). So: a FIN, then what still comes is read and forgotten until the client
/// closes too, within bounds.
pub(super) async fn linger(thread: &Thread, client: &mut Client) {
    let mut left = DISCARDED;
    client.alarm.set(Direction::Up, LINGERING);
    let closing = poll_fn(|cx| {
        if ready!(client.stream.poll_shutdown(cx)).is_err() {
            return Poll::Ready(());
        }
        loop {
            let mut buffer = thread.buffers.take();
            let Ok(count @ 1..) = ready!(poll_in_time(cx, client, &mut buffer, LINGERING)) else {
                return Poll::Ready(());
            };
            left = left.saturating_sub(count as u64);
            if left == 0 {
                return Poll::Ready(());
            }
        }
    });
    let _enough = timeout(DISCARDING, closing).await;
}

/// Reads, and gives up after a pause that is too long.
fn poll_in_time(
    cx: &mut Context<'_>,
    client: &mut Client,
    buffer: &mut Buffer,
    pause: Duration,
) -> Poll<io::Result<usize>> {
    client.alarm.register(cx);
    let read = client.poll_body(cx, buffer);
    if read.is_ready() {
        client.alarm.set(Direction::Up, pause);
    } else if client.alarm.has_fired(Direction::Up) {
        return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
    }
    read
}

fn compose(answer: &LocalAnswer, asked: Asked, close: bool) -> Vec<u8> {
    use std::io::Write as _;
    let mut bytes = Vec::with_capacity(256 + answer.body.len());
    let reason = http::StatusCode::from_u16(answer.status)
        .ok()
        .and_then(|status| status.canonical_reason())
        .unwrap_or_default();
    // Writing to memory never fails.
    let _ok = write!(
        bytes,
        "HTTP/1.1 {} {reason}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n",
        answer.status,
        answer.body.len()
    );
    if let Some(allow) = answer.allow {
        let _ok = write!(bytes, "allow: {allow}\r\n");
    }
    if close {
        bytes.extend_from_slice(b"connection: close\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    if asked != Asked::Head {
        bytes.extend_from_slice(&answer.body);
    }
    bytes
}
