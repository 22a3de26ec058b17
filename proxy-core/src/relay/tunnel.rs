//! Raw bytes both ways: after a switch of protocols, or after `CONNECT`.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::answer::{self, Rest};
use super::buffers::Buffer;
use super::client::{After, Client};
use super::ending;
use super::head::Asked;
use super::held::Kind;
use super::stream::Stream;
use super::thread::Thread;
use super::timeouts::Direction;
use super::upstream::{self, Encryption};
use super::websocket::Frames;
use crate::gateway::Target;
use crate::gateway::answers::{self, Shape};

const CONNECTED: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";

/// Opens a tunnel to the upstream. What is encrypted in it is so between the client and the upstream, not by us.
pub(super) async fn connect(thread: &Thread, client: &mut Client, target: &Arc<Target>) -> After {
    // What the client sends ahead is kept for the tunnel; that it leaves is noticed.
    let connected = upstream::connect(thread, client, target, Encryption::None, true).await;
    match connected {
        None => After::Cut,
        Some(Ok(upstream)) => {
            let said = poll_fn(|cx| Poll::Ready(client.stream.write(cx, &[CONNECTED]))).await;
            match said {
                Ok(()) => run(thread, client, upstream.stream, Protocol::Other).await,
                Err(_gone) => After::Cut,
            }
        }
        Some(Err(failure)) => {
            thread.counters.local_5xx();
            let local = answers::failure(Shape::default(), failure, &target.name);
            answer::answer(thread, client, &local, Asked::Connect, Rest::unknown()).await
        }
    }
}

/// What is spoken in a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// With the frames that the upstream has sent already.
    WebSocket(Frames),
    /// Nothing that we could put a word into.
    Other,
}

/// How carrying ended.
enum Carried {
    /// Both directions came to their end.
    Ended,
    /// A direction broke.
    Broken,
    /// This process ends, and a WebSocket can be told so.
    Told,
}

/// Carries bytes until both directions have ended; one that ends is ended on the other side, too. What the client sent
/// ahead goes first.
pub(super) async fn run(
    thread: &Thread,
    client: &mut Client,
    mut upstream: Stream,
    protocol: Protocol,
) -> After {
    client.stream.keep_alive();
    upstream.keep_alive();
    let (mut up, mut down) = match protocol {
        Protocol::WebSocket(down) => (Way::of(Some(Frames::default())), Way::of(Some(down))),
        Protocol::Other => (Way::of(None), Way::of(None)),
    };
    let is_websocket = up.frames.is_some();
    client.record.becomes(match is_websocket {
        true => Kind::WebSocket,
        false => Kind::Tunnel,
    });
    let _open = is_websocket.then(|| thread.websockets.open());
    client.stream.resets_when_dropped(true);
    upstream.resets_when_dropped(true);
    let carried = {
        let mut tunnel = Tunnel {
            ahead: client.take_ahead(),
            thread,
            client,
            upstream: &mut upstream,
            up: &mut up,
            down: &mut down,
            refused: false,
            taken: 0,
        };
        poll_fn(|cx| {
            if is_websocket {
                tunnel.client.alarm.register(cx);
                if thread.websockets.is_ending() {
                    return Poll::Ready(Carried::Told);
                }
            }
            tunnel.poll(cx).map(|carried| match carried {
                Ok(()) => Carried::Ended,
                Err(_) => Carried::Broken,
            })
        })
        .await
    };
    match carried {
        // A tunnel that broke must not look like one that ended, on either side.
        Carried::Broken => {}
        Carried::Ended => {
            client.stream.resets_when_dropped(false);
            upstream.resets_when_dropped(false);
        }
        Carried::Told => {
            if let (Some(up), Some(down)) = (&mut up.frames, &mut down.frames) {
                ending::say_goodbye(thread, client, &mut upstream, up, down).await;
            }
        }
    }
    After::Cut
}

/// Both directions.
struct Tunnel<'a> {
    thread: &'a Thread,
    client: &'a mut Client,
    upstream: &'a mut Stream,
    /// What the client sent before the tunnel stood.
    ahead: Buffer,
    up: &'a mut Way,
    down: &'a mut Way,
    /// The upstream takes no more.
    refused: bool,
    /// What the upstream had not taken when that was looked at last.
    taken: usize,
}

