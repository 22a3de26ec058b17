//! Bytes flow as they come, no faster than they are taken, and are never made to look whole.

use fixtures::script::{noise, sha256};

use super::*;

#[tokio::test]
async fn each_event_arrives_before_the_next_is_written() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::to(&upstream).await;
        let script = Script::new(20, Duration::ZERO, 3);
        let request = streaming(&script).header("x-fixture-gate", "g");
        let mut client = front.connect().await;
        let mut answer = client
            .ask(request.body(()).unwrap(), b"{}")
            .await
            .into_body();
        for index in 0..script.events() {
            upstream.open_gate("g", 1);
            let expected = script.event(index);
            assert_eq!(bytes(&mut answer, expected.len()).await, expected);
        }
        assert_eq!(read(&mut answer).await.unwrap(), b"");
        until(|| front.exchanges() == 0).await;
    })
    .await;
}

#[tokio::test]
async fn large_bodies_pass_whole_in_both_directions() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::to(&upstream).await;
        let client = front.connect().await;
        let body = noise(7, 28 << 20);
        let request = post("/v1/chat/completions").header("content-length", body.len());
        let mut sender = client.sender.clone().ready().await.unwrap();
        let (answer, mut stream) = sender
            .send_request(request.body(()).unwrap(), false)
            .unwrap();
        for piece in body.chunks(100_000) {
            send(&mut stream, Bytes::copy_from_slice(piece)).await;
        }
        stream.send_data(Bytes::new(), true).unwrap();
        let (status, echo) = json(soon(answer).await.unwrap()).await;
        assert_eq!(
            (status, echo["sha256"].as_str()),
            (200, Some(&*sha256(&body)))
        );

        let request = Request::get("http://proxy/v1/large")
            .header("x-fixture-bytes", body.len())
            .header("x-fixture-seed", 7);
        let mut client = front.connect().await;
        let mut answer = client.ask(request.body(()).unwrap(), b"").await;
        assert_eq!(answer.headers()["content-length"], body.len().to_string());
        // The fixture repeats one megabyte.
        let expected = noise(7, 1 << 20).repeat(28);
        assert!(read(answer.body_mut()).await.unwrap() == expected);
    })
    .await;
}

#[tokio::test]
async fn a_reader_that_never_reads_stops_the_upstream_and_no_other_stream() {
    const LENGTH: u64 = 100 << 20;
    // The client's window, the kernel's buffers of one connection and ours; far from the whole.
    const BOUND: u64 = 16 << 20;
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::to(&upstream).await;
        let mut client = front.connect().await;
        let request = Request::get("http://proxy/v1/large")
            .header("x-fixture-bytes", LENGTH)
            .header("x-fixture-seed", 1);
        let mut slow = client.ask(request.body(()).unwrap(), b"").await.into_body();
        let mut before = 0;
        soon(async {
            loop {
                tokio::time::sleep(Duration::from_millis(300)).await;
                let now = upstream.counts().bytes_written;
                if now == before && now > 0 {
                    break;
                }
                before = now;
            }
        })
        .await;
        assert!(before < BOUND, "{before}");

        // Another connection: this client's own window for all its streams is full.
        let script = Script::new(20, Duration::ZERO, 3);
        let mut other = front.connect().await;
        let request = streaming(&script).body(()).unwrap();
        let mut answer = other.ask(request, b"{}").await.into_body();
        assert_eq!(read(&mut answer).await.unwrap(), script.bytes());

        // It still arrives when the reader comes back.
        let whole = read(&mut slow).await.unwrap();
        assert_eq!(whole.len() as u64, LENGTH);
    })
    .await;
}

