//! A client's side: its socket, what it has sent ahead of what is being done, and its deadlines.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use super::Drain;
use super::buffers::Buffer;
use super::held::{self, Record};
use super::leaving::{self, Fin};
use super::stream::Stream;
use super::thread::Thread;
use super::timeouts::{Alarm, Direction};

/// How much of requests that are not their turn yet is read; more stays in the kernel.
const AHEAD_LIMIT: usize = 64 * 1024;
/// How long a drain that closes waits for the first request of a connection.
const FIRST_REQUEST: Duration = Duration::from_secs(1);

/// A client's connection.
pub(super) struct Client {
    pub(super) stream: Stream,
    pub(super) alarm: Alarm,
    /// Whose it is; nobody's for a Unix socket.
    pub(super) peer: Option<SocketAddr>,
    /// What is in flight on it.
    pub(super) record: Record,
    /// Read, and not yet served: a part of a head, or the next requests.
    ahead: Buffer,
    /// Whether `ahead` holds bytes that nobody has looked at since they came.
    is_fresh: bool,
    /// Whether the head that is being received has its deadline.
    head_begun: bool,
    /// An empty line came since the last request.
    sent_empty_line: bool,
    /// Whether at least one request came.
    used: bool,
    /// The client has sent a FIN.
    ended: bool,
    /// Whether it was decided what the FIN meant.
    fin_judged: bool,
    /// When the kernel is asked again whether the client is still there.
    ask_again: Option<Pin<Box<Sleep>>>,
}

/// What becomes of the client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    /// The next request may come.
    Next,
    /// It is over.
    Close,
    /// It is over for us, but the client may still be sending.
    Linger,
    /// It cannot go on; whatever was being sent must not look whole.
    Cut,
}

/// What came while a request was waited for.
pub(super) enum More {
    /// Bytes; all that were received of what is next.
    Bytes(Buffer),
    /// Nothing more comes, or nothing more is wanted: between two requests, so nothing is cut.
    Ended,
    /// A drain wants the connection, which is between two requests.
    GiveBack,
    /// A head was begun and did not end in time.
    TooSlow,
}

impl Client {
    pub(super) fn adopt(thread: &Thread, socket: OwnedFd) -> io::Result<Self> {
        let (mut stream, peer) = Stream::adopt(socket)?;
        let record = thread.register.record(peer);
        stream.count(record.entry());
        Ok(Self {
            stream,
            alarm: thread.timeouts.alarm(),
            peer,
            record,
            ahead: Buffer::default(),
            is_fresh: false,
            head_begun: false,
            sent_empty_line: false,
            used: false,
            ended: false,
            fin_judged: false,
            ask_again: None,
        })
    }

    /// Waits for more of the next request.
    pub(super) async fn more(&mut self, thread: &Thread) -> More {
        std::future::poll_fn(|cx| self.poll_more(cx, thread)).await
    }

    fn poll_more(&mut self, cx: &mut Context<'_>, thread: &Thread) -> Poll<More> {
        if std::mem::take(&mut self.is_fresh) && !self.ahead.is_empty() {
            return Poll::Ready(More::Bytes(std::mem::take(&mut self.ahead)));
        }
        if self.ended {
            return Poll::Ready(More::Ended);
        }
        self.alarm.register(cx);
        let mut buffer = thread.buffers.take();
        match self.stream.poll_read(cx, &mut buffer) {
            Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(More::Ended),
            Poll::Ready(Ok(_)) if self.ahead.is_empty() => {
                return Poll::Ready(More::Bytes(buffer));
            }
            Poll::Ready(Ok(_)) => {
                self.ahead.append(buffer.unread());
                return Poll::Ready(More::Bytes(std::mem::take(&mut self.ahead)));
            }
            Poll::Pending => {}
        }
        if self.alarm.has_fired(Direction::Up) {
            return Poll::Ready(match self.head_begun {
                true => More::TooSlow,
                false => More::Ended,
            });
        }
        if !self.alarm.is_set(Direction::Up) {
            let server = &thread.config.server;
            self.alarm.set(
                Direction::Up,
                match self.head_begun {
                    true => server.header_timeout,
                    false => server.idle_timeout,
                },
            );
        }
        match &*thread.drain.borrow() {
            Some(_) if self.head_begun => Poll::Pending,
            Some(Drain::GiveBack(_)) => Poll::Ready(More::GiveBack),
            // Closing on bytes that nobody has read would reset a request that had begun to arrive.
            Some(Drain::Close) if self.stream.has_unread() => Poll::Pending,
            Some(Drain::Close) if self.used => Poll::Ready(More::Ended),
            Some(Drain::Close) => self.poll_first_request(),
            None => Poll::Pending,
        }
    }

