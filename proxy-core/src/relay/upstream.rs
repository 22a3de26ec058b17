//! The other side of an exchange: a connection to an upstream, a kept one or a new one.

use std::future::{Future, poll_fn};
use std::io;
use std::sync::Arc;
use std::task::Poll;

use tokio::net::TcpStream;
use tokio::time::Instant;

use super::client::Client;
use super::pool::Pool;
use super::stream::{Io, Stream};
use super::thread::Thread;
use super::tls::Tls;
use crate::gateway::Target;
use crate::gateway::answers::Failure;

/// The upstream connections of one thread.
pub(super) struct Upstreams {
    pool: Pool,
    tls: Tls,
}

/// Whether a new connection is encrypted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Encryption {
    /// As the upstream's address says.
    AsConfigured,
    /// Never: what flows in a tunnel is not ours.
    None,
}

/// A connection to an upstream, in use by one exchange.
pub(super) struct Upstream {
    pub(super) stream: Stream,
    /// Whether it served an exchange before, so that it may turn out to be closed already.
    pub(super) reused: bool,
    target: Arc<Target>,
}

impl Upstreams {
    pub(super) fn new(tls: Tls) -> Self {
        Self {
            pool: Pool::default(),
            tls,
        }
    }

    /// Waits until an idle connection closes, or says what nobody asked for.
    pub(super) async fn heard(&self) {
        self.pool.heard().await;
    }

    /// Closes what nobody used for long, and what cannot be used again.
    pub(super) fn sweep(&self) {
        self.pool.sweep();
    }

    /// An idle connection, if there is one.
    pub(super) fn kept(&self, target: &Arc<Target>) -> Option<Upstream> {
        Some(Upstream {
            stream: self.pool.take(target)?,
            reused: true,
            target: Arc::clone(target),
        })
    }

    /// A new connection, in time or not at all.
    pub(super) async fn connect(
        &self,
        target: &Arc<Target>,
        encryption: Encryption,
    ) -> Result<Upstream, Failure> {
        let limit = target.upstream.connect_timeout;
        let opening = async {
            match self.open(target, encryption).await {
                // The idle ones hold descriptors that nobody needs as much.
                Err((Failure::NoDescriptors, _)) if self.pool.close_all() => {
                    self.open(target, encryption).await
                }
                opened => opened,
            }
        };
        match tokio::time::timeout(limit, opening).await {
            Ok(Ok(io)) => Ok(Upstream {
                stream: Stream::new(io),
                reused: false,
                target: Arc::clone(target),
            }),
            Ok(Err((failure, cause))) => {
                let upstream = &target.name;
                tracing::warn!(upstream, cause, "cannot connect to the upstream");
                Err(failure)
            }
            Err(_elapsed) => {
                let upstream = &target.name;
                tracing::warn!(upstream, "cannot connect to the upstream in time");
                Err(Failure::ConnectTimeout)
            }
        }
    }

    async fn open(&self, target: &Target, encryption: Encryption) -> Result<Io, (Failure, String)> {
        let failed = |error: io::Error| (failure_of(&error), error.to_string());
        let stream = TcpStream::connect((target.host(), target.port()))
            .await
            .map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        if encryption == Encryption::None || !target.is_tls() {
            return Ok(Io::Tcp(stream));
        }
        let encrypted = self.tls.connect(target.host(), stream).await;
        encrypted
            .map(|stream| Io::Tls(Box::new(stream)))
            .map_err(|cause| (Failure::Unreachable, cause))
    }

    /// The exchange ended well for both sides: the connection waits for the next one.
    pub(super) fn keep(&self, upstream: Upstream) {
        self.pool.put(&upstream.target, upstream.stream);
    }
}

/// Connects for a client, unless it leaves meanwhile; `is_read` is whether nothing of its request is still to come.
pub(super) async fn connect(
    thread: &Thread,
    client: &mut Client,
    target: &Arc<Target>,
    encryption: Encryption,
    is_read: bool,
) -> Option<Result<Upstream, Failure>> {
    // On the heap for its time: a connection's own task stays small.
    let mut connecting = Box::pin(thread.upstreams.connect(target, encryption));
    let since = Instant::now();
    poll_fn(|cx| match connecting.as_mut().poll(cx) {
        Poll::Ready(connected) => Poll::Ready(Some(connected)),
        Poll::Pending => {
            let left = match is_read {
                true => client.has_left(cx, thread, since),
                false => client.has_left_behind_its_body(cx),
            };
            if left {
                Poll::Ready(None)
            } else {
                Poll::Pending
            }
        }
    })
    .await
}

/// Descriptors are ours: an upstream is not to blame for a limit of this process or host.
fn failure_of(error: &io::Error) -> Failure {
    const EMFILE: i32 = rustix::io::Errno::MFILE.raw_os_error();
    const ENFILE: i32 = rustix::io::Errno::NFILE.raw_os_error();
    match error.raw_os_error() {
        Some(EMFILE | ENFILE) => Failure::NoDescriptors,
        _ => Failure::Unreachable,
    }
}
