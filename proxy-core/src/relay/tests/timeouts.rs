//! What may take how long: clients, upstreams, and the connections between requests.

use std::time::Instant;

use super::ends::*;
use super::*;

const REQUEST: &str = "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: 2\r\n\r\n{}";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Not before its time; how much after it is the business of a coarse clock and a busy machine.
#[track_caller]
fn assert_waited(since: Instant, limit: Duration) {
    let waited = since.elapsed();
    assert!(waited >= limit * 9 / 10, "{waited:?} instead of {limit:?}");
}

async fn with_server(server: &str) -> Ends {
    Ends::with(Lines {
        server,
        ..Lines::default()
    })
    .await
}

async fn with_upstream(upstream: &str) -> Ends {
    Ends::with(Lines {
        upstream,
        ..Lines::default()
    })
    .await
}

#[tokio::test]
async fn a_head_that_does_not_end_in_time_is_408_however_it_trickles() {
    let limit = Duration::from_millis(400);
    let ends = with_server("header_timeout = \"400ms\"").await;
    let mut client = ends.client().await;
    let since = Instant::now();
    let (mut reading, mut writing) = client.stream.into_split();
    let trickling = tokio::spawn(async move {
        for byte in REQUEST[..50].bytes() {
            if writing.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let mut answer = [0; 12];
    soon(tokio::io::AsyncReadExt::read_exact(
        &mut reading,
        &mut answer,
    ))
    .await
    .unwrap();
    assert_eq!(&answer, b"HTTP/1.1 408");
    assert_waited(since, limit);
    assert!(since.elapsed() < Duration::from_secs(4));
    trickling.abort();

    client = ends.client().await;
    client.send("GET /v1/x HT").await;
    let (status, head, _) = client.answer().await;
    assert_eq!(status, 408);
    assert_eq!(field(&head, "connection"), Some("close"), "{head}");
    client.expect_end().await;
    ends.expect_no_upstream().await;
}

#[tokio::test]
async fn a_body_that_stops_before_the_answer_is_408_and_cut_at_the_upstream() {
    let limit = Duration::from_millis(400);
    let ends = with_server("body_timeout = \"400ms\"").await;
    let head = "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: 10\r\n\r\n";
    for part in ["", "half"] {
        let since = Instant::now();
        let (mut client, mut upstream) = ends.asked(format!("{head}{part}")).await;
        let (status, answer, _) = client.answer().await;
        assert_eq!(status, 408, "{answer}");
        assert_waited(since, limit);
        upstream.expect_end().await;
        client.expect_end().await;
    }
    assert_eq!(ends.relay.load().local_5xx, 0);
}

#[tokio::test]
async fn a_body_that_stops_during_the_answer_cuts_both() {
    let ends = with_server("body_timeout = \"400ms\"").await;
    let head = "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: 10\r\n\r\nhalf";
    let (mut client, mut upstream) = ends.asked(head).await;
    upstream.send(CHUNKED).await;
    client.expect(CHUNKED).await;
    client.expect_end().await;
    upstream.expect_end().await;
}

#[tokio::test]
async fn a_slow_body_is_not_one_that_stopped() {
    let ends = with_server("body_timeout = \"1s\"").await;
    let head = "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: 8\r\n\r\n";
    let (mut client, mut upstream) = ends.asked(head).await;
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        client.send("x").await;
        upstream.expect("x").await;
    }
    upstream.send(OK).await;
    client.expect(OK).await;
}

#[tokio::test]
async fn a_body_that_its_upstream_does_not_take_is_not_one_that_stopped() {
    let ends = with_server("body_timeout = \"400ms\"").await;
    let body = vec![b'x'; 32 << 20];
    let head = format!(
        "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let (mut client, mut upstream) = ends.asked(&head).await;
    let sent = client.send_until_stuck(&body).await;
    assert!(sent < body.len());
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    tokio::join!(client.send(&body[sent..]), upstream.expect(&body));
    upstream.send(OK).await;
    client.expect(OK).await;
}

#[tokio::test]
async fn a_client_that_waits_for_continue_is_not_slow_with_its_body() {
    let ends = with_server("body_timeout = \"400ms\"").await;
    let head =
        "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    let (mut client, mut upstream) = ends.asked(head).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let go_on = "HTTP/1.1 100 Continue\r\n\r\n";
    upstream.send(go_on).await;
    client.expect(go_on).await;
    client.send("hello").await;
    upstream.expect("hello").await;
    upstream.send(OK).await;
    client.expect(OK).await;
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_left_and_its_upstream_too() {
    let ends = with_server("send_timeout = \"500ms\"").await;
    let (client, mut upstream) = ends.asked(REQUEST).await;
    upstream
        .send("HTTP/1.1 200 OK\r\nContent-Length: 200000000\r\n\r\n")
        .await;
    upstream.send_until_stuck(&vec![0; 64 << 20]).await;
    upstream.expect_end().await;
    until(|| ends.relay.load().connections == 0).await;
    drop(client);
}

#[tokio::test]
async fn a_client_that_takes_little_by_little_is_not_left() {
    const LENGTH: usize = 24 << 20;
    let ends = with_server("send_timeout = \"1s\"").await;
    let (mut client, mut upstream) = ends.asked(REQUEST).await;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n");
    upstream.send(&head).await;
    client.expect(&head).await;
    let sending = async { upstream.send(vec![0; LENGTH]).await };
    // 3 s in all, while every buffer in between is full.
    let reading = async {
        for _ in 0..12 {
            tokio::time::sleep(Duration::from_millis(250)).await;
            client.expect(vec![0; LENGTH / 12]).await;
        }
    };
    tokio::join!(sending, reading);
}

#[tokio::test]
async fn a_client_with_nothing_to_take_is_not_one_that_takes_nothing() {
    let ends = with_server("send_timeout = \"300ms\"").await;
    let (mut client, mut upstream) = ends.asked(REQUEST).await;
    upstream.send(CHUNKED).await;
    client.expect(CHUNKED).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    upstream.send("0\r\n\r\n").await;
    client.expect("0\r\n\r\n").await;
}

#[tokio::test]
async fn a_connection_that_is_idle_for_too_long_is_closed_without_a_word() {
    let limit = Duration::from_millis(500);
    let ends = with_server("idle_timeout = \"500ms\"").await;
    let (mut client, mut upstream) = ends.asked(REQUEST).await;
    // It is not idle while its answer is waited for.
    tokio::time::sleep(limit * 3).await;
    upstream.send(OK).await;
    let since = Instant::now();
    client.expect(OK).await;
    client.expect_closed().await;
    assert_waited(since, limit);
}

#[tokio::test]
async fn a_connection_that_never_asked_is_idle_too() {
    let limit = Duration::from_millis(500);
    let ends = with_server("idle_timeout = \"500ms\"").await;
    let since = Instant::now();
    let mut client = ends.client().await;
    client.expect_closed().await;
    assert_waited(since, limit);
}

#[tokio::test]
async fn idle_connections_may_be_kept_for_ever() {
    let ends = with_server("idle_timeout = \"0\"").await;
    let (mut client, mut upstream) = ends.asked(REQUEST).await;
    upstream.send(OK).await;
    client.expect(OK).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    client.send(REQUEST).await;
    upstream.expect(ends.onward(REQUEST)).await;
    upstream.send(OK).await;
    client.expect(OK).await;
}

#[tokio::test]
async fn an_upstream_that_is_silent_or_stops_inside_its_head_is_504_and_left() {
    let limit = Duration::from_millis(400);
    let ends = with_upstream("first_byte_timeout = \"400ms\"").await;
    for part in [
        "",
        "HTTP/1.1 200 OK\r\nContent-",
        "HTTP/1.1 103 Early Hints\r\n\r\n",
    ] {
        let since = Instant::now();
        let (mut client, mut upstream) = ends.asked(REQUEST).await;
        upstream.send(part).await;
        if part.contains("103") {
            client.expect(part).await;
        }
        assert_eq!(client.answer().await.0, 504, "{part:?}");
        assert_waited(since, limit);
        upstream.expect_end().await;
        // The client's connection goes on.
        client.send(REQUEST).await;
        let mut upstream = ends.upstream().await;
        upstream.expect(ends.onward(REQUEST)).await;
        upstream.send(OK).await;
        client.expect(OK).await;
        upstream.reset();
    }
    assert_eq!(ends.relay.load().local_5xx, 3);
}

#[tokio::test]
async fn an_upstream_is_waited_for_from_the_end_of_the_request() {
    let ends = with_upstream("first_byte_timeout = \"1s\"").await;
    let head = "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: 8\r\n\r\n";
    let (mut client, mut upstream) = ends.asked(head).await;
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        client.send("x").await;
        upstream.expect("x").await;
    }
    upstream.send(OK).await;
    client.expect(OK).await;
}

#[tokio::test]
async fn an_upstream_is_not_silent_while_its_client_pauses_inside_a_body() {
    let ends = with_upstream("first_byte_timeout = \"400ms\"").await;
    let head = "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: 8\r\n\r\nhalf";
    let (mut client, mut upstream) = ends.asked(head).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    client.send("half").await;
    upstream.expect("half").await;
    upstream.send(OK).await;
    client.expect(OK).await;
}

#[tokio::test]
async fn zero_never_expires() {
    let ends = Ends::with(Lines {
        server: "body_timeout = \"0\"\nsend_timeout = \"0\"\nidle_timeout = \"0\"",
        upstream: "first_byte_timeout = \"0\"\nidle_timeout = \"0\"",
        route: "",
    })
    .await;
    let pause = || tokio::time::sleep(Duration::from_millis(1_200));
    let mut client = ends.client().await;
    pause().await;
    client
        .send("POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: 2\r\n\r\n{")
        .await;
    let mut upstream = ends.upstream().await;
    pause().await;
    client.send("}").await;
    upstream.expect(ends.onward(REQUEST)).await;
    pause().await;
    upstream.send(CHUNKED).await;
    client.expect(CHUNKED).await;
    pause().await;
    upstream.send("0\r\n\r\n").await;
    client.expect("0\r\n\r\n").await;
    pause().await;
    client.send(REQUEST).await;
    upstream.expect(ends.onward(REQUEST)).await;
}

#[tokio::test]
async fn an_upstream_that_falls_silent_in_mid_body_is_left_and_its_answer_cut() {
    let limit = Duration::from_millis(400);
    let ends = with_upstream("idle_timeout = \"400ms\"").await;
    for (answer, end) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", None),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
            None,
        ),
        // Here a close would look like the end of the answer.
        ("HTTP/1.1 200 OK\r\n\r\nhalf", Some(End::Reset)),
    ] {
        let (mut client, mut upstream) = ends.asked(REQUEST).await;
        let since = Instant::now();
        upstream.send(answer).await;
        client.until(b"half").await;
        let (rest, came) = client.rest().await;
        assert!(b"\r\n".starts_with(&rest), "{}", shown(&rest));
        assert!(end.is_none_or(|end| end == came), "{answer:?}");
        assert_waited(since, limit);
        upstream.expect_end().await;
    }
}

#[tokio::test]
async fn an_upstream_whose_client_does_not_read_is_not_silent() {
    const LENGTH: usize = 32 << 20;
    let ends = with_upstream("idle_timeout = \"400ms\"").await;
    let (mut client, mut upstream) = ends.asked(REQUEST).await;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n");
    upstream.send(&head).await;
    client.expect(&head).await;
    let body = vec![0; LENGTH];
    let sent = upstream.send_until_stuck(&body).await;
    assert!(sent < LENGTH);
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    tokio::join!(upstream.send(&body[sent..]), client.expect(&body));
}

#[tokio::test]
async fn an_empty_line_behind_a_body_begins_no_request() {
    let ends = Ends::with(Lines {
        server: "header_timeout = \"300ms\"",
        ..Lines::default()
    })
    .await;
    let request = "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: 2\r\n\r\n{}";
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let (mut client, mut upstream) = ends.asked(request).await;
    for _ in 0..2 {
        upstream.send(answer).await;
        client.expect(answer).await;
        client.send("\r").await;
        client.expect_silence().await;
        client.send("\n").await;
        // Longer than a head may take.
        tokio::time::sleep(Duration::from_millis(900)).await;
        client.send(request).await;
        upstream.expect(ends.onward(request)).await;
    }
}

#[tokio::test]
async fn a_body_that_does_not_come_after_100_is_408() {
    let ends = Ends::with(Lines {
        server: "body_timeout = \"400ms\"",
        ..Lines::default()
    })
    .await;
    let request =
        "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    let (mut client, mut upstream) = ends.asked(request).await;
    upstream.send("HTTP/1.1 100 Continue\r\n\r\n").await;
    client.expect("HTTP/1.1 100 Continue\r\n\r\n").await;
    assert_eq!(client.answer().await.0, 408);
}

#[tokio::test]
async fn an_upstream_that_falls_silent_after_its_clients_pause_is_given_up() {
    let ends = Ends::with(Lines {
        server: "body_timeout = \"0\"",
        upstream: "idle_timeout = \"300ms\"",
        ..Lines::default()
    })
    .await;
    let request = "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: 5\r\n\r\n";
    let (mut client, mut upstream) = ends.asked(request).await;
    let half = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf";
    upstream.send(half).await;
    client.expect(half).await;
    tokio::time::sleep(Duration::from_millis(1000)).await;
    client.send("hello").await;
    upstream.expect("hello").await;
    client.expect_end().await;
}
