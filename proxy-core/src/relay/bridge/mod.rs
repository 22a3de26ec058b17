//! A request of an HTTP/1 client to an upstream that is spoken to in HTTP/2. Here nothing goes on byte for byte: the
//! body is taken out of its framing on the way up, and gets one on the way down.

mod pipe;

use std::future::{Future, poll_fn};
use std::io::Write as _;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body as _, Frame};
use tokio::time::Instant;

use super::answer;
use super::buffers::Buffer;
use super::client::{After, Client};
use super::framing::{Body, Framing};
use super::head::Asked;
use super::http2;
use super::terms::Terms;
use super::thread::Thread;
use super::timeouts::Direction;
use crate::gateway::Target;
use crate::gateway::answers::Failure;
use pipe::{Inlet, pipe};

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A request on its way to an HTTP/2 upstream.
pub(super) struct Crossing {
    pub(super) target: Arc<Target>,
    pub(super) request: Request<()>,
    pub(super) terms: Terms,
}

/// How such an exchange ended.
enum Ending {
    Answered { last: bool },
    Failed(Failure),
    Broken,
    ClientLeft,
}

/// Sends the request on, and its answer back.
pub(super) async fn run(
    thread: &Thread,
    client: &mut Client,
    crossing: Crossing,
    mut bytes: Buffer,
) -> After {
    let Crossing {
        target,
        request,
        terms,
    } = crossing;
    bytes.consume(terms.head);
    let (inlet, outlet) = pipe(terms.framing);
    let mut sending = Sending {
        body: Body::new(terms.framing),
        inlet,
        owes_continue: terms.expects_continue,
        ended: Instant::now(),
    };
    if sending.take(client, bytes.unread()).is_err() {
        return answer::fail(
            thread,
            client,
            &terms,
            Failure::BadBody,
            sending.body,
            &target,
        )
        .await;
    }
    drop(bytes);

    let request = request.map(|()| outlet);
    let mut answering = pin!(http2::onward(thread, request, &target));
    let head = poll_fn(|cx| {
        client.alarm.register(cx);
        if let Poll::Ready(answer) = answering.as_mut().poll(cx) {
            return Poll::Ready(answer.map_err(Ending::Failed));
        }
        match sending.poll(cx, thread, client) {
            Some(ending) => Poll::Ready(Err(ending)),
            None => Poll::Pending,
        }
    })
    .await;
    let ending = match head {
        Ok(answer) => receive(thread, client, &terms, &mut sending, answer).await,
        Err(ending) => ending,
    };
    client.alarm.clear(Direction::Up);
    client.alarm.clear(Direction::Down);
    match ending {
        Ending::Answered { last } => {
            client.stream.resets_when_dropped(false);
            match last {
                true => client.after_last(sending.body.is_done()),
                false => answer::forget(thread, client, sending.body).await,
            }
        }
        Ending::Failed(failure) => {
            answer::fail(thread, client, &terms, failure, sending.body, &target).await
        }
        Ending::Broken | Ending::ClientLeft => After::Cut,
    }
}

/// Writes the answer while the rest of the request goes up.
async fn receive(
    thread: &Thread,
    client: &mut Client,
    terms: &Terms,
    sending: &mut Sending,
    answer: Response<http2::Answer>,
) -> Ending {
    let (head, mut body) = answer.into_parts();
    let framing = framing_of(head.status, &head.headers, terms);
    let unknown_rest = sending.owes_continue && !sending.body.is_done();
    sending.owes_continue = false;
    let last =
        !terms.persistent || framing == Framing::UntilClose || unknown_rest || thread.is_closing();
    let mut heads = compose(thread, head.status, &head.headers, framing, last);
    client
        .stream
        .resets_when_dropped(framing == Framing::UntilClose);
    let mut done = framing == Framing::None;
    let limit = thread.config.server.send_timeout;
    poll_fn(|cx| {
        client.alarm.register(cx);
        loop {
            let before = client.stream.unwritten();
            match client.stream.poll_flush(cx) {
                Poll::Ready(Ok(())) => client.alarm.clear(Direction::Down),
                Poll::Ready(Err(_)) => return Poll::Ready(Ending::ClientLeft),
                Poll::Pending => {
                    let progress = client.stream.unwritten() < before;
                    if client.alarm.has_fired(Direction::Down) {
                        return Poll::Ready(Ending::ClientLeft);
                    }
                    if progress || !client.alarm.is_set(Direction::Down) {
                        client.alarm.set(Direction::Down, limit);
                    }
                    break;
                }
            }
            if done && heads.is_empty() {
                return Poll::Ready(Ending::Answered { last });
            }
            let mut piece = std::mem::take(&mut heads);
            if !done {
                match Pin::new(&mut body).poll_frame(cx) {
                    Poll::Pending if piece.is_empty() => break,
                    Poll::Pending => {}
                    Poll::Ready(Some(Ok(frame))) => {
                        done |= append(&mut piece, frame, framing);
                    }
                    Poll::Ready(Some(Err(_cut))) if piece.is_empty() => {
                        return Poll::Ready(Ending::Broken);
                    }
                    Poll::Ready(Some(Err(_cut))) => {
                        client.stream.resets_when_dropped(false);
                        return Poll::Ready(Ending::Failed(Failure::NoAnswer));
                    }
                    Poll::Ready(None) => {
                        if framing == Framing::Chunked {
                            piece.extend_from_slice(b"0\r\n\r\n");
                        }
                        done = true;
                    }
                }
            }
            if !piece.is_empty() && client.stream.write(cx, &[&piece]).is_err() {
                return Poll::Ready(Ending::ClientLeft);
            }
        }
        match sending.poll(cx, thread, client) {
            // The answer has begun: there is no other one.
            Some(Ending::Failed(_)) => Poll::Ready(Ending::Broken),
            Some(ending) => Poll::Ready(ending),
            None => Poll::Pending,
        }
    })
    .await
}

