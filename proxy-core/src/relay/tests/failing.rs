//! What the client sees when the upstream fails.

use fixtures::client::{End, StreamRequest, stream};
use fixtures::script::{Script, noise};
use fixtures::wire::Piece;

use super::*;

fn faulty(fault: &str) -> StreamRequest {
    let mut request = StreamRequest::from(Script::new(20, Duration::ZERO, 7));
    request
        .fields
        .push(("x-fixture-fault".into(), fault.into()));
    request
}

#[tokio::test]
async fn an_upstream_that_is_cut_aborts_the_body_after_what_it_sent() {
    let proxy = Proxy::start().await;
    for fault in ["cut-body", "reset"] {
        let outcome = soon(stream(proxy.address, &faulty(fault))).await;
        assert!(
            matches!(outcome.end, End::Cut | End::Reset),
            "{fault}: {outcome:?}"
        );
        assert!(outcome.in_order, "{fault}: {outcome:?}");
        if fault == "cut-body" {
            assert_eq!(outcome.events, 12, "{outcome:?}");
        }
    }
    assert_eq!(proxy.relay.load().local_5xx, 0);
}

#[tokio::test]
async fn an_old_client_cannot_take_a_cut_body_for_a_whole_one() {
    let proxy = Proxy::start().await;
    for (fault, whole) in [("cut-body", false), ("none", true)] {
        let mut wire = proxy.connect().await;
        let head = format!(
            "POST /v1/messages HTTP/1.0\r\nx-fixture-events: 20\r\nx-fixture-interval-ms: 0\r\nx-fixture-fault: {fault}\r\ncontent-length: 2\r\n\r\n{{}}"
        );
        wire.stream.write_all(head.as_bytes()).await.unwrap();
        let outcome = async {
            let head = wire
                .head()
                .await?
                .ok_or(std::io::ErrorKind::UnexpectedEof)?;
            wire.body(head.answer_framing()).await
        };
        let outcome = soon(outcome).await;
        assert_eq!(outcome.is_ok(), whole, "{fault}: {outcome:?}");
        if let Ok(body) = outcome {
            assert_eq!(body, Script::new(20, Duration::ZERO, 1).bytes());
        }
    }
}

#[tokio::test]
async fn an_upstream_that_closes_without_an_answer_is_502_and_counted() {
    let proxy = Proxy::start().await;
    assert_eq!(
        soon(stream(proxy.address, &faulty("no-head"))).await.end,
        End::Status(502)
    );
    assert_eq!(proxy.relay.load().local_5xx, 1);
}

#[tokio::test]
async fn an_upstreams_own_500_passes_and_is_not_counted() {
    let proxy = Proxy::start().await;
    assert_eq!(
        soon(stream(proxy.address, &faulty("500"))).await.end,
        End::Status(500)
    );
    assert_eq!(proxy.relay.load().local_5xx, 0);
}

#[tokio::test]
async fn an_upstream_that_refuses_is_502_also_for_a_client_that_sends_first() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    let proxy = Proxy::start_with(|upstream| upstream.url = url).await;
    let mut wire = proxy.connect().await;
    let body = noise(1, 20 << 20);
    for _ in 0..2 {
        let head = format!(
            "POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        wire.stream.write_all(head.as_bytes()).await.unwrap();
        soon(wire.stream.write_all(&body)).await.unwrap();
        let (status, answer) = json_answer(&mut wire).await;
        assert_eq!(
            (status, answer["error"]["type"].as_str()),
            (502, Some("api_error"))
        );
        assert!(
            answer["error"]["message"]
                .as_str()
                .unwrap()
                .contains("fixture")
        );
    }
    assert_eq!(proxy.relay.load().local_5xx, 2);
    assert_eq!(proxy.relay.load().connections, 1);
}

#[tokio::test]
async fn an_upstream_that_does_not_answer_in_time_is_504_and_left() {
    let proxy =
        Proxy::start_with(|upstream| upstream.first_byte_timeout = Duration::from_millis(100))
            .await;
    assert_eq!(
        soon(stream(proxy.address, &faulty("no-answer"))).await.end,
        End::Status(504)
    );
    soon(
        proxy
            .upstream
            .wait(|counts| counts.cancelled == 1 && counts.open == 0),
    )
    .await;
    assert_eq!(proxy.relay.load().local_5xx, 1);
}

