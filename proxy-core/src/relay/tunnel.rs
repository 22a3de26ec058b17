//! Raw bytes both ways: after a switch of protocols, or after `CONNECT`.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::answer::{self, Rest};
use super::client::{After, Client};
use super::head::Asked;
use super::stream::Stream;
use super::thread::Thread;
use super::timeouts::Direction;
use super::upstream::{self, Encryption};
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
                Ok(()) => run(thread, client, upstream.stream).await,
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

/// Carries bytes until both directions have ended; one that ends is ended on the other side, too. What the client sent
/// ahead goes first.
pub(super) async fn run(thread: &Thread, client: &mut Client, mut upstream: Stream) -> After {
    client.stream.keep_alive();
    upstream.keep_alive();
    let mut ahead = client.take_ahead();
    let (mut up, mut down) = (Way::Open, Way::Open);
    let mut refused = false;
    let mut taken = 0;
    let limit = thread.config.server.send_timeout;
    client.stream.resets_when_dropped(true);
    upstream.resets_when_dropped(true);
    let carried = poll_fn(|cx| {
        if !ahead.is_empty() {
            if upstream.write(cx, &[ahead.unread()]).is_err() {
                up = Way::Ended;
                refused = true;
            }
            ahead.consume(ahead.len());
        }
        let to_upstream = match up.poll(cx, thread, &mut client.stream, &mut upstream) {
            Poll::Ready(Err(Broken::Source)) => return Poll::Ready(Err(Broken::Source)),
            // It takes no more, but what it has said is still on its way.
            Poll::Ready(Err(Broken::Sink)) => {
                up = Way::Ended;
                refused = true;
                Poll::Ready(())
            }
            Poll::Ready(Ok(())) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        };
        let to_client = match down.poll(cx, thread, &mut upstream, &mut client.stream) {
            Poll::Ready(Err(broken)) => return Poll::Ready(Err(broken)),
            Poll::Ready(Ok(())) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        };
        match (to_upstream, to_client) {
            (Poll::Ready(()), Poll::Ready(())) => Poll::Ready(Ok(())),
            // Without its client nobody needs what the upstream may still say. What the client sent, and its end, is on
            // its way: closing does not call that back.
            (Poll::Ready(()), Poll::Pending)
                if !refused && client.has_left_after_its_fin(cx, None) =>
            {
                Poll::Ready(Ok(()))
            }
            (Poll::Ready(()), Poll::Pending) if refused && client.has_left_behind_its_body(cx) => {
                Poll::Ready(Err(Broken::Source))
            }
            (Poll::Pending, _) if upstream.is_blocked() => {
                client.alarm.register(cx);
                if client.alarm.has_fired(Direction::Up) {
                    return Poll::Ready(Err(Broken::Sink));
                }
                // The client may be gone; what it sent is still meant for who takes it, but not for ever.
                if !client.alarm.is_set(Direction::Up) || taken != upstream.unwritten() {
                    taken = upstream.unwritten();
                    client.alarm.set(Direction::Up, limit);
                }
                Poll::Pending
            }
            _ => {
                client.alarm.clear(Direction::Up);
                Poll::Pending
            }
        }
    })
    .await;
    // A tunnel that broke must not look like one that ended, on either side.
    client.stream.resets_when_dropped(carried.is_err());
    upstream.resets_when_dropped(carried.is_err());
    After::Cut
}

/// Which end of a direction broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    Source,
    Sink,
}

/// One direction of a tunnel.
enum Way {
    Open,
    /// The source has ended; the sink is told when it has taken everything.
    Ending,
    Ended,
}

impl Way {
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
            match self {
                Self::Ended => return Poll::Ready(Ok(())),
                Self::Ending => {
                    ready!(to.poll_flush(cx)).map_err(sink)?;
                    ready!(to.poll_shutdown(cx)).map_err(sink)?;
                    *self = Self::Ended;
                }
                Self::Open => {
                    ready!(to.poll_flush(cx)).map_err(sink)?;
                    let mut buffer = thread.buffers.take();
                    match ready!(from.poll_read(cx, &mut buffer)).map_err(|_| Broken::Source)? {
                        0 => *self = Self::Ending,
                        _ => to.write(cx, &[buffer.unread()]).map_err(sink)?,
                    }
                }
            }
        }
    }
}
