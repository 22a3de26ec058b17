//! Answers before the final one: 1xx.

use super::ends::*;

const CONTINUE: &str = "HTTP/1.1 100 Continue\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const EXPECTING: &str =
    "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nExpect: 100-Continue\r\nContent-Length: 5\r\n\r\n";
const PLAIN_GET: &str = "GET /v1/x HTTP/1.1\r\nHost: proxy\r\n\r\n";

#[tokio::test]
async fn a_client_that_expects_continue_gets_the_upstreams_own() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = ends.asked(EXPECTING).await;
    // Nobody but the upstream knows whether it wants the body.
    client.expect_silence().await;
    let go_on = "HTTP/1.1 100 Go on\r\nX-Odd: 1\r\n\r\n";
    upstream.send(go_on).await;
    client.expect(go_on).await;
    client.send("hello").await;
    upstream.expect("hello").await;
    upstream.send(OK).await;
    client.expect(OK).await;

    client.send(EXPECTING).await;
    upstream.expect(ends.onward(EXPECTING)).await;
    upstream.send(CONTINUE).await;
    client.expect(CONTINUE).await;
}

#[tokio::test]
async fn a_client_that_expects_continue_may_get_a_final_answer_instead() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = ends.asked(EXPECTING).await;
    upstream
        .send("HTTP/1.1 417 No\r\nX-A: 1\r\nContent-Length: 2\r\n\r\nno")
        .await;
    // Its body is not waited for: it will never come.
    let (status, head, body) = client.answer().await;
    assert_eq!((status, body.as_str()), (417, "no"), "{head}");
}

#[tokio::test]
async fn a_client_that_does_not_wait_for_continue_is_not_waited_for() {
    let ends = Ends::start().await;
    let request = format!("{EXPECTING}hello");
    let (mut client, mut upstream) = ends.asked(&request).await;
    upstream.send(format!("{CONTINUE}{OK}")).await;
    client.expect(format!("{CONTINUE}{OK}")).await;
    client.send(PLAIN_GET).await;
    upstream.expect(ends.onward(PLAIN_GET)).await;
    upstream.send(OK).await;
    client.expect(OK).await;
}

#[tokio::test]
async fn each_interim_answer_arrives_before_the_next_is_written() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = ends.asked(PLAIN_GET).await;
    for interim in [
        "HTTP/1.1 102 Processing\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\nlink: </b>\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nLink: </c>\r\n\r\n",
        "HTTP/1.1 199 Whatever\r\n\r\n",
        "HTTP/1.1 100 \r\n\r\n",
    ] {
        upstream.send(interim).await;
        client.expect(interim).await;
    }
    upstream.send(OK).await;
    client.expect(OK).await;
    client.send(PLAIN_GET).await;
    upstream.expect(ends.onward(PLAIN_GET)).await;
}

#[tokio::test]
async fn interim_answers_in_one_piece_with_the_final_one_all_arrive() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = ends.asked(PLAIN_GET).await;
    let answers = format!("{CONTINUE}HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n{CONTINUE}{OK}");
    upstream.send(&answers).await;
    client.expect(&answers).await;
}

#[tokio::test]
async fn an_interim_answer_does_not_wait_for_the_rest_of_the_next_head() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = ends.asked(PLAIN_GET).await;
    let (start, rest) = OK.split_at(12);
    upstream.send(format!("{CONTINUE}{start}")).await;
    client.expect(CONTINUE).await;
    upstream.send(rest).await;
    client.expect(OK).await;
}

#[tokio::test]
async fn a_client_of_http_1_0_gets_no_interim_answer() {
    let ends = Ends::start().await;
    let mut client = ends.client().await;
    client.send("GET /v1/x HTTP/1.0\r\n\r\n").await;
    let mut upstream = ends.upstream().await;
    upstream.head().await;
    upstream
        .send(format!(
            "{CONTINUE}HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n{OK}"
        ))
        .await;
    let (status, head, body) = client.answer().await;
    assert_eq!((status, body.as_str()), (200, "ok"), "{head}");
    assert_eq!(field(&head, "link"), None, "{head}");
    client.expect_closed().await;
}

#[tokio::test]
async fn fields_of_the_upstreams_connection_end_here_in_interim_answers_too() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = ends.asked(PLAIN_GET).await;
    upstream
        .send("HTTP/1.1 103 Early Hints\r\nConnection: X-Private\r\nX-Private: 1\r\nLink: </a>\r\n\r\n")
        .await;
    client
        .expect("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
        .await;
    upstream.send(OK).await;
    client.expect(OK).await;
}

#[tokio::test]
async fn an_upstream_that_leaves_after_an_interim_answer_is_502() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = ends.asked(PLAIN_GET).await;
    upstream.send(CONTINUE).await;
    client.expect(CONTINUE).await;
    drop(upstream);
    assert_eq!(client.answer().await.0, 502);
}

#[tokio::test]
async fn a_switch_of_protocols_that_nobody_asked_for_is_502() {
    let ends = Ends::start().await;
    let (mut client, mut upstream) = ends.asked(PLAIN_GET).await;
    upstream
        .send("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nraw bytes")
        .await;
    assert_eq!(client.answer().await.0, 502);
    upstream.expect_end().await;
}
