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
    proxy.relay.drain(Drain::Close);
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
    proxy.relay.drain(Drain::Close);
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
    proxy.relay.drain(Drain::Close);
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
    proxy.relay.drain(Drain::Close);
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
    proxy.relay.drain(Drain::Close);
    soon(drained).await;
    // Asked again, it is still true.
    proxy.relay.drain(Drain::Close);
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
    proxy.relay.drain(Drain::Close);
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

#[tokio::test]
async fn a_connection_given_back_between_two_requests_is_served_on_without_a_byte_lost() {
    let old = Proxy::start().await;
    let new = Proxy::start().await;
    let mut used = Vec::new();
    for _ in 0..5 {
        used.push(old.connect_and_use().await);
    }
    let mut fresh = old.connect().await;
    until(|| old.relay.load().connections == 6).await;

    let (give_back, mut returned) = mpsc::unbounded_channel();
    old.relay.drain(Drain::GiveBack(give_back));
    for _ in 0..6 {
        let socket = soon(returned.recv()).await.unwrap();
        new.relay.adopt(socket).unwrap();
    }
    soon(old.relay.drained()).await;
    for wire in used.iter_mut().chain([&mut fresh]) {
        wire.stream.write_all(PLAIN).await.unwrap();
        let (status, _) = json_answer(wire).await;
        assert_eq!(status, 200);
    }
    assert_eq!(new.upstream.counts().requests, 6);
}

#[tokio::test]
async fn a_busy_connection_is_given_back_when_its_exchange_ends_and_its_answer_says_nothing() {
    let proxy = Proxy::start().await;
    let mut wire = proxy.connect().await;
    let request =
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: proxy\r\ncontent-length: 2\r\n\r\n{";
    wire.stream.write_all(request).await.unwrap();
    until(|| proxy.relay.load().exchanges == 1).await;
    let (give_back, mut returned) = mpsc::unbounded_channel();
    proxy.relay.drain(Drain::GiveBack(give_back));
    assert!(returned.try_recv().is_err());

    wire.stream.write_all(b"}").await.unwrap();
    let head = soon(wire.head()).await.unwrap().unwrap();
    assert_eq!(head.field("connection"), None);
    soon(wire.body(head.answer_framing())).await.unwrap();
    let socket = soon(returned.recv()).await.unwrap();
    soon(proxy.relay.drained()).await;
    drop(socket);
    assert_eq!(soon(wire.fill()).await.unwrap(), 0);
}

#[tokio::test]
async fn a_request_cut_at_any_byte_around_a_return_is_answered_once() {
    for cut in 1..PLAIN.len() {
        let old = Proxy::start().await;
        let new = Proxy::start().await;
        let mut wire = old.connect_and_use().await;
        // The end of one request and the beginning of the next in one write.
        let mut bytes = PLAIN.to_vec();
        bytes.extend_from_slice(&PLAIN[..cut]);
        wire.stream.write_all(&bytes).await.unwrap();
        assert_eq!(json_answer(&mut wire).await.0, 200);
        let (give_back, mut returned) = mpsc::unbounded_channel();
        old.relay.drain(Drain::GiveBack(give_back));
        let relay = new.relay.clone();
        let adopting = tokio::spawn(async move {
            if let Some(socket) = returned.recv().await {
                relay.adopt(socket).unwrap();
            }
        });
        wire.stream.write_all(&PLAIN[cut..]).await.unwrap();
        assert_eq!(json_answer(&mut wire).await.0, 200, "cut at {cut}");
        soon(old.relay.drained()).await;
        soon(adopting).await.unwrap();
        let served = old.upstream.counts().requests + new.upstream.counts().requests;
        assert_eq!(served, 3, "cut at {cut}");
    }
}

#[tokio::test]
async fn a_connection_that_its_client_wants_closed_is_not_given_back() {
    let proxy = Proxy::start().await;
    let mut wire = proxy.connect().await;
    wire.stream
        .write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: proxy\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{")
        .await
        .unwrap();
    until(|| proxy.relay.load().exchanges == 1).await;
    let (give_back, mut returned) = mpsc::unbounded_channel();
    proxy.relay.drain(Drain::GiveBack(give_back));
    wire.stream.write_all(b"}").await.unwrap();
    assert_eq!(json_answer(&mut wire).await.0, 200);
    assert!(is_closed(&mut wire).await);
    soon(proxy.relay.drained()).await;
    assert!(returned.try_recv().is_err());
}

#[tokio::test]
async fn a_closing_drain_does_not_wait_long_for_a_connection_that_was_given_back_idle() {
    let old = Proxy::start().await;
    let new = Proxy::start().await;
    let mut wire = old.connect_and_use().await;
    let (give_back, mut returned) = mpsc::unbounded_channel();
    old.relay.drain(Drain::GiveBack(give_back));
    let socket = soon(returned.recv()).await.unwrap();
    new.relay.adopt(socket).unwrap();
    new.relay.drain(Drain::Close);
    let closed = tokio::time::timeout(Duration::from_secs(10), wire.fill()).await;
    assert_eq!(closed.expect("well before a head may take").unwrap(), 0);
}
