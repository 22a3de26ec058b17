//! A client that only finished sending gets its answer; one that left costs its upstream nothing more.

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::ends::*;
use super::*;

const REQUEST: &str = "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: 2\r\n\r\n{}";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[tokio::test]
async fn a_client_that_half_closes_still_gets_its_answer() {
    let ends = Ends::start().await;
    for request in [
        REQUEST,
        "GET /v1/x HTTP/1.1\r\nHost: proxy\r\n\r\n",
        "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ] {
        let mut client = ends.client().await;
        client.send(request).await;
        client.finish().await;
        let mut upstream = ends.upstream().await;
        upstream.expect(ends.onward(request)).await;
        // It thinks for a while, longer than it takes to notice that a client has left.
        for _ in 0..5 {
            upstream.expect_silence().await;
        }
        upstream
            .send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
            .await;
        let (status, _, body) = client.answer().await;
        assert_eq!((status, body.as_str()), (200, "ok"));
        client.expect_closed().await;
    }
}

#[tokio::test]
async fn a_client_that_half_closes_still_gets_a_long_stream() {
    let ends = Ends::start().await;
    // Before the first event, and in the middle.
    for finish_before in [0, 20] {
        let (mut client, mut upstream) = ends.asked(REQUEST).await;
        upstream.send(CHUNKED).await;
        client.expect(CHUNKED).await;
        for event in 0..40 {
            if event == finish_before {
                client.finish().await;
                upstream.expect_silence().await;
            }
            let event = chunk(format!("data: {event}\n\n").as_bytes());
            upstream.send(&event).await;
            client.expect(&event).await;
        }
        upstream.send("0\r\n\r\n").await;
        client.expect("0\r\n\r\n").await;
        client.expect_closed().await;
    }
}

#[tokio::test]
async fn a_client_that_half_closes_gets_the_answers_to_all_it_had_sent() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = ends.asked(REQUEST).await;
    client.send(REQUEST.repeat(2)).await;
    client.finish().await;
    for number in 0..3 {
        if number > 0 {
            upstream.expect(ends.onward(REQUEST)).await;
        }
        upstream.send(CHUNKED).await;
        client.expect(CHUNKED).await;
        upstream.send("1\r\na\r\n0\r\n\r\n").await;
        client.expect("1\r\na\r\n0\r\n\r\n").await;
    }
    client.expect_closed().await;
}

#[tokio::test]
async fn an_idle_connection_whose_client_finished_is_closed() {
    let ends = Ends::start().await;
    let (mut used, mut upstream) = ends.asked(REQUEST).await;
    upstream.send(OK).await;
    used.expect(OK).await;
    let mut unused = ends.client().await;
    for client in [&mut used, &mut unused] {
        client.finish().await;
        client.expect_closed().await;
    }
    until(|| ends.relay.load().connections == 0).await;
}

#[tokio::test]
async fn a_client_that_ends_inside_its_request_is_not_forwarded_as_if_it_were_whole() {
    let ends = Ends::start().await;
    for (request, rest) in [
        (
            "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: 10\r\n\r\nhalf",
            "",
        ),
        (
            "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
            "",
        ),
        (
            "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
            "0\r\n",
        ),
    ] {
        for half_close in [true, false] {
            let (mut client, mut upstream) = ends.asked(request).await;
            client.send(rest).await;
            if half_close {
                client.finish().await;
            }
            let kept = half_close.then_some(client);
            let (came, _) = upstream.rest().await;
            assert!(rest.as_bytes().starts_with(&came), "{}", shown(&came));
            drop(kept);
        }
    }
    // Inside a head: nothing is forwarded at all.
    let mut client = ends.client().await;
    client.send(&REQUEST[..30]).await;
    client.finish().await;
    client.rest().await;
    ends.expect_no_upstream().await;
}

/// How a client leaves.
#[derive(Debug, Clone, Copy)]
enum How {
    Close,
    Reset,
    /// Its process dies with the connection open.
    Death,
}

const WAYS: [How; 3] = [How::Close, How::Reset, How::Death];

impl How {
    /// When it left.
    fn leave(self, client: Peer) -> Instant {
        match self {
            Self::Close => {
                let left = Instant::now();
                drop(client);
                left
            }
            Self::Reset => {
                let left = Instant::now();
                client.reset();
                left
            }
            Self::Death => {
                let socket = OwnedFd::from(client.stream.into_std().unwrap());
                let mut process = Command::new("sleep")
                    .arg("600")
                    .stdin(Stdio::from(socket))
                    .spawn()
                    .unwrap();
                let left = Instant::now();
                process.kill().unwrap();
                process.wait().unwrap();
                left
            }
        }
    }
}

