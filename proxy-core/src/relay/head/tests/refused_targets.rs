//! Targets and hosts that somebody could understand in another way than we do.

use super::refused::all_refused;
use super::*;

#[test]
fn a_target_that_does_not_go_with_its_method_is_refused() {
    for line in [
        "GET *",
        "OPTIONS **",
        "GET v1/messages",
        "GET ?x",
        "GET here:80",
        "GET here",
        "GET ftp://here/",
        "GET http:/here/",
        "GET http:///",
        "GET ://here/",
        "GET http://user@here/",
        "GET http://user:password@here/",
        "GET http://here:port/",
        "GET http://here:99999/",
        "GET http://h,ere/",
        "GET /a#b",
        "GET #",
        "GET /\u{e9}",
        "GET /<",
        "GET /?>",
        "GET /\"",
        "GET /`",
        "CONNECT /",
        "CONNECT *",
        "CONNECT here",
        "CONNECT here:",
        "CONNECT here:x",
        "CONNECT http://here:80/",
        "CONNECT user@here:80",
        "CONNECT :80",
        "connect here:80",
    ] {
        let head = format!("{line} HTTP/1.1\r\nHost: here\r\n\r\n");
        all_refused([head.as_bytes()], Refusal::Target);
    }
}

#[test]
fn an_absolute_target_with_another_host_is_refused() {
    for (target, host) in [
        ("http://there/", "here"),
        ("http://here.example/", "here"),
        ("http://here:81/", "here"),
        ("http://here/", "here:81"),
        ("https://here/", "here:80"),
        ("http://[::1]/", "[::2]"),
    ] {
        let head = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        all_refused([head.as_bytes()], Refusal::OtherHost);
        let head = format!("GET {target} HTTP/1.0\r\nHost: {host}\r\n\r\n");
        all_refused([head.as_bytes()], Refusal::OtherHost);
    }
}

#[test]
fn http_1_1_without_a_host_is_refused() {
    all_refused(
        [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"GET / HTTP/1.1\r\nX-Host: here\r\n\r\n",
            b"GET http://here/ HTTP/1.1\r\n\r\n",
        ],
        Refusal::NoHost,
    );
}

#[test]
fn two_hosts_are_refused_even_if_they_agree() {
    all_refused(
        [
            &b"GET / HTTP/1.1\r\nHost: here\r\nHost: here\r\n\r\n"[..],
            b"GET / HTTP/1.1\r\nHost: here\r\nX: y\r\nhOST: there\r\n\r\n",
            b"GET / HTTP/1.0\r\nHost: here\r\nHost: here\r\n\r\n",
        ],
        Refusal::TwoHosts,
    );
}

#[test]
fn a_host_that_is_no_authority_is_refused() {
    for host in [
        "",
        "here, there",
        "here,there",
        "here there",
        "user@here",
        "user:password@here",
        "here/path",
        "http://here",
        "here?x",
        "here#x",
        "here\\x",
        ":80",
        "here:x",
        "here:-1",
        "here:65536",
        "here:80:80",
        "::1",
        "[::1",
        "[::1]x",
        "[::1]:x",
        "[]",
        "[here]",
        "[fe80::1%25eth0]",
        "h\u{e9}re",
        "h%41re",
        "\"here\"",
        "<here>",
    ] {
        let head = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        all_refused([head.as_bytes()], Refusal::Host);
    }
}
