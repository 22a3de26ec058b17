//! hyper's own client, many requests at once.

use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::Builder;
use hyper_util::rt::TokioIo;

use super::super::Local;
use super::*;

#[tokio::test]
async fn many_streams_on_one_connection_are_all_perfect() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::to(&upstream).await;
        let stream = TokioIo::new(front.socket().await);
        let (sender, connection) = Builder::new(Local).handshake(stream).await.unwrap();
        tokio::task::spawn_local(connection);
        let mut streams = tokio::task::JoinSet::new();
        for seed in 0..200 {
            let mut sender = sender.clone();
            let script = Script {
                delta_bytes: 200,
                ..Script::new(30, Duration::from_millis(2), seed)
            };
            streams.spawn_local(async move {
                let body = Full::new(Bytes::from_static(b"{}"));
                let request = streaming(&script).body(body).unwrap();
                let answer = sender.send_request(request).await.unwrap();
                assert_eq!(answer.status(), 200);
                let body = answer.into_body().collect().await.unwrap().to_bytes();
                assert_eq!(body, script.bytes(), "{seed}");
            });
        }
        while let Some(outcome) = soon(streams.join_next()).await {
            outcome.unwrap();
        }
        assert_eq!(upstream.counts().finished, 200);
        assert_eq!(front.open.get(), 1);
        until(|| front.exchanges() == 0).await;
        assert_eq!(front.thread.counters.load().requests, 200);
    })
    .await;
}

#[tokio::test]
async fn upstream_connections_are_used_again() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::to(&upstream).await;
        let stream = TokioIo::new(front.socket().await);
        let (mut sender, connection) = Builder::new(Local).handshake(stream).await.unwrap();
        tokio::task::spawn_local(connection);
        for _ in 0..20 {
            let body = Full::new(Bytes::from_static(b"{}"));
            let request = post("/v1/chat/completions").body(body).unwrap();
            let answer = soon(sender.send_request(request)).await.unwrap();
            soon(answer.into_body().collect()).await.unwrap();
        }
        assert_eq!(upstream.counts().connections, 1);
    })
    .await;
}
