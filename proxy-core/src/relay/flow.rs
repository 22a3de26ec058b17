//! The two directions of one exchange: the request's body up, the answer down, each as the other side takes it.

use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

use super::buffers::Buffer;
use super::client::Client;
use super::framing::{Body, Framing};
use super::head::{AnswerHead, Back, Slots};
use super::stream::Stream;
use super::terms::Terms;
use super::thread::Thread;
use super::timeouts::Direction;
use super::tunnel::Protocol;
use super::upstream::Upstream;
use super::websocket::Frames;
use crate::gateway::Target;
use crate::gateway::answers::Failure;

/// How long an upstream that has answered may take to read on in its request.
const READ_ON: Duration = Duration::from_secs(1);
/// How many interim answers may come before the final one.
const INTERIM_LIMIT: u32 = 64;

/// How an exchange ended.
pub(super) enum Ending {
    /// The answer was written to its end.
    Answered,
    /// Both sides have changed the protocol.
    Switched(Protocol),
    /// There is no answer, and nothing of one was written.
    Failed(Failure),
    /// The answer broke off.
    Broken,
    /// Nobody is there to answer.
    ClientLeft,
}

/// Both directions of one exchange.
pub(super) struct Flow<'a> {
    thread: &'a Thread,
    client: &'a mut Client,
    upstream: &'a mut Upstream,
    target: &'a Target,
    terms: Terms,
    upgrade: bool,
    /// The request's body, on its way up.
    up: Body,
    sending: Sending,
    /// The upstream did not take the whole request.
    refused: bool,
    /// The client was told that nothing follows its answer.
    said_end: bool,
    /// Once the upstream has answered and does not read on: what it had not taken when that was looked at last.
    reading_on: Option<usize>,
    /// When the request was sent to its end.
    request_ended: Instant,
    /// A part of an answer's head.
    part: Buffer,
    interim: u32,
    /// The final answer, on its way down.
    received: Option<Received>,
    /// Whose turn it is in the direction down.
    waiting_for: WaitingFor,
    switched: Option<Protocol>,
    /// The client's connection ends with this answer.
    last: bool,
}