#[tokio::test]
async fn an_upstream_that_cannot_be_connected_to_in_time_is_504() {
    // A listener whose queue is full answers no handshake.
    let full = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&full, 0).unwrap();
    let address = full.local_addr().unwrap();
    let mut fillers = Vec::new();
    let filled = |socket: std::io::Result<std::net::TcpStream>| socket.is_err();
    soon(tokio::task::spawn_blocking(move || {
        loop {
            let socket = std::net::TcpStream::connect_timeout(&address, Duration::from_millis(300));
            match socket {
                Ok(socket) => fillers.push(socket),
                failed => {
                    assert!(filled(failed));
                    return fillers;
                }
            }
        }
    }))
    .await
    .unwrap();
    let proxy = Proxy::start_with(|upstream| {
        upstream.url = format!("http://{address}");
        upstream.connect_timeout = Duration::from_millis(200);
    })
    .await;
    assert_eq!(
        soon(stream(proxy.address, &faulty("none"))).await.end,
        End::Status(504)
    );
}

#[tokio::test]
async fn an_upstream_that_falls_silent_aborts_the_body() {
    let proxy =
        Proxy::start_with(|upstream| upstream.idle_timeout = Duration::from_millis(200)).await;
    let outcome = soon(stream(proxy.address, &faulty("stall"))).await;
    assert!(matches!(outcome.end, End::Cut | End::Reset), "{outcome:?}");
    assert_eq!((outcome.events, outcome.in_order), (12, true));
    soon(
        proxy
            .upstream
            .wait(|counts| counts.cancelled == 1 && counts.open == 0),
    )
    .await;
}

#[tokio::test]
async fn a_slow_stream_is_not_silent() {
    let proxy =
        Proxy::start_with(|upstream| upstream.idle_timeout = Duration::from_millis(400)).await;
    let script = Script::new(10, Duration::from_millis(100), 7);
    assert!(
        soon(stream(proxy.address, &script.into()))
            .await
            .is_perfect()
    );
}

#[tokio::test]
async fn an_answer_before_the_body_is_read_reaches_the_client() {
    let proxy = Proxy::start().await;
    let mut wire = proxy.connect().await;
    let head = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-fixture-fault: early-401\r\ncontent-length: 1000\r\n\r\nstart";
    wire.stream.write_all(head).await.unwrap();
    let head = soon(wire.head()).await.unwrap().unwrap();
    assert_eq!(head.status(), Some(401));
    assert!(
        !soon(wire.body(head.answer_framing()))
            .await
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn a_pooled_connection_that_the_upstream_closed_is_not_used() {
    let upstream = Upstream::start().await.unwrap();
    let address = upstream.address();
    let proxy = Proxy::start_with(|to| to.url = format!("http://{address}")).await;
    let mut wire = proxy.connect_and_use().await;
    drop(upstream);
    let upstream = until_bound(address).await;
    for _ in 0..5 {
        wire.stream.write_all(PLAIN).await.unwrap();
        assert_eq!(json_answer(&mut wire).await.0, 200);
    }
    assert_eq!(upstream.counts().requests, 5);
    assert_eq!(proxy.relay.load().local_5xx, 0);
}

async fn until_bound(address: SocketAddr) -> Upstream {
    soon(async {
        loop {
            match Upstream::start_on(address).await {
                Ok(upstream) => return upstream,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    })
    .await
}

#[tokio::test]
async fn an_upstream_is_not_asked_twice_for_a_request_it_may_have_seen() {
    let proxy = Proxy::start().await;
    let mut wire = proxy.connect_and_use().await;
    let lost = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-fixture-fault: no-head\r\ncontent-length: 2\r\n\r\n{}";
    wire.stream.write_all(lost).await.unwrap();
    assert_eq!(json_answer(&mut wire).await.0, 502);
    assert_eq!(proxy.upstream.counts().requests, 2);
}

#[tokio::test]
async fn a_body_piece_is_never_followed_by_a_clean_end_when_the_relay_is_cut() {
    let proxy = Proxy::start().await;
    proxy.upstream.open_gate("g", 3);
    let mut wire = proxy.connect().await;
    let head = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-fixture-gate: g\r\nx-fixture-interval-ms: 0\r\ncontent-length: 2\r\n\r\n{}";
    wire.stream.write_all(head).await.unwrap();
    let head = soon(wire.head()).await.unwrap().unwrap();
    let mut framing = head.answer_framing();
    assert!(matches!(
        soon(wire.piece(&mut framing)).await,
        Ok(Piece::Data(_))
    ));
    proxy.relay.abort();
    let end = soon(async {
        loop {
            match wire.piece(&mut framing).await {
                Ok(Piece::Data(_)) => {}
                other => return other,
            }
        }
    })
    .await;
    assert!(end.is_err(), "{end:?}");
}
