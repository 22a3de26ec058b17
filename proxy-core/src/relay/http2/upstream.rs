//! The other side of an exchange: which connection the request goes out on, and whether it may be tried again.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response};
use http_body::Body;

use super::super::tls::Tls;
use super::answer::Answer;
use super::connect::{Refused, connect};
use super::passage::Passage;
use super::shared::{Link, PULSE, Shared, Slot};
use super::{fields, http1, stream};
use crate::gateway::Target;
use crate::gateway::answers::Failure;

/// How many connections a request is tried on that has had no effect yet.
const ATTEMPTS: usize = 4;

/// The upstream connections of one thread for requests that are in HTTP/2 on one side at least.
pub(in crate::relay) struct Upstreams {
    http1: Rc<http1::Pool>,
    http2: Rc<Shared>,
    tls: Tls,
}

impl Upstreams {
    pub(in crate::relay) fn new(tls: Tls) -> Self {
        Self {
            http1: Rc::default(),
            http2: Rc::default(),
            tls,
        }
    }

    /// Closes what nobody used for long.
    pub(in crate::relay) fn sweep(&self) {
        self.http1.sweep();
        self.http2.sweep();
    }

    /// Sends the request in HTTP/1.1 and waits for the answer's head. A request goes out once: only one of which nothing
    /// was written is tried on another connection.
    pub(super) async fn send_http1(
        &self,
        target: &Arc<Target>,
        mut head: Parts,
        passage: &Rc<Passage>,
    ) -> Result<Response<Answer>, Failure> {
        let body = passage.outgoing();
        // hyper itself gives back what it did not send.
        passage.taken();
        let unknown_length = !body.is_end_stream() && body.size_hint().exact().is_none();
        fields::to_http1(&mut head, target, unknown_length);
        let mut request = Request::from_parts(head, body);
        let (answer, lease) = loop {
            let mut lease = match self.http1.take(target) {
                Some(lease) => lease,
                None => {
                    in_time(target, async {
                        let stream = connect(&self.tls, target).await?;
                        self.http1.begin(target, stream).await
                    })
                    .await?
                }
            };
            match first_byte(target, lease.attempt(request)).await? {
                http1::Attempt::Answered(answer) => break (answer, lease),
                http1::Attempt::NeverSent(unsent) if lease.reused => request = unsent,
                http1::Attempt::NeverSent(_) => return Err(Failure::NoAnswer),
                http1::Attempt::Failed(failure) => {
                    return Err(passage.failure().unwrap_or(failure));
                }
            }
        };
        let (mut head, body) = answer.into_parts();
        fields::strip_hop_by_hop(&mut head.headers);
        let idle_timeout = target.upstream.idle_timeout;
        let body = Answer::http1(body, lease, Rc::clone(passage), idle_timeout);
        Ok(Response::from_parts(head, body))
    }

    /// Sends the request in HTTP/2 and waits for the answer's head. A request is done once: only one that the upstream
    /// has not looked at is tried on another connection.
    pub(super) async fn send_http2(
        &self,
        target: &Arc<Target>,
        mut head: Parts,
        passage: &Rc<Passage>,
    ) -> Result<Response<Answer>, Failure> {
        fields::to_http2(&mut head, target);
        let mut refused: Option<Rc<Slot>> = None;
        for _ in 0..ATTEMPTS {
            let slot = self.slot(target, refused.as_deref()).await?;
            let request = Request::from_parts(head.clone(), ());
            let attempt = stream::attempt(&slot, &target.name, request, passage);
            match first_byte(target, attempt).await? {
                stream::Attempt::Answered(answer) => {
                    let (mut head, stream) = answer.into_parts();
                    fields::strip_hop_by_hop(&mut head.headers);
                    let idle_timeout = target.upstream.idle_timeout;
                    let body = Answer::http2(stream, slot, Rc::clone(passage), idle_timeout);
                    return Ok(Response::from_parts(head, body));
                }
                stream::Attempt::Untouched if passage.can_start_again() => refused = Some(slot),
                stream::Attempt::Untouched => break,
                stream::Attempt::Failed(failure) => {
                    return Err(passage.failure().unwrap_or(failure));
                }
            }
        }
        Err(passage.failure().unwrap_or(Failure::NoAnswer))
    }

    /// A stream of a connection that has room for it, perhaps a new one.
    async fn slot(&self, target: &Arc<Target>, avoid: Option<&Slot>) -> Result<Rc<Slot>, Failure> {
        loop {
            if let Some(slot) = self.http2.take(target, avoid) {
                return Ok(slot);
            }
            let connect = || {
                let (tls, target) = (self.tls.clone(), Arc::clone(target));
                async move {
                    in_time(&target, async {
                        let stream = connect(&tls, &target).await?;
                        Link::begin(&target, stream, PULSE).await
                    })
                    .await
                }
            };
            self.http2.open(target, connect).await?;
        }
    }
}

/// Connects in time or not at all; the log says why.
async fn in_time<T>(
    target: &Target,
    connecting: impl Future<Output = Result<T, Refused>>,
) -> Result<T, Failure> {
    let upstream = &target.name;
    match tokio::time::timeout(target.upstream.connect_timeout, connecting).await {
        Ok(Ok(connected)) => Ok(connected),
        Ok(Err((failure, cause))) => {
            tracing::warn!(upstream, cause, "cannot connect to the upstream");
            Err(failure)
        }
        Err(_elapsed) => {
            tracing::warn!(upstream, "cannot connect to the upstream in time");
            Err(Failure::ConnectTimeout)
        }
    }
}

/// Waits for an answer's head as long as the upstream may take.
async fn first_byte<T>(target: &Target, answer: impl Future<Output = T>) -> Result<T, Failure> {
    match target.upstream.first_byte_timeout {
        Duration::ZERO => Ok(answer.await),
        limit => tokio::time::timeout(limit, answer)
            .await
            .map_err(|_elapsed| Failure::AnswerTimeout),
    }
}
