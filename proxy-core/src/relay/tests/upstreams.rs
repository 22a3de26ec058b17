//! Upstreams that say nothing, half of it, too much or too little; and which of their connections are used again.

use super::ends::*;

const REQUEST: &str = "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: 2\r\n\r\n{}";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Asks once more, and answers on the connection that the relay takes for it.
async fn answered(ends: &Ends, client: &mut Peer, upstream: &mut Peer) {
    client.send(REQUEST).await;
    upstream.expect(ends.onward(REQUEST)).await;
    upstream.send(OK).await;
    client.expect(OK).await;
}

/// As [`answered`], on a new connection.
async fn answered_anew(ends: &Ends, client: &mut Peer) -> Peer {
    client.send(REQUEST).await;
    let mut upstream = ends.upstream().await;
    upstream.expect(ends.onward(REQUEST)).await;
    upstream.send(OK).await;
    client.expect(OK).await;
    upstream
}

#[tokio::test]
async fn an_upstream_cut_in_mid_body_is_never_a_clean_end_for_the_client() {
    let ends = Ends::start().await;
    for (head, part) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", "half"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n", ""),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "4\r\nhalf\r\n",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "8\r\nhalf",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "4\r\nhalf\r\n0\r\n",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "4\r\nhalf\r\n0\r\nX-Sum: 1\r\n",
        ),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", ""),
    ] {
        for reset in [false, true] {
            let (mut client, mut upstream) = ends.asked(REQUEST).await;
            upstream.send(head).await;
            client.expect(head).await;
            upstream.send(part).await;
            if reset {
                // What is under way when a connection is reset may be lost with it.
                client.until(&part.as_bytes()[..part.len().min(4)]).await;
                upstream.reset();
            } else {
                drop(upstream);
            }
            let (came, _) = client.rest().await;
            let wanted = if reset {
                &part[part.len().min(4)..]
            } else {
                part
            };
            assert!(
                wanted.as_bytes().starts_with(&came),
                "{part:?}: {}",
                shown(&came)
            );
            // Data is passed on to the last byte; a line of framing that never became whole may be kept back.
            let data = wanted.rfind("half").map_or(0, |at| at + 4);
            assert!(came.len() >= data, "{part:?}: {}", shown(&came));
        }
    }
    assert_eq!(ends.relay.load().local_5xx, 0);
}

#[tokio::test]
async fn an_answer_until_close_that_was_reset_is_reset_here_too() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = ends.asked(REQUEST).await;
    upstream.send("HTTP/1.1 200 OK\r\n\r\nhalf").await;
    client.until(b"half").await;
    upstream.reset();
    // A close would be a whole answer.
    assert_eq!(client.expect_end().await, End::Reset);
}

#[tokio::test]
async fn a_cut_body_resets_a_client_of_http_1_0_for_whom_a_close_is_its_end() {
    let ends = Ends::start().await;
    let mut client = ends.client().await;
    client.send("GET /v1/x HTTP/1.0\r\n\r\n").await;
    let mut upstream = ends.upstream().await;
    upstream.head().await;
    upstream
        .send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
        .await;
    client.until(b"half").await;
    drop(upstream);
    assert_eq!(client.expect_end().await, End::Reset);
}

#[tokio::test]
async fn broken_framing_in_an_answers_body_is_a_cut() {
    let ends = Ends::start().await;
    for broken in [
        "zz\r\n",
        "5\r\nhello!\r\n",
        "4\nhalf\r\n0\r\n\r\n",
        "-1\r\n",
        "0x4\r\nhalf\r\n0\r\n\r\n",
        "11111111111111111\r\n",
        "0\r\nContent-Length: 3\r\n\r\n",
        "0\r\nno colon\r\n\r\n",
    ] {
        let (mut client, mut upstream) = ends.asked(REQUEST).await;
        let start = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n";
        upstream.send(start).await;
        client.expect(start).await;
        upstream.send(broken).await;
        let (came, _) = client.rest().await;
        // It ends, and no reader of it can have seen an end of the body.
        assert!(!came.ends_with(b"\r\n\r\n"), "{broken:?}: {}", shown(&came));
        upstream.rest().await;
    }
}

#[tokio::test]
async fn an_upstream_that_answers_nothing_or_half_a_head_is_502() {
    let ends = Ends::start().await;
    for (part, reset) in [
        ("", false),
        ("", true),
        ("HTT", false),
        ("HTTP/1.1 200 OK\r\nContent-Le", false),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", true),
    ] {
        let (mut client, mut upstream) = ends.asked(REQUEST).await;
        upstream.send(part).await;
        match reset {
            true => upstream.reset(),
            false => drop(upstream),
        }
        assert_eq!(client.answer().await.0, 502, "{part:?}");
        // It is asked no second time, and the client's connection goes on.
        ends.expect_no_upstream().await;
        answered_anew(&ends, &mut client).await.reset();
    }
}

