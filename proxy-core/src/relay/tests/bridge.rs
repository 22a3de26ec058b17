//! HTTP/1 clients before an upstream that is spoken to in HTTP/2.

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::Response;

use super::ends::Peer;
use super::*;

/// A relay before an HTTP/2 upstream that the test plays, request by request.
struct Crossed {
    relay: Relay,
    address: SocketAddr,
    requests: mpsc::UnboundedReceiver<Asked>,
    tasks: Vec<JoinHandle<()>>,
}

struct Asked {
    head: http::request::Parts,
    body: RecvStream,
    respond: SendResponse<Bytes>,
}

impl Crossed {
    async fn start() -> Self {
        let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = UpstreamConfig {
            http2: true,
            ..UpstreamConfig::new(format!("http://{}", upstream.local_addr().unwrap()))
        };
        let (sender, requests) = mpsc::unbounded_channel();
        let playing = tokio::spawn(async move {
            loop {
                let (stream, _) = upstream.accept().await.unwrap();
                tokio::spawn(serve_one(stream, sender.clone()));
            }
        });
        let relay = relay_to(to, 1);
        let (address, accepting) = listen(&relay).await;
        Self {
            relay,
            address,
            requests,
            tasks: vec![playing, accepting],
        }
    }

    async fn client(&self) -> Peer {
        Peer::new(TcpStream::connect(self.address).await.unwrap())
    }

    async fn next(&mut self) -> Asked {
        soon(self.requests.recv()).await.unwrap()
    }
}

impl Drop for Crossed {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        self.relay.abort();
    }
}

async fn serve_one(stream: TcpStream, sender: mpsc::UnboundedSender<Asked>) {
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    while let Some(Ok((request, respond))) = connection.accept().await {
        let (head, body) = request.into_parts();
        let _test_is_over = sender.send(Asked {
            head,
            body,
            respond,
        });
    }
}

impl Asked {
    fn answer(&mut self, fields: &[(&str, &str)]) -> SendStream<Bytes> {
        let mut answer = Response::builder();
        for (name, value) in fields {
            answer = answer.header(*name, *value);
        }
        self.respond
            .send_response(answer.body(()).unwrap(), false)
            .unwrap()
    }

    async fn read(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(data) = soon(self.body.data()).await {
            let data = data.unwrap();
            self.body
                .flow_control()
                .release_capacity(data.len())
                .unwrap();
            bytes.extend_from_slice(&data);
        }
        bytes
    }
}

fn data(bytes: &'static str) -> Bytes {
    Bytes::from_static(bytes.as_bytes())
}

#[tokio::test]
async fn each_piece_of_an_answer_is_a_chunk_before_the_next_is_sent() {
    let mut crossed = Crossed::start().await;
    let mut client = crossed.client().await;
    // The second one on the same connection: both know where the first ended.
    for _ in 0..2 {
        client
            .send("POST /v1/x?y HTTP/1.1\r\nHost: proxy\r\nX-Key: k\r\nContent-Length: 2\r\n\r\n{}")
            .await;
        let mut asked = crossed.next().await;
        assert_eq!(asked.head.uri.path_and_query().unwrap(), "/v1/x?y");
        assert_eq!(asked.head.headers["x-key"], "k");
        assert_eq!(asked.read().await, b"{}");
        let mut down = asked.answer(&[("x-a", "1")]);
        client
            .expect("HTTP/1.1 200 OK\r\nx-a: 1\r\ntransfer-encoding: chunked\r\n\r\n")
            .await;
        for _ in 0..3 {
            down.send_data(data("data: hello\n\n"), false).unwrap();
            client.expect("d\r\ndata: hello\n\n\r\n").await;
        }
        let trailers = http::HeaderMap::from_iter([(
            http::HeaderName::from_static("x-sum"),
            http::HeaderValue::from_static("3"),
        )]);
        down.send_trailers(trailers).unwrap();
        client.expect("0\r\nx-sum: 3\r\n\r\n").await;
    }
}

