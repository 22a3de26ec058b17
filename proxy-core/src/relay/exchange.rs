//! One request and its answer, both directions at once: an answer may come before its request is sent to the end.

use std::future::{Future, poll_fn};
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::Instant;

use super::answer::{self, Rest};
use super::buffers::Buffer;
use super::client::Client;
use super::framing::{Body, Framing};
use super::head::{AnswerHead, Back, Slots};
use super::request::{Forward, Terms};
use super::stream::Stream;
use super::thread::Thread;
use super::timeouts::Direction;
use super::tunnel;
use super::upstream::{Encryption, Upstream};
use crate::gateway::Target;
use crate::gateway::answers::{self, Failure};

/// How many interim answers may come before the final one.
const INTERIM_LIMIT: u32 = 64;

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

/// How an exchange ended.
enum Ending {
    /// The answer was written to its end.
    Answered,
    /// Both sides have changed the protocol.
    Switched,
    /// There is no answer, and nothing of one was written.
    Failed(Failure),
    /// The answer broke off.
    Broken,
    /// Nobody is there to answer.
    ClientLeft,
}

/// Sends the request on, and its answer back.
pub(super) async fn run(
    thread: &Thread,
    client: &mut Client,
    forward: Forward,
    mut bytes: Buffer,
) -> After {
    let Forward {
        target,
        mut head,
        mut terms,
        upgrade,
    } = forward;
    bytes.consume(terms.head);
    let mut body = Body::new(terms.framing);
    let taken = match body.accept(bytes.unread()) {
        Ok(taken) => taken,
        Err(_bad) => return refuse(thread, client, &terms, Failure::BadBody, &target).await,
    };
    client.keep_ahead(&bytes.unread()[taken..]);
    // Who has begun to send its body does not wait for our word.
    terms.expects_continue &= taken == 0;

    let mut upstream = loop {
        let mut upstream = match thread.upstreams.kept(&target) {
            Some(upstream) => upstream,
            None => {
                head.settle();
                bytes.settle();
                match connect(thread, client, &target, body.is_done()).await {
                    Some(Ok(upstream)) => upstream,
                    Some(Err(failure)) => {
                        return fail(thread, client, &terms, failure, body, &target).await;
                    }
                    None => return After::Cut,
                }
            }
        };
        let begin = [head.unread(), &bytes.unread()[..taken]];
        let begun = poll_fn(|cx| Poll::Ready(upstream.stream.write(cx, &begin))).await;
        match begun {
            Ok(()) => break upstream,
            // Closed by the upstream before a byte was sent: another connection may be tried.
            Err(_) if upstream.reused && !target.is_tls() => {}
            Err(_) => {
                return fail(thread, client, &terms, Failure::NoAnswer, body, &target).await;
            }
        }
    };
    drop(head);
    drop(bytes);

    let mut exchange = Exchange::new(thread, client, &mut upstream, &target, terms, upgrade, body);
    let ending = poll_fn(|cx| exchange.poll(cx)).await;
    let reusable = exchange.is_upstream_reusable();
    let Exchange {
        up, last, terms, ..
    } = exchange;
    client.alarm.clear(Direction::Up);
    client.alarm.clear(Direction::Down);
    match ending {
        Ending::Answered => {
            client.stream.resets_when_dropped(false);
            match reusable {
                true => thread.upstreams.keep(upstream),
                false => drop(upstream),
            }
            match last {
                true => client.after_last(up.is_done()),
                false => answer::forget(thread, client, up).await,
            }
        }
        Ending::Switched => tunnel::run(thread, client, upstream.stream).await,
        Ending::Failed(failure) => {
            drop(upstream);
            fail(thread, client, &terms, failure, up, &target).await
        }
        Ending::Broken | Ending::ClientLeft => After::Cut,
    }
}

/// Connects, unless the client leaves meanwhile.
async fn connect(
    thread: &Thread,
    client: &mut Client,
    target: &Arc<Target>,
    is_read: bool,
) -> Option<Result<Upstream, Failure>> {
    // On the heap for its time: a connection's own task stays small.
    let mut connecting = Box::pin(thread.upstreams.connect(target, Encryption::AsConfigured));
    let since = Instant::now();
    poll_fn(|cx| match connecting.as_mut().poll(cx) {
        Poll::Ready(connected) => Poll::Ready(Some(connected)),
        Poll::Pending if is_read && client.has_left(cx, thread, since) => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    })
    .await
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
    answer::answer(thread, client, &local, terms.asked, Rest::of(terms, rest)).await
}

