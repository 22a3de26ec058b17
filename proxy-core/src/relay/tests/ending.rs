//! Drain and abort.

use fixtures::client::{End, StreamRequest, stream};
use fixtures::script::Script;
use fixtures::wire::Piece;

use super::*;

async fn is_closed(wire: &mut Wire<TcpStream>) -> bool {
    soon(wire.fill()).await.unwrap() == 0
}

#[tokio::test]
async fn a_drain_closes_idle_connections_at_once() {
    let proxy = Proxy::start().await;
    let mut idle = Vec::new();
    for _ in 0..5 {
        idle.push(proxy.connect_and_use().await);
    }
    assert_eq!(proxy.relay.load().connections, 5);
    proxy.relay.drain();
    for wire in &mut idle {
        assert!(is_closed(wire).await);
    }
    soon(proxy.relay.drained()).await;
    assert_eq!(proxy.relay.load().connections, 0);
}

#[tokio::test]
async fn a_drain_lets_streams_finish() {
    let proxy = Proxy::start().await;
    let mut request = StreamRequest::from(Script::new(20, Duration::ZERO, 7));
    request.fields.push(("x-fixture-gate".into(), "g".into()));
    let address = proxy.address;
    let streaming = tokio::spawn(async move { stream(address, &request).await });
    proxy.upstream.open_gate("g", 5);
    soon(proxy.upstream.wait(|counts| counts.bytes_written > 0)).await;
    proxy.relay.drain();
    // Still there although the drain was heard: an idle connection is closed by it.
    let mut drained = Box::pin(proxy.relay.drained());
    assert!(
        tokio::time::timeout(Duration::from_millis(50), drained.as_mut())
            .await
            .is_err()
    );
    proxy.upstream.open_gate("g", 20);
    let outcome = soon(streaming).await.unwrap();
    assert!(outcome.is_perfect(), "{outcome:?}");
    soon(drained).await;
}

#[tokio::test]
async fn a_drain_answers_a_request_that_had_begun_to_arrive() {
    let proxy = Proxy::start().await;
    let mut wires = Vec::new();
    for _ in 0..10 {
        wires.push(proxy.connect_and_use().await);
    }
    let (begun, rest) = PLAIN.split_at(20);
    for wire in &mut wires {
        wire.stream.write_all(begun).await.unwrap();
    }
    proxy.relay.drain();
    for wire in &mut wires {
        wire.stream.write_all(rest).await.unwrap();
        assert_eq!(json_answer(wire).await.0, 200);
        assert!(is_closed(wire).await);
    }
    soon(proxy.relay.drained()).await;
}

#[tokio::test]
async fn a_drain_waits_for_the_first_request_of_a_new_connection() {
    let proxy = Proxy::start().await;
    let mut before = proxy.connect().await;
    until(|| proxy.relay.load().connections == 1).await;
    proxy.relay.drain();
    let mut after = proxy.connect().await;
    until(|| proxy.relay.load().connections == 2).await;
    for wire in [&mut before, &mut after] {
        wire.stream.write_all(PLAIN).await.unwrap();
        assert_eq!(json_answer(wire).await.0, 200);
        assert!(is_closed(wire).await);
    }
    soon(proxy.relay.drained()).await;
}

#[tokio::test]
async fn nothing_is_drained_before_it_was_asked_to() {
    let proxy = Proxy::start().await;
    let mut drained = Box::pin(proxy.relay.drained());
    assert!(
        tokio::time::timeout(Duration::from_millis(50), drained.as_mut())
            .await
            .is_err()
    );
    proxy.relay.drain();
    soon(drained).await;
    // Asked again, it is still true.
    proxy.relay.drain();
    soon(proxy.relay.drained()).await;
}

#[tokio::test]
async fn an_abort_cuts_streams_and_never_ends_them_cleanly() {
    let proxy = Proxy::start().await;
    let mut streams = Vec::new();
    for version in ["HTTP/1.1", "HTTP/1.0"] {
        let mut wire = proxy.connect().await;
        let head = format!(
            "POST /v1/messages {version}\r\nhost: x\r\nx-fixture-gate: {version}\r\ncontent-length: 2\r\n\r\n{{}}"
        );
        wire.stream.write_all(head.as_bytes()).await.unwrap();
        proxy.upstream.open_gate(version, 1);
        let head = soon(wire.head()).await.unwrap().unwrap();
        let mut framing = head.answer_framing();
        assert!(matches!(
            soon(wire.piece(&mut framing)).await,
            Ok(Piece::Data(_))
        ));
        streams.push((wire, framing));
    }
    let mut idle = proxy.connect_and_use().await;
    // A drain before it makes no difference.
    proxy.relay.drain();
    proxy.relay.abort();
    for (wire, framing) in &mut streams {
        let end = soon(wire.piece(framing)).await;
        assert!(end.is_err(), "{end:?}");
    }
    assert!(is_closed(&mut idle).await);
    soon(proxy.relay.drained()).await;
    soon(proxy.upstream.wait(|counts| counts.cancelled == 2)).await;
    let late = soon(stream(
        proxy.address,
        &Script::new(1, Duration::ZERO, 1).into(),
    ))
    .await;
    assert!(matches!(late.end, End::Cut | End::Reset), "{late:?}");
}

#[tokio::test]
async fn the_last_handle_dropped_cuts_what_is_left() {
    let upstream = Upstream::start().await.unwrap();
    let relay = relay_to(UpstreamConfig::new(upstream.url()), 1);
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    relay.adopt(theirs.into()).unwrap();
    let mut wire = Wire::new(tokio::net::UnixStream::from_std(ours).unwrap());
    wire.stream
        .write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(
        soon(wire.head()).await.unwrap().unwrap().status(),
        Some(200)
    );
    drop(relay);
    soon(async { while wire.fill().await.unwrap_or(0) > 0 {} }).await;
}
