//! Upstreams that are spoken to in HTTP/2.

use fixtures::tls::{AUTHORITY, CERTIFICATE, KEY};
use h2::Reason;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto};

use super::super::Local;
use super::played::Played;
use super::*;

#[tokio::test]
async fn by_prior_knowledge_streams_share_a_connection_and_flow_event_by_event() {
    local(async {
        let mut upstream = Played::start().await;
        let front = upstream.front().await;
        let mut client = front.connect().await;
        let mut both = Vec::new();
        for _ in 0..2 {
            let request = post("/v1/messages?a=b")
                .header("cookie", "a=1")
                .header("cookie", "b=2")
                .header("te", "trailers")
                .body(())
                .unwrap();
            let sender = client.sender.clone();
            let (answer, mut stream) = soon(sender.ready())
                .await
                .unwrap()
                .send_request(request, false)
                .unwrap();
            stream
                .send_data(Bytes::from_static(b"data"), false)
                .unwrap();
            let mut asked = upstream.next().await;
            assert_eq!(bytes(&mut asked.body, 4).await, b"data");
            let mut sent = HeaderMap::new();
            sent.insert("x-sum", "12".parse().unwrap());
            stream.send_trailers(sent).unwrap();
            assert_eq!(read(&mut asked.body).await.unwrap(), b"");
            assert_eq!(trailers(&mut asked.body).await.unwrap()["x-sum"], "12");
            let uri = format!("http://{}/v1/messages?a=b", upstream.address);
            assert_eq!(asked.head.uri, *uri);
            assert!(!asked.head.headers.contains_key("host"));
            assert_eq!(asked.head.headers["te"], "trailers");
            assert_eq!(asked.head.headers.get_all("cookie").iter().count(), 2);
            let down = asked.answer();
            both.push((soon(answer).await.unwrap().into_body(), down, asked));
        }
        for index in 0..20 {
            for (body, down, _) in &mut both {
                let event = format!("data: {index}\n\n");
                down.send_data(Bytes::from(event.clone()), false).unwrap();
                assert_eq!(bytes(body, event.len()).await, event.as_bytes());
            }
        }
        for (body, down, _) in &mut both {
            let mut sent = HeaderMap::new();
            sent.insert("x-sum", "34".parse().unwrap());
            down.send_trailers(sent).unwrap();
            assert_eq!(read(body).await.unwrap(), b"");
            assert_eq!(trailers(body).await.unwrap()["x-sum"], "34");
        }
        assert_eq!(upstream.connections.get(), 1);
        drop(both);
        until(|| front.exchanges() == 0).await;
        soon(client.ask(Request::get("http://proxy/health").body(()).unwrap(), b"")).await;
    })
    .await;
}

#[tokio::test]
async fn over_tls_http2_is_agreed_on_or_nothing_is_sent() {
    local(async {
        let tls = || {
            let trusted = CertificateDer::pem_slice_iter(AUTHORITY.as_bytes());
            Tls::trusting(trusted.collect::<Result<_, _>>().unwrap())
        };
        for (offered, status) in [
            (vec![b"h2".to_vec(), b"http/1.1".to_vec()], 200),
            (vec![b"http/1.1".to_vec()], 502),
            (vec![], 502),
        ] {
            let (port, requests) = encrypted(offered).await;
            let to = UpstreamConfig {
                http2: true,
                ..UpstreamConfig::new(format!("https://localhost:{port}"))
            };
            let front = Front::trusting(tls(), to, |_| {}).await;
            let mut client = front.connect().await;
            let answer = client.ask(post("/v1/x").body(()).unwrap(), b"{}").await;
            let (came, body) = json(answer).await;
            assert_eq!(came, status, "{body}");
            if status == 200 {
                assert_eq!(body["version"], "HTTP/2.0");
                assert_eq!(requests.get(), 1);
            } else {
                let message = body["error"]["message"].as_str().unwrap();
                assert!(message.contains("does not speak HTTP/2"), "{message}");
                assert_eq!(requests.get(), 0);
                assert_eq!(front.thread.counters.load().local_5xx, 1);
            }
        }
    })
    .await;
}