/// Answers a request whose body cannot be read to its end.
async fn refuse(
    thread: &Thread,
    client: &mut Client,
    terms: &Terms,
    failure: Failure,
    target: &Target,
) -> After {
    let local = answers::failure(terms.shape, failure, &target.name);
    answer::answer(thread, client, &local, terms.asked, Rest::unknown()).await
}

/// Both directions of one exchange.
struct Exchange<'a> {
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
    /// When the request was sent to its end.
    request_ended: Instant,
    /// A part of an answer's head.
    part: Buffer,
    interim: u32,
    /// The final answer, on its way down.
    received: Option<Received>,
    /// Whose turn it is in the direction down.
    waiting_for: WaitingFor,
    switched: bool,
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

impl<'a> Exchange<'a> {
    fn new(
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
            request_ended: Instant::now(),
            part: Buffer::default(),
            interim: 0,
            received: None,
            waiting_for: WaitingFor::Upstream,
            switched: false,
            last: false,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ending> {
        self.client.alarm.register(cx);
        if let Some(ending) = self.send(cx) {
            return Poll::Ready(ending);
        }
        if let Some(ending) = self.receive(cx) {
            return Poll::Ready(ending);
        }
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
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(_)) => {
                        self.sending = Sending::Refused;
                        continue;
                    }
                    Poll::Pending => {
                        self.client.alarm.clear(Direction::Up);
                        let left = !self.up.is_done() && self.client.has_left_behind_its_body(cx);
                        return left.then_some(Ending::ClientLeft);
                    }
                },
            }
            if self.up.is_done() {
                self.sending = Sending::Over;
                self.request_ended = Instant::now();
                self.client.alarm.clear(Direction::Up);
                return None;
            }
            let mut buffer = self.thread.buffers.take();
            match self.client.poll_body(cx, &mut buffer) {
                Poll::Pending => {
                    let alarm = &self.client.alarm;
                    if !alarm.is_set(Direction::Up) && !alarm.has_fired(Direction::Up) {
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
                    if self.received.is_none() {
                        let limit = self.target.upstream.first_byte_timeout;
                        self.client.alarm.set(Direction::Down, limit);
                    }
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
            if self.switched {
                return Some(Ending::Switched);
            }
            if self.received.as_ref().is_some_and(|it| it.body.is_done()) {
                return Some(Ending::Answered);
            }
            let mut buffer = self.thread.buffers.take();
            let ending = match self.upstream.stream.poll_read(cx, &mut buffer) {
                Poll::Pending => return None,
                Poll::Ready(Ok(0)) => Some(self.upstream_ended(None)),
                Poll::Ready(Err(error)) => Some(self.upstream_ended(Some(error))),
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
                    self.terms.expects_continue &= head.status != 100;
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
        self.switched = true;
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

    fn upstream_ended(&mut self, error: Option<io::Error>) -> Ending {
        let clean = error.is_none();
        if let Some(received) = &mut self.received {
            return match clean && received.body.end().is_ok() {
                true => Ending::Answered,
                false => Ending::Broken,
            };
        }
        let upstream = &self.target.name;
        let cause = error.map_or_else(|| "it closed".to_owned(), |error| error.to_string());
        tracing::warn!(upstream, cause, "no answer from the upstream");
        Ending::Failed(match self.part.is_empty() {
            true => Failure::NoAnswer,
            false => Failure::BadAnswer,
        })
    }

    fn time_out(&mut self) -> Option<Ending> {
        let alarm = &self.client.alarm;
        if alarm.has_fired(Direction::Up) {
            return Some(self.failed(Failure::BodyTimeout));
        }
        if !alarm.has_fired(Direction::Down) {
            return None;
        }
        Some(match self.waiting_for {
            WaitingFor::Client => Ending::ClientLeft,
            WaitingFor::Upstream => self.failed(Failure::AnswerTimeout),
        })
    }

    /// Whether the next request may be sent on the upstream's connection: both directions went through to their ends.
    fn is_upstream_reusable(&self) -> bool {
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
