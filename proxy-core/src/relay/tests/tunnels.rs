//! Connections that stop speaking HTTP: upgrades and CONNECT.

use super::ends::*;
use super::*;

pub(super) const UPGRADE: &str = "GET /v1/realtime HTTP/1.1\r\nHost: proxy\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: a2V5\r\n\r\n";
const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: c3VyZQ==\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// The fields of a head, in their order: names in lower case, and without those that say how the connection goes on.
fn fields(head: &str) -> Vec<&str> {
    head.split("\r\n")
        .skip(1)
        .filter(|line| !line.is_empty())
        .filter(|line| {
            let name = line.split(':').next().unwrap_or_default();
            !name.eq_ignore_ascii_case("connection") && !name.eq_ignore_ascii_case("upgrade")
        })
        .collect()
}

fn asks_for(head: &str, protocol: &str) -> bool {
    field(head, "connection").is_some_and(|value| value.eq_ignore_ascii_case("upgrade"))
        && field(head, "upgrade") == Some(protocol)
}

/// A client and an upstream that agreed to switch.
pub(super) async fn switched(ends: &Ends) -> (Peer, Peer) {
    let mut client = ends.client().await;
    client.send(UPGRADE).await;
    let mut upstream = ends.upstream().await;
    let head = upstream.head().await;
    assert!(head.starts_with("GET /v1/realtime HTTP/1.1\r\n"), "{head}");
    assert!(asks_for(&head, "websocket"), "{head}");
    let host = format!("Host: {}", ends.host());
    assert_eq!(fields(&head), [&host, "Sec-WebSocket-Key: a2V5"]);
    upstream.send(SWITCHED).await;
    let head = client.head().await;
    assert!(
        head.starts_with("HTTP/1.1 101 Switching Protocols\r\n"),
        "{head}"
    );
    assert!(asks_for(&head, "websocket"), "{head}");
    assert_eq!(fields(&head), ["Sec-WebSocket-Accept: c3VyZQ=="]);
    (client, upstream)
}

#[tokio::test]
async fn an_upgrade_opens_a_tunnel_for_both_directions() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = switched(&ends).await;
    for number in 0..100_u8 {
        // Neither is HTTP, and neither waits for the other.
        let question = [0x81, 2, number, 0];
        client.send(question).await;
        upstream.expect(question).await;
        let answer = [number, 0xff, b'\r', b'\n', b'\r', b'\n'];
        upstream.send(answer).await;
        client.expect(answer).await;
    }
    assert_eq!(ends.relay.load().connections, 1);
    upstream.expect_silence().await;
    client.expect_silence().await;
}

#[tokio::test]
async fn large_data_passes_a_tunnel_both_ways_at_once() {
    let ends = Ends::start().await;
    let (client, upstream) = switched(&ends).await;
    let (up, down) = (
        fixtures::script::noise(1, 8 << 20),
        fixtures::script::noise(2, 8 << 20),
    );
    let exchange = |peer: Peer, send: Vec<u8>, wanted: Vec<u8>| async move {
        let (mut reading, mut writing) = peer.stream.into_split();
        let mut came = Vec::new();
        let writing = async {
            writing.write_all(&send).await?;
            writing.shutdown().await
        };
        let reading = tokio::io::AsyncReadExt::read_to_end(&mut reading, &mut came);
        let (written, read) = soon(async { tokio::join!(writing, reading) }).await;
        written.unwrap();
        read.unwrap();
        assert!(came == wanted, "{} of {}", came.len(), wanted.len());
    };
    tokio::join!(
        exchange(client, up.clone(), down.clone()),
        exchange(upstream, down, up)
    );
    until(|| ends.relay.load().connections == 0).await;
}

