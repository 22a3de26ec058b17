//! The life of one client's HTTP/2 connection.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep_until, timeout};

use super::super::phase::Phase;
use super::super::thread::Thread;
use super::Local;
use super::exchange::{Client, exchange};
use crate::config::Server;

/// The most requests at once on one connection.
const STREAMS: u32 = 256;
/// The largest head; more is answered 431, much more closes the connection.
const HEAD_LIMIT: u32 = 64 * 1024;
/// How much of one request's body may wait here, unread by its upstream, and how much of all.
const STREAM_WINDOW: u32 = 128 * 1024;
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// How much of one answer may wait for its client.
const SEND_BUFFER: usize = 64 * 1024;
/// After so long the client is asked whether it is there; it has as long to answer as it may take nothing.
const PING_AFTER: Duration = Duration::from_secs(60);
/// How long a client may take to close after us.
const LINGERING: Duration = Duration::from_secs(2);

/// Serves a client that speaks HTTP/2 by prior knowledge, until its end. `first` was read already and begins with
/// [`super::PREFACE`]. `peer` is the client; nobody for one of a Unix socket.
///
/// A drain says GOAWAY, lets the streams finish and closes; such a connection is never given back.
pub(in crate::relay) async fn serve<S>(
    thread: &Rc<Thread>,
    stream: S,
    first: Vec<u8>,
    peer: Option<SocketAddr>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut stream = Preceded {
        first: Bytes::from(first),
        stream,
    };
    if serve_requests(thread, &mut stream, peer).await {
        linger(stream).await;
    }
}

/// True when the connection came to its end, false when it is cut.
async fn serve_requests<S>(
    thread: &Rc<Thread>,
    stream: &mut Preceded<S>,
    peer: Option<SocketAddr>,
) -> bool
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let server = &thread.config.server;
    let client = Client::new(peer);
    let mut connection = pin!(builder(server).serve_connection(
        TokioIo::new(stream),
        service_fn(|request| exchange(Rc::clone(thread), Rc::clone(&client), request)),
    ));
    let mut phase = thread.phase.clone();
    phase.mark_changed();
    let mut leaving = false;
    loop {
        tokio::select! {
            biased;
            // The end of a connection is nobody's error here: a client may leave at any time.
            _ended = connection.as_mut() => return true,
            changed = phase.changed() => {
                let now = phase.borrow_and_update().clone();
                match now {
                    _ if changed.is_err() => return false,
                    Phase::Aborted => return false,
                    // Its streams cannot go anywhere else, and it may be wanted again.
                    Phase::Serving | Phase::GivingBack(_) => {}
                    Phase::Draining(_) => leaving = true,
                }
            }
            () = idle_for(&client, server.idle_timeout), if !leaving => leaving = true,
        }
        if leaving {
            connection.as_mut().graceful_shutdown();
        }
    }
}

/// hyper's own protection against floods of resets, of settings and of empty frames stays as it is.
fn builder(server: &Server) -> Builder<Local> {
    let mut builder = Builder::new(Local);
    builder
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEAD_LIMIT)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER);
    if !server.send_timeout.is_zero() {
        builder
            .keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(server.send_timeout);
    }
    builder
}

/// Ends when nothing was asked for so long; zero is never.
async fn idle_for(client: &Client, limit: Duration) {
    if limit.is_zero() {
        return std::future::pending().await;
    }
    loop {
        let since = client.idle_since().unwrap_or_else(Instant::now);
        let end = since + limit;
        sleep_until(end).await;
        if client.idle_since() == Some(since) {
            return;
        }
    }
}

/// Closes so that the client sees all that was written: a socket closed on bytes that nobody read is reset, and the reset
/// overtakes the last answers. The FIN is sent already.
async fn linger<S: AsyncRead + Unpin>(mut stream: S) {
    let mut forgotten = [0; 1024];
    let closing = async { while matches!(stream.read(&mut forgotten).await, Ok(1..)) {} };
    let _enough = timeout(LINGERING, closing).await;
}

/// A stream whose first bytes were read by somebody else.
struct Preceded<S> {
    first: Bytes,
    stream: S,
}

impl<S: AsyncRead + Unpin> AsyncRead for Preceded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let length = self.first.len().min(buffer.remaining());
        buffer.put_slice(&self.first[..length]);
        self.first.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Preceded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
