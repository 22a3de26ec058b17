use super::*;

fn sent_on(head: &str, change: impl FnOnce(&mut Onward<'_>)) -> String {
    let mut onward = Onward {
        path_and_query: ["/v1/other?x", "", "", ""],
        authority: "upstream.example",
        upgrade: false,
        extra: b"",
    };
    change(&mut onward);
    let mut out = Vec::new();
    request(head.as_bytes(), |head| head.write_onward(&onward, &mut out)).unwrap();
    String::from_utf8(out).unwrap()
}

fn sent_back(head: &str, change: impl FnOnce(&mut Back<'_>)) -> String {
    let mut back = Back {
        close: false,
        chunks: true,
        upgrade: false,
        extra: b"",
    };
    change(&mut back);
    let mut out = Vec::new();
    answer(head.as_bytes(), Asked::Other, |head| {
        head.write_onward(&back, &mut out);
    })
    .unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn fields_go_on_byte_for_byte_and_host_is_replaced_in_its_place() {
    assert_eq!(
        sent_on(
            "POST /a HTTP/1.1\r\nX-ONE:1\r\nhOsT:  here \r\nx-two:   2  \r\nCONTENT-length: 5\r\nx-one:\r\n\r\n",
            |_| {}
        ),
        "POST /v1/other?x HTTP/1.1\r\nX-ONE:1\r\nhOsT: upstream.example\r\nx-two:   2  \r\nCONTENT-length: 5\r\nx-one:\r\n\r\n"
    );
}

#[test]
fn a_missing_host_is_put_first() {
    assert_eq!(
        sent_on("\r\nGET /a HTTP/1.0\r\nA: b\r\n\r\n", |_| {}),
        "GET /v1/other?x HTTP/1.1\r\nHost: upstream.example\r\nA: b\r\n\r\n"
    );
}

#[test]
fn an_answer_goes_back_byte_for_byte() {
    assert_eq!(
        sent_back(
            "HTTP/1.0 299 \u{e9}  odd\r\nServer:x\r\nKEEP-alive: 5\r\nset-cookie: a\r\nSet-Cookie: b\r\n\r\n",
            |_| {}
        ),
        "HTTP/1.1 299 \u{e9}  odd\r\nServer:x\r\nset-cookie: a\r\nSet-Cookie: b\r\n\r\n"
    );
}

/// The field lines of what goes on, `Host` left out.
fn fields_sent_on(lines: &str, change: impl FnOnce(&mut Onward<'_>)) -> String {
    let sent = sent_on(&format!("GET / HTTP/1.1\r\nHost: h\r\n{lines}\r\n"), change);
    sent.strip_prefix("GET /v1/other?x HTTP/1.1\r\nHost: upstream.example\r\n")
        .and_then(|rest| rest.strip_suffix("\r\n"))
        .unwrap()
        .to_owned()
}

#[test]
fn fields_of_one_connection_end_here() {
    let lines = "connection: keep-alive\r\nKeep-Alive: 5\r\nPROXY-connection: keep-alive\r\nTE: gzip\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n";
    assert_eq!(fields_sent_on(lines, |_| {}), "");
    let mixed = "A: 1\r\nConnection: close\r\nB: 2\r\nTE: x\r\nUpgrade: y\r\nC: 3\r\n";
    assert_eq!(fields_sent_on(mixed, |_| {}), "A: 1\r\nB: 2\r\nC: 3\r\n");
}

#[test]
fn nominated_fields_end_here_whatever_their_case_and_place() {
    let lines = "x-one: 1\r\nConnection: X-One, close,,x-two , \r\nX-TWO: 2\r\nX-Three: 3\r\nconnection: x-three\r\nx-four: 4\r\nx-one: again\r\n";
    assert_eq!(fields_sent_on(lines, |_| {}), "x-four: 4\r\n");
}

#[test]
fn a_connection_cannot_take_away_what_frames_routes_or_expects() {
    let lines = "Connection: content-length, host, expect, transfer-encoding\r\nContent-Length: 5\r\nExpect: 100-continue\r\n";
    assert_eq!(
        fields_sent_on(lines, |_| {}),
        "Content-Length: 5\r\nExpect: 100-continue\r\n"
    );
    assert_eq!(
        fields_sent_on(
            "Connection: transfer-encoding\r\nTransfer-Encoding: chunked\r\n",
            |_| {}
        ),
        "Transfer-Encoding: chunked\r\n"
    );
}

#[test]
fn everything_else_goes_on() {
    let lines = "Authorization: Bearer key\r\nExpect: 100-continue\r\nProxy-Authorization: Basic key\r\nTrailer: x-sum\r\nVia: 1.1 other\r\nTransfer-Encoding: chunked\r\nX-Forwarded-For: 10.0.0.1\r\ncookie: a\r\ncookie: b\r\n";
    assert_eq!(fields_sent_on(lines, |_| {}), lines);
}

#[test]
fn a_client_that_takes_trailers_is_announced_anew() {
    for value in ["trailers", "gzip;q=0.5, Trailers"] {
        assert_eq!(
            fields_sent_on(
                &format!("TE: {value}\r\nA: b\r\nConnection: TE\r\n"),
                |_| {}
            ),
            "A: b\r\nTE: trailers\r\nConnection: TE\r\n"
        );
    }
}

#[test]
fn an_upgrade_goes_on_only_when_it_was_allowed() {
    let lines = "Connection: keep-alive, Upgrade, x-a\r\nUPGRADE: websocket\r\nX-A: b\r\nSec-WebSocket-Key: c\r\n";
    assert_eq!(fields_sent_on(lines, |_| {}), "Sec-WebSocket-Key: c\r\n");
    assert_eq!(
        fields_sent_on(lines, |onward| onward.upgrade = true),
        "UPGRADE: websocket\r\nSec-WebSocket-Key: c\r\nConnection: upgrade\r\n"
    );
    let trailers = format!("TE: trailers\r\n{lines}");
    assert_eq!(
        fields_sent_on(&trailers, |onward| onward.upgrade = true),
        "UPGRADE: websocket\r\nSec-WebSocket-Key: c\r\nTE: trailers\r\nConnection: upgrade, TE\r\n"
    );
}

#[test]
fn an_upgrade_that_was_not_offered_properly_never_goes_on() {
    for lines in [
        "Upgrade: websocket\r\n",
        "Connection: upgrade\r\nUpgrade: a\r\nUpgrade: b\r\n",
        "Connection: upgrade\r\nUpgrade: h2c\r\n",
    ] {
        assert_eq!(fields_sent_on(lines, |onward| onward.upgrade = true), "");
    }
}

#[test]
fn what_we_add_comes_last() {
    assert_eq!(
        fields_sent_on("TE: trailers\r\nA: b\r\n", |onward| onward.extra =
            b"Via: 1.1 us\r\n"),
        "A: b\r\nTE: trailers\r\nConnection: TE\r\nVia: 1.1 us\r\n"
    );
    assert_eq!(
        sent_back("HTTP/1.1 200 OK\r\nA: b\r\n\r\n", |back| {
            back.close = true;
            back.extra = b"Via: 1.1 us\r\n";
        }),
        "HTTP/1.1 200 OK\r\nA: b\r\nConnection: close\r\nVia: 1.1 us\r\n\r\n"
    );
}

#[test]
fn an_upstreams_connection_fields_end_here() {
    let head = "HTTP/1.1 200\r\nConnection: close, x-a\r\nX-A: b\r\nKeep-Alive: 5\r\nUpgrade: h2c\r\nProxy-Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(
        sent_back(head, |_| {}),
        "HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    assert_eq!(
        sent_back(head, |back| back.chunks = false),
        "HTTP/1.1 200\r\n\r\n"
    );
}

#[test]
fn a_switch_of_protocols_goes_back_only_when_it_was_wanted() {
    let head =
        "HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-A: b\r\n\r\n";
    assert_eq!(
        sent_back(head, |back| back.upgrade = true),
        "HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nSec-A: b\r\nConnection: upgrade\r\n\r\n"
    );
    assert_eq!(
        sent_back(head, |_| {}),
        "HTTP/1.1 101 Switching\r\nSec-A: b\r\n\r\n"
    );
}

#[test]
fn an_answer_that_cannot_have_a_body_never_speaks_of_one() {
    for status in [100, 103, 204] {
        for line in ["Content-Length: 5", "Transfer-Encoding: chunked"] {
            assert_eq!(
                sent_back(
                    &format!("HTTP/1.1 {status} x\r\n{line}\r\nA: b\r\n\r\n"),
                    |_| {}
                ),
                format!("HTTP/1.1 {status} x\r\nA: b\r\n\r\n")
            );
        }
    }
    let not_modified = "HTTP/1.1 304 x\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(sent_back(not_modified, |_| {}), not_modified);
}

#[test]
fn other_protocols_get_the_fields_that_are_the_messages_own() {
    let head = b"POST / HTTP/1.1\r\nHost: h\r\nA: 1\r\nConnection: x-b\r\nX-B: 2\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\nC: 3\r\n\r\n";
    request(head, |head| {
        let fields: Vec<_> = head.end_to_end().collect();
        assert_eq!(fields, [("A", &b"1"[..]), ("C", b"3")]);
        assert!(head.takes_trailers());
    })
    .unwrap();
    let head = b"HTTP/1.1 200 OK\r\nA: 1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\nSet-Cookie: x\r\n\r\n";
    answer(head, Asked::Other, |head| {
        let fields: Vec<_> = head.end_to_end().collect();
        assert_eq!(fields, [("A", &b"1"[..]), ("Set-Cookie", b"x")]);
    })
    .unwrap();
}
