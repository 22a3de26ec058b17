//! Forwarded to the byte: what arrives is what was sent, in both directions.

use super::ends::*;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[tokio::test]
async fn a_request_head_arrives_as_it_was_sent_but_for_the_host() {
    let ends = Ends::start().await;
    let request: &[u8] = b"POST /v1/a%20b//c;p=1/../d^{|}?q=1&&r=%2F&s=?^ HTTP/1.1\r\n\
        X-First:no space\r\n\
        x-SPACES:  \t two before,  two inside, some behind \t \r\n\
        hOsT: proxy\r\n\
        X-Twice: 1\r\n\
        X-Empty:\r\n\
        X-Empty: \r\n\
        x-twice: 2\r\n\
        !#$%&'*+-.^_`|~09azAZ: an odd name\r\n\
        X-Octets: \x80\xff\xe4 \xf0\x9f\x8c\x8a\r\n\
        X-Twice: 1\r\n\
        Cookie: a=1\r\n\
        Cookie: b=2\r\n\
        X-Forwarded-For: 10.0.0.1\r\n\
        Via: 1.1 somebody\r\n\
        content-LENGTH:002\r\n\
        \r\n{}";
    let (mut client, mut upstream) = ends.asked(request).await;
    upstream.send(OK).await;
    client.expect(OK).await;
}

#[tokio::test]
async fn an_answer_head_arrives_as_it_was_sent() {
    let ends = Ends::start().await;
    let answers: [&[u8]; 6] = [
        b"HTTP/1.1 299 Quite  an odd\treason!\r\nServer: \r\nSet-Cookie: a=1\r\nSET-cookie: b=2\r\nset-cookie:c=3\r\n\
            Date: yesterday\r\nVia: 1.0 somebody\r\nX-Octets: \x80\xff \xf0\x9f\x8c\x8a  x \t \r\nContent-Length:  002 \r\n\r\nok",
        b"HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 \xfcbel\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 599 OK\r\ncontent-length: 0\r\nX-Z: 1\r\nX-A: 1\r\n\r\n",
        b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTRANSFER-Encoding: CHUNKED\r\n\r\n0\r\n\r\n",
    ];
    let request = "GET /v1/x HTTP/1.1\r\nHost: proxy\r\n\r\n";
    let (mut client, mut upstream) = ends.asked(request).await;
    for (index, answer) in answers.into_iter().enumerate() {
        if index > 0 {
            client.send(request).await;
            upstream.expect(ends.onward(request)).await;
        }
        upstream.send(answer).await;
        client.expect(answer).await;
    }
    client.expect_silence().await;
}

#[tokio::test]
async fn any_method_passes_in_its_own_case() {
    let ends = Ends::start().await;
    let mut pair = None;
    for method in [
        "GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "M-SEARCH", "get", "x!",
    ] {
        let request = format!("{method} /v1/x HTTP/1.1\r\nHost: proxy\r\n\r\n");
        let (mut client, mut upstream) = match pair.take() {
            None => ends.asked(&request).await,
            Some((mut client, mut upstream)) => {
                let (one, other): (&mut Peer, &mut Peer) = (&mut client, &mut upstream);
                one.send(&request).await;
                other.expect(ends.onward(&request)).await;
                (client, upstream)
            }
        };
        upstream.send(OK).await;
        client.expect(OK).await;
        pair = Some((client, upstream));
    }
}

#[tokio::test]
async fn chunks_keep_their_framing_in_both_directions() {
    const CHUNKS: &str = "5;ext=1;Quoted=\"a;b\\\"c\"\r\nhello\r\n00A\r\n0123456789\r\n0a;x\r\nabcdefghij\r\n0000000000000001;y\r\n.\r\n\
        000;last\r\nX-Sum:  1 \r\nx-sum: 2\r\nETag: \"q\"\r\n\r\n";
    let ends = Ends::start().await;
    let request = format!(
        "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n{CHUNKS}"
    );
    let (mut client, mut upstream) = ends.asked(&request).await;
    let answer = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{CHUNKS}");
    upstream.send(&answer).await;
    client.expect(&answer).await;

    // Both know where that body ended.
    client.send(&request).await;
    upstream.expect(ends.onward(&request)).await;
    upstream.send(OK).await;
    client.expect(OK).await;
}

