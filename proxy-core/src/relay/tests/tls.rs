//! Encrypted upstreams: trusted, or not spoken to.

use fixtures::script::Script;
use fixtures::tls::{AUTHORITY, CERTIFICATE, KEY};
use tokio::io::{AsyncReadExt, copy_bidirectional};
use tokio::net::UnixStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto};

use super::ends::Peer;
use super::*;
use crate::relay::tls::Tls;

fn trusting() -> Tuning {
    Tuning {
        tls: Tls::trusting(certificates(AUTHORITY)),
    }
}

fn certificates(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .unwrap()
}

fn acceptor() -> TlsAcceptor {
    let provider = Arc::new(crypto::aws_lc_rs::default_provider());
    let key = PrivateKeyDer::from_pem_slice(KEY.as_bytes()).unwrap();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates(CERTIFICATE), key)
        .unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// Takes TLS off before the fixture's upstream; the port it listens on.
async fn encrypted(upstream: SocketAddr) -> u16 {
    let acceptor = acceptor();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut near) = acceptor.accept(stream).await else {
                    return;
                };
                let mut far = TcpStream::connect(upstream).await.unwrap();
                let _ended = copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    port
}

/// Asks over a socket pair for the script's stream: status and body.
async fn ask(relay: &Relay, script: &Script) -> (u16, Vec<u8>) {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    relay.adopt(theirs.into()).unwrap();
    let mut wire = Wire::new(UnixStream::from_std(ours).unwrap());
    let mut request = "POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n".to_owned();
    for (name, value) in script.fields() {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    wire.stream
        .write_all((request + "\r\n{}").as_bytes())
        .await
        .unwrap();
    let head = soon(wire.head()).await.unwrap().unwrap();
    let body = soon(wire.body(head.answer_framing())).await.unwrap();
    (head.status().unwrap(), body)
}

#[tokio::test]
async fn a_trusted_upstream_is_streamed_from_over_tls() {
    let upstream = Upstream::start().await.unwrap();
    let port = encrypted(upstream.address()).await;
    let to = UpstreamConfig::new(format!("https://localhost:{port}"));
    let relay = relay_with(to, 1, &trusting());
    let script = Script::new(20, Duration::ZERO, 3);
    for _ in 0..3 {
        assert_eq!(ask(&relay, &script).await, (200, script.bytes()));
    }
    assert_eq!(upstream.counts().connections, 1);
}

#[tokio::test]
async fn an_upstream_with_an_unknown_authority_or_another_name_gets_nothing() {
    let upstream = Upstream::start().await.unwrap();
    let port = encrypted(upstream.address()).await;
    let script = Script::new(1, Duration::ZERO, 3);
    let unknown = relay_to(UpstreamConfig::new(format!("https://localhost:{port}")), 1);
    let other_name = relay_with(
        UpstreamConfig::new(format!("https://127.0.0.1:{port}")),
        1,
        &trusting(),
    );
    for relay in [unknown, other_name] {
        assert_eq!(ask(&relay, &script).await.0, 502);
        assert_eq!(relay.load().local_5xx, 1);
    }
    assert_eq!(upstream.counts().requests, 0);
}

#[tokio::test]
async fn an_early_answer_over_tls_is_whole_though_the_upstream_reads_no_more() {
    const LENGTH: usize = 28 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let to = UpstreamConfig::new(format!("https://localhost:{port}"));
    let relay = relay_with(to, 1, &trusting());
    let front = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(front.local_addr().unwrap())
        .await
        .unwrap();
    let mut client = Peer::new(client);
    let (adopted, _) = front.accept().await.unwrap();
    relay.adopt(adopted.into_std().unwrap().into()).unwrap();
    client
        .send(format!(
            "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: {LENGTH}\r\n\r\n"
        ))
        .await;
    let (stream, _) = listener.accept().await.unwrap();
    let mut upstream = soon(acceptor().accept(stream)).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(soon(upstream.read_u8()).await.unwrap());
    }
    const REFUSED: &str = "HTTP/1.1 413 No\r\nContent-Length: 2\r\n\r\nno";
    upstream.write_all(REFUSED.as_bytes()).await.unwrap();
    upstream.flush().await.unwrap();
    client.send(vec![b'x'; LENGTH]).await;
    client.expect(REFUSED).await;
    relay.abort();
}

#[tokio::test]
async fn an_upstream_that_speaks_no_tls_is_502() {
    let upstream = Upstream::start().await.unwrap();
    let port = upstream.address().port();
    let relay = relay_to(UpstreamConfig::new(format!("https://localhost:{port}")), 1);
    assert_eq!(ask(&relay, &Script::new(1, Duration::ZERO, 3)).await.0, 502);
}
