//! WebSockets and other tunnels when the process ends.

use std::time::Instant;

use super::ends::*;
use super::tunnels::{UPGRADE, switched};
use super::*;

/// 1012: the service restarts.
const RESTARTING: [u8; 4] = [0x88, 2, 0x03, 0xf4];

/// A text frame of a server.
fn frame(length: u8) -> Vec<u8> {
    [vec![0x81, length], vec![b'x'; usize::from(length)]].concat()
}

/// The frame of a client that says it goes away: masked, 1001.
fn is_going_away(bytes: &[u8]) -> bool {
    let [0x88, 0x82, a, b, _, _, high, low] = bytes else {
        return false;
    };
    [high ^ a, low ^ b] == [0x03, 0xe9]
}

#[tokio::test]
async fn between_two_frames_both_sides_are_told_and_then_it_ends() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = switched(&ends).await;
    upstream.send(frame(5)).await;
    client.expect(frame(5)).await;
    let begin = Instant::now();
    ends.relay.abort();
    client.expect(RESTARTING).await;
    client.expect_closed().await;
    let (bytes, end) = upstream.rest().await;
    assert!(is_going_away(&bytes), "{bytes:x?}");
    assert_eq!(end, End::Closed);
    // It answers, as a client should, and is gone.
    client.send([0x88, 0x82, 0, 0, 0, 0, 0x03, 0xf4]).await;
    drop(client);
    soon(ends.relay.drained()).await;
    assert!(
        begin.elapsed() < Duration::from_secs(2),
        "{:?}",
        begin.elapsed()
    );
}

#[tokio::test]
async fn a_frame_cut_anywhere_is_finished_first_and_nothing_of_the_next_one_follows() {
    let whole = frame(9);
    for cut in 1..whole.len() {
        let ends = Ends::start().await;
        let (mut client, mut upstream) = switched(&ends).await;
        upstream.send(&whole[..cut]).await;
        client.expect(&whole[..cut]).await;
        ends.relay.abort();
        client.expect_silence().await;
        upstream.send([&whole[cut..], &frame(3)].concat()).await;
        client.expect(&whole[cut..]).await;
        client.expect(RESTARTING).await;
        client.expect_closed().await;
        drop((client, upstream));
        soon(ends.relay.drained()).await;
    }
}

#[tokio::test]
async fn frames_that_came_with_the_switch_count() {
    let ends = Ends::start().await;
    let mut client = ends.client().await;
    client.send(UPGRADE).await;
    let mut upstream = ends.upstream().await;
    upstream.head().await;
    let switch =
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\n\r\n";
    let first = frame(4);
    upstream
        .send([switch.as_bytes(), &first[..3]].concat())
        .await;
    client.head().await;
    client.expect(&first[..3]).await;
    ends.relay.abort();
    client.expect_silence().await;
    upstream.send(&first[3..]).await;
    client.expect(&first[3..]).await;
    client.expect(RESTARTING).await;
    client.expect_closed().await;
}

#[tokio::test]
async fn a_frame_that_does_not_end_in_time_is_cut_by_a_reset_and_no_word_is_put_into_it() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = switched(&ends).await;
    upstream.send(&frame(9)[..4]).await;
    client.expect(&frame(9)[..4]).await;
    let begin = Instant::now();
    ends.relay.abort();
    assert_eq!(client.expect_end().await, End::Reset);
    soon(ends.relay.drained()).await;
    let took = begin.elapsed();
    let wanted = Duration::from_millis(1_900)..Duration::from_secs(3);
    assert!(wanted.contains(&took), "{took:?}");
}

#[tokio::test]
async fn a_client_that_does_not_take_what_is_on_its_way_is_reset_in_time() {
    let ends = Ends::start().await;
    let (client, mut upstream) = switched(&ends).await;
    let many = frame(100).repeat(300_000);
    upstream.send_until_stuck(&many).await;
    let begin = Instant::now();
    ends.relay.abort();
    soon(ends.relay.drained()).await;
    assert!(begin.elapsed() < Duration::from_secs(3));
    drop(client);
}

#[tokio::test]
async fn a_client_in_the_middle_of_its_own_frame_is_told_and_its_upstream_reset() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = switched(&ends).await;
    let half = [0x81, 0x85, 1, 2, 3];
    client.send(half).await;
    upstream.expect(half).await;
    ends.relay.abort();
    client.expect(RESTARTING).await;
    client.expect_closed().await;
    assert_eq!(upstream.expect_end().await, End::Reset);
}

#[tokio::test]
async fn a_client_that_still_sends_is_not_cut_off_from_the_last_word() {
    let ends = Ends::start().await;
    let (mut client, _upstream) = switched(&ends).await;
    ends.relay.abort();
    // More than the relay reads at once, and behind it the end.
    let (mut sent, frames) = (
        0,
        [vec![0x81, 0xfe, 0xff, 0xff], vec![0; 4 + 0xffff]].concat(),
    );
    while sent < 4 << 20 {
        if client.stream.write_all(&frames).await.is_err() {
            break;
        }
        sent += frames.len();
    }
    client.expect(RESTARTING).await;
}

#[tokio::test]
async fn who_was_told_by_the_upstream_is_not_told_again() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = switched(&ends).await;
    let close = [0x88, 2, 0x03, 0xe8];
    upstream.send(close).await;
    client.expect(close).await;
    ends.relay.abort();
    client.expect_closed().await;
}

#[tokio::test]
async fn a_tunnel_of_another_protocol_is_reset_at_once() {
    let ends = Ends::with(Lines {
        route: "upgrade = [\"other/1.0\"]",
        ..Lines::default()
    })
    .await;
    let mut client = ends.client().await;
    client.send(UPGRADE.replace("websocket", "other/1.0")).await;
    let mut upstream = ends.upstream().await;
    upstream.head().await;
    upstream
        .send(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: other/1.0\r\nConnection: Upgrade\r\n\r\n",
        )
        .await;
    client.head().await;
    let begin = Instant::now();
    ends.relay.abort();
    assert_eq!(client.expect_end().await, End::Reset);
    assert_eq!(upstream.expect_end().await, End::Reset);
    soon(ends.relay.drained()).await;
    assert!(begin.elapsed() < Duration::from_secs(1));
}