#[tokio::test]
async fn a_request_without_a_body_gets_no_framing() {
    let ends = Ends::start().await;
    for request in [
        "GET /v1/x HTTP/1.1\r\nHost: proxy\r\n\r\n",
        "POST /v1/x HTTP/1.1\r\nHost: proxy\r\n\r\n",
        "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: 0\r\n\r\n",
        "GET /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: 3\r\n\r\nabc",
        "DELETE /v1/x HTTP/1.1\r\nHost: proxy\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    ] {
        let (mut client, mut upstream) = ends.asked(request).await;
        upstream.expect_silence().await;
        upstream
            .send(OK.replace("OK\r\n", "OK\r\nConnection: close\r\n"))
            .await;
        client.expect(OK).await;
    }
}

#[tokio::test]
async fn empty_lines_before_a_request_are_not_forwarded() {
    let ends = Ends::start().await;
    let request = "GET /v1/x HTTP/1.1\r\nHost: proxy\r\n\r\n";
    let mut client = ends.client().await;
    client.send(format!("\r\n\r\n{request}")).await;
    let mut upstream = ends.upstream().await;
    upstream.expect(ends.onward(request)).await;
    upstream.send(OK).await;
    client.expect(OK).await;
    client.send(format!("\r\n{request}")).await;
    upstream.expect(ends.onward(request)).await;
    upstream.send(OK).await;
    client.expect(OK).await;
}

#[tokio::test]
async fn an_absolute_target_goes_on_as_a_path() {
    let ends = Ends::start().await;
    let mut client = ends.client().await;
    client
        .send("GET http://proxy/v1/x?y=http://z HTTP/1.1\r\nX-A: 1\r\nHost: proxy\r\n\r\n")
        .await;
    let mut upstream = ends.upstream().await;
    let wanted = "GET /v1/x?y=http://z HTTP/1.1\r\nX-A: 1\r\nHost: proxy\r\n\r\n";
    upstream.expect(ends.onward(wanted)).await;
}

#[tokio::test]
async fn fields_of_this_connection_end_here() {
    let ends = Ends::start().await;
    let mut client = ends.client().await;
    client
        .send(
            "GET /v1/x HTTP/1.1\r\nKeep-Alive: timeout=5\r\nX-Before: 1\r\nHost: proxy\r\nConnection: keep-alive, X-Private ,,\tx-second\r\n\
             X-Private: 1\r\nX-Kept: a\r\nProxy-Connection: keep-alive\r\nX-SECOND: 2\r\nTE: gzip\r\nUpgrade: h2c\r\nx-second: 3\r\n\
             HTTP2-Settings: AAMAAABk\r\nProxy-Authorization: Basic eDp5\r\nTrailer: X-Sum\r\n\r\n",
        )
        .await;
    let mut upstream = ends.upstream().await;
    let wanted = "GET /v1/x HTTP/1.1\r\nX-Before: 1\r\nHost: proxy\r\nX-Kept: a\r\nProxy-Authorization: Basic eDp5\r\nTrailer: X-Sum\r\n\r\n";
    upstream.expect(ends.onward(wanted)).await;
    upstream
        .send(
            "HTTP/1.1 200 OK\r\nX-Before: 1\r\nConnection: X-Private\r\nX-Private: 1\r\nKeep-Alive: timeout=5\r\nX-Kept: a\r\n\
             Proxy-Connection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
        )
        .await;
    client
        .expect("HTTP/1.1 200 OK\r\nX-Before: 1\r\nX-Kept: a\r\nContent-Length: 2\r\n\r\nok")
        .await;
}

