//! Where an answer ends: every framing, every version.

use super::ends::*;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn request(method: &str) -> String {
    format!("{method} /v1/x HTTP/1.1\r\nHost: proxy\r\n\r\n")
}

#[tokio::test]
async fn answers_without_a_body_do_not_wait_for_one_and_both_connections_go_on() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = ends.asked(request("GET")).await;
    upstream.send(OK).await;
    client.expect(OK).await;
    for (method, answer) in [
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"),
        (
            "HEAD",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        ),
        ("HEAD", "HTTP/1.1 404 No\r\nX-A: 1\r\n\r\n"),
        ("GET", "HTTP/1.1 204 Nothing\r\nX-A: 1\r\n\r\n"),
        ("POST", "HTTP/1.1 204 Nothing\r\n\r\n"),
        (
            "GET",
            "HTTP/1.1 304 Same\r\nETag: \"1\"\r\nContent-Length: 1000\r\n\r\n",
        ),
        ("GET", "HTTP/1.1 304 Same\r\n\r\n"),
        ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
        (
            "GET",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        ("GET", OK),
    ] {
        client.send(request(method)).await;
        upstream.expect(ends.onward(request(method))).await;
        upstream.send(answer).await;
        client.expect(answer).await;
    }
    client.expect_silence().await;
}

#[tokio::test]
async fn an_answer_that_ends_with_its_connection_does_so_here_too() {
    let ends = Ends::start().await;
    for version in ["HTTP/1.1", "HTTP/1.0"] {
        let (mut client, mut upstream) = ends.asked(request("GET")).await;
        upstream
            .send(format!("{version} 200 OK\r\nX-A: 1\r\n\r\nfirst"))
            .await;
        client.expect("HTTP/1.1 200 OK\r\nX-A: 1\r\n").await;
        client.expect_end_of_head().await;
        client.expect("first").await;
        upstream.send("second").await;
        client.expect("second").await;
        client.expect_silence().await;
        drop(upstream);
        client.expect_closed().await;
    }
}

#[tokio::test]
async fn an_old_upstreams_answer_is_passed_on_and_its_connection_not_used_again() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = ends.asked(request("GET")).await;
    upstream
        .send("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok")
        .await;
    client.expect(OK).await;
    upstream.expect_end().await;
    client.send(request("GET")).await;
    let mut upstream = ends.upstream().await;
    upstream.expect(ends.onward(request("GET"))).await;
    upstream.send(OK).await;
    client.expect(OK).await;
}

#[tokio::test]
async fn an_upstream_that_closes_after_its_answer_costs_the_client_nothing() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = ends.asked(request("GET")).await;
    for _ in 0..3 {
        upstream
            .send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
            .await;
        client.expect(OK).await;
        upstream.expect_end().await;
        client.send(request("GET")).await;
        upstream = ends.upstream().await;
        upstream.expect(ends.onward(request("GET"))).await;
    }
}

/// A request in HTTP/1.0, and the upstream's end on which it arrived as HTTP/1.1.
async fn asked_in_http_1_0(ends: &Ends, fields: &str) -> (Peer, Peer) {
    let mut client = ends.client().await;
    client
        .send(format!("GET /v1/x HTTP/1.0\r\n{fields}X-A: 1\r\n\r\n"))
        .await;
    let mut upstream = ends.upstream().await;
    let head = upstream.head().await;
    let wanted = format!(
        "GET /v1/x HTTP/1.1\r\nHost: {}\r\nX-A: 1\r\n\r\n",
        ends.host()
    );
    assert!(head.eq_ignore_ascii_case(&wanted), "{head}");
    (client, upstream)
}

#[tokio::test]
async fn a_client_of_http_1_0_gets_chunks_as_plain_bytes_and_a_close() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = asked_in_http_1_0(&ends, "Host: proxy\r\n").await;
    upstream
        .send("HTTP/1.1 200 OK\r\nX-B: 1\r\nTransfer-Encoding: chunked\r\nX-C: 1\r\n\r\n")
        .await;
    let head = client.head().await;
    assert!(
        head.starts_with("HTTP/1.1 200 OK\r\n") || head.starts_with("HTTP/1.0 200 OK\r\n"),
        "{head}"
    );
    assert_eq!(field(&head, "transfer-encoding"), None, "{head}");
    assert_eq!(
        (field(&head, "x-b"), field(&head, "x-c")),
        (Some("1"), Some("1"))
    );
    for (framed, plain) in [
        ("5;x=y\r\nhello\r\n", "hello"),
        ("00A\r\n0123", "0123"),
        ("456789\r\n1\r\n!\r\n2\r", "456789!"),
        ("\nab\r\n", "ab"),
    ] {
        upstream.send(framed).await;
        client.expect(plain).await;
    }
    upstream.send("0\r\nX-Sum: 1\r\n\r\n").await;
    client.expect_closed().await;
}

#[tokio::test]
async fn a_client_of_http_1_0_gets_a_length_as_it_is_and_no_promise_to_go_on() {
    let ends = Ends::start().await;
    for fields in [
        "",
        "Host: proxy\r\n",
        "Connection: keep-alive\r\nHost: proxy\r\n",
    ] {
        let (mut client, mut upstream) = asked_in_http_1_0(&ends, fields).await;
        upstream
            .send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
            .await;
        let (status, head, body) = client.answer().await;
        assert_eq!((status, body.as_str()), (200, "ok"));
        let connection = field(&head, "connection").unwrap_or("close");
        assert_eq!(connection.to_lowercase(), "close", "{head}");
        client.expect_closed().await;
    }
}

#[tokio::test]
async fn a_client_that_wants_to_close_gets_its_answer_and_the_close() {
    let ends = Ends::start().await;
    let mut client = ends.client().await;
    client
        .send("GET /v1/x HTTP/1.1\r\nHost: proxy\r\nConnection: close\r\n\r\nGET /v1/never HTTP/1.1\r\nHost: proxy\r\n\r\n")
        .await;
    let mut upstream = ends.upstream().await;
    upstream.expect(ends.onward(request("GET"))).await;
    upstream.send(OK).await;
    let (status, _, body) = client.answer().await;
    assert_eq!((status, body.as_str()), (200, "ok"));
    client.expect_end().await;
    // The upstream's own connection is another matter: it serves the next client. The bytes behind a
    // request that was the last were no request.
    let mut other = ends.client().await;
    other.send(request("PUT")).await;
    upstream.expect(ends.onward(request("PUT"))).await;
}