/// An answer whose head has come.
struct Received {
    body: Body,
    /// Whether the upstream's connection can be used again after it.
    reusable: bool,
    /// The client gets the payload alone.
    unchunked: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sending {
    /// The request goes up.
    On,
    /// The upstream takes no more of it, but may still answer; the client's body is read and forgotten.
    Refused,
    /// The request was sent, or forgotten, to its end.
    Over,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WaitingFor {
    Upstream,
    Client,
}

impl<'a> Flow<'a> {
    pub(super) fn new(
        thread: &'a Thread,
        client: &'a mut Client,
        upstream: &'a mut Upstream,
        target: &'a Target,
        terms: Terms,
        upgrade: bool,
        up: Body,
    ) -> Self {
        client
            .alarm
            .set(Direction::Down, target.upstream.first_byte_timeout);
        Self {
            thread,
            client,
            upstream,
            target,
            terms,
            upgrade,
            up,
            sending: Sending::On,
            refused: false,
            said_end: false,
            reading_on: None,
            request_ended: Instant::now(),
            part: Buffer::default(),
            interim: 0,
            received: None,
            waiting_for: WaitingFor::Upstream,
            switched: None,
            last: false,
        }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ending> {
        self.client.alarm.register(cx);
        if let Some(ending) = self.send(cx) {
            return Poll::Ready(ending);
        }
        if let Some(ending) = self.receive(cx) {
            return Poll::Ready(ending);
        }
        self.wait_for_reader();
        if self.sending == Sending::Over
            && self.client.has_left(cx, self.thread, self.request_ended)
        {
            return Poll::Ready(Ending::ClientLeft);
        }
        match self.time_out() {
            Some(ending) => Poll::Ready(ending),
            None => Poll::Pending,
        }
    }

    /// Direction up: the rest of the request's body.
    fn send(&mut self, cx: &mut Context<'_>) -> Option<Ending> {
        loop {
            match self.sending {
                Sending::Over => return None,
                Sending::Refused => self.refused = true,
                Sending::On => match self.upstream.stream.poll_flush(cx) {
                    Poll::Ready(Ok(())) => {
                        if self.reading_on.take().is_some() {
                            self.client.alarm.clear(Direction::Up);
                        }
                    }
                    Poll::Ready(Err(_)) => {
                        self.sending = Sending::Refused;
                        continue;
                    }
                    Poll::Pending => {
                        if !self.is_answered() {
                            self.client.alarm.clear(Direction::Up);
                        } else if self.client.alarm.has_fired(Direction::Up) {
                            self.client.alarm.clear(Direction::Up);
                            self.sending = Sending::Refused;
                            continue;
                        }
                        let left = !self.up.is_done() && self.client.has_left_behind_its_body(cx);
                        return left.then_some(Ending::ClientLeft);
                    }
                },
            }
            if self.up.is_done() {
                self.sending = Sending::Over;
                self.request_ended = Instant::now();
                self.client.alarm.clear(Direction::Up);
                self.upstream_is_due();
                return None;
            }
            let mut buffer = self.thread.buffers.take();
            match self.client.poll_body(cx, &mut buffer) {
                Poll::Pending => {
                    let alarm = &self.client.alarm;
                    // Who waits for our word is not slow.
                    if !self.terms.expects_continue
                        && !alarm.is_set(Direction::Up)
                        && !alarm.has_fired(Direction::Up)
                    {
                        alarm.set(Direction::Up, self.thread.config.server.body_timeout);
                    }
                    return None;
                }
                Poll::Ready(Ok(0)) => return Some(self.failed(Failure::BadBody)),
                Poll::Ready(Err(_)) => return Some(Ending::ClientLeft),
                Poll::Ready(Ok(_)) => {
                    let Ok(taken) = self.up.accept(buffer.unread()) else {
                        return Some(self.failed(Failure::BadBody));
                    };
                    let (body, ahead) = buffer.unread().split_at(taken);
                    self.client.keep_ahead(ahead);
                    self.terms.expects_continue = false;
                    self.client.alarm.clear(Direction::Up);
                    self.upstream_is_due();
                    if self.sending == Sending::On
                        && self.upstream.stream.write(cx, &[body]).is_err()
                    {
                        self.sending = Sending::Refused;
                    }
                }
            }
        }
    }

    /// Direction down: heads, then the answer's body.
    fn receive(&mut self, cx: &mut Context<'_>) -> Option<Ending> {
        loop {
            if let Some(blocked) = self.flush_client(cx) {
                return blocked;
            }
            if let Some(protocol) = self.switched {
                return Some(Ending::Switched(protocol));
            }
            if self.is_answered() {
                return self.answered(cx);
            }
            let mut buffer = self.thread.buffers.take();
            let ending = match self.upstream.stream.poll_read(cx, &mut buffer) {
                Poll::Pending => return None,
                Poll::Ready(Ok(0)) => self.upstream_ended(None),
                Poll::Ready(Err(error)) => self.upstream_ended(Some(error)),
                Poll::Ready(Ok(_)) => match &self.received {
                    None => self.receive_head(cx, buffer),
                    Some(_) => {
                        let limit = self.target.upstream.idle_timeout;
                        self.client.alarm.set(Direction::Down, limit);
                        self.receive_body(cx, &[], buffer.unread())
                    }
                },
            };
            if ending.is_some() {
                return ending;
            }
        }
    }

    fn is_answered(&self) -> bool {
        self.received.as_ref().is_some_and(|it| it.body.is_done())
    }

    /// The answer was written to its end, and taken. A request that is still on its way goes on, for the upstream may want
    /// it all; but not one whose client may never send it.
    fn answered(&mut self, cx: &mut Context<'_>) -> Option<Ending> {
        self.client.stream.resets_when_dropped(false);
        if self.sending != Sending::On || self.terms.expects_continue {
            return Some(Ending::Answered);
        }
        if self.last && !self.said_end {
            // Who reads until the end must not wait for its own body to be over.
            self.said_end = self.client.stream.poll_shutdown(cx).is_ready();
        }
        self.client.alarm.clear(Direction::Down);
        None
    }

    /// Who has answered and does not read on does not want the rest; a moment tells, whether the client reads or not.
    fn wait_for_reader(&mut self) {
        let waits =
            self.sending == Sending::On && self.is_answered() && self.upstream.stream.is_blocked();
        let unwritten = Some(self.upstream.stream.unwritten());
        let alarm = &self.client.alarm;
        if waits && (self.reading_on != unwritten || !alarm.is_set(Direction::Up)) {
            self.reading_on = unwritten;
            alarm.set(Direction::Up, READ_ON);
        }
    }

    /// Something while the client has not taken all that was written to it.
    #[expect(
        clippy::option_option,
        reason = "outer: whether to stop; inner: why for good"
    )]
    fn flush_client(&mut self, cx: &mut Context<'_>) -> Option<Option<Ending>> {
        let stream = &mut self.client.stream;
        let before = stream.unwritten();
        let flushed = stream.poll_flush(cx);
        let progress = stream.unwritten() < before;
        match flushed {
            Poll::Ready(Ok(())) => {
                if self.waiting_for == WaitingFor::Client {
                    self.waiting_for = WaitingFor::Upstream;
                    let limit = match self.received {
                        Some(_) => self.target.upstream.idle_timeout,
                        None => self.target.upstream.first_byte_timeout,
                    };
                    self.client.alarm.set(Direction::Down, limit);
                }
                None
            }
            Poll::Ready(Err(_)) => Some(Some(Ending::ClientLeft)),
            Poll::Pending => {
                if progress || self.waiting_for == WaitingFor::Upstream {
                    self.waiting_for = WaitingFor::Client;
                    let limit = self.thread.config.server.send_timeout;
                    self.client.alarm.set(Direction::Down, limit);
                }
                Some(None)
            }
        }
    }

    /// One head or several, whole or not: interim answers go on as they come, the final one with its body's first bytes.
    fn receive_head(&mut self, cx: &mut Context<'_>, buffer: Buffer) -> Option<Ending> {
        let mut bytes = match self.part.is_empty() {
            true => buffer,
            false => {
                self.part.append(buffer.unread());
                std::mem::take(&mut self.part)
            }
        };
        let mut onward = self.thread.buffers.take();
        loop {
            let mut slots = Slots::new();
            let head = match AnswerHead::parse(bytes.unread(), &mut slots, self.terms.asked) {
                Ok(Some(head)) => head,
                Ok(None) => {
                    bytes.settle();
                    self.part = bytes;
                    return self.write(cx, onward.unread(), &[]);
                }
                Err(bad) => {
                    let upstream = &self.target.name;
                    tracing::warn!(upstream, %bad, "the upstream's answer is no HTTP");
                    return Some(Ending::Failed(Failure::BadAnswer));
                }
            };
            let length = head.length;
            match head.status {
                101 => return self.switch(cx, &head, onward, &bytes.unread()[length..]),
                100..200 => {
                    self.interim += 1;
                    if self.interim > INTERIM_LIMIT {
                        return Some(Ending::Failed(Failure::BadAnswer));
                    }
                    // The client may send its body now.
                    if head.status == 100 && self.terms.expects_continue {
                        self.terms.expects_continue = false;
                        let limit = self.thread.config.server.body_timeout;
                        self.client.alarm.set(Direction::Up, limit);
                    }
                    if !self.terms.is_old {
                        head.write_onward(&self.back(false), onward.end());
                    }
                    bytes.consume(length);
                }
                _ => {
                    self.begin_answer(&head);
                    head.write_onward(&self.back(self.last), onward.end());
                    bytes.consume(length);
                    return self.receive_body(cx, onward.unread(), bytes.unread());
                }
            }
        }
    }

    fn begin_answer(&mut self, head: &AnswerHead<'_>) {
        let unchunked = self.terms.is_old && head.framing == Framing::Chunked;
        let ends_by_close = unchunked || head.framing == Framing::UntilClose;
        let unknown_rest = self.terms.expects_continue && !self.up.is_done();
        self.last =
            !self.terms.persistent || ends_by_close || unknown_rest || self.thread.is_closing();
        self.client.stream.resets_when_dropped(ends_by_close);
        self.received = Some(Received {
            body: Body::new(head.framing),
            reusable: head.persistent && head.framing != Framing::UntilClose,
            unchunked,
        });
        let limit = self.target.upstream.idle_timeout;
        self.client.alarm.set(Direction::Down, limit);
    }

    /// A piece of the answer's body, behind the heads that were not written yet.
    fn receive_body(&mut self, cx: &mut Context<'_>, heads: &[u8], bytes: &[u8]) -> Option<Ending> {
        let received = self.received.as_mut()?;
        let mut payload = Vec::new();
        let accepted = match received.unchunked {
            true => received
                .body
                .accept_data(bytes, &mut |data| payload.extend_from_slice(data)),
            false => received.body.accept(bytes),
        };
        let Ok(taken) = accepted else {
            // Nothing of it was written yet: there is still time for an honest answer.
            return Some(match heads.is_empty() {
                true => Ending::Broken,
                false => {
                    self.received = None;
                    self.client.stream.resets_when_dropped(false);
                    Ending::Failed(Failure::BadAnswer)
                }
            });
        };
        // An upstream that says more than it announced cannot be believed a second time.
        received.reusable &= taken == bytes.len();
        match received.unchunked {
            true => self.write(cx, heads, &payload),
            false => self.write(cx, heads, &bytes[..taken]),
        }
    }

    /// The upstream agrees to another protocol: what follows the head is in it already.
    fn switch(
        &mut self,
        cx: &mut Context<'_>,
        head: &AnswerHead<'_>,
        mut onward: Buffer,
        early: &[u8],
    ) -> Option<Ending> {
        if !self.upgrade || self.sending != Sending::Over {
            return Some(Ending::Failed(Failure::BadAnswer));
        }
        let back = Back {
            upgrade: true,
            ..self.back(false)
        };
        head.write_onward(&back, onward.end());
        let is_websocket = head
            .upgrade
            .is_some_and(|protocol| protocol.eq_ignore_ascii_case("websocket"));
        self.switched = Some(match is_websocket {
            true => {
                let mut frames = Frames::default();
                frames.advance(early);
                Protocol::WebSocket(frames)
            }
            false => Protocol::Other,
        });
        self.write(cx, onward.unread(), early)
    }

    fn back(&self, close: bool) -> Back<'a> {
        Back {
            close,
            chunks: !self.terms.is_old,
            upgrade: false,
            extra: self.thread.via.as_bytes(),
        }
    }

