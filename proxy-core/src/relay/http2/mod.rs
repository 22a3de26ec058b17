//! HTTP/2, on either side: clients by prior knowledge (`serve`), upstreams by ALPN or prior knowledge (`onward`).
//!
//! HTTP/1 to HTTP/1 is forwarded byte for byte elsewhere. Here heads are fields and bodies are frames, so a message is
//! taken apart and put together again by the rules of RFC 9113, sections 8.2 and 8.3 ([`fields`]). The server's side is
//! hyper's. So is HTTP/1.1 towards upstreams of HTTP/2 clients ([`http1`]). Towards HTTP/2 upstreams it is `h2`, on which
//! hyper stands: a request must be cancelled also while it waits for the upstream's window, and one that the upstream
//! refused must be told from one that may have been done.
//!
//! The walk of one request: `serve` (a client's connection), `exchange` (one stream of it), `upstream` (which
//! connection, and whether to try again), `http1` or `stream` (the request on it), `passage` and `answer` (what flows).

mod answer;
mod connect;
mod exchange;
mod fields;
mod http1;
mod passage;
mod serve;
mod shared;
mod silence;
mod stream;
mod upstream;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;

pub(super) use answer::Answer;
pub(super) use fields::add_configured;
use passage::Passage;
pub(super) use serve::serve;
pub(super) use upstream::Upstreams;

use super::thread::Thread;
use crate::gateway::Target;
use crate::gateway::answers::Failure;

/// What a client sends first that speaks HTTP/2 by prior knowledge.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Sends an HTTP/1 client's request to an upstream that is spoken to in HTTP/2, and waits for the head of its answer.
///
/// The URI is the path and query as the gateway decided; the fields are the client's own, with what [`super`] adds. The
/// body is dropped as soon as nobody wants more of it. Dropping this future, or the answer before its end, cancels the
/// upstream at once. An answer's body that ends with an error was cut and must not look whole.
pub(super) async fn onward<B>(
    thread: &Thread,
    request: Request<B>,
    target: &Arc<Target>,
) -> Result<Response<Answer>, Failure>
where
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let (head, body) = request.into_parts();
    // How long a client may take for its body is known where it is read.
    let passage = Passage::new(body, Duration::ZERO);
    thread.http2.send_http2(target, head, &passage).await
}

/// Whether requests to it go out in HTTP/2.
pub(super) fn wants_http2(target: &Target) -> bool {
    target.upstream.http2
}

/// Runs hyper's and our own tasks on the thread that they belong to.
#[derive(Clone, Copy)]
struct Local;

impl<F: Future + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async move { drop(future.await) });
    }
}

/// Ends a task when dropped.
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests;