/// Appends a piece of the body in its framing; whether it was the last one.
fn append(to: &mut Vec<u8>, frame: Frame<Bytes>, framing: Framing) -> bool {
    let chunked = framing == Framing::Chunked;
    match frame.into_data() {
        Ok(data) if data.is_empty() => false,
        Ok(data) if chunked => {
            // Writing to memory never fails.
            let _ok = write!(to, "{:x}\r\n", data.len());
            to.extend_from_slice(&data);
            to.extend_from_slice(b"\r\n");
            false
        }
        Ok(data) => {
            to.extend_from_slice(&data);
            false
        }
        Err(frame) => {
            if chunked {
                to.extend_from_slice(b"0\r\n");
                let trailers = frame.into_trailers().unwrap_or_default();
                write_fields(to, &trailers);
                to.extend_from_slice(b"\r\n");
            }
            true
        }
    }
}

/// How the client finds the end of an answer that had frames.
fn framing_of(status: StatusCode, fields: &HeaderMap, terms: &Terms) -> Framing {
    let length = fields
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse().ok());
    match length {
        _ if terms.asked == Asked::Head => Framing::None,
        _ if status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED => {
            Framing::None
        }
        Some(length) => Framing::Length(length),
        None if terms.is_old => Framing::UntilClose,
        None => Framing::Chunked,
    }
}

fn compose(
    thread: &Thread,
    status: StatusCode,
    fields: &HeaderMap,
    framing: Framing,
    last: bool,
) -> Vec<u8> {
    let mut head = Vec::with_capacity(512);
    let reason = status.canonical_reason().unwrap_or_default();
    let _ok = write!(head, "HTTP/1.1 {} {reason}\r\n", status.as_u16());
    write_fields(&mut head, fields);
    if framing == Framing::Chunked {
        head.extend_from_slice(b"transfer-encoding: chunked\r\n");
    }
    if !thread.via.is_empty() {
        let _ok = write!(head, "Via: 2 {}\r\n", thread.config.server.via);
    }
    if last {
        head.extend_from_slice(b"connection: close\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head
}

fn write_fields(to: &mut Vec<u8>, fields: &HeaderMap) {
    for (name, value) in fields {
        to.extend_from_slice(name.as_str().as_bytes());
        to.extend_from_slice(b": ");
        to.extend_from_slice(value.as_bytes());
        to.extend_from_slice(b"\r\n");
    }
}

/// The client's body on its way into the pipe.
struct Sending {
    body: Body,
    inlet: Inlet,
    /// The client waits for our word. The upstream's own cannot come: HTTP/2 has it, its libraries mostly have not.
    owes_continue: bool,
    /// When the request was read to its end.
    ended: Instant,
}

impl Sending {
    /// Reads on while the upstream wants more, and finds out whether the client left.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        thread: &Thread,
        client: &mut Client,
    ) -> Option<Ending> {
        while !self.body.is_done() {
            if self.owes_continue && self.inlet.is_waited_for() {
                self.owes_continue = false;
                if client.stream.write(cx, &[CONTINUE]).is_err() {
                    return Some(Ending::ClientLeft);
                }
            }
            if !self.inlet.wants_more(cx) {
                client.alarm.clear(Direction::Up);
                return client
                    .has_left_behind_its_body(cx)
                    .then_some(Ending::ClientLeft);
            }
            let mut buffer = thread.buffers.take();
            match client.poll_body(cx, &mut buffer) {
                Poll::Pending => {
                    if client.alarm.has_fired(Direction::Up) {
                        return Some(Ending::Failed(Failure::BodyTimeout));
                    }
                    if !client.alarm.is_set(Direction::Up) {
                        let limit = thread.config.server.body_timeout;
                        client.alarm.set(Direction::Up, limit);
                    }
                    return None;
                }
                Poll::Ready(Ok(0)) => return Some(Ending::Failed(Failure::BadBody)),
                Poll::Ready(Err(_)) => return Some(Ending::ClientLeft),
                Poll::Ready(Ok(_)) => {
                    client.alarm.clear(Direction::Up);
                    if self.take(client, buffer.unread()).is_err() {
                        return Some(Ending::Failed(Failure::BadBody));
                    }
                }
            }
        }
        client
            .has_left(cx, thread, self.ended)
            .then_some(Ending::ClientLeft)
    }

    fn take(&mut self, client: &mut Client, bytes: &[u8]) -> Result<(), super::framing::BadBody> {
        let mut payload = Vec::new();
        let taken = self
            .body
            .accept_data(bytes, &mut |data| payload.extend_from_slice(data))?;
        client.keep_ahead(&bytes[taken..]);
        self.owes_continue &= taken == 0;
        self.ended = Instant::now();
        self.inlet.put(Bytes::from(payload), self.body.is_done());
        Ok(())
    }
}