#[tokio::test]
async fn bytes_that_come_before_the_switch_wait_for_it() {
    let ends = Ends::start().await;
    let mut client = ends.client().await;
    client.send(format!("{UPGRADE}early ")).await;
    let mut upstream = ends.upstream().await;
    upstream.head().await;
    client.send("bytes").await;
    upstream.expect_silence().await;
    upstream.send(format!("{SWITCHED}at once")).await;
    client.head().await;
    client.expect("at once").await;
    upstream.expect("early bytes").await;
}

#[tokio::test]
async fn an_interim_answer_may_come_before_the_switch() {
    let ends = Ends::start().await;
    let mut client = ends.client().await;
    client.send(UPGRADE).await;
    let mut upstream = ends.upstream().await;
    upstream.head().await;
    upstream
        .send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
        .await;
    client
        .expect("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
        .await;
    upstream.send(SWITCHED).await;
    assert!(client.head().await.starts_with("HTTP/1.1 101 "));
    client.send("question").await;
    upstream.expect("question").await;
}

#[tokio::test]
async fn an_upstream_that_does_not_switch_goes_on_with_http() {
    let ends = Ends::start().await;
    let mut client = ends.client().await;
    let mut known: Option<Peer> = None;
    for answer in [
        OK,
        "HTTP/1.1 403 No\r\nContent-Length: 2\r\n\r\nno",
        "HTTP/1.1 426 Later\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n",
    ] {
        client.send(UPGRADE).await;
        let mut upstream = match known.take() {
            Some(upstream) => upstream,
            None => ends.upstream().await,
        };
        assert!(asks_for(&upstream.head().await, "websocket"));
        upstream.send(answer).await;
        client.expect(answer).await;
        known = Some(upstream);
    }
    let plain = "GET /v1/plain HTTP/1.1\r\nHost: proxy\r\n\r\n";
    client.send(plain).await;
    let mut upstream = ends.wherever(known.unwrap(), plain).await;
    upstream.send(OK).await;
    client.expect(OK).await;
}

#[tokio::test]
async fn early_bytes_of_a_refused_switch_never_reach_the_upstream_raw() {
    let ends = Ends::start().await;
    let mut client = ends.client().await;
    client
        .send([UPGRADE.as_bytes(), b"\x81\x05hello\r\n\r\n"].concat())
        .await;
    let mut upstream = ends.upstream().await;
    upstream.head().await;
    upstream.send(OK).await;
    client.expect(OK).await;
    // They are no request.
    assert_eq!(client.answer().await.0, 400);
    client.expect_end().await;
    upstream.expect_silence().await;
}

#[tokio::test]
async fn a_tunnel_closed_in_one_direction_goes_on_in_the_other() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = switched(&ends).await;
    client.send("last words").await;
    client.finish().await;
    upstream.expect("last words").await;
    upstream.expect_closed().await;
    for number in 0..20 {
        let event = format!("event {number}");
        upstream.send(&event).await;
        client.expect(&event).await;
    }
    client.expect_silence().await;
    drop(upstream);
    client.expect_closed().await;
    until(|| ends.relay.load().connections == 0).await;

    let (mut client, mut upstream) = switched(&ends).await;
    upstream.finish().await;
    client.expect_closed().await;
    client.send("still there").await;
    upstream.expect("still there").await;
    drop(client);
    upstream.expect_closed().await;
    until(|| ends.relay.load().connections == 0).await;
}

#[tokio::test]
async fn a_tunnel_that_is_reset_at_one_end_ends_at_the_other() {
    let ends = Ends::start().await;
    let (client, mut upstream) = switched(&ends).await;
    client.reset();
    upstream.expect_end().await;
    let (mut client, upstream) = switched(&ends).await;
    upstream.reset();
    client.expect_end().await;
    until(|| ends.relay.load().connections == 0).await;
}

#[tokio::test]
async fn a_client_that_leaves_a_tunnel_ends_it_although_the_upstream_stays_silent() {
    let ends = Ends::start().await;
    let (client, mut upstream) = switched(&ends).await;
    drop(client);
    // What has come so far is the end of sending, as of a client that still listens.
    upstream.expect_closed().await;
    until(|| ends.relay.load().connections == 0).await;
}

