//! From the bytes of a request's head to what is to be done with it. Nothing is sent and nothing waits here.

use std::fmt::Write as _;
use std::sync::Arc;

use super::bridge::Crossing;
use super::buffers::Buffer;
use super::client::Client;
use super::head::{Asked, Onward, RequestHead, Slots, Target as RequestTarget, Version};
use super::http2;
use super::terms::Terms;
use super::thread::Thread;
use crate::gateway::answers::{self, LocalAnswer, Shape};
use crate::gateway::{Decision, Forward as GatewayForward, RequestHead as GatewayHead, Target};

/// What is to be done.
pub(super) enum Next {
    /// Nothing before more bytes came.
    Incomplete,
    /// The head cannot be believed, and so nothing that follows it.
    Refuse(LocalAnswer),
    /// It is answered here.
    Answer(LocalAnswer, Terms),
    /// It goes to an upstream.
    Forward(Forward),
    /// It goes to an upstream that is spoken to in HTTP/2.
    Cross(Box<Crossing>),
    /// A raw tunnel to an upstream, behind a head of so many bytes.
    Connect(Arc<Target>, usize),
}

/// A request on its way to an upstream.
pub(super) struct Forward {
    pub(super) target: Arc<Target>,
    /// The head as the upstream gets it.
    pub(super) head: Buffer,
    pub(super) terms: Terms,
    /// The protocol may be switched: the client asked, and the route allows it.
    pub(super) upgrade: bool,
}

/// Reads a request's head and decides.
pub(super) fn decide(thread: &Thread, client: &Client, bytes: &[u8]) -> Next {
    let mut slots = Slots::new();
    let head = match RequestHead::parse(bytes, &mut slots) {
        Ok(Some(head)) => head,
        Ok(None) => return Next::Incomplete,
        Err(refusal) => {
            let (status, sentence) = (refusal.status(), refusal.to_string());
            return Next::Refuse(answers::refused(Shape::default(), status, &sentence));
        }
    };
    let (path, query) = match head.target {
        RequestTarget::Path { path, query } => (path, query),
        RequestTarget::Asterisk => ("*", None),
        RequestTarget::Authority(authority) => return connect(thread, &head, authority),
    };
    let asked = GatewayHead {
        method: head.method,
        path,
        query,
        fields: &head.fields,
        upgrade: head.upgrade,
    };
    match thread.gateway.decide(&asked) {
        Decision::Answer(answer) => Next::Answer(answer, terms(&head, Shape::of(&asked))),
        Decision::Forward(forward) if http2::wants_http2(forward.target) => {
            match crossing(thread, client, &head, &forward) {
                Some(crossing) => Next::Cross(Box::new(crossing)),
                None => Next::Answer(
                    answers::bad_target(forward.shape),
                    terms(&head, forward.shape),
                ),
            }
        }
        Decision::Forward(forward) => {
            let mut onward = thread.buffers.take();
            head.write_onward(
                &Onward {
                    path_and_query: forward.path_and_query.pieces(),
                    authority: forward.target.authority.as_str(),
                    upgrade: forward.upgrade,
                    extra: extra_fields(thread, client, &head).as_bytes(),
                },
                onward.end(),
            );
            Next::Forward(Forward {
                target: Arc::clone(forward.target),
                head: onward,
                terms: terms(&head, forward.shape),
                upgrade: forward.upgrade,
            })
        }
    }
}

/// The same request in the parts that HTTP/2 has; `None` where it has none for this target.
fn crossing(
    thread: &Thread,
    client: &Client,
    head: &RequestHead<'_>,
    forward: &GatewayForward<'_, '_>,
) -> Option<Crossing> {
    let mut request = http::Request::builder()
        .method(head.method)
        .uri(forward.path_and_query.to_path_and_query()?.as_str())
        .version(match head.version {
            Version::Http10 => http::Version::HTTP_10,
            Version::Http11 => http::Version::HTTP_11,
        });
    for (name, value) in head.fields.iter() {
        request = request.header(name, value);
    }
    let (mut parts, ()) = request.body(()).ok()?.into_parts();
    http2::add_configured(
        &mut parts,
        &thread.config.server,
        client.peer.map(|peer| peer.ip()),
    );
    Some(Crossing {
        target: Arc::clone(forward.target),
        request: http::Request::from_parts(parts, ()),
        terms: terms(head, forward.shape),
    })
}

fn connect(thread: &Thread, head: &RequestHead<'_>, authority: &str) -> Next {
    let shape = Shape::default();
    match thread.gateway.connect(authority) {
        Some(target) => Next::Connect(Arc::clone(target), head.length),
        None => {
            // What follows was meant for the tunnel, and may be anybody's: it is not looked at.
            let last = Terms {
                persistent: false,
                ..terms(head, shape)
            };
            Next::Answer(answers::connect_refused(shape), last)
        }
    }
}

fn terms(head: &RequestHead<'_>, shape: Shape) -> Terms {
    Terms {
        head: head.length,
        framing: head.framing,
        asked: match head.method {
            "HEAD" => Asked::Head,
            _ => Asked::Other,
        },
        is_old: head.version == Version::Http10,
        persistent: head.persistent,
        expects_continue: head.expects_continue,
        shape,
    }
}

/// The field lines that only a configuration adds.
fn extra_fields(thread: &Thread, client: &Client, head: &RequestHead<'_>) -> String {
    let server = &thread.config.server;
    let mut lines = String::new();
    if !server.via.is_empty() {
        let version = match head.version {
            Version::Http10 => "1.0",
            Version::Http11 => "1.1",
        };
        // Writing to a string never fails.
        let _ok = write!(lines, "Via: {version} {}\r\n", server.via);
    }
    if server.forwarded {
        if let Some(address) = client.peer.map(|peer| peer.ip()) {
            let _ok = write!(lines, "X-Forwarded-For: {address}\r\n");
        }
        lines.push_str("X-Forwarded-Proto: http\r\n");
        let host = crate::gateway::Fields::first(&head.fields, "host");
        if let Some(host) = host.and_then(|host| std::str::from_utf8(host).ok()) {
            let _ok = write!(lines, "X-Forwarded-Host: {host}\r\n");
        }
    }
    lines
}