#[tokio::test]
async fn framing_and_host_cannot_be_named_away() {
    let ends = Ends::start().await;
    for (field, body) in [
        ("Content-Length: 2", "{}"),
        ("Transfer-Encoding: chunked", "2\r\n{}\r\n0\r\n\r\n"),
    ] {
        let mut client = ends.client().await;
        client
            .send(format!(
                "POST /v1/x HTTP/1.1\r\nConnection: host, Content-Length, transfer-encoding\r\nHost: proxy\r\n{field}\r\n\r\n{body}"
            ))
            .await;
        let mut upstream = ends.upstream().await;
        let wanted = format!("POST /v1/x HTTP/1.1\r\nHost: proxy\r\n{field}\r\n\r\n{body}");
        upstream.expect(ends.onward(wanted)).await;
        upstream
            .send(format!(
                "HTTP/1.1 200 OK\r\nConnection: close, content-length, Transfer-Encoding\r\n{field}\r\n\r\n{body}"
            ))
            .await;
        client
            .expect(format!("HTTP/1.1 200 OK\r\n{field}\r\n\r\n{body}"))
            .await;
    }
}

#[tokio::test]
async fn a_client_that_takes_trailers_may_say_so() {
    let ends = Ends::start().await;
    let mut client = ends.client().await;
    client
        .send("GET /v1/x HTTP/1.1\r\nHost: proxy\r\nTE: gzip;q=0.5, Trailers\r\nConnection: TE\r\n\r\n")
        .await;
    let mut upstream = ends.upstream().await;
    let head = upstream.head().await;
    assert_eq!(field(&head, "te"), Some("trailers"), "{head}");
    let connection = field(&head, "connection").unwrap_or_default();
    assert!(connection.eq_ignore_ascii_case("te"), "{head}");
    let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Sum: 1\r\n\r\n";
    upstream.send(answer).await;
    client.expect(answer).await;
}

#[tokio::test]
async fn heads_just_inside_the_limits_pass() {
    let ends = Ends::start().await;
    let long = format!("X-Long: {}\r\n", "v".repeat(65_000));
    let many: String = (0..255)
        .map(|number| format!("X-{number}: {number}\r\n"))
        .collect();
    for fields in [long, many] {
        let request = format!("GET /v1/x HTTP/1.1\r\nHost: proxy\r\n{fields}\r\n");
        let (mut client, mut upstream) = ends.asked(&request).await;
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{fields}\r\n");
        upstream.send(&answer).await;
        client.expect(&answer).await;
        upstream.reset();
    }
}

#[tokio::test]
async fn a_pseudonym_adds_via_in_both_directions_and_nothing_else() {
    let ends = Ends::with(Lines {
        server: "via = \"edge\"",
        ..Lines::default()
    })
    .await;
    let mut client = ends.client().await;
    client
        .send("GET /v1/x HTTP/1.1\r\nHost: proxy\r\nVia: 1.0 before\r\nX-A: 1\r\n\r\n")
        .await;
    let mut upstream = ends.upstream().await;
    let wanted =
        "GET /v1/x HTTP/1.1\r\nHost: proxy\r\nVia: 1.0 before\r\nX-A: 1\r\nVia: 1.1 edge\r\n\r\n";
    upstream.expect(ends.onward(wanted)).await;
    upstream.send(OK).await;
    client
        .expect("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nVia: 1.1 edge\r\n\r\nok")
        .await;
}

#[tokio::test]
async fn forwarded_fields_are_added_to_requests_when_configured() {
    let ends = Ends::with(Lines {
        server: "forwarded = true",
        ..Lines::default()
    })
    .await;
    let mut client = ends.client().await;
    client
        .send("GET /v1/x HTTP/1.1\r\nHost: proxy\r\nX-A: 1\r\n\r\n")
        .await;
    let mut upstream = ends.upstream().await;
    let head = upstream.head().await;
    let (before, added) = head.split_at(head.find("X-A: 1\r\n").unwrap() + 8);
    assert_eq!(
        before.as_bytes(),
        ends.onward("GET /v1/x HTTP/1.1\r\nHost: proxy\r\nX-A: 1\r\n")
    );
    let mut added: Vec<&str> = added.trim_end().split("\r\n").collect();
    added.sort_unstable();
    assert_eq!(
        added,
        [
            "X-Forwarded-For: 127.0.0.1",
            "X-Forwarded-Host: proxy",
            "X-Forwarded-Proto: http"
        ]
    );
    upstream.send(OK).await;
    client.expect(OK).await;
}