#[tokio::test]
async fn a_tunnel_takes_no_more_than_its_other_end_reads() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = switched(&ends).await;
    let data = fixtures::script::noise(1, 64 << 20);
    let sent = upstream.send_until_stuck(&data).await;
    assert!(sent < 16 << 20, "{sent}");
    // The other direction is not in its way.
    client.send("question").await;
    upstream.expect("question").await;
    client.expect(&data[..sent]).await;
}

#[tokio::test]
async fn an_idle_tunnel_survives_every_time_out_between_requests() {
    let ends = Ends::with(Lines {
        server: "header_timeout = \"200ms\"\nbody_timeout = \"200ms\"\nsend_timeout = \"200ms\"\nidle_timeout = \"200ms\"",
        upstream: "idle_timeout = \"200ms\"\nfirst_byte_timeout = \"5s\"",
        route: "",
    })
    .await;
    let (mut client, mut upstream) = switched(&ends).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    client.send("awake?").await;
    upstream.expect("awake?").await;
    upstream.send("awake").await;
    client.expect("awake").await;
}

#[tokio::test]
async fn a_tunnel_is_not_given_back() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = switched(&ends).await;
    let (give_back, mut returned) = mpsc::unbounded_channel();
    ends.relay.drain(Drain::GiveBack(give_back));
    client.expect_silence().await;
    assert!(returned.try_recv().is_err());
    client.send("question").await;
    upstream.expect("question").await;
    upstream.send("answer").await;
    client.expect("answer").await;
    drop((client, upstream));
    soon(ends.relay.drained()).await;
    assert!(returned.try_recv().is_err());
}

#[tokio::test]
async fn an_offer_of_http2_by_upgrade_is_no_upgrade() {
    let ends = Ends::start().await;
    let mut client = ends.client().await;
    client
        .send("GET /v1/x HTTP/1.1\r\nHost: proxy\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nX-A: 1\r\n\r\n")
        .await;
    let mut upstream = ends.upstream().await;
    let wanted = "GET /v1/x HTTP/1.1\r\nHost: proxy\r\nX-A: 1\r\n\r\n";
    upstream.expect(ends.onward(wanted)).await;
    upstream.send(OK).await;
    client.expect(OK).await;
}

#[tokio::test]
async fn an_upgrade_that_connection_does_not_name_is_none() {
    let ends = Ends::start().await;
    let mut client = ends.client().await;
    client
        .send(UPGRADE.replace("Connection: Upgrade\r\n", ""))
        .await;
    let mut upstream = ends.upstream().await;
    let head = upstream.head().await;
    assert_eq!(field(&head, "upgrade"), None, "{head}");
}

#[tokio::test]
async fn an_upgrade_to_a_protocol_that_the_route_does_not_list_is_refused() {
    for (route, protocol) in [("upgrade = []", "websocket"), ("", "other/1.0")] {
        let ends = Ends::with(Lines {
            route,
            ..Lines::default()
        })
        .await;
        let mut client = ends.client().await;
        client.send(UPGRADE.replace("websocket", protocol)).await;
        let (status, _, body) = client.answer().await;
        assert!((400..=501).contains(&status), "{status} {body}");
        ends.expect_no_upstream().await;
        assert_eq!(ends.relay.load().local_5xx, 0);
    }
}

#[tokio::test]
async fn a_route_may_list_other_protocols() {
    let ends = Ends::with(Lines {
        route: "upgrade = [\"other/1.0\"]",
        ..Lines::default()
    })
    .await;
    let mut client = ends.client().await;
    client.send(UPGRADE.replace("websocket", "other/1.0")).await;
    let mut upstream = ends.upstream().await;
    let head = upstream.head().await;
    assert!(asks_for(&head, "other/1.0"), "{head}");
    upstream
        .send(SWITCHED.replace("websocket", "other/1.0"))
        .await;
    client.head().await;
    upstream.send("raw").await;
    client.expect("raw").await;
}

