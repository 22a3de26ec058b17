//! Requests that are sent before the answers to earlier ones have come.

use super::ends::*;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

fn requests() -> Vec<String> {
    (0..30)
        .map(|number| match number % 3 {
            0 => format!("GET /v1/{number} HTTP/1.1\r\nHost: proxy\r\n\r\n"),
            1 => format!(
                "POST /v1/{number} HTTP/1.1\r\nHost: proxy\r\nContent-Length: 5\r\n\r\nhello"
            ),
            _ => format!(
                "POST /v1/{number} HTTP/1.1\r\nHost: proxy\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n"
            ),
        })
        .collect()
}

#[tokio::test]
async fn pipelined_requests_are_forwarded_one_after_the_other() {
    let ends = Ends::start().await;
    let requests = requests();
    let mut client = ends.client().await;
    client.send(requests.concat()).await;
    let mut upstream = ends.upstream().await;
    for (number, request) in requests.iter().enumerate() {
        upstream.expect(ends.onward(request)).await;
        // The next one waits for the answer to this one.
        if number < 3 {
            upstream.expect_silence().await;
        }
        let answer =
            format!("HTTP/1.1 200 OK\r\nX-Number: {number}\r\nContent-Length: 2\r\n\r\nok");
        upstream.send(&answer).await;
        client.expect(&answer).await;
    }
    ends.expect_no_upstream().await;
}

#[tokio::test]
async fn requests_may_come_while_an_earlier_answer_is_streaming() {
    let ends = Ends::start().await;
    let requests = requests();
    let (mut client, mut upstream) = ends.asked(&requests[0]).await;
    upstream.send(CHUNKED).await;
    client.expect(CHUNKED).await;
    // In pieces between the events, cut in the middle of heads.
    let later = requests[1..].concat();
    for piece in later.as_bytes().chunks(97) {
        client.send(piece).await;
        upstream.send_chunk("data: x\n\n").await;
        client.expect(chunk(b"data: x\n\n")).await;
    }
    upstream.expect_silence().await;
    upstream.send("0\r\n\r\n").await;
    client.expect("0\r\n\r\n").await;
    for request in &requests[1..] {
        upstream.expect(ends.onward(request)).await;
        upstream.send(OK).await;
        client.expect(OK).await;
    }
}

#[tokio::test]
async fn requests_that_wait_their_turn_wait_with_the_client() {
    const FLOOD: usize = 64 << 20;
    let ends = Ends::start().await;
    let request = "GET /v1/x HTTP/1.1\r\nHost: proxy\r\n\r\n";
    let (mut client, mut upstream) = ends.asked(request).await;
    upstream.send(CHUNKED).await;
    client.expect(CHUNKED).await;
    let flood = request.repeat(FLOOD / request.len());
    let sent = client.send_until_stuck(flood.as_bytes()).await;
    // The kernel's buffers hold some; the relay itself must not read on and on.
    assert!(sent < 16 << 20, "{sent}");
    upstream.send("0\r\n\r\n").await;
    client.expect("0\r\n\r\n").await;
    upstream.expect(ends.onward(request)).await;
    upstream.send(OK).await;
    client.expect(OK).await;
}

#[tokio::test]
async fn a_refused_request_among_pipelined_ones_is_answered_in_its_turn() {
    let ends = Ends::start().await;
    let mut client = ends.client().await;
    let first = "GET /v1/first HTTP/1.1\r\nHost: proxy\r\n\r\n";
    let last = "GET /v1/last HTTP/1.1\r\nHost: proxy\r\n\r\n";
    client
        .send(format!(
            "{first}POST /nowhere HTTP/1.1\r\nHost: proxy\r\nContent-Length: 5\r\n\r\nhello{last}"
        ))
        .await;
    let mut upstream = ends.upstream().await;
    upstream.expect(ends.onward(first)).await;
    client.expect_silence().await;
    upstream.send(OK).await;
    client.expect(OK).await;
    assert_eq!(client.answer().await.0, 404);
    upstream.expect(ends.onward(last)).await;
    upstream.send(OK).await;
    client.expect(OK).await;
}

#[tokio::test]
async fn what_is_no_request_among_pipelined_ones_ends_the_connection_after_the_answers_before_it() {
    let ends = Ends::start().await;
    let first = "GET /v1/first HTTP/1.1\r\nHost: proxy\r\n\r\n";
    let (mut client, mut upstream) = {
        let mut client = ends.client().await;
        client
            .send(format!(
                "{first}no request\r\n\r\nGET /v1/last HTTP/1.1\r\nHost: proxy\r\n\r\n"
            ))
            .await;
        let mut upstream = ends.upstream().await;
        upstream.expect(ends.onward(first)).await;
        (client, upstream)
    };
    upstream.send(OK).await;
    client.expect(OK).await;
    let (status, _, _) = client.answer().await;
    assert_eq!(status, 400);
    client.expect_end().await;
    ends.expect_no_upstream().await;
}