/// hyper's HTTP/2 server behind TLS; its port, and how many requests it saw.
async fn encrypted(offered: Vec<Vec<u8>>) -> (u16, Rc<Cell<usize>>) {
    let provider = Arc::new(crypto::aws_lc_rs::default_provider());
    let key = PrivateKeyDer::from_pem_slice(KEY.as_bytes()).unwrap();
    let chain = CertificateDer::pem_slice_iter(CERTIFICATE.as_bytes());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain.collect::<Result<_, _>>().unwrap(), key)
        .unwrap();
    config.alpn_protocols = offered;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let requests: Rc<Cell<usize>> = Rc::default();
    let counted = Rc::clone(&requests);
    tokio::task::spawn_local(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(stream) = acceptor.accept(stream).await else {
                continue;
            };
            let counted = Rc::clone(&counted);
            let served = hyper::server::conn::http2::Builder::new(Local).serve_connection(
                TokioIo::new(stream),
                service_fn(move |request: Request<hyper::body::Incoming>| {
                    counted.set(counted.get() + 1);
                    let said = format!(r#"{{"version": "{:?}"}}"#, request.version());
                    std::future::ready(Ok::<_, std::convert::Infallible>(Response::new(
                        http_body_util::Full::new(Bytes::from(said)),
                    )))
                }),
            );
            tokio::task::spawn_local(served);
        }
    });
    (port, requests)
}

#[tokio::test]
async fn an_upstream_that_speaks_http1_only_is_502_and_says_why() {
    local(async {
        let upstream = Upstream::start().await.unwrap();
        let to = UpstreamConfig {
            http2: true,
            ..UpstreamConfig::new(upstream.url())
        };
        let front = Front::with(to, |_| {}).await;
        let mut client = front.connect().await;
        let answer = client.ask(post("/v1/x").body(()).unwrap(), b"{}").await;
        let (status, body) = json(answer).await;
        assert_eq!(
            (status, body["error"]["code"].as_str()),
            (502, Some("upstream_no_http2"))
        );
    })
    .await;
}

#[tokio::test]
async fn a_client_that_resets_its_stream_resets_the_upstreams() {
    local(async {
        let mut upstream = Played::start().await;
        let front = upstream.front().await;
        let client = front.connect().await;
        // Before the answer and after its head; with a body that flows, and with one that the upstream's window stops.
        for (answered, length) in [(false, 4), (true, 4), (false, 1 << 20), (true, 1 << 20)] {
            let mut sender = client.sender.clone().ready().await.unwrap();
            let (answer, mut stream) = sender
                .send_request(post("/v1/x").body(()).unwrap(), false)
                .unwrap();
            stream
                .send_data(Bytes::from(vec![0; length]), false)
                .unwrap();
            let mut asked = upstream.next().await;
            soon(asked.body.data()).await.unwrap().unwrap();
            let mut down = answered.then(|| asked.answer());
            if answered {
                soon(answer).await.unwrap();
            }
            // Until nothing moves any more; the upstream releases nothing.
            tokio::time::sleep(Duration::from_millis(50)).await;
            stream.send_reset(Reason::CANCEL);
            let reset = asked.reset(down.as_mut()).await;
            assert_eq!(reset, Reason::CANCEL, "{answered} {length}");
        }
        until(|| front.exchanges() == 0).await;
        assert_eq!(upstream.connections.get(), 1);
    })
    .await;
}

