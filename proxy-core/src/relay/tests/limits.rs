//! Requests that are not forwarded, and connections that are not kept.

use super::*;

/// Long enough for what is on time on a busy machine.
const SHORT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_head_that_is_too_large_is_431() {
    let proxy = Proxy::start().await;
    let huge = format!(
        "GET /v1/x HTTP/1.1\r\nhost: x\r\nx-huge: {}\r\n\r\n",
        "a".repeat(70_000)
    );
    let many = format!(
        "GET /v1/x HTTP/1.1\r\nhost: x\r\n{}\r\n",
        "x-a: b\r\n".repeat(300)
    );
    for head in [huge, many] {
        let mut wire = proxy.connect().await;
        wire.stream.write_all(head.as_bytes()).await.unwrap();
        assert_eq!(
            soon(wire.head()).await.unwrap().unwrap().status(),
            Some(431)
        );
    }
    assert_eq!(proxy.upstream.counts().requests, 0);
}

#[tokio::test]
async fn what_is_no_request_is_400_and_closed() {
    let proxy = Proxy::start().await;
    let mut wire = proxy.connect().await;
    wire.stream
        .write_all(b"\x16\x03\x01\x02\x00garbage\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(
        soon(wire.head()).await.unwrap().unwrap().status(),
        Some(400)
    );
    assert_eq!(soon(wire.fill()).await.unwrap(), 0);
    assert_eq!(proxy.upstream.counts().requests, 0);
}

#[tokio::test]
async fn an_upgrade_to_what_no_route_names_is_501_and_no_fault_of_ours() {
    let proxy = Proxy::start().await;
    let mut wire = proxy.connect().await;
    let upgrade =
        b"GET /v1/realtime HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: chat\r\n\r\n";
    wire.stream.write_all(upgrade).await.unwrap();
    let (status, answer) = json_answer(&mut wire).await;
    assert_eq!(
        (status, answer["error"]["code"].as_str()),
        (501, Some("upgrade_not_supported"))
    );
    assert_eq!(
        (
            proxy.relay.load().local_5xx,
            proxy.upstream.counts().requests
        ),
        (0, 0)
    );
}

#[tokio::test]
async fn an_offer_of_http2_is_ignored() {
    let proxy = Proxy::start().await;
    let mut wire = proxy.connect().await;
    let offer = b"GET /v1/x HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n\r\n";
    wire.stream.write_all(offer).await.unwrap();
    assert_eq!(json_answer(&mut wire).await.0, 200);
}

#[tokio::test]
async fn a_refused_request_with_a_body_leaves_the_connection_usable() {
    let proxy = Proxy::start().await;
    let mut wire = proxy.connect().await;
    let body = vec![b'x'; 1 << 20];
    for _ in 0..2 {
        let head = format!(
            "POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        wire.stream.write_all(head.as_bytes()).await.unwrap();
        soon(wire.stream.write_all(&body)).await.unwrap();
        assert_eq!(json_answer(&mut wire).await.0, 404);
    }
    wire.stream.write_all(PLAIN).await.unwrap();
    assert_eq!(json_answer(&mut wire).await.0, 200);
}

#[tokio::test]
async fn a_client_that_waits_for_continue_is_refused_without_it() {
    let proxy = Proxy::start().await;
    let mut wire = proxy.connect().await;
    let head = b"POST /nowhere HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 1000000\r\n\r\n";
    wire.stream.write_all(head).await.unwrap();
    assert_eq!(json_answer(&mut wire).await.0, 404);
}

#[tokio::test]
async fn a_head_that_does_not_end_in_time_is_408_and_an_idle_connection_is_no_such_head() {
    let proxy = Proxy::start_serving(|server| server.header_timeout = SHORT).await;
    let mut unused = proxy.connect().await;
    let mut idle = proxy.connect_and_use().await;
    let mut slow = proxy.connect_and_use().await;
    slow.stream.write_all(&PLAIN[..20]).await.unwrap();
    assert_eq!(
        soon(slow.head()).await.unwrap().unwrap().status(),
        Some(408)
    );
    assert_eq!(soon(slow.fill()).await.unwrap(), 0);
    // The same time has passed for these two.
    for wire in [&mut unused, &mut idle] {
        wire.stream.write_all(PLAIN).await.unwrap();
        assert_eq!(json_answer(wire).await.0, 200);
    }
}

#[tokio::test]
async fn a_slow_body_is_not_a_slow_head() {
    let proxy = Proxy::start_serving(|server| server.header_timeout = SHORT).await;
    let mut wire = proxy.connect().await;
    let (head, body) = PLAIN.split_at(PLAIN.len() - 2);
    wire.stream.write_all(head).await.unwrap();
    tokio::time::sleep(SHORT * 2).await;
    wire.stream.write_all(body).await.unwrap();
    assert_eq!(json_answer(&mut wire).await.0, 200);
}

#[tokio::test]
async fn what_is_no_socket_is_closed_and_not_counted_for_ever() {
    let proxy = Proxy::start().await;
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    proxy.relay.adopt(writer).unwrap();
    let mut byte = [0];
    let read = soon(tokio::task::spawn_blocking(move || {
        rustix::io::read(&reader, &mut byte)
    }))
    .await
    .unwrap();
    assert_eq!(read, Ok(0));
    until(|| proxy.relay.load().connections == 0).await;
}

#[tokio::test]
async fn a_transfer_coding_besides_chunked_is_501_and_never_forwarded() {
    let proxy = Proxy::start().await;
    let mut wire = proxy.connect().await;
    wire.stream
        .write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: proxy\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n")
        .await
        .unwrap();
    let (status, body) = json_answer(&mut wire).await;
    assert_eq!(status, 501);
    assert_eq!(body["error"]["code"], "transfer_coding_not_supported");
    assert_eq!(proxy.upstream.counts().requests, 0);
}

#[tokio::test]
async fn a_clients_broken_body_is_its_own_fault() {
    let proxy = Proxy::start().await;
    let mut wire = proxy.connect().await;
    wire.stream
        .write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: proxy\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n")
        .await
        .unwrap();
    let (status, body) = json_answer(&mut wire).await;
    assert_eq!(status, 400);
    assert_eq!(body["error"]["code"], "request_body_broken");
    assert_eq!(proxy.relay.load().local_5xx, 0);
}
