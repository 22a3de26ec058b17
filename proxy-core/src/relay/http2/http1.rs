//! Requests in HTTP/1.1 through hyper, and the idle connections of one thread for it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use super::AbortOnDrop;
use super::connect::{Refused, Stream};
use super::passage::Outgoing;
use crate::gateway::Target;
use crate::gateway::answers::Failure;

/// How long an unused connection is kept: below what servers and the boxes between commonly allow.
pub(super) const KEPT: Duration = Duration::from_secs(50);
/// How many unused connections to one upstream a thread keeps.
const KEPT_EACH: usize = 256;
/// The most fields in an answer.
const FIELD_LIMIT: usize = 256;
/// The longest head of an answer, and how much of its body is read ahead.
const BUFFER_LIMIT: usize = 64 * 1024;

/// The pool; the last one put in is the first one taken out.
#[derive(Default)]
pub(super) struct Pool {
    idle: RefCell<HashMap<String, Vec<Idle>>>,
}

struct Idle {
    link: Link,
    since: Instant,
}

/// A connection and the task that drives it. Dropped, it is closed at once, whatever flows on it.
struct Link {
    sender: SendRequest<Outgoing>,
    _driver: AbortOnDrop,
}

/// A connection in use for one exchange, on its way back into the pool if the exchange ends well.
pub(super) struct Lease {
    link: Link,
    target: Arc<Target>,
    pool: Rc<Pool>,
    /// Whether it served an exchange before.
    pub(super) reused: bool,
}

/// What became of one attempt.
pub(super) enum Attempt {
    Answered(Response<Incoming>),
    /// The connection had closed before a byte of the request was written: another one may be tried.
    NeverSent(Request<Outgoing>),
    Failed(Failure),
}

impl Pool {
    /// An idle connection that its upstream has not closed.
    pub(super) fn take(self: &Rc<Self>, target: &Arc<Target>) -> Option<Lease> {
        let mut idle = self.idle.borrow_mut();
        let links = idle.get_mut(&target.name)?;
        while let Some(Idle { link, since }) = links.pop() {
            if link.sender.is_ready() && since.elapsed() < KEPT {
                return Some(Lease {
                    link,
                    target: Arc::clone(target),
                    pool: Rc::clone(self),
                    reused: true,
                });
            }
        }
        None
    }

    /// Begins to speak on a new connection, for one exchange.
    pub(super) async fn begin(
        self: &Rc<Self>,
        target: &Arc<Target>,
        stream: Stream,
    ) -> Result<Lease, Refused> {
        let (sender, driver) = Builder::new()
            .preserve_header_case(true)
            .max_headers(FIELD_LIMIT)
            .max_buf_size(BUFFER_LIMIT)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| (Failure::Unreachable, error.to_string()))?;
        // Its errors reach whoever waits for an answer or reads a body.
        let driver = tokio::task::spawn_local(async move { drop(driver.await) }).abort_handle();
        Ok(Lease {
            link: Link {
                sender,
                _driver: AbortOnDrop(driver),
            },
            target: Arc::clone(target),
            pool: Rc::clone(self),
            reused: false,
        })
    }

    /// Closes what is too old; the oldest stand first.
    pub(super) fn sweep(&self) {
        for links in self.idle.borrow_mut().values_mut() {
            links.retain(|idle| !idle.link.sender.is_closed() && idle.since.elapsed() < KEPT);
        }
    }

    fn put(&self, target: &Target, link: Link) {
        let mut idle = self.idle.borrow_mut();
        let links = idle.entry(target.name.clone()).or_default();
        if links.len() < KEPT_EACH {
            links.push(Idle {
                link,
                since: Instant::now(),
            });
        }
    }
}

impl Lease {
    /// Sends the request and waits for the answer's head.
    pub(super) async fn attempt(&mut self, request: Request<Outgoing>) -> Attempt {
        match self.link.sender.try_send_request(request).await {
            Ok(answer) if answer.status().is_informational() => Attempt::Failed(Failure::NoAnswer),
            Ok(answer) => Attempt::Answered(answer),
            Err(mut error) => match error.take_message() {
                Some(unsent) => Attempt::NeverSent(unsent),
                None => {
                    let cause = error.error();
                    tracing::warn!(upstream = self.target.name, %cause, "no answer from the upstream");
                    Attempt::Failed(match cause.is_parse() || cause.is_parse_too_large() {
                        true => Failure::BadAnswer,
                        false => Failure::NoAnswer,
                    })
                }
            },
        }
    }

    /// The exchange ended well: the connection is kept as soon as it can take another request. One whose request is
    /// still being sent never will, and closes with the client's.
    pub(super) fn give_back(self) {
        let Self {
            mut link,
            target,
            pool,
            ..
        } = self;
        if link.sender.is_ready() {
            pool.put(&target, link);
            return;
        }
        tokio::task::spawn_local(async move {
            if link.sender.ready().await.is_ok() {
                pool.put(&target, link);
            }
        });
    }
}
