//! What arrives is what was sent.

use std::io::Read;

use fixtures::client::{KeepAlive, once};
use fixtures::script::{noise, sha256};
use serde_json::{Value, json};

use super::*;

fn fields(answer: &Value) -> Vec<(String, String)> {
    serde_json::from_value(answer["fields"].clone()).unwrap()
}

#[tokio::test]
async fn a_large_request_body_arrives_to_the_byte_with_its_length_and_in_chunks() {
    let proxy = Proxy::start().await;
    let body = noise(1, 28 << 20);
    let digest = sha256(&body);

    let (head, answer) = soon(once(
        proxy.address,
        "POST",
        "/v1/messages?plain",
        &[],
        &body,
    ))
    .await
    .unwrap();
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(
        (head.status(), &answer["sha256"]),
        (Some(200), &json!(digest))
    );

    let mut wire = proxy.connect().await;
    let head = b"POST /v1/messages?plain HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nX-Fixture-Echo-Head: 1\r\n\r\n";
    wire.stream.write_all(head).await.unwrap();
    for piece in body.chunks(777_777) {
        wire.stream
            .write_all(format!("{:X};ext=1\r\n", piece.len()).as_bytes())
            .await
            .unwrap();
        wire.stream.write_all(piece).await.unwrap();
        wire.stream.write_all(b"\r\n").await.unwrap();
    }
    wire.stream.write_all(b"0\r\n\r\n").await.unwrap();
    let (status, answer) = json_answer(&mut wire).await;
    assert_eq!((status, &answer["sha256"]), (200, &json!(digest)));
    assert!(
        fields(&answer)
            .iter()
            .all(|(name, _)| !name.eq_ignore_ascii_case("content-length")),
        "{answer}"
    );
}

#[tokio::test]
async fn a_compressed_answer_passes_as_it_is() {
    let proxy = Proxy::start().await;
    let (head, body) = soon(once(
        proxy.address,
        "POST",
        "/v1/messages?gzip",
        &[("Accept-Encoding", "gzip")],
        b"hello",
    ))
    .await
    .unwrap();
    assert_eq!(head.field("content-encoding"), Some("gzip"));
    assert_eq!(head.number("content-length"), Some(body.len() as u64));
    let mut plain = String::new();
    flate2::read::GzDecoder::new(&body[..])
        .read_to_string(&mut plain)
        .unwrap();
    let plain: Value = serde_json::from_str(&plain).unwrap();
    assert_eq!(plain["sha256"], sha256(b"hello"));
}

#[tokio::test]
async fn the_upstream_gets_the_fields_as_sent_without_those_of_this_connection() {
    let proxy = Proxy::start().await;
    let mut wire = proxy.connect().await;
    let request = b"POST /v1/a%20b//c?q=1&&r=%2F HTTP/1.1\r\nHost: proxy.example:1\r\nAuthorization: Bearer KEY\r\nX-API-Key: key\r\n\
        anthropic-Version: 2023-06-01\r\nConnection: keep-alive, X-Private\r\nX-Private: 1\r\nKeep-Alive: timeout=5\r\nTE: trailers\r\n\
        Proxy-Connection: keep-alive\r\nX-Twice: a\r\nX-Twice: b\r\nx-fixture-echo-head: 1\r\nAccept-Encoding: gzip, br\r\nContent-Length: 2\r\n\r\n{}";
    wire.stream.write_all(request).await.unwrap();
    let (status, answer) = json_answer(&mut wire).await;
    assert_eq!(status, 200);
    assert_eq!(answer["request"], "POST /v1/a%20b//c?q=1&&r=%2F HTTP/1.1");
    let mut sent = fields(&answer);
    sent.sort();
    let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(
        sent,
        [
            field("Accept-Encoding", "gzip, br"),
            field("Authorization", "Bearer KEY"),
            field("Connection", "TE"),
            field("Content-Length", "2"),
            field("Host", &proxy.upstream.address().to_string()),
            field("TE", "trailers"),
            field("X-API-Key", "key"),
            field("X-Twice", "a"),
            field("X-Twice", "b"),
            field("anthropic-Version", "2023-06-01"),
            field("x-fixture-echo-head", "1"),
        ]
    );
}

#[tokio::test]
async fn the_client_gets_the_answers_fields_and_none_of_ours() {
    let proxy = Proxy::start().await;
    let (head, _) = soon(once(
        proxy.address,
        "POST",
        "/v1/chat/completions",
        &[],
        b"{}",
    ))
    .await
    .unwrap();
    let mut names: Vec<&str> = head.fields.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["X-Fixture", "content-length", "content-type"]);
}

#[tokio::test]
async fn connections_are_reused_on_both_sides() {
    let proxy = Proxy::start().await;
    let mut client = KeepAlive::new(proxy.address, 1).asking_version();
    for _ in 0..20 {
        soon(client.request()).await;
    }
    let counts = client.counts();
    assert_eq!(
        (counts.fresh_ok, counts.reused_ok, counts.lost()),
        (1, 19, 0),
        "{counts:?}"
    );
    assert_eq!(counts.by_version.get("1.2.3"), Some(&20));
    assert_eq!(proxy.upstream.counts().connections, 1);
    // The last answer arrives a moment before its exchange is over.
    until(|| proxy.relay.load().exchanges == 0).await;
    let load = proxy.relay.load();
    assert_eq!(
        (load.connections, load.requests, load.local_5xx),
        (1, 40, 0)
    );
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let proxy = Proxy::start().await;
    let mut wire = proxy.connect().await;
    let mut requests = Vec::new();
    for number in 0..10 {
        requests
            .extend_from_slice(format!("GET /v1/{number} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes());
    }
    wire.stream.write_all(&requests).await.unwrap();
    for number in 0..10 {
        let (status, answer) = json_answer(&mut wire).await;
        assert_eq!(
            (status, answer["request"].as_str()),
            (200, Some(format!("GET /v1/{number} HTTP/1.1").as_str()))
        );
    }
}

#[tokio::test]
async fn a_client_that_waits_for_continue_gets_it() {
    let proxy = Proxy::start().await;
    let mut wire = proxy.connect().await;
    let head = b"POST /v1/messages?plain HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";
    wire.stream.write_all(head).await.unwrap();
    let interim = soon(wire.head()).await.unwrap().unwrap();
    assert_eq!(interim.status(), Some(100));
    wire.stream.write_all(b"hello").await.unwrap();
    let (status, answer) = json_answer(&mut wire).await;
    assert_eq!((status, &answer["sha256"]), (200, &json!(sha256(b"hello"))));
}

#[tokio::test]
async fn the_relay_serves_its_own_pages_over_a_unix_socket_too() {
    let proxy = Proxy::start().await;
    soon(proxy.relay.self_test()).await.unwrap();
    until(|| proxy.relay.load().connections == 0).await;
    let (status, page) = soon(fixtures::client::get_json(proxy.address, "/status"))
        .await
        .unwrap();
    assert_eq!((status, &page["workerVersion"]), (200, &json!("1.2.3")));
    assert_eq!(proxy.upstream.counts().requests, 0);
}

#[tokio::test]
async fn the_self_test_fails_where_nothing_is_served() {
    let proxy = Proxy::start().await;
    proxy.relay.abort();
    let failure = soon(proxy.relay.self_test()).await.unwrap_err();
    assert_eq!(staging::report::Report::code(&failure), "RELAY_SELF_TEST");
}
