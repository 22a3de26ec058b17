//! One request and its answer, from head to head; the bodies then flow by themselves ([`super::body`]).

use std::convert::Infallible;
use std::rc::Rc;

use http::header::{ALLOW, CONTENT_TYPE, EXPECT, HOST, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;

use super::body::{AnswerBody, LeftOver, RequestBody};
use super::connection::Standing;
use super::counters::{Counted, Counters};
use super::headers;
use super::pool::Lease;
use super::thread::Thread;
use crate::gateway::answers::{self, Failure, LocalAnswer, Shape};
use crate::gateway::{Decision, RequestHead, Target};

/// A request whose answer is not yet written to its end.
pub(super) struct InFlight {
    standing: Rc<Standing>,
    _counted: Counted,
}

/// Serves one request. What fails is answered or, once the answer has begun, aborts its body; so there is no error.
pub(super) async fn exchange(
    thread: Rc<Thread>,
    standing: Rc<Standing>,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Infallible> {
    let (head, body) = request.into_parts();
    let in_flight = InFlight::begin(&thread, standing, head.version);

    let forward = match decide(&thread, &head) {
        Ok(forward) => forward,
        Err(answer) => {
            settle(&head.headers, LeftOver::of(body)).await;
            return Ok(local(answer, in_flight));
        }
    };

    let expects = expects_continue(&head.headers);
    let (body, left_over) = RequestBody::new(body);
    let request = upward(head, &forward, body);
    match thread.upstreams.send(forward.target, request).await {
        Ok((answer, lease)) => Ok(downward(answer, lease, &forward, in_flight)),
        Err(failure) => {
            let failure = match left_over.is_broken() {
                // The upstream is not to blame for a body that we could not give it.
                true => Failure::BadBody,
                false => failure,
            };
            if !expects {
                left_over.discard().await;
            }
            if failure.is_failure_to_serve() {
                thread.counters.local_5xx();
            }
            Ok(local(
                answers::failure(forward.shape, failure, &forward.target.name),
                in_flight,
            ))
        }
    }
}

/// Where a request goes, in hyper's own terms.
struct Forward<'a> {
    target: &'a std::sync::Arc<Target>,
    path_and_query: PathAndQuery,
    shape: Shape,
}

/// What the gateway says, and before it what no upstream could be asked: tunnels come with a later version.
fn decide<'a>(thread: &'a Thread, head: &Parts) -> Result<Forward<'a>, LocalAnswer> {
    let ask = RequestHead {
        method: head.method.as_str(),
        path: head.uri.path(),
        query: head.uri.query(),
        upgrade: None,
        fields: &head.headers,
    };
    if head.method == Method::CONNECT || headers::wants_upgrade(&head.headers) {
        return Err(answers::failure(Shape::of(&ask), Failure::NoTunnel, ""));
    }
    if headers::has_other_coding(&head.headers) {
        return Err(answers::failure(
            Shape::of(&ask),
            Failure::UnknownCoding,
            "",
        ));
    }
    match thread.gateway.decide(&ask) {
        Decision::Answer(answer) => Err(answer),
        Decision::Forward(forward) => match forward.path_and_query.to_path_and_query() {
            Some(path_and_query) => Ok(Forward {
                target: forward.target,
                path_and_query,
                shape: forward.shape,
            }),
            None => Err(answers::bad_target(forward.shape)),
        },
    }
}

/// The request as the upstream gets it: its own `Host`, nothing of this connection, everything else untouched.
fn upward(mut head: Parts, forward: &Forward<'_>, body: RequestBody) -> Request<RequestBody> {
    headers::strip_hop_by_hop(&mut head.headers);
    if let Ok(host) = HeaderValue::from_str(forward.target.authority.as_str()) {
        head.headers.insert(HOST, host);
    }
    head.uri = Uri::from(forward.path_and_query.clone());
    head.version = Version::HTTP_11;
    Request::from_parts(head, body)
}

/// The answer as the client gets it.
fn downward(
    answer: Response<Incoming>,
    lease: Lease,
    forward: &Forward<'_>,
    in_flight: InFlight,
) -> Response<AnswerBody> {
    let (mut head, body) = answer.into_parts();
    headers::strip_hop_by_hop(&mut head.headers);
    head.version = Version::HTTP_11;
    let idle_timeout = forward.target.upstream.idle_timeout;
    Response::from_parts(
        head,
        AnswerBody::relayed(body, lease, idle_timeout, in_flight),
    )
}

fn local(answer: LocalAnswer, in_flight: InFlight) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::local(answer.body, in_flight));
    *response.status_mut() =
        StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let fields = response.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(allow) = answer.allow {
        fields.insert(ALLOW, HeaderValue::from_static(allow));
    }
    response
}

/// Takes in the body of a request that is not forwarded, unless the client waits for our word before it sends it.
async fn settle(fields: &HeaderMap, body: LeftOver) {
    if !expects_continue(fields) {
        body.discard().await;
    }
}

fn expects_continue(fields: &HeaderMap) -> bool {
    fields
        .get(EXPECT)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

impl InFlight {
    fn begin(thread: &Thread, standing: Rc<Standing>, version: Version) -> Self {
        standing.begin(version);
        Self {
            standing,
            _counted: Counters::request(&thread.counters),
        }
    }

    /// The answer was given to hyper to its end.
    pub(super) fn answered(&self) {
        self.standing.answered();
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.standing.end();
    }
}
