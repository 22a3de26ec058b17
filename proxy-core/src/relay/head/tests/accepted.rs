//! Requests that are served, and what is understood of them.

use super::*;
use crate::gateway::Fields as _;

fn target(line: &str, host: &str) -> String {
    let head = format!("{line} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    request(head.as_bytes(), |head| format!("{:?}", head.target)).unwrap()
}

fn path(path: &str, query: Option<&str>) -> String {
    format!("{:?}", Target::Path { path, query })
}

#[test]
fn method_target_and_fields_are_as_sent() {
    let bytes = b"PoST /v1/a%2F?b=c?d&e HTTP/1.1\r\nHost: here\r\nX-A:  b\xe9 c \t\r\nx-a: two\r\nempty:\r\n\r\nbody";
    request(bytes, |head| {
        assert_eq!(head.method, "PoST");
        assert_eq!(
            head.target,
            Target::Path {
                path: "/v1/a%2F",
                query: Some("b=c?d&e")
            }
        );
        assert_eq!(head.version, Version::Http11);
        assert_eq!(head.length, bytes.len() - 4);
        assert_eq!(head.fields.count(), 4);
        let fields: Vec<_> = head.fields.iter().collect();
        assert_eq!(fields[1], ("X-A", &b"b\xe9 c"[..]));
        assert_eq!(head.fields.first("x-a"), Some(&b"b\xe9 c"[..]));
        assert_eq!(head.fields.first("empty"), Some(&b""[..]));
        assert_eq!(head.fields.first("none"), None);
    })
    .unwrap();
}

#[test]
fn a_head_is_nothing_until_it_is_whole() {
    let head = b"\r\n\r\nGET /a HTTP/1.1\r\nHost: here\r\nX: y\r\n\r\n";
    for cut in 0..head.len() {
        let mut slots = Slots::new();
        assert!(
            matches!(RequestHead::parse(&head[..cut], &mut slots), Ok(None)),
            "{cut}"
        );
    }
    assert_eq!(request(head, |head| head.length), Ok(head.len()));
}

#[test]
fn what_follows_a_head_is_not_looked_at() {
    let head = b"GET /a HTTP/1.1\r\nHost: here\r\n\r\n".to_vec();
    for behind in [
        &b"\n\0\x16\r"[..],
        b"GET / HTTP/1.1\n",
        &[0; HEAD_LIMIT + 1],
    ] {
        let bytes = [&head[..], behind].concat();
        assert_eq!(request(&bytes, |head| head.length), Ok(head.len()));
    }
}

#[test]
fn a_body_is_framed_by_one_length_or_by_chunks() {
    for (lines, framing) in [
        ("", Framing::None),
        ("Content-Length: 0\r\n", Framing::Length(0)),
        ("content-length:5\r\n", Framing::Length(5)),
        ("Content-Length:   0005  \r\n", Framing::Length(5)),
        (
            "Content-Length: 9223372036854775807\r\n",
            Framing::Length(i64::MAX as u64),
        ),
        ("Transfer-Encoding: chunked\r\n", Framing::Chunked),
        ("TRANSFER-ENCODING:  ChunkeD \r\n", Framing::Chunked),
        (
            "X-Content-Length: 5\r\nContent-Lengths: 6\r\n",
            Framing::None,
        ),
    ] {
        for method in ["GET", "POST", "HEAD", "X"] {
            let head = format!("{method} / HTTP/1.1\r\nHost: here\r\n{lines}\r\n");
            let found = request(head.as_bytes(), |head| head.framing);
            assert_eq!(found, Ok(framing), "{head}");
        }
    }
}

#[test]
fn each_form_of_a_target_is_understood() {
    assert_eq!(target("GET /", "here"), path("/", None));
    assert_eq!(target("GET /?", "here"), path("/", Some("")));
    assert_eq!(target("GET //a//b/../c", "here"), path("//a//b/../c", None));
    assert_eq!(target("OPTIONS *", "here"), "Asterisk");
    assert_eq!(
        target("CONNECT here:443", "here"),
        "Authority(\"here:443\")"
    );
    assert_eq!(target("CONNECT [::1]:443", "x"), "Authority(\"[::1]:443\")");
}

#[test]
fn an_absolute_target_becomes_its_path_when_the_host_agrees() {
    for (line, host, expected) in [
        ("GET http://here/a?b", "here", path("/a", Some("b"))),
        ("GET HTTP://HERE/a", "here", path("/a", None)),
        ("GET http://here", "Here", path("/", None)),
        ("GET http://here?b", "here", path("/", Some("b"))),
        ("GET http://here:80/", "here", path("/", None)),
        ("GET http://here/", "here:80", path("/", None)),
        ("GET https://here/", "here:443", path("/", None)),
        ("GET https://here:8443/", "here:8443", path("/", None)),
        ("GET http://[::1]:81/", "[::1]:81", path("/", None)),
        ("OPTIONS http://here", "here", "Asterisk".to_owned()),
        ("OPTIONS http://here/", "here", path("/", None)),
    ] {
        assert_eq!(target(line, host), expected, "{line}");
    }
}

#[test]
fn http_1_0_needs_no_host() {
    for line in ["GET / HTTP/1.0", "GET http://here/ HTTP/1.0"] {
        let head = format!("{line}\r\n\r\n");
        let version = request(head.as_bytes(), |head| head.version);
        assert_eq!(version, Ok(Version::Http10));
    }
}

#[test]
fn a_host_is_a_name_or_an_address_with_or_without_a_port() {
    for host in [
        "here",
        "here:80",
        "here:",
        "a_b.example-1.org",
        "127.0.0.1:8080",
        "[::1]",
        "[2001:db8::1]:443",
        "xn--bcher-kva.example.",
    ] {
        assert_eq!(target("GET /", host), path("/", None), "{host}");
    }
}

#[test]
fn a_connection_persists_unless_somebody_says_close() {
    for (head, persistent) in [
        ("GET / HTTP/1.1\r\nHost: h\r\n", true),
        (
            "GET / HTTP/1.1\r\nHost: h\r\nConnection: keep-alive\r\n",
            true,
        ),
        (
            "GET / HTTP/1.1\r\nHost: h\r\nConnection: x, CLOSE\r\n",
            false,
        ),
        (
            "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nConnection: keep-alive\r\n",
            false,
        ),
        ("GET / HTTP/1.1\r\nHost: h\r\nConnection: closed\r\n", true),
        ("GET / HTTP/1.0\r\n", false),
        ("GET / HTTP/1.0\r\nConnection: keep-alive\r\n", false),
    ] {
        let bytes = format!("{head}\r\n");
        let found = request(bytes.as_bytes(), |head| head.persistent);
        assert_eq!(found, Ok(persistent), "{head}");
    }
}

#[test]
fn an_expectation_counts_in_http_1_1_only() {
    for (version, value, expects) in [
        ("1.1", "100-continue", true),
        ("1.1", "100-Continue", true),
        ("1.1", "x, 100-continue", true),
        ("1.1", "x", false),
        ("1.0", "100-continue", false),
    ] {
        let head = format!("POST / HTTP/{version}\r\nHost: h\r\nExpect: {value}\r\n\r\n");
        let found = request(head.as_bytes(), |head| head.expects_continue);
        assert_eq!(found, Ok(expects), "{head}");
    }
}

#[test]
fn an_upgrade_is_one_that_connection_names_and_that_is_not_only_h2c() {
    for (lines, upgrade) in [
        (
            "Connection: Upgrade\r\nUpgrade: websocket\r\n",
            Some("websocket"),
        ),
        (
            "Upgrade: h2c, foo/1\r\nConnection: keep-alive, UPGRADE\r\n",
            Some("h2c, foo/1"),
        ),
        (
            "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: H2C\r\n",
            None,
        ),
        ("Connection: Upgrade\r\nUpgrade:\r\n", None),
        ("Connection: Upgrade\r\nUpgrade: \u{e9}\r\n", Some("\u{e9}")),
        ("Upgrade: websocket\r\n", None),
        ("Connection: upgrade\r\n", None),
        ("Connection: upgrade\r\nUpgrade: a\r\nUpgrade: b\r\n", None),
        ("", None),
    ] {
        let head = format!("GET / HTTP/1.1\r\nHost: h\r\n{lines}\r\n");
        let found = request(head.as_bytes(), |head| head.upgrade.map(str::to_owned));
        assert_eq!(found, Ok(upgrade.map(str::to_owned)), "{lines}");
        let head = head.replace("1.1", "1.0");
        assert_eq!(
            request(head.as_bytes(), |head| head.upgrade.is_some()),
            Ok(false)
        );
    }
}
