//! Giving idle connections back for as long as that is wanted: what goes, what stays, and that it can be taken back.

use super::ends::*;
use super::*;

const ASK: &str = "GET /v1/x HTTP/1.1\r\nHost: proxy\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Whether nothing is sent back, as far as a moment can tell.
async fn nothing_returns(returned: &mut mpsc::UnboundedReceiver<std::os::fd::OwnedFd>) -> bool {
    let came = tokio::time::timeout(MOMENT, returned.recv()).await;
    !matches!(came, Ok(Some(_)))
}

/// A client on a connection that was used already, and the upstream's end of it.
async fn used(ends: &Ends) -> (Peer, Peer) {
    let (mut client, mut upstream) = ends.asked(ASK).await;
    upstream.send(OK).await;
    client.expect(OK).await;
    (client, upstream)
}

#[tokio::test]
async fn each_condition_alone_keeps_a_connection_until_it_no_longer_holds() {
    // What was sent before, what of it comes later, and what the upstream says: each is in the way of a return.
    let begun = [
        // Half a head.
        ("GET /v1/x HTTP/1.1\r\nHo", "st: proxy\r\n\r\n"),
        // Half a body.
        (
            "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: 2\r\n\r\n{",
            "}",
        ),
        // An answer that is not there yet.
        (ASK, ""),
    ];
    for (sent, rest) in begun {
        let ends = Ends::start().await;
        let mut client = ends.client().await;
        client.send(sent).await;
        until(|| ends.relay.load().connections == 1).await;
        client.expect_silence().await;
        let (give_back, mut returned) = mpsc::unbounded_channel();
        ends.relay.give_back(give_back);
        assert!(nothing_returns(&mut returned).await, "{sent:?}");
        client.send(rest).await;
        let mut upstream = ends.upstream().await;
        upstream.expect(ends.onward(format!("{sent}{rest}"))).await;
        assert!(nothing_returns(&mut returned).await, "{sent:?}");
        // Half an answer.
        upstream.send(&OK[..OK.len() - 1]).await;
        assert!(nothing_returns(&mut returned).await, "{sent:?}");
        upstream.send("k").await;
        client.expect(OK).await;
        assert!(soon(returned.recv()).await.is_some(), "{sent:?}");
    }
}

#[tokio::test]
async fn a_connection_that_does_not_go_on_is_closed_and_not_given_back() {
    let asked = [
        "GET /v1/x HTTP/1.0\r\nHost: proxy\r\n\r\n",
        "GET /v1/x HTTP/1.1\r\nHost: proxy\r\nConnection: close\r\n\r\n",
    ];
    for ask in asked {
        let ends = Ends::start().await;
        let (give_back, mut returned) = mpsc::unbounded_channel();
        let mut client = ends.client().await;
        client.send(&ask[..4]).await;
        until(|| ends.relay.load().connections == 1).await;
        client.expect_silence().await;
        ends.relay.give_back(give_back);
        client.send(&ask[4..]).await;
        let mut upstream = ends.upstream().await;
        upstream.head().await;
        upstream.send(OK).await;
        assert_eq!(client.answer().await.2, "ok");
        client.expect_closed().await;
        until(|| ends.relay.load().connections == 0).await;
        assert!(returned.try_recv().is_err(), "{ask:?}");
    }
    // Its end is the connection's.
    let ends = Ends::start().await;
    let (mut client, mut upstream) = ends.asked(ASK).await;
    let (give_back, mut returned) = mpsc::unbounded_channel();
    ends.relay.give_back(give_back);
    upstream.send("HTTP/1.1 200 OK\r\n\r\nok").await;
    drop(upstream);
    assert!(client.rest().await.0.ends_with(b"\r\n\r\nok"));
    until(|| ends.relay.load().connections == 0).await;
    assert!(returned.try_recv().is_err());
}

#[tokio::test]
async fn an_answer_that_its_client_has_not_taken_keeps_the_connection() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = ends.asked(ASK).await;
    let body = fixtures::script::noise(3, 32 << 20);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    upstream.send(head).await;
    let sent = upstream.send_until_stuck(&body).await;
    let (give_back, mut returned) = mpsc::unbounded_channel();
    ends.relay.give_back(give_back);
    let (mut reading, rest) = (Vec::new(), body[sent..].to_vec());
    let upward = tokio::spawn(async move { upstream.send(rest).await });
    assert!(nothing_returns(&mut returned).await);
    client.head().await;
    while reading.len() < body.len() {
        let left = (body.len() - reading.len()).min(1 << 20);
        client
            .expect(&body[reading.len()..reading.len() + left])
            .await;
        reading.resize(reading.len() + left, 0);
    }
    upward.await.unwrap();
    assert!(soon(returned.recv()).await.is_some());
}

#[tokio::test]
async fn giving_back_can_be_taken_back_and_begun_again_as_often_as_one_likes() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = used(&ends).await;
    let (give_back, mut returned) = mpsc::unbounded_channel();
    for _ in 0..50 {
        ends.relay.give_back(give_back.clone());
        let socket = soon(returned.recv()).await.unwrap();
        until(|| ends.relay.load().connections == 0).await;
        ends.relay.serve();
        ends.relay.adopt(socket).unwrap();
        client.send(ASK).await;
        upstream = ends.wherever(upstream, ASK).await;
        upstream.send(OK).await;
        client.expect(OK).await;
    }
    // It stays, and is watched: its end is seen.
    assert!(nothing_returns(&mut returned).await);
    assert_eq!(ends.relay.load().connections, 1);
    drop(client);
    until(|| ends.relay.load().connections == 0).await;
    assert!(returned.try_recv().is_err());
}

#[tokio::test]
async fn who_gives_back_has_no_end_in_sight_and_may_be_drained_or_told_to_close() {
    let ends = Ends::start().await;
    let (give_back, mut returned) = mpsc::unbounded_channel();
    ends.relay.give_back(give_back.clone());
    let mut drained = Box::pin(ends.relay.drained());
    assert!(
        tokio::time::timeout(MOMENT, drained.as_mut())
            .await
            .is_err()
    );
    ends.relay.drain(Drain::GiveBack(give_back));
    soon(drained).await;
    // A drain is for good.
    ends.relay.serve();
    let _client = ends.client().await;
    assert!(soon(returned.recv()).await.is_some());
    ends.relay.drain(Drain::Close);
    let mut client = ends.client().await;
    client
        .send("GET /health HTTP/1.1\r\nHost: proxy\r\n\r\n")
        .await;
    let (status, head, _) = client.answer().await;
    assert_eq!((status, field(&head, "connection")), (200, Some("close")));
    client.expect_closed().await;
    assert!(returned.try_recv().is_err());
}

#[tokio::test]
async fn an_answer_in_flight_stays_while_an_idle_connection_goes() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = ends.asked(ASK).await;
    let (idle, _other) = {
        // The upstream's first connection is in use: this one has its own.
        let (mut idle, mut other) = ends.asked(ASK).await;
        other.send(OK).await;
        idle.expect(OK).await;
        (idle, other)
    };
    let (give_back, mut returned) = mpsc::unbounded_channel();
    ends.relay.give_back(give_back);
    let gone = soon(returned.recv()).await.unwrap();
    let peer = rustix::net::getsockname(&idle.stream).unwrap();
    assert_eq!(rustix::net::getpeername(&gone).unwrap(), Some(peer));
    assert!(nothing_returns(&mut returned).await);
    ends.relay.serve();
    client.expect_silence().await;
    upstream.send(OK).await;
    client.expect(OK).await;
    assert!(nothing_returns(&mut returned).await);
}
