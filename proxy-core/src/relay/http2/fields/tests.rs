use std::sync::Arc;

use http::Request;

use super::*;
use crate::config::{Config, Route, Upstream};
use crate::gateway::{Decision, Gateway, RequestHead, Vitals};

struct Process;

impl Vitals for Process {
    fn ready(&self) -> bool {
        true
    }

    fn status(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}

fn head(uri: &str, fields: &[(&'static str, &'static str)]) -> Parts {
    let mut request = Request::builder().uri(uri);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

fn target() -> Arc<Target> {
    let mut config = Config::default();
    let upstream = Upstream::new("https://up.example:8443");
    config.upstreams.insert("one".into(), upstream);
    config.routes = vec![Route::new("/*", "one")];
    let gateway = Gateway::new(&config, Arc::new(Process)).unwrap();
    let none = HeaderMap::new();
    let decision = gateway.decide(&RequestHead {
        method: "GET",
        path: "/",
        query: None,
        upgrade: None,
        fields: &none,
    });
    match decision {
        Decision::Forward(forward) => Arc::clone(forward.target),
        Decision::Answer(answer) => panic!("{answer:?}"),
    }
}

fn lines(fields: &HeaderMap) -> Vec<String> {
    let mut lines: Vec<String> = fields
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    lines.sort();
    lines
}

const HTTP1: &[(&str, &str)] = &[
    ("host", "proxy"),
    ("connection", "keep-alive, X-One, TE, content-length"),
    ("keep-alive", "timeout=5"),
    ("proxy-connection", "keep-alive"),
    ("te", "deflate, Trailers"),
    ("upgrade", "h2c"),
    ("http2-settings", "AAMAAABk"),
    ("x-one", "1"),
    ("x-two", "2"),
    ("cookie", "a=1"),
    ("cookie", "b=2"),
    ("content-length", "5"),
    ("proxy-authorization", "Basic key"),
];

#[test]
fn a_head_for_http2_has_nothing_of_a_connection() {
    let mut head = head("/v1/x?y", HTTP1);
    to_http2(&mut head, &target());
    assert_eq!(head.uri, "https://up.example:8443/v1/x?y");
    assert_eq!(
        lines(&head.headers),
        [
            "content-length: 5",
            "cookie: a=1",
            "cookie: b=2",
            "proxy-authorization: Basic key",
            "te: trailers",
            "x-two: 2",
        ]
    );
}

#[test]
fn a_head_for_http1_has_one_host_one_cookie_and_its_framing() {
    let fields = [("te", "trailers"), ("cookie", "a=1"), ("cookie", "b=2")];
    let mut head = head("http://proxy/v1/x?y", &fields);
    to_http1(&mut head, &target(), true);
    assert_eq!(head.uri, "/v1/x?y");
    assert_eq!(
        lines(&head.headers),
        [
            "connection: TE",
            "cookie: a=1; b=2",
            "host: up.example:8443",
            "te: trailers",
            "transfer-encoding: chunked",
        ]
    );
}

#[test]
fn a_length_beside_chunks_is_never_forwarded() {
    let mut fields = head(
        "/",
        &[
            ("transfer-encoding", "chunked"),
            ("content-length", "5"),
            ("x", "y"),
        ],
    )
    .headers;
    strip_hop_by_hop(&mut fields);
    assert_eq!(lines(&fields), ["x: y"]);
}

#[test]
fn trailers_say_nothing_about_framing_or_routing() {
    let mut trailers = head(
        "/",
        &[
            ("content-length", "5"),
            ("transfer-encoding", "chunked"),
            ("host", "x"),
            ("connection", "x-sum"),
            ("te", "trailers"),
            ("trailer", "x"),
            ("expect", "x"),
            ("upgrade", "x"),
            ("x-two", "1"),
        ],
    )
    .headers;
    clean_trailers(&mut trailers);
    assert_eq!(lines(&trailers), ["x-two: 1"]);
}

#[test]
fn a_host_is_named_once_and_is_one() {
    for (uri, fields, good) in [
        ("http://proxy/", &[][..], true),
        ("http://proxy:80/", &[("host", "proxy:80")], true),
        ("http://proxy/", &[("host", "PROXY")], true),
        ("/", &[("host", "proxy")], true),
        ("/", &[], false),
        ("/", &[("host", "")], false),
        ("/", &[("host", "a b")], false),
        ("/", &[("host", "me@proxy")], false),
        ("/", &[("host", "a"), ("host", "a")], false),
        ("http://proxy/", &[("host", "proxy:80")], false),
        ("http://proxy/", &[("host", "")], false),
        ("http://me@proxy/", &[], false),
        ("http://proxy/", &[("content-length", "")], false),
        ("http://proxy/", &[("content-length", "0")], true),
        (
            "http://proxy/",
            &[("content-length", "0"), ("content-length", "0")],
            false,
        ),
    ] {
        assert_eq!(check(&head(uri, fields)).is_ok(), good, "{uri} {fields:?}");
    }
}
