//! One stream of a client's connection: a request and its answer, from head to head; the bodies then flow by themselves.

use std::cell::Cell;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::time::Instant;

use super::super::counters::{Counted, Counters};
use super::super::held::Record;
use super::super::thread::Thread;
use super::answer::{Answer, BodyError};
use super::passage::{Passage, Received};
use super::{fields, wants_http2};
use crate::gateway::answers::{self, Failure, LocalAnswer, Shape};
use crate::gateway::{Decision, RequestHead, Target};

/// What the streams of one connection have in common.
pub(super) struct Client {
    pub(super) peer: Option<SocketAddr>,
    open: Cell<usize>,
    /// Since when no request is being answered.
    idle_since: Cell<Instant>,
}

/// A request whose answer is not yet written to its end.
struct InFlight {
    client: Rc<Client>,
    record: Record,
    _counted: Counted,
}

/// An answer's body; holds its request in flight until hyper lets go of it.
pub(super) struct Outcome {
    body: OutcomeBody,
    in_flight: InFlight,
}

enum OutcomeBody {
    /// Ours.
    Local(Full<Bytes>),
    /// The upstream's.
    Relayed(Answer),
}

/// Where a request goes; owned, for the head that it was decided by changes on its way.
struct Route {
    target: std::sync::Arc<Target>,
    shape: Shape,
}

/// Serves one request. What fails is answered or, once the answer has begun, resets its stream; so there is no error.
pub(super) async fn exchange(
    thread: Rc<Thread>,
    client: Rc<Client>,
    request: Request<Incoming>,
) -> Result<Response<Outcome>, Infallible> {
    let in_flight = InFlight::begin(&thread, &client, request.uri().path());
    let (mut head, body) = request.into_parts();
    let is_head = head.method == Method::HEAD;
    let route = match decide(&thread, &mut head) {
        Ok(route) => route,
        // The rest of the body is not waited for: after the answer the stream is reset without an error, which says so.
        Err(answer) => return Ok(local(&answer, is_head, in_flight)),
    };
    fields::add_configured(
        &mut head,
        &thread.config.server,
        client.peer.map(|peer| peer.ip()),
    );
    let body = Received {
        body,
        entry: Rc::clone(in_flight.record.entry()),
    };
    let passage = Passage::new(body, thread.config.server.body_timeout);
    let target = &route.target;
    let sent = match wants_http2(target) {
        true => thread.http2.send_http2(target, head, &passage).await,
        false => thread.http2.send_http1(target, head, &passage).await,
    };
    Ok(match sent {
        Ok(answer) => downward(&thread, answer, in_flight),
        Err(failure) => {
            if failure.is_failure_to_serve() {
                thread.counters.local_5xx();
            }
            let answer = answers::failure(route.shape, failure, &target.name);
            local(&answer, is_head, in_flight)
        }
    })
}

/// What the gateway says, and before it what no upstream could be asked. The head then asks for the upstream's path.
fn decide(thread: &Thread, head: &mut Parts) -> Result<Route, LocalAnswer> {
    let ask = RequestHead {
        method: head.method.as_str(),
        path: head.uri.path(),
        query: head.uri.query(),
        upgrade: None,
        fields: &head.headers,
    };
    let shape = Shape::of(&ask);
    if head.method == Method::CONNECT {
        return Err(answers::failure(shape, Failure::NoTunnel, ""));
    }
    if let Err(sentence) = fields::check(head) {
        return Err(answers::refused(shape, 400, sentence));
    }
    let forward = match thread.gateway.decide(&ask) {
        Decision::Forward(forward) => forward,
        Decision::Answer(answer) => return Err(answer),
    };
    let path = forward.path_and_query.to_path_and_query();
    let (target, shape) = (std::sync::Arc::clone(forward.target), forward.shape);
    let path = path.ok_or_else(|| answers::bad_target(shape))?;
    let mut parts = std::mem::take(&mut head.uri).into_parts();
    parts.path_and_query = Some(path);
    // Only a scheme without an authority could fail, and hyper makes none.
    head.uri = Uri::from_parts(parts).map_err(|_| answers::bad_target(shape))?;
    Ok(Route { target, shape })
}

/// The answer as the client gets it.
fn downward(thread: &Thread, answer: Response<Answer>, in_flight: InFlight) -> Response<Outcome> {
    let (mut head, body) = answer.into_parts();
    let version = fields::version_of(head.version);
    fields::add_via(&mut head.headers, &thread.config.server, version);
    head.version = Version::HTTP_2;
    let body = Outcome {
        body: OutcomeBody::Relayed(body),
        in_flight,
    };
    Response::from_parts(head, body)
}

fn local(answer: &LocalAnswer, is_head: bool, in_flight: InFlight) -> Response<Outcome> {
    let length = HeaderValue::from(answer.body.len());
    let body = match is_head {
        true => Bytes::new(),
        false => answer.body.clone(),
    };
    let mut response = Response::new(Outcome {
        body: OutcomeBody::Local(Full::new(body)),
        in_flight,
    });
    *response.status_mut() =
        StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let fields = response.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    fields.insert(CONTENT_LENGTH, length);
    if let Some(allow) = answer.allow {
        fields.insert(ALLOW, HeaderValue::from_static(allow));
    }
    response
}

impl Client {
    pub(super) fn new(peer: Option<SocketAddr>) -> Rc<Self> {
        Rc::new(Self {
            peer,
            open: Cell::new(0),
            idle_since: Cell::new(Instant::now()),
        })
    }

    /// Since when nothing is asked; `None` while something is.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        (self.open.get() == 0).then(|| self.idle_since.get())
    }
}

impl InFlight {
    fn begin(thread: &Thread, client: &Rc<Client>, route: &str) -> Self {
        let record = thread.register.record(client.peer);
        record.begin(route.as_bytes(), 0);
        client.open.set(client.open.get() + 1);
        Self {
            client: Rc::clone(client),
            record,
            _counted: Counters::request(&thread.counters),
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let client = &self.client;
        client.open.set(client.open.get() - 1);
        client.idle_since.set(Instant::now());
    }
}

impl Body for Outcome {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let frame = match &mut this.body {
            OutcomeBody::Local(body) => Pin::new(body)
                .poll_frame(cx)
                .map(|frame| frame.map(|frame| frame.map_err(|never| match never {}))),
            OutcomeBody::Relayed(answer) => Pin::new(answer).poll_frame(cx),
        };
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            let entry = this.in_flight.record.entry();
            entry.written(frame.data_ref().map_or(0, Bytes::len));
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            OutcomeBody::Local(body) => body.is_end_stream(),
            OutcomeBody::Relayed(answer) => answer.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            OutcomeBody::Local(body) => body.size_hint(),
            OutcomeBody::Relayed(answer) => answer.size_hint(),
        }
    }
}