#[tokio::test]
async fn an_upstream_that_answers_what_is_no_answer_is_502_and_left() {
    let ends = Ends::start().await;
    let huge = format!("HTTP/1.1 200 OK\r\nX-Huge: {}\r\n\r\n", "a".repeat(70_000));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X-A: b\r\n".repeat(300));
    for bad in [
        "SSH-2.0-OpenSSH_9.2\r\n",
        "\x15\x03\x01\x00\x02\x02\x16garbage\r\n\r\n",
        "HTTP/2 200\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\n folded: 1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX-A: 1\r\n folded\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX A: 1\r\n\r\n",
        &huge,
        &many,
    ] {
        let (mut client, mut upstream) = ends.asked(REQUEST).await;
        upstream.send(bad).await;
        let (status, _, body) = client.answer().await;
        assert_eq!(status, 502, "{bad:.60}: {body}");
        upstream.rest().await;
        answered_anew(&ends, &mut client).await.reset();
    }
}

#[tokio::test]
async fn an_upstreams_bytes_behind_its_answer_go_nowhere_and_end_its_connection() {
    let ends = Ends::start().await;
    for (method, answer) in [
        ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
        (
            "GET",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        ("GET", "HTTP/1.1 204 Nothing\r\n\r\n"),
        ("GET", "HTTP/1.1 304 Same\r\nContent-Length: 5\r\n\r\n"),
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
    ] {
        let request = format!("{method} /v1/x HTTP/1.1\r\nHost: proxy\r\n\r\n");
        let (mut client, mut upstream) = ends.asked(&request).await;
        upstream
            .send(format!(
                "{answer}HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong"
            ))
            .await;
        client.expect(answer).await;
        client.expect_silence().await;
        upstream.rest().await;
        answered_anew(&ends, &mut client).await.reset();
    }
}

#[tokio::test]
async fn what_an_upstream_says_unasked_answers_nobody() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = ends.asked(REQUEST).await;
    upstream.send(OK).await;
    client.expect(OK).await;
    for close in [false, true, false, true] {
        upstream
            .send("HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
            .await;
        if close {
            drop(upstream);
        }
        client.expect_silence().await;
        upstream = answered_anew(&ends, &mut client).await;
    }
}

#[tokio::test]
async fn a_connection_that_the_upstream_closed_while_idle_is_not_used_again() {
    let ends = Ends::start().await;
    let mut client = ends.client().await;
    for reset in [false, true, false] {
        let upstream = answered_anew(&ends, &mut client).await;
        match reset {
            true => upstream.reset(),
            false => drop(upstream),
        }
    }
    // Also when it is only half closed, and when the next request comes at the same moment.
    for _ in 0..50 {
        let mut upstream = answered_anew(&ends, &mut client).await;
        upstream.finish().await;
        drop(upstream);
    }
    assert_eq!(ends.relay.load().local_5xx, 0);
}

#[tokio::test]
async fn a_request_that_may_have_been_seen_is_not_sent_twice() {
    let ends = Ends::start().await;
    for (method, reset) in [
        ("POST", false),
        ("POST", true),
        ("GET", false),
        ("GET", true),
    ] {
        let mut client = ends.client().await;
        let mut upstream = answered_anew(&ends, &mut client).await;
        let request = format!("{method} /v1/once HTTP/1.1\r\nHost: proxy\r\n\r\n");
        client.send(&request).await;
        upstream.expect(ends.onward(&request)).await;
        match reset {
            true => upstream.reset(),
            false => drop(upstream),
        }
        assert_eq!(client.answer().await.0, 502);
        ends.expect_no_upstream().await;
        answered_anew(&ends, &mut client).await.reset();
    }
}

#[tokio::test]
async fn a_connection_is_used_again_by_another_client() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = ends.asked(REQUEST).await;
    upstream.send(OK).await;
    client.expect(OK).await;
    for _ in 0..5 {
        drop(client);
        client = ends.client().await;
        answered(&ends, &mut client, &mut upstream).await;
    }
    ends.expect_no_upstream().await;
}

#[tokio::test]
async fn a_connection_on_which_an_answer_is_under_way_is_not_used_by_another_client() {
    let ends = Ends::start().await;
    let (mut first, mut upstream) = ends.asked(REQUEST).await;
    upstream
        .send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
        .await;
    first.until(b"\r\n\r\no").await;
    let mut second = ends.client().await;
    let mut other = answered_anew(&ends, &mut second).await;
    upstream.send("k").await;
    first.expect("k").await;
    other.expect_silence().await;
}

#[tokio::test]
async fn a_connection_whose_client_left_is_not_used_again() {
    let ends = Ends::start().await;
    let (client, mut upstream) = ends.asked(REQUEST).await;
    upstream
        .send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
        .await;
    client.reset();
    upstream.expect_end().await;
    let mut client = ends.client().await;
    answered_anew(&ends, &mut client).await;
}
