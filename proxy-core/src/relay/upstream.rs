//! The other side of an exchange: a connection to the upstream, the request on it, the head of its answer.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::Builder;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::body::RequestBody;
use super::connection::FIELD_LIMIT;
use super::pool::{Lease, Link, Pool};
use super::tls::Tls;
use crate::gateway::Target;
use crate::gateway::answers::Failure;

/// The upstream connections of one thread.
pub(super) struct Upstreams {
    pool: Rc<Pool>,
    tls: Tls,
}

/// What became of one attempt.
enum Attempt {
    Answered(Response<Incoming>),
    /// The connection had closed before a byte of the request was written: another one may be tried.
    NeverSent(Request<RequestBody>),
    Failed(Failure),
}

impl Upstreams {
    pub(super) fn new(tls: Tls) -> Self {
        Self {
            pool: Rc::default(),
            tls,
        }
    }

    /// Closes what nobody used for long.
    pub(super) fn sweep(&self) {
        self.pool.sweep();
    }

    /// Sends the request and waits for the answer's head. A request goes out once: only one of which nothing was written
    /// is tried on another connection.
    pub(super) async fn send(
        &self,
        target: &Target,
        mut request: Request<RequestBody>,
    ) -> Result<(Response<Incoming>, Lease), Failure> {
        loop {
            let mut lease = match self.pool.take(target) {
                Some(lease) => lease,
                None => self.pool.lease(target, self.connect(target).await?),
            };
            match attempt(&mut lease, target, request).await {
                Attempt::Answered(answer) if answer.status().is_informational() => {
                    return Err(Failure::NoAnswer);
                }
                Attempt::Answered(answer) => return Ok((answer, lease)),
                Attempt::NeverSent(unsent) if lease.reused => request = unsent,
                Attempt::NeverSent(_) => return Err(Failure::NoAnswer),
                Attempt::Failed(failure) => return Err(failure),
            }
        }
    }

    async fn connect(&self, target: &Target) -> Result<Link, Failure> {
        match tokio::time::timeout(target.upstream.connect_timeout, self.open(target)).await {
            Ok(Ok(link)) => Ok(link),
            Ok(Err(cause)) => {
                tracing::warn!(
                    upstream = target.name,
                    cause,
                    "cannot connect to the upstream"
                );
                Err(Failure::Unreachable)
            }
            Err(_elapsed) => {
                tracing::warn!(
                    upstream = target.name,
                    "cannot connect to the upstream in time"
                );
                Err(Failure::ConnectTimeout)
            }
        }
    }

    async fn open(&self, target: &Target) -> Result<Link, String> {
        let stream = TcpStream::connect((target.host(), target.port()))
            .await
            .map_err(|error| error.to_string())?;
        stream
            .set_nodelay(true)
            .map_err(|error| error.to_string())?;
        let stream = if target.is_tls() {
            Stream::Tls(Box::new(self.tls.connect(target.host(), stream).await?))
        } else {
            Stream::Plain(stream)
        };
        let (sender, driver) = Builder::new()
            .preserve_header_case(true)
            .max_headers(FIELD_LIMIT)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        // Its errors reach whoever waits for an answer or reads a body.
        let driver = tokio::task::spawn_local(async move { drop(driver.await) }).abort_handle();
        Ok(Link { sender, driver })
    }
}

async fn attempt(lease: &mut Lease, target: &Target, request: Request<RequestBody>) -> Attempt {
    let answer = lease.sender().try_send_request(request);
    let outcome = match target.upstream.first_byte_timeout {
        Duration::ZERO => answer.await,
        limit => match tokio::time::timeout(limit, answer).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => return Attempt::Failed(Failure::AnswerTimeout),
        },
    };
    match outcome {
        Ok(answer) => Attempt::Answered(answer),
        Err(mut error) => match error.take_message() {
            Some(unsent) => Attempt::NeverSent(unsent),
            None => {
                let cause = error.error();
                tracing::warn!(upstream = target.name, %cause, "no answer from the upstream");
                Attempt::Failed(match cause.is_parse() || cause.is_parse_too_large() {
                    true => Failure::BadAnswer,
                    false => Failure::NoAnswer,
                })
            }
        },
    }
}

/// A connection to an upstream, encrypted or not.
enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

macro_rules! on_stream {
    ($self:expr, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Stream::Plain($stream) => {
                let $stream = Pin::new($stream);
                $call
            }
            Stream::Tls($stream) => {
                let $stream = Pin::new(&mut **$stream);
                $call
            }
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_read(cx, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        on_stream!(self, stream => stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_stream!(self, stream => stream.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_shutdown(cx))
    }
}
