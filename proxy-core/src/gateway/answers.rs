//! Answers that come from here and not from an upstream, in the shape that the API's own clients understand.

use bytes::Bytes;
use serde_json::json;

use super::RequestHead;

/// An answer made here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalAnswer {
    /// The status code.
    pub status: u16,
    /// The body, always JSON.
    pub body: Bytes,
    /// `Allow`, where the status asks for it.
    pub allow: Option<&'static str>,
}

/// Whose error format an answer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shape {
    /// `{"type":"error","error":{"type":…,"message":…}}`
    Anthropic,
    /// `{"error":{"message":…,"type":…,"param":null,"code":…}}`; where a request does not tell whose it is, too.
    #[default]
    OpenAi,
}

/// What can go wrong between the client's request and the upstream's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No connection to the upstream could be made.
    Unreachable,
    /// The connection to the upstream did not stand in time.
    ConnectTimeout,
    /// The upstream closed the connection, or broke the protocol, before it answered.
    NoAnswer,
    /// What the upstream answered is no HTTP, or its head is too large.
    BadAnswer,
    /// The upstream did not answer in time.
    AnswerTimeout,
    /// The client's own body broke off or is no body.
    BadBody,
    /// The body has a transfer coding besides `chunked`, which cannot be passed on as it is.
    UnknownCoding,
    /// The request asks for a protocol switch that its route does not allow.
    NoTunnel,
    /// The head of the request did not end in time.
    HeadTimeout,
    /// The body of the request did not go on in time.
    BodyTimeout,
    /// This process has no descriptor left for a connection to the upstream.
    NoDescriptors,
    /// The upstream is to be spoken to in HTTP/2, and does not speak it.
    NoHttp2,
    /// The client went away before its answer. Nobody gets this status; logs and counts name it.
    ClientGone,
}

impl Failure {
    /// The status code that the client gets.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::Unreachable | Self::NoAnswer | Self::BadAnswer | Self::NoHttp2 => 502,
            Self::BadBody => 400,
            Self::HeadTimeout | Self::BodyTimeout => 408,
            Self::ClientGone => 499,
            Self::NoDescriptors => 503,
            Self::ConnectTimeout | Self::AnswerTimeout => 504,
            Self::NoTunnel | Self::UnknownCoding => 501,
        }
    }

    /// The stable code.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Unreachable => "upstream_unreachable",
            Self::ConnectTimeout => "upstream_connect_timeout",
            Self::NoAnswer => "upstream_no_answer",
            Self::AnswerTimeout => "upstream_answer_timeout",
            Self::BadAnswer => "upstream_bad_answer",
            Self::BadBody => "request_body_broken",
            Self::UnknownCoding => "transfer_coding_not_supported",
            Self::NoTunnel => "upgrade_not_supported",
            Self::HeadTimeout => "request_head_timeout",
            Self::BodyTimeout => "request_body_timeout",
            Self::NoDescriptors => "no_descriptors",
            Self::NoHttp2 => "upstream_no_http2",
            Self::ClientGone => "client_gone",
        }
    }

    /// Whether it counts as a failure to serve; a request that nobody could serve does not.
    #[must_use]
    pub const fn is_failure_to_serve(self) -> bool {
        self.status() >= 500 && !matches!(self, Self::NoTunnel | Self::UnknownCoding)
    }
}

impl Shape {
    /// By the path and, where both APIs have it, the header that Anthropic's clients always send.
    #[must_use]
    pub fn of(head: &RequestHead<'_>) -> Self {
        if head.path.starts_with("/v1/messages") || head.fields.first("anthropic-version").is_some()
        {
            Self::Anthropic
        } else {
            Self::OpenAi
        }
    }

    fn error(self, status: u16, code: &str, message: &str) -> LocalAnswer {
        let body = match self {
            Self::Anthropic => json!({
                "type": "error",
                "error": { "type": anthropic_type(status), "message": message },
            }),
            Self::OpenAi => json!({
                "error": { "message": message, "type": openai_type(status), "param": null, "code": code },
            }),
        };
        json(status, Bytes::from(body.to_string()))
    }
}

/// Any JSON body.
#[must_use]
pub const fn json(status: u16, body: Bytes) -> LocalAnswer {
    LocalAnswer {
        status,
        body,
        allow: None,
    }
}

