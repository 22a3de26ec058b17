//! What is in flight, as whoever asks is told.

use super::ends::*;
use super::tunnels::UPGRADE;
use super::*;
use crate::relay::{Held, Kind};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// The one thing in flight.
async fn only(ends: &Ends) -> Held {
    let listing = soon(ends.relay.held(9)).await;
    assert_eq!(listing.total, 1, "{listing:?}");
    listing.oldest.into_iter().next().unwrap()
}

#[tokio::test]
async fn a_request_is_in_flight_from_its_head_to_the_end_of_its_answer() {
    let ends = Ends::start().await;
    let ask = "POST /v1/x?key=secret HTTP/1.1\r\nHost: proxy\r\nContent-Length: 4\r\n\r\nab";
    let mut client = ends.client().await;
    client.send("POST /v1").await;
    until(|| ends.relay.load().connections == 1).await;
    assert_eq!(soon(ends.relay.held(9)).await.total, 0);
    client.send(&ask["POST /v1".len()..]).await;
    let mut upstream = ends.upstream().await;
    upstream.expect(ends.onward(ask)).await;
    let held = only(&ends).await;
    assert_eq!(held.client, Some(client.stream.local_addr().unwrap()));
    assert_eq!((&*held.route, held.kind), ("/v1/x", Kind::Exchange));
    assert_eq!((held.bytes_in, held.bytes_out), (ask.len() as u64, 0));

    client.send("cd").await;
    upstream.expect("cd").await;
    let (begun, rest) = OK.split_at(OK.len() - 1);
    upstream.send(begun).await;
    client.expect(begun).await;
    let held = only(&ends).await;
    assert_eq!(held.bytes_in, ask.len() as u64 + 2);
    assert_eq!(held.bytes_out, begun.len() as u64);
    upstream.send(rest).await;
    client.expect(rest).await;
    until(|| ends.relay.load().exchanges == 0).await;
    assert_eq!(soon(ends.relay.held(9)).await.total, 0);

    // The next one counts from its own begin.
    let next = "GET /v1/next HTTP/1.1\r\nHost: proxy\r\n\r\n";
    client.send(next).await;
    upstream.expect(ends.onward(next)).await;
    let held = only(&ends).await;
    assert_eq!(
        (&*held.route, held.bytes_in, held.bytes_out),
        ("/v1/next", next.len() as u64, 0)
    );
}

#[tokio::test]
async fn a_websocket_and_another_tunnel_are_told_apart_and_the_oldest_comes_first() {
    let ends = Ends::with(Lines {
        route: "connect = true",
        ..Lines::default()
    })
    .await;
    let (mut client, mut upstream) = super::tunnels::switched(&ends).await;
    client.send([0x81, 0x80, 0, 0, 0, 0]).await;
    upstream.expect([0x81, 0x80, 0, 0, 0, 0]).await;
    let held = only(&ends).await;
    assert_eq!((&*held.route, held.kind), ("/v1/realtime", Kind::WebSocket));
    assert_eq!(held.bytes_in, UPGRADE.len() as u64 + 6);

    let mut other = ends.client().await;
    let host = ends.host();
    other
        .send(format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
        .await;
    assert!(other.head().await.starts_with("HTTP/1.1 200"));
    let _upstream = ends.upstream().await;
    let listing = soon(ends.relay.held(9)).await;
    let told: Vec<_> = listing
        .oldest
        .iter()
        .map(|held| (&*held.route, held.kind))
        .collect();
    assert_eq!(
        told,
        [("/v1/realtime", Kind::WebSocket), (&*host, Kind::Tunnel)]
    );
    assert!(listing.oldest[0].since <= listing.oldest[1].since);
    let listing = soon(ends.relay.held(1)).await;
    assert_eq!(
        (listing.total, &*listing.oldest[0].route),
        (2, "/v1/realtime")
    );
}

#[tokio::test]
async fn a_client_of_a_unix_socket_has_no_address_and_an_aborted_relay_holds_nothing() {
    let ends = Ends::start().await;
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    ends.relay.adopt(theirs.into()).unwrap();
    let mut client = tokio::net::UnixStream::from_std(ours).unwrap();
    client
        .write_all(b"GET /v1/x HTTP/1.1\r\nHost: proxy\r\n\r\n")
        .await
        .unwrap();
    let mut upstream = ends.upstream().await;
    upstream.head().await;
    assert_eq!(only(&ends).await.client, None);
    ends.relay.abort();
    soon(ends.relay.drained()).await;
    until(|| ends.relay.load().connections == 0).await;
    assert_eq!(soon(ends.relay.held(9)).await.total, 0);
}