    fn write(&mut self, cx: &mut Context<'_>, heads: &[u8], body: &[u8]) -> Option<Ending> {
        let stream: &mut Stream = &mut self.client.stream;
        let written = match (heads.is_empty(), body.is_empty()) {
            (true, true) => return None,
            (true, false) => stream.write(cx, &[body]),
            (false, true) => stream.write(cx, &[heads]),
            (false, false) => stream.write(cx, &[heads, body]),
        };
        written.err().map(|_gone| Ending::ClientLeft)
    }

    /// Nothing, where that is the end of the answer.
    fn upstream_ended(&mut self, error: Option<io::Error>) -> Option<Ending> {
        let clean = error.is_none();
        if let Some(received) = &mut self.received {
            let whole = clean && received.body.end().is_ok();
            return (!whole).then_some(Ending::Broken);
        }
        let upstream = &self.target.name;
        let cause = error.map_or_else(|| "it closed".to_owned(), |error| error.to_string());
        tracing::warn!(upstream, cause, "no answer from the upstream");
        Some(Ending::Failed(match self.part.is_empty() {
            true => Failure::NoAnswer,
            false => Failure::BadAnswer,
        }))
    }

    /// From now on the upstream has its time to begin an answer, or to go on with it.
    fn upstream_is_due(&self) {
        if self.waiting_for == WaitingFor::Upstream {
            let limit = match self.received {
                None => self.target.upstream.first_byte_timeout,
                Some(_) => self.target.upstream.idle_timeout,
            };
            self.client.alarm.set(Direction::Down, limit);
        }
    }