/// A client leaves, five times each way: how long it takes, in the middle of them, until the upstream's connection ends.
async fn expect_prompt_cancelling(prepare: impl AsyncFn(&Ends) -> (Peer, Peer)) {
    let ends = Ends::start().await;
    for how in WAYS {
        let mut times = Vec::new();
        for _ in 0..5 {
            let (client, mut upstream) = prepare(&ends).await;
            let left = how.leave(client);
            upstream.rest().await;
            times.push(left.elapsed());
        }
        times.sort_unstable();
        assert!(times[2] < Duration::from_millis(100), "{how:?}: {times:?}");
    }
    until(|| ends.relay.load().connections == 0).await;
    assert_eq!(ends.relay.load().local_5xx, 0);
}

#[tokio::test]
async fn a_client_that_leaves_before_the_answer_cancels_the_upstream_at_once() {
    expect_prompt_cancelling(async |ends: &Ends| ends.asked(REQUEST).await).await;
}

#[tokio::test]
async fn a_client_that_leaves_while_nothing_flows_cancels_the_upstream_at_once() {
    expect_prompt_cancelling(async |ends: &Ends| {
        let (mut client, mut upstream) = ends.asked(REQUEST).await;
        upstream.send(CHUNKED).await;
        client.expect(CHUNKED).await;
        upstream.send_chunk("data: 1\n\n").await;
        client.expect(chunk(b"data: 1\n\n")).await;
        upstream.expect_silence().await;
        (client, upstream)
    })
    .await;
}

#[tokio::test]
async fn a_client_that_leaves_in_mid_stream_cancels_the_upstream_at_once() {
    let ends = Ends::start().await;
    for how in WAYS {
        let mut times = Vec::new();
        for _ in 0..5 {
            let (mut client, mut upstream) = ends.asked(REQUEST).await;
            upstream.send(CHUNKED).await;
            client.expect(CHUNKED).await;
            let (mut reading, mut writing) = upstream.stream.into_split();
            // Until the relay ends it: every 5 ms an event.
            let events = tokio::spawn(async move {
                while writing.write_all(&chunk(b"data: x\n\n")).await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            });
            client.until(b"data: x\n\n\r\n").await;
            let left = how.leave(client);
            let mut byte = [0];
            let ended = tokio::io::AsyncReadExt::read(&mut reading, &mut byte);
            assert!(!matches!(soon(ended).await, Ok(1..)));
            times.push(left.elapsed());
            drop(reading);
            soon(events).await.unwrap();
        }
        times.sort_unstable();
        assert!(times[2] < Duration::from_millis(100), "{how:?}: {times:?}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_while_it_does_not_read_cancels_the_upstream_at_once() {
    expect_prompt_cancelling(async |ends: &Ends| {
        let (client, mut upstream) = ends.asked(REQUEST).await;
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 200000000\r\n\r\n";
        upstream.send(head).await;
        let sent = upstream.send_until_stuck(&vec![0; 64 << 20]).await;
        assert!(sent < 64 << 20);
        (client, upstream)
    })
    .await;
}

#[tokio::test]
async fn a_client_that_leaves_inside_its_body_cancels_the_upstream_at_once() {
    expect_prompt_cancelling(async |ends: &Ends| {
        ends.asked("POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: 100\r\n\r\nhalf")
            .await
    })
    .await;
}

#[tokio::test]
async fn a_client_that_leaves_while_its_upstream_does_not_read_cancels_it_at_once() {
    expect_prompt_cancelling(async |ends: &Ends| {
        let head = "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: 200000000\r\n\r\n";
        let (mut client, upstream) = ends.asked(head).await;
        let sent = client.send_until_stuck(&vec![0; 64 << 20]).await;
        assert!(sent < 64 << 20);
        (client, upstream)
    })
    .await;
}

#[tokio::test]
async fn a_client_that_leaves_behind_a_flood_of_requests_cancels_the_upstream_at_once() {
    // More than is read ahead, and so little that the end behind it has come, too.
    let flood = REQUEST.repeat(110_000 / REQUEST.len());
    expect_prompt_cancelling(async |ends: &Ends| {
        let (mut client, mut upstream) = ends.asked(REQUEST).await;
        client.send(&flood).await;
        upstream.expect_silence().await;
        (client, upstream)
    })
    .await;
}

#[tokio::test]
async fn a_client_that_half_closed_and_then_left_is_noticed_by_the_next_event() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = ends.asked(REQUEST).await;
    client.finish().await;
    upstream.send(CHUNKED).await;
    client.expect(CHUNKED).await;
    drop(client);
    // The first event meets a socket that is gone, and the second the news of that.
    soon(async {
        while upstream
            .stream
            .write_all(&chunk(b"data: x\n\n"))
            .await
            .is_ok()
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    until(|| ends.relay.load().connections == 0).await;
}