#[tokio::test]
async fn an_upstream_that_never_reads_stops_the_client() {
    // The server's window for one stream, hyper's buffer, the kernel's buffers.
    const BOUND: usize = 24 << 20;
    local(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let front = Front::with(UpstreamConfig::new(url), |_| {}).await;
        let client = front.connect().await;
        let mut sender = client.sender.clone().ready().await.unwrap();
        let (_answer, mut stream) = sender
            .send_request(post("/v1/messages").body(()).unwrap(), false)
            .unwrap();
        let (_kept, _) = soon(listener.accept()).await.unwrap();
        let mut sent = 0;
        let piece = Bytes::from(vec![0; 64 * 1024]);
        let blocked = async {
            loop {
                send(&mut stream, piece.clone()).await;
                sent += piece.len();
                assert!(sent < BOUND, "{sent}");
            }
        };
        // A second without room for one more piece: everything in between is full.
        let mut blocked = std::pin::pin!(blocked);
        let mut last = 0;
        soon(async {
            loop {
                let pause = tokio::time::timeout(Duration::from_secs(1), blocked.as_mut()).await;
                assert!(pause.is_err());
                let now = front.thread.counters.load().exchanges;
                assert_eq!(now, 1);
                last += 1;
                if last == 3 {
                    break;
                }
            }
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn an_upstream_that_is_cut_resets_the_stream_after_what_it_sent() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::to(&upstream).await;
        let mut client = front.connect().await;
        let script = Script::new(20, Duration::ZERO, 7);
        for fault in ["cut-body", "reset"] {
            let request = streaming(&script).header("x-fixture-fault", fault);
            let mut answer = client.ask(request.body(()).unwrap(), b"{}").await;
            let (came, error) = read(answer.body_mut()).await.unwrap_err();
            assert!(error.is_reset() && error.is_remote(), "{fault}: {error}");
            assert_eq!(error.reason(), Some(h2::Reason::INTERNAL_ERROR), "{fault}");
            assert!(script.bytes().starts_with(&came), "{fault}");
            if fault == "cut-body" {
                let sent: usize = (0..12).map(|index| script.event(index).len()).sum();
                assert_eq!(came.len(), sent);
            }
        }
        // The connection goes on.
        let mut answer = client
            .ask(streaming(&script).body(()).unwrap(), b"{}")
            .await;
        assert_eq!(read(answer.body_mut()).await.unwrap(), script.bytes());
        assert_eq!(front.thread.counters.load().local_5xx, 0);
    })
    .await;
}

#[tokio::test]
async fn an_upstream_that_falls_silent_is_given_up() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let mut to = UpstreamConfig::new(upstream.url());
        to.idle_timeout = Duration::from_millis(200);
        to.first_byte_timeout = Duration::from_millis(200);
        let front = Front::with(to, |_| {}).await;
        let mut client = front.connect().await;
        let script = Script::new(20, Duration::ZERO, 7);
        let request = streaming(&script).header("x-fixture-fault", "stall");
        let mut answer = client.ask(request.body(()).unwrap(), b"{}").await;
        let (came, error) = read(answer.body_mut()).await.unwrap_err();
        assert!(error.is_reset(), "{error}");
        assert!(!came.is_empty() && script.bytes().starts_with(&came));
        soon(upstream.wait(|counts| counts.cancelled == 1 && counts.open == 0)).await;

        let request = streaming(&script).header("x-fixture-fault", "no-answer");
        let answer = client.ask(request.body(()).unwrap(), b"{}").await;
        assert_eq!(json(answer).await.0, 504);
        soon(upstream.wait(|counts| counts.cancelled == 2 && counts.open == 0)).await;
        assert_eq!(front.thread.counters.load().local_5xx, 1);
    })
    .await;
}

#[tokio::test]
async fn an_early_answer_passes_while_the_request_is_still_being_sent() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let front = Front::to(&upstream).await;
        let client = front.connect().await;
        let mut sender = client.sender.clone().ready().await.unwrap();
        let request = post("/v1/messages").header("x-fixture-fault", "early-401");
        let (answer, mut stream) = sender
            .send_request(request.body(()).unwrap(), false)
            .unwrap();
        stream
            .send_data(Bytes::from_static(b"half"), false)
            .unwrap();
        let (status, body) = json(soon(answer).await.unwrap()).await;
        assert_eq!(status, 401);
        assert_eq!(body["error"]["type"], "authentication_error");
        assert_eq!(front.thread.counters.load().local_5xx, 0);
    })
    .await;
}

#[tokio::test]
async fn trailers_pass_in_both_directions() {
    local(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let upstream = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"x-sum: 12\r\n\r\n") {
                assert!(stream.read_buf(&mut request).await.unwrap() > 0);
            }
            tokio::io::AsyncWriteExt::write_all(
                &mut stream,
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n2\r\nhi\r\n0\r\nx-sum: 34\r\ncontent-length: 7\r\n\r\n",
            )
            .await
            .unwrap();
            String::from_utf8(request).unwrap()
        });
        let front = Front::with(UpstreamConfig::new(url), |_| {}).await;
        let client = front.connect().await;
        let mut sender = client.sender.clone().ready().await.unwrap();
        let request = post("/v1/messages").header("trailer", "x-sum").header("te", "trailers");
        let (answer, mut stream) = sender.send_request(request.body(()).unwrap(), false).unwrap();
        stream.send_data(Bytes::from_static(b"data"), false).unwrap();
        let mut sent = HeaderMap::new();
        sent.insert("x-sum", "12".parse().unwrap());
        stream.send_trailers(sent).unwrap();
        let mut answer = soon(answer).await.unwrap();
        assert_eq!(read(answer.body_mut()).await.unwrap(), b"hi");
        let came = trailers(answer.body_mut()).await.unwrap();
        assert_eq!(came["x-sum"], "34");
        assert!(!came.contains_key("content-length"));
        let request = soon(upstream).await.unwrap();
        assert!(request.contains("\r\n4\r\ndata\r\n0\r\n"), "{request}");
        assert!(request.contains("te: trailers\r\n"), "{request}");
    })
    .await;
}

/// Waits for room and sends all of it.
pub(super) async fn send(stream: &mut h2::SendStream<Bytes>, mut data: Bytes) {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let room = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
        let room = room.expect("an open stream").unwrap().min(data.len());
        stream.send_data(data.split_to(room), false).unwrap();
    }
}