impl Tunnel<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Broken>> {
        let (thread, client) = (self.thread, &mut *self.client);
        let upstream = &mut *self.upstream;
        if !self.ahead.is_empty() {
            self.up.passes(self.ahead.unread());
            if upstream.write(cx, &[self.ahead.unread()]).is_err() {
                self.up.state = State::Ended;
                self.refused = true;
            }
            self.ahead.consume(self.ahead.len());
        }
        let to_upstream = match self.up.poll(cx, thread, &mut client.stream, upstream) {
            Poll::Ready(Err(Broken::Source)) => return Poll::Ready(Err(Broken::Source)),
            // It takes no more, but what it has said is still on its way.
            Poll::Ready(Err(Broken::Sink)) => {
                self.up.state = State::Ended;
                self.refused = true;
                Poll::Ready(())
            }
            Poll::Ready(Ok(())) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        };
        let to_client = match self.down.poll(cx, thread, upstream, &mut client.stream) {
            Poll::Ready(Err(broken)) => return Poll::Ready(Err(broken)),
            Poll::Ready(Ok(())) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        };
        match (to_upstream, to_client) {
            (Poll::Ready(()), Poll::Ready(())) => Poll::Ready(Ok(())),
            // Without its client nobody needs what the upstream may still say. What the client sent, and its end, is on
            // its way: closing does not call that back.
            (Poll::Ready(()), Poll::Pending)
                if !self.refused && client.has_left_after_its_fin(cx, None) =>
            {
                Poll::Ready(Ok(()))
            }
            (Poll::Ready(()), Poll::Pending)
                if self.refused && client.has_left_behind_its_body(cx) =>
            {
                Poll::Ready(Err(Broken::Source))
            }
            (Poll::Pending, _) if upstream.is_blocked() => {
                client.alarm.register(cx);
                if client.alarm.has_fired(Direction::Up) {
                    return Poll::Ready(Err(Broken::Sink));
                }
                // The client may be gone; what it sent is still meant for who takes it, but not for ever.
                if !client.alarm.is_set(Direction::Up) || self.taken != upstream.unwritten() {
                    self.taken = upstream.unwritten();
                    let limit = thread.config.server.send_timeout;
                    client.alarm.set(Direction::Up, limit);
                }
                Poll::Pending
            }
            _ => {
                client.alarm.clear(Direction::Up);
                Poll::Pending
            }
        }
    }
}

/// Which end of a direction broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    Source,
    Sink,
}

/// One direction of a tunnel.
struct Way {
    state: State,
    /// Where its frames begin, in a WebSocket.
    frames: Option<Frames>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The source has ended; the sink is told when it has taken everything.
    Ending,
    Ended,
}

impl Way {
    fn of(frames: Option<Frames>) -> Self {
        Self {
            state: State::Open,
            frames,
        }
    }

    fn passes(&mut self, bytes: &[u8]) {
        if let Some(frames) = &mut self.frames {
            frames.advance(bytes);
        }
    }

    /// Carries what is there now. Ready when this direction has ended.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        thread: &Thread,
        from: &mut Stream,
        to: &mut Stream,
    ) -> Poll<Result<(), Broken>> {
        let sink = |_: io::Error| Broken::Sink;
        loop {
            match self.state {
                State::Ended => return Poll::Ready(Ok(())),
                State::Ending => {
                    ready!(to.poll_flush(cx)).map_err(sink)?;
                    ready!(to.poll_shutdown(cx)).map_err(sink)?;
                    self.state = State::Ended;
                }
                State::Open => {
                    ready!(to.poll_flush(cx)).map_err(sink)?;
                    let mut buffer = thread.buffers.take();
                    match ready!(from.poll_read(cx, &mut buffer)).map_err(|_| Broken::Source)? {
                        0 => self.state = State::Ending,
                        _ => {
                            self.passes(buffer.unread());
                            to.write(cx, &[buffer.unread()]).map_err(sink)?;
                        }
                    }
                }
            }
        }
    }
}