#[tokio::test]
async fn a_body_in_chunks_arrives_without_them_and_whole() {
    let mut crossed = Crossed::start().await;
    let mut client = crossed.client().await;
    let body = fixtures::script::noise(7, 3 << 20);
    client
        .send("POST /v1/x HTTP/1.1\r\nHost: proxy\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await;
    let mut asked = crossed.next().await;
    let (sent, read) = (body.clone(), asked.read());
    let sending = async {
        for piece in sent.chunks(100_000) {
            client.send(format!("{:x}\r\n", piece.len())).await;
            client.send(piece).await;
            client.send("\r\n").await;
        }
        client.send("0\r\n\r\n").await;
    };
    let (read, ()) = tokio::join!(read, sending);
    assert!(read == body);
    let mut down = asked.answer(&[("content-length", "2")]);
    down.send_data(data("ok"), true).unwrap();
    client
        .expect("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        .await;
}

#[tokio::test]
async fn who_waits_for_continue_gets_it_when_the_body_is_wanted() {
    let mut crossed = Crossed::start().await;
    let mut client = crossed.client().await;
    client
        .send("POST /v1/x HTTP/1.1\r\nHost: proxy\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        .await;
    client.expect("HTTP/1.1 100 Continue\r\n\r\n").await;
    client.send("{}").await;
    let mut asked = crossed.next().await;
    assert_eq!(asked.read().await, b"{}");
    let mut down = asked.answer(&[("content-length", "0")]);
    down.send_data(Bytes::new(), true).unwrap();
    client
        .expect("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        .await;
}

#[tokio::test]
async fn an_old_client_gets_the_payload_alone_and_the_end_of_the_connection() {
    let mut crossed = Crossed::start().await;
    let mut client = crossed.client().await;
    client
        .send("GET /v1/x HTTP/1.0\r\nHost: proxy\r\n\r\n")
        .await;
    let mut asked = crossed.next().await;
    let mut down = asked.answer(&[]);
    down.send_data(data("hello"), true).unwrap();
    client
        .expect("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhello")
        .await;
    client.expect_closed().await;
}

#[tokio::test]
async fn an_upstream_that_resets_in_mid_body_never_looks_whole() {
    let mut crossed = Crossed::start().await;
    let mut client = crossed.client().await;
    client
        .send("GET /v1/x HTTP/1.1\r\nHost: proxy\r\n\r\n")
        .await;
    let mut asked = crossed.next().await;
    let mut down = asked.answer(&[]);
    down.send_data(data("hello"), false).unwrap();
    client
        .expect("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
        .await;
    down.send_reset(h2::Reason::NO_ERROR);
    client.expect_closed().await;
}

#[tokio::test]
async fn a_client_that_leaves_resets_the_upstreams_stream_also_while_nothing_flows() {
    let mut crossed = Crossed::start().await;
    for answered in [false, true] {
        let mut client = crossed.client().await;
        client
            .send("POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: 2\r\n\r\n{}")
            .await;
        let mut asked = crossed.next().await;
        let mut down = answered.then(|| asked.answer(&[]));
        if answered {
            client.expect("HTTP/1.1 200 OK\r\n").await;
        }
        drop(client);
        let reset = match &mut down {
            Some(down) => soon(std::future::poll_fn(|cx| down.poll_reset(cx))).await,
            None => soon(std::future::poll_fn(|cx| asked.respond.poll_reset(cx))).await,
        };
        assert_eq!(reset.unwrap(), h2::Reason::CANCEL);
    }
}

#[tokio::test]
async fn an_early_refusal_reaches_a_client_that_is_still_sending() {
    let mut crossed = Crossed::start().await;
    let mut client = crossed.client().await;
    client
        .send("POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: 200000\r\n\r\n")
        .await;
    let mut asked = crossed.next().await;
    let mut down = asked.answer(&[("content-length", "2")]);
    down.send_data(data("no"), true).unwrap();
    drop(asked);
    client
        .expect("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno")
        .await;
    // And when its body has come, the connection serves on.
    client.send([b'x'; 200_000]).await;
    client
        .send("GET /v1/x HTTP/1.1\r\nHost: proxy\r\n\r\n")
        .await;
    let mut asked = crossed.next().await;
    let mut down = asked.answer(&[("content-length", "2")]);
    down.send_data(data("ok"), true).unwrap();
    client
        .expect("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        .await;
}

#[tokio::test]
async fn an_answer_whose_length_cannot_be_read_is_502_and_where_none_may_be_it_is_left_out() {
    let mut crossed = Crossed::start().await;
    let mut client = crossed.client().await;
    const ASK: &str = "GET /v1/x HTTP/1.1\r\nHost: proxy\r\n\r\n";
    client.send(ASK).await;
    let mut asked = crossed.next().await;
    let answer = Response::builder().header("content-length", "");
    let _refused = asked.respond.send_response(answer.body(()).unwrap(), false);
    let (status, _, _) = client.answer().await;
    assert_eq!(status, 502);

    client.send(ASK).await;
    let mut asked = crossed.next().await;
    let answer = Response::builder()
        .status(204)
        .header("content-length", "0")
        .header("x-a", "1");
    asked
        .respond
        .send_response(answer.body(()).unwrap(), true)
        .unwrap();
    client
        .expect("HTTP/1.1 204 No Content\r\nx-a: 1\r\n\r\n")
        .await;
}