/// 404: no route has this path.
#[must_use]
pub fn no_such_path(shape: Shape, method: &str, path: &str) -> LocalAnswer {
    let message = format!(
        "rollproxy has no route for {method} {}; add one to [[routes]]",
        shortened(path)
    );
    shape.error(404, "no_route", &message)
}

/// 400: the request target cannot be forwarded.
#[must_use]
pub fn bad_target(shape: Shape) -> LocalAnswer {
    shape.error(
        400,
        "bad_request_target",
        "rollproxy cannot forward this request target",
    )
}

/// A head that the parser refused, by the status that it chose; `sentence` is its own and names what is wrong.
#[must_use]
pub fn refused(shape: Shape, status: u16, sentence: &str) -> LocalAnswer {
    let code = match status {
        431 => "head_too_large",
        501 => "transfer_coding_not_supported",
        505 => "version_not_supported",
        _ => "bad_request",
    };
    shape.error(status, code, sentence)
}

/// 403 for a `CONNECT` that no route allows. The method is known and done, only not to there: so neither 501 nor 405.
#[must_use]
pub fn connect_refused(shape: Shape) -> LocalAnswer {
    shape.error(
        403,
        "connect_not_allowed",
        "rollproxy opens tunnels only to the host and port of an upstream whose route in [[routes]] has connect = true",
    )
}

/// 200 for `OPTIONS *`: it is no request to any upstream, and only asks whether there is an HTTP server here.
#[must_use]
pub fn options_of_all() -> LocalAnswer {
    LocalAnswer {
        allow: Some("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"),
        ..json(200, Bytes::from_static(b"{\"status\":\"ok\"}"))
    }
}

/// 405 for one of the proxy's own pages.
#[must_use]
pub fn method_not_allowed(shape: Shape, allow: &'static str) -> LocalAnswer {
    let answer = shape.error(
        405,
        "method_not_allowed",
        &format!("this page of rollproxy answers {allow} only"),
    );
    LocalAnswer {
        allow: Some(allow),
        ..answer
    }
}

/// The answer to a failed exchange; `upstream` is the name in the configuration, never an address.
#[must_use]
pub fn failure(shape: Shape, failure: Failure, upstream: &str) -> LocalAnswer {
    let message = match failure {
        Failure::Unreachable => format!("rollproxy could not connect to upstream {upstream}"),
        Failure::ConnectTimeout => {
            format!("rollproxy could not connect to upstream {upstream} in time")
        }
        Failure::NoAnswer => format!("upstream {upstream} closed the connection without an answer"),
        Failure::BadAnswer => format!(
            "upstream {upstream} answered with something that is no HTTP answer, or with a head that is too large"
        ),
        Failure::BadBody => "the request's body broke off, or its framing is wrong".to_owned(),
        Failure::UnknownCoding => {
            "rollproxy knows no transfer coding besides chunked; send the body without it"
                .to_owned()
        }
        Failure::AnswerTimeout => format!("upstream {upstream} did not answer in time"),
        Failure::NoTunnel => {
            "rollproxy switches to no protocol that the route in [[routes]] does not name in upgrade"
                .to_owned()
        }
        Failure::HeadTimeout => "the request's head did not end in time".to_owned(),
        Failure::BodyTimeout => "the request's body did not go on in time".to_owned(),
        Failure::NoDescriptors => {
            "rollproxy has no descriptor left for a connection to an upstream".to_owned()
        }
        Failure::NoHttp2 => format!(
            "upstream {upstream} does not speak HTTP/2; set upstreams.{upstream}.http2 = false"
        ),
        Failure::ClientGone => "the client went away".to_owned(),
    };
    shape.error(failure.status(), failure.code(), &message)
}

const fn anthropic_type(status: u16) -> &'static str {
    match status {
        403 => "permission_error",
        404 => "not_found_error",
        504 => "timeout_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    }
}

const fn openai_type(status: u16) -> &'static str {
    if status >= 500 {
        "server_error"
    } else {
        "invalid_request_error"
    }
}

/// A path is the client's own text, of any length: enough of it to recognise.
fn shortened(path: &str) -> String {
    const KEPT: usize = 200;
    match path.char_indices().nth(KEPT) {
        None => path.to_owned(),
        Some((end, _)) => format!("{}…", &path[..end]),
    }
}