    /// Whether more of the request is to come and the upstream has all that came.
    fn is_client_pausing(&self) -> bool {
        self.sending != Sending::Over
            && !self.upstream.stream.is_blocked()
            && !self.terms.expects_continue
    }

    fn time_out(&mut self) -> Option<Ending> {
        let alarm = &self.client.alarm;
        if alarm.has_fired(Direction::Up) {
            return Some(self.failed(Failure::BodyTimeout));
        }
        if !alarm.has_fired(Direction::Down) {
            return None;
        }
        if self.waiting_for == WaitingFor::Upstream && self.is_client_pausing() {
            // The silence is the client's own.
            self.client.alarm.clear(Direction::Down);
            return None;
        }
        Some(match self.waiting_for {
            WaitingFor::Client => Ending::ClientLeft,
            WaitingFor::Upstream => self.failed(Failure::AnswerTimeout),
        })
    }

    /// What is left of the request's body, whether the client's connection ends here, and on what terms.
    pub(super) fn into_rest(self) -> (Body, bool, Terms) {
        (self.up, self.last, self.terms)
    }

    /// Whether the next request may be sent on the upstream's connection: both directions went through to their ends.
    pub(super) fn is_upstream_reusable(&self) -> bool {
        let answered = self.received.as_ref().is_some_and(|it| it.reusable);
        answered && self.sending == Sending::Over && !self.refused
    }

    /// What cannot be answered any more is broken off.
    fn failed(&self, failure: Failure) -> Ending {
        match self.received {
            Some(_) => Ending::Broken,
            None => Ending::Failed(failure),
        }
    }
}
