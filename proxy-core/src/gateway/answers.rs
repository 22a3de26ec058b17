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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `{"type":"error","error":{"type":…,"message":…}}`
    Anthropic,
    /// `{"error":{"message":…,"type":…,"param":null,"code":…}}`
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
    /// The request asks for a protocol switch or a tunnel, which this version does not do.
    NoTunnel,
}

impl Failure {
    /// The status code that the client gets.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::Unreachable | Self::NoAnswer | Self::BadAnswer => 502,
            Self::BadBody => 400,
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
        }
    }

    /// Whether it counts as a failure to serve; a request that nobody could serve does not.
    #[must_use]
    pub const fn is_failure_to_serve(self) -> bool {
        !matches!(self, Self::NoTunnel | Self::BadBody | Self::UnknownCoding)
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
        Failure::NoTunnel => "rollproxy does not switch protocols or open tunnels".to_owned(),
    };
    shape.error(failure.status(), failure.code(), &message)
}

const fn anthropic_type(status: u16) -> &'static str {
    match status {
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
