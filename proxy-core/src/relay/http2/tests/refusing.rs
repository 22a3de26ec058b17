//! Requests and connections that are refused: never a byte of them reaches the upstream.

use h2::Reason;
use tokio::io::AsyncWriteExt;

use super::*;

#[tokio::test]
async fn heads_that_could_mean_two_things_are_refused() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::to(&upstream).await;
        let mut client = front.connect().await;
        let length = |value: &'static str| post("/v1/x").header("content-length", value);
        for (request, status, says) in [
            (post("/v1/x").header("host", "other"), 400, "Host"),
            (
                post("/v1/x")
                    .header("host", "proxy")
                    .header("host", "proxy"),
                400,
                "Host",
            ),
            (
                Request::post("http://me@proxy/v1/x"),
                400,
                "user information",
            ),
            (
                length("2").header("content-length", "2"),
                400,
                "Content-Length",
            ),
            (Request::post("http://proxy/v1/\u{e4}"), 400, ""),
        ] {
            let answer = client.ask(request.body(()).unwrap(), b"{}").await;
            let (came, body) = json(answer).await;
            assert_eq!(came, status, "{body}");
            let message = body["error"]["message"].as_str().unwrap();
            assert!(message.contains(says), "{message}");
        }
        // The same host twice is no contradiction.
        let request = post("/v1/x").header("host", "PROXY").body(()).unwrap();
        assert_eq!(json(client.ask(request, b"{}").await).await.0, 200);
        assert_eq!(upstream.counts().requests, 1);
        assert_eq!(front.thread.counters.load().local_5xx, 0);
    })
    .await;
}

#[tokio::test]
async fn connect_is_501() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::to(&upstream).await;
        let client = front.connect().await;
        let mut sender = client.sender.clone().ready().await.unwrap();
        let request = Request::connect("proxy:443").body(()).unwrap();
        let (answer, _stream) = sender.send_request(request, false).unwrap();
        assert_eq!(json(soon(answer).await.unwrap()).await.0, 501);
        assert_eq!(upstream.counts().connections, 0);
    })
    .await;
}

#[tokio::test]
async fn a_head_that_is_too_large_is_431_and_one_that_floods_ends_the_connection() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::to(&upstream).await;
        let mut client = front.connect().await;
        let heavy = |count: usize| {
            let mut request = post("/v1/x");
            for index in 0..count {
                request = request.header(format!("x-{index}"), "v".repeat(1000));
            }
            request.body(()).unwrap()
        };
        let (answer, _stream) = client
            .sender
            .clone()
            .ready()
            .await
            .unwrap()
            .send_request(heavy(70), false)
            .unwrap();
        assert_eq!(soon(answer).await.unwrap().status(), 431);
        // The connection goes on.
        let answer = client.ask(post("/v1/x").body(()).unwrap(), b"{}").await;
        assert_eq!(json(answer).await.0, 200);

        let (answer, _stream) = client
            .sender
            .clone()
            .ready()
            .await
            .unwrap()
            .send_request(heavy(2_000), false)
            .unwrap();
        soon(answer).await.unwrap_err();
        let end = soon(&mut client.driver).await.unwrap().unwrap_err();
        assert!(end.is_go_away() || end.is_io(), "{end}");
        if end.is_go_away() {
            assert_ne!(end.reason(), Some(Reason::NO_ERROR));
        }
        assert_eq!(upstream.counts().requests, 1);
        until(|| front.open.get() == 0).await;
    })
    .await;
}

#[tokio::test]
async fn garbage_behind_the_preface_ends_the_connection() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::to(&upstream).await;
        let settings: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
        let cases: [(&str, Vec<u8>); 4] = [
            ("text", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec()),
            (
                "a frame that is too long",
                [settings, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]].concat(),
            ),
            (
                "a broken head",
                [settings, &[0, 0, 3, 1, 5, 0, 0, 0, 1, 0xff, 0xff, 0xff]].concat(),
            ),
            (
                "data on a stream that is not open",
                [settings, &[0, 0, 1, 0, 0, 0, 0, 0, 1, b'x']].concat(),
            ),
        ];
        for (name, bytes) in cases {
            let mut socket = front.socket().await;
            socket.write_all(&[PREFACE, &bytes].concat()).await.unwrap();
            let mut came = Vec::new();
            let _end = soon(socket.read_to_end(&mut came)).await;
            // Its last frame says why: GOAWAY.
            let types = frame_types(&came);
            assert!(types.contains(&7), "{name}: {types:?}");
            drop(socket);
            until(|| front.open.get() == 0).await;
        }
        assert_eq!(upstream.counts().connections, 0);
    })
    .await;
}

#[tokio::test]
async fn heads_in_endless_pieces_end_the_connection() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::to(&upstream).await;
        let mut socket = front.socket().await;
        let mut start = [PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
        // HEADERS without END_HEADERS, then CONTINUATION after CONTINUATION, one field in each.
        start.extend([0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82]);
        socket.write_all(&start).await.unwrap();
        let field = [&[0x00, 1, b'x', 100][..], &[b'v'; 100]].concat();
        let piece = [&[0, 0, field.len() as u8, 9, 0, 0, 0, 0, 1][..], &field].concat();
        let ended = soon(async {
            for _ in 0..1_000_000 {
                if socket.write_all(&piece).await.is_err() {
                    return true;
                }
            }
            false
        })
        .await;
        assert!(ended);
        until(|| front.open.get() == 0).await;
    })
    .await;
}

#[tokio::test]
async fn an_upstream_that_cannot_be_reached_or_says_nothing_is_502_and_counted() {
    local(async {
        let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", nobody.local_addr().unwrap());
        drop(nobody);
        let front = Front::with(UpstreamConfig::new(url), |_| {}).await;
        let mut client = front.connect().await;
        let answer = client.ask(post("/v1/x").body(()).unwrap(), b"{}").await;
        assert_eq!(json(answer).await.0, 502);
        assert_eq!(front.thread.counters.load().local_5xx, 1);

        let upstream = Upstream::start().await.unwrap();
        let front = Front::to(&upstream).await;
        let mut client = front.connect().await;
        let request = post("/v1/messages").header("x-fixture-fault", "no-head");
        let answer = client.ask(request.body(()).unwrap(), b"{}").await;
        assert_eq!(json(answer).await.0, 502);
        assert_eq!(upstream.counts().requests, 1);
        assert_eq!(front.thread.counters.load().local_5xx, 1);
    })
    .await;
}

/// The types of the frames in what a server wrote.
fn frame_types(mut bytes: &[u8]) -> Vec<u8> {
    let mut types = Vec::new();
    while bytes.len() >= 9 {
        let length =
            usize::from(bytes[0]) << 16 | usize::from(bytes[1]) << 8 | usize::from(bytes[2]);
        types.push(bytes[3]);
        bytes = bytes.get(9 + length..).unwrap_or_default();
    }
    types
}
