//! Raw bytes both ways: after a switch of protocols, or after `CONNECT`.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::answer::{self, Rest};
use super::client::Client;
use super::exchange::After;
use super::head::Asked;
use super::stream::Stream;
use super::thread::Thread;
use super::upstream::Encryption;
use crate::gateway::Target;
use crate::gateway::answers::{self, Shape};

const CONNECTED: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";

/// Opens a tunnel to the upstream. What is encrypted in it is so between the client and the upstream, not by us.
pub(super) async fn connect(thread: &Thread, client: &mut Client, target: &Arc<Target>) -> After {
    match thread.upstreams.connect(target, Encryption::None).await {
        Ok(upstream) => {
            let said = poll_fn(|cx| Poll::Ready(client.stream.write(cx, &[CONNECTED]))).await;
            match said {
                Ok(()) => run(thread, client, upstream.stream).await,
                Err(_gone) => After::Cut,
            }
        }
        Err(failure) => {
            thread.counters.local_5xx();
            let local = answers::failure(Shape::default(), failure, &target.name);
            answer::answer(thread, client, &local, Asked::Connect, Rest::unknown()).await
        }
    }
}

/// Carries bytes until both directions have ended; one that ends is ended on the other side, too. What the client sent
/// ahead goes first.
pub(super) async fn run(thread: &Thread, client: &mut Client, mut upstream: Stream) -> After {
    let mut ahead = client.take_ahead();
    let (mut up, mut down) = (Way::Open, Way::Open);
    let carried = poll_fn(|cx| {
        if !ahead.is_empty() && upstream.unwritten() == 0 {
            upstream.write(cx, &[ahead.unread()])?;
            ahead.consume(ahead.len());
        }
        let to_upstream = up.poll(cx, thread, &mut client.stream, &mut upstream)?;
        let to_client = down.poll(cx, thread, &mut upstream, &mut client.stream)?;
        match (to_upstream, to_client) {
            (Poll::Ready(()), Poll::Ready(())) => Poll::Ready(Ok::<_, io::Error>(())),
            // Without its client nobody needs what the upstream may still say.
            (Poll::Ready(()), Poll::Pending) if client.has_left_after_its_fin(cx, None) => {
                Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
            }
            _ => Poll::Pending,
        }
    })
    .await;
    // A tunnel that broke must not look like one that ended, on either side.
    client.stream.resets_when_dropped(carried.is_err());
    upstream.resets_when_dropped(carried.is_err());
    After::Cut
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
    ) -> io::Result<Poll<()>> {
        match self.poll_io(cx, thread, from, to) {
            Poll::Ready(Ok(())) => Ok(Poll::Ready(())),
            Poll::Ready(Err(error)) => Err(error),
            Poll::Pending => Ok(Poll::Pending),
        }
    }

    fn poll_io(
        &mut self,
        cx: &mut Context<'_>,
        thread: &Thread,
        from: &mut Stream,
        to: &mut Stream,
    ) -> Poll<io::Result<()>> {
        loop {
            match self {
                Self::Ended => return Poll::Ready(Ok(())),
                Self::Ending => {
                    ready!(to.poll_flush(cx))?;
                    ready!(to.poll_shutdown(cx))?;
                    *self = Self::Ended;
                }
                Self::Open => {
                    ready!(to.poll_flush(cx))?;
                    let mut buffer = thread.buffers.take();
                    match ready!(from.poll_read(cx, &mut buffer))? {
                        0 => *self = Self::Ending,
                        _ => to.write(cx, &[buffer.unread()])?,
                    }
                }
            }
        }
    }
}
