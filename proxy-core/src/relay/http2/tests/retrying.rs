//! Connections that end, and requests that are sent again only when they had no effect.

use h2::Reason;

use super::played::{Asked, Played};
use super::*;

/// A request with a body, and the head of its answer.
async fn asking(client: &Http2) -> h2::client::ResponseFuture {
    let mut sender = client.sender.clone().ready().await.unwrap();
    let (answer, mut stream) = sender
        .send_request(post("/v1/x").body(()).unwrap(), false)
        .unwrap();
    stream.send_data(Bytes::from_static(b"body"), true).unwrap();
    answer
}

async fn whole(answer: h2::client::ResponseFuture) {
    let mut answer = soon(answer).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(read(answer.body_mut()).await.unwrap(), b"whole");
}

#[tokio::test]
async fn a_refused_stream_is_sent_again_on_another_connection_body_and_all() {
    local(async {
        let mut upstream = Played::start().await;
        let front = upstream.front().await;
        let client = front.connect().await;
        let answer = asking(&client).await;
        let mut first = upstream.next().await;
        assert_eq!(read(&mut first.body).await.unwrap(), b"body");
        first.respond.send_reset(Reason::REFUSED_STREAM);
        let mut second = upstream.next().await;
        assert_ne!(second.connection, first.connection);
        assert_eq!(read(&mut second.body).await.unwrap(), b"body");
        let mut down = second.answer();
        down.send_data(Bytes::from_static(b"whole"), true).unwrap();
        whole(answer).await;
        assert_eq!(front.thread.counters.load().requests, 1);
    })
    .await;
}

#[tokio::test]
async fn a_request_that_is_refused_everywhere_ends() {
    local(async {
        let mut upstream = Played::start().await;
        let front = upstream.front().await;
        let client = front.connect().await;
        let mut answer = asking(&client).await;
        let mut refused = 0;
        let answer = loop {
            tokio::select! {
                answer = &mut answer => break answer.unwrap(),
                mut asked = upstream.next() => {
                    asked.respond.send_reset(Reason::REFUSED_STREAM);
                    refused += 1;
                }
            }
        };
        assert_eq!(json(answer).await.0, 502);
        assert_eq!(refused, 4);
    })
    .await;
}

#[tokio::test]
async fn a_request_that_may_have_been_done_is_never_sent_again() {
    local(async {
        let mut upstream = Played::start().await;
        let front = upstream.front().await;
        let client = front.connect().await;
        for reason in [Reason::INTERNAL_ERROR, Reason::CANCEL, Reason::NO_ERROR] {
            let answer = asking(&client).await;
            let mut asked = upstream.next().await;
            asked.respond.send_reset(reason);
            assert_eq!(json(soon(answer).await.unwrap()).await.0, 502, "{reason:?}");
        }
        assert!(!upstream.has_next());
        assert_eq!(front.thread.counters.load().local_5xx, 3);
    })
    .await;
}

#[tokio::test]
async fn after_a_goaway_streams_finish_and_new_ones_go_elsewhere() {
    local(async {
        let mut upstream = Played::start().await;
        let front = upstream.front().await;
        let client = front.connect().await;
        let first = asking(&client).await;
        let early: Asked = upstream.next().await;
        upstream.goaway.notify_waiters();
        // Asked until one of them is seen elsewhere: the GOAWAY is on its way.
        let mut elsewhere = false;
        soon(async {
            while !elsewhere {
                let answer = asking(&client).await;
                let asked = upstream.next().await;
                elsewhere = asked.connection != early.connection;
                asked.answer_whole().await;
                whole(answer).await;
            }
        })
        .await;
        early.answer_whole().await;
        whole(first).await;
        assert_eq!(upstream.connections.get(), 2);
        until(|| upstream.open.get() == 1).await;
        assert_eq!(front.thread.counters.load().local_5xx, 0);
    })
    .await;
}

#[tokio::test]
async fn more_streams_than_an_upstream_allows_get_connections_of_their_own() {
    local(async {
        let mut builder = h2::server::Builder::new();
        builder.max_concurrent_streams(2);
        let mut upstream = Played::start_with(builder).await;
        let front = upstream.front().await;
        let client = front.connect().await;
        let mut answers = Vec::new();
        for _ in 0..6 {
            answers.push(asking(&client).await);
        }
        let mut asked = Vec::new();
        for _ in 0..6 {
            asked.push(upstream.next().await);
        }
        assert_eq!(upstream.connections.get(), 3);
        for asked in asked {
            asked.answer_whole().await;
        }
        for answer in answers {
            whole(answer).await;
        }
        // And they are used again.
        let answer = asking(&client).await;
        upstream.next().await.answer_whole().await;
        whole(answer).await;
        assert_eq!(upstream.connections.get(), 3);
    })
    .await;
}

#[tokio::test]
async fn many_requests_at_once_wait_for_one_connection() {
    local(async {
        let mut upstream = Played::start().await;
        let front = upstream.front().await;
        let client = front.connect().await;
        let mut answers = Vec::new();
        for _ in 0..90 {
            answers.push(asking(&client).await);
        }
        for _ in 0..90 {
            upstream.next().await.answer_whole().await;
        }
        for answer in answers {
            whole(answer).await;
        }
        assert_eq!(upstream.connections.get(), 1);
    })
    .await;
}

#[tokio::test]
async fn an_upstream_that_went_away_between_requests_is_connected_to_anew() {
    local(async {
        let mut upstream = Played::start().await;
        let front = upstream.front().await;
        let client = front.connect().await;
        for count in 1..4 {
            let answer = asking(&client).await;
            upstream.next().await.answer_whole().await;
            whole(answer).await;
            assert_eq!(upstream.connections.get(), count);
            upstream.goaway.notify_waiters();
            until(|| upstream.open.get() == 0).await;
        }
        assert_eq!(front.thread.counters.load().local_5xx, 0);
    })
    .await;
}