#[tokio::test]
async fn an_upstream_that_resets_in_mid_body_never_looks_whole() {
    local(async {
        let mut upstream = Played::start().await;
        let front = upstream.front().await;
        let client = front.connect().await;
        for reason in [Reason::INTERNAL_ERROR, Reason::CANCEL, Reason::NO_ERROR] {
            let mut sender = client.sender.clone().ready().await.unwrap();
            let (answer, _) = sender
                .send_request(post("/v1/x").body(()).unwrap(), true)
                .unwrap();
            let mut asked = upstream.next().await;
            let mut down = asked.answer();
            down.send_data(Bytes::from_static(b"half"), false).unwrap();
            let mut body = soon(answer).await.unwrap().into_body();
            assert_eq!(bytes(&mut body, 4).await, b"half");
            down.send_reset(reason);
            let (_, error) = read(&mut body).await.unwrap_err();
            assert_eq!(error.reason(), Some(Reason::INTERNAL_ERROR), "{reason:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn an_early_answer_is_whole_though_the_upstream_wants_no_more_of_the_request() {
    local(async {
        let mut upstream = Played::start().await;
        let front = upstream.front().await;
        let client = front.connect().await;
        let mut sender = client.sender.clone().ready().await.unwrap();
        let (answer, mut stream) = sender
            .send_request(post("/v1/x").body(()).unwrap(), false)
            .unwrap();
        stream
            .send_data(Bytes::from_static(b"half"), false)
            .unwrap();
        let mut asked = upstream.next().await;
        let mut down = asked.answer();
        down.send_data(Bytes::from_static(b"no"), true).unwrap();
        // h2 then resets without an error, for nobody reads the rest.
        drop((asked, down));
        let mut body = soon(answer).await.unwrap().into_body();
        assert_eq!(read(&mut body).await.unwrap(), b"no");
        // And so does the relay.
        let reset = soon(std::future::poll_fn(|cx| stream.poll_reset(cx))).await;
        assert_eq!(reset.unwrap(), Reason::NO_ERROR);
        until(|| front.exchanges() == 0).await;
    })
    .await;
}

#[tokio::test]
async fn an_upstream_that_does_not_answer_in_time_is_504_and_reset() {
    local(async {
        let mut upstream = Played::start().await;
        let mut to = upstream.config();
        to.first_byte_timeout = Duration::from_millis(200);
        let front = Front::with(to, |_| {}).await;
        let mut client = front.connect().await;
        let request = post("/v1/x").body(()).unwrap();
        let asking = client.ask(request, b"{}");
        let (answer, mut asked) = tokio::join!(asking, upstream.next());
        assert_eq!(json(answer).await.0, 504);
        assert_eq!(asked.reset(None).await, Reason::CANCEL);
    })
    .await;
}

#[tokio::test]
async fn clients_that_do_not_read_never_stop_another_ones_stream() {
    const SLOW: usize = 40;
    local(async {
        let mut upstream = Played::start().await;
        let front = upstream.front().await;
        let mut kept = Vec::new();
        for _ in 0..SLOW {
            // Without this h2 itself, as a client, closes a connection on which so many small pieces wait.
            let mut builder = h2::client::Builder::new();
            builder.data_frame_budget(64 << 20);
            let client = Http2::over(front.socket().await, builder).await;
            let mut sender = client.sender.clone().ready().await.unwrap();
            let (answer, _) = sender
                .send_request(post("/v1/x").body(()).unwrap(), true)
                .unwrap();
            let mut asked = upstream.next().await;
            let mut down = asked.answer();
            let body = soon(answer).await.unwrap();
            // Small events, until there is no room for more.
            let filling = async {
                loop {
                    super::bodies::send(&mut down, Bytes::from_static(&[b'e'; 100])).await;
                }
            };
            let full = tokio::time::timeout(Duration::from_millis(300), filling).await;
            assert!(full.is_err());
            kept.push((client, body, asked, down));
        }
        let mut client = front.connect().await;
        let asking = client.ask(post("/v1/x").body(()).unwrap(), b"{}");
        let (answer, ()) = tokio::join!(asking, async {
            upstream.next().await.answer_whole().await;
        });
        assert_eq!(read(&mut answer.into_body()).await.unwrap(), b"whole");
        assert_eq!(upstream.connections.get(), 1);
        for (_, _, _, down) in &mut kept {
            down.send_data(Bytes::new(), true).unwrap();
        }
        for (_, answer, ..) in &mut kept {
            read(answer.body_mut()).await.unwrap();
        }
    })
    .await;
}