#[tokio::test]
async fn connect_is_refused_where_no_route_allows_it() {
    let ends = Ends::start().await;
    let targets = [ends.host(), "example.com:443".to_owned()];
    for target in targets {
        let mut client = ends.client().await;
        client
            .send(format!(
                "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"
            ))
            .await;
        let (status, _, body) = client.answer().await;
        assert!((400..=501).contains(&status), "{status} {body}");
        ends.expect_no_upstream().await;
    }
    assert_eq!(ends.relay.load().local_5xx, 0);
}

#[tokio::test]
async fn connect_to_the_upstream_of_a_route_that_allows_it_is_a_tunnel() {
    let ends = Ends::with(Lines {
        route: "connect = true",
        ..Lines::default()
    })
    .await;
    let target = ends.host();
    let mut client = ends.client().await;
    client
        .send(format!(
            "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\nearly"
        ))
        .await;
    let head = client.head().await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(field(&head, "content-length"), None, "{head}");
    assert_eq!(field(&head, "transfer-encoding"), None, "{head}");
    let mut upstream = ends.upstream().await;
    // Raw from the first byte: the upstream hears nothing of the request itself.
    upstream.expect("early").await;
    upstream.send("\x00answer").await;
    client.expect("\x00answer").await;
    client.finish().await;
    upstream.expect_closed().await;
    drop(upstream);
    client.expect_closed().await;
}

#[tokio::test]
async fn connect_to_anything_else_is_refused_by_a_route_that_allows_it() {
    let ends = Ends::with(Lines {
        route: "connect = true",
        ..Lines::default()
    })
    .await;
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for target in [
        nobody.local_addr().unwrap().to_string(),
        "127.0.0.1:1".to_owned(),
        "example.com:443".to_owned(),
    ] {
        let mut client = ends.client().await;
        client
            .send(format!(
                "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"
            ))
            .await;
        let (status, _, body) = client.answer().await;
        assert!((400..=501).contains(&status), "{target}: {status} {body}");
    }
    ends.expect_no_upstream().await;
    let asked = tokio::time::timeout(MOMENT, nobody.accept()).await;
    assert!(asked.is_err());
}

#[tokio::test]
async fn the_last_words_of_an_upstream_that_reads_no_more_arrive() {
    let ends = Ends::start().await;
    for _ in 0..20 {
        let (mut client, mut upstream) = switched(&ends).await;
        client.send([b'x'; 200_000]).await;
        upstream.expect(b"x").await;
        upstream.send("last words").await;
        // Closed on bytes that it did not read: a reset, which the relay's next write meets.
        drop(upstream);
        client.expect("last words").await;
    }
}

#[tokio::test]
async fn what_follows_a_refused_connect_is_not_served() {
    let ends = Ends::start().await;
    let mut client = ends.client().await;
    client
        .send("CONNECT elsewhere:1 HTTP/1.1\r\nHost: elsewhere:1\r\n\r\nGET /v1/x HTTP/1.1\r\nHost: proxy\r\n\r\n")
        .await;
    let (status, head, _) = client.answer().await;
    assert_eq!(status, 403, "{head}");
    client.expect_closed().await;
    ends.expect_no_upstream().await;
}

#[tokio::test]
async fn what_a_client_sent_before_it_closed_arrives_though_the_upstream_reads_late() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = switched(&ends).await;
    client.send(vec![b'x'; 1_000_000]).await;
    drop(client);
    // Long after it was noticed that nobody is there.
    tokio::time::sleep(Duration::from_millis(700)).await;
    let (rest, end) = upstream.rest().await;
    assert_eq!((rest.len(), end), (1_000_000, End::Closed));
}