    /// A connection that never had a request may be one whose first is on its way, or one that another worker gave
    /// back and that stays idle for hours: a moment tells.
    fn poll_first_request(&mut self) -> Poll<More> {
        if self.alarm.has_fired(Direction::Down) {
            return Poll::Ready(More::Ended);
        }
        if !self.alarm.is_set(Direction::Down) {
            self.alarm.set(Direction::Down, FIRST_REQUEST);
        }
        Poll::Pending
    }

    /// Keeps a part of a head until more of it comes; it must be whole in time.
    pub(super) fn keep_part(&mut self, mut bytes: Buffer) {
        bytes.settle();
        self.ahead = bytes;
        if !self.head_begun {
            self.head_begun = true;
            self.alarm.clear(Direction::Up);
        }
    }

    /// Whether an empty line alone may be forgotten: once between two requests, for a flood of them is something else.
    pub(super) fn may_send_empty_line(&mut self) -> bool {
        if std::mem::replace(&mut self.sent_empty_line, true) {
            return false;
        }
        self.head_begun = false;
        self.alarm.clear(Direction::Up);
        true
    }

    /// A request's head is whole; it is the first of these bytes.
    pub(super) fn begin(&mut self, bytes: &[u8]) {
        self.record.begin(held::route_of(bytes), bytes.len());
        self.used = true;
        self.sent_empty_line = false;
        self.head_begun = false;
        self.alarm.clear(Direction::Up);
        self.alarm.clear(Direction::Down);
    }

    /// Keeps what was read of the next requests.
    pub(super) fn keep_ahead(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.ahead.append(bytes);
            self.is_fresh = true;
        }
    }

    /// What was read beyond the request being served, for who goes on without requests.
    pub(super) fn take_ahead(&mut self) -> Buffer {
        self.is_fresh = false;
        std::mem::take(&mut self.ahead)
    }

    /// What is to be done after an answer that is the last one on this connection.
    pub(super) fn after_last(&self, is_read: bool) -> After {
        match is_read && self.ahead.is_empty() {
            true => After::Close,
            false => After::Linger,
        }
    }

    /// Reads a piece of the request's body. Zero bytes are the end of all that the client sends.
    pub(super) fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut Buffer,
    ) -> Poll<io::Result<usize>> {
        let read = self.stream.poll_read(cx, buffer);
        self.ended |= matches!(read, Poll::Ready(Ok(0)));
        read
    }

    /// Whether the client has left behind bytes that nobody reads now: more of its body, or too many requests.
    pub(super) fn has_left_behind_its_body(&mut self, cx: &mut Context<'_>) -> bool {
        while self.is_time_to_ask(cx) {
            if self.stream.is_closed_for_reading()
                && leaving::judge(&self.stream, Duration::ZERO) == Fin::Left
            {
                return true;
            }
        }
        false
    }

    /// Whether the client has left; to be asked when nothing of the current request is left to read. Reads ahead, within
    /// bounds, for behind a next request the end of the connection may stand.
    pub(super) fn has_left(
        &mut self,
        cx: &mut Context<'_>,
        thread: &Thread,
        request_ended: Instant,
    ) -> bool {
        while !self.ended {
            if self.ahead.len() >= AHEAD_LIMIT {
                return self.has_left_behind_its_body(cx);
            }
            let mut buffer = thread.buffers.take();
            match self.stream.poll_read(cx, &mut buffer) {
                Poll::Pending => return false,
                Poll::Ready(Err(_)) => return true,
                Poll::Ready(Ok(0)) => self.ended = true,
                Poll::Ready(Ok(_)) => self.keep_ahead(buffer.unread()),
            }
        }
        self.has_left_after_its_fin(cx, Some(request_ended))
    }

    /// Whether the client, which has sent a FIN, has left. `since` is when it had sent what it wanted to; nothing, where
    /// a half-closed connection is nothing unusual.
    pub(super) fn has_left_after_its_fin(
        &mut self,
        cx: &mut Context<'_>,
        since: Option<Instant>,
    ) -> bool {
        if !self.fin_judged {
            self.fin_judged = true;
            let since = since.map_or(Duration::ZERO, |since| since.elapsed());
            if leaving::judge(&self.stream, since) == Fin::Left {
                return true;
            }
            // A peer elsewhere that is gone will not answer the kernel, either.
            self.stream.keep_alive();
            self.ask_again = None;
        }
        // When it came was judged above; of a peer elsewhere nothing new is learned by asking again.
        while self.is_time_to_ask(cx) {
            if leaving::judge(&self.stream, Duration::ZERO) == Fin::Left {
                return true;
            }
        }
        false
    }

    /// Every so often while somebody waits. Each call that says no has seen to it that there is a next one.
    fn is_time_to_ask(&mut self, cx: &mut Context<'_>) -> bool {
        let timer = self
            .ask_again
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(leaving::ASK_AGAIN)));
        if timer.as_mut().poll(cx).is_pending() {
            return false;
        }
        self.ask_again = None;
        true
    }
}
