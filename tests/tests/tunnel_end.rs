//! At the drain deadline what is left is ended so that nobody takes a part for the whole: a WebSocket is closed with
//! 1012 between two frames, an answer is cut.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::SocketAddr;

use control::types::Outcome;
use fixtures::client::End;
use fixtures::upstream::Upstream;
use harness::{HeldStream, PATIENCE, Proxy, TestHome, process, same_version, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// 1012: the service restarts.
const RESTARTING: [u8; 4] = [0x88, 2, 0x03, 0xf4];

/// A text frame of a server.
fn frame(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).unwrap();
    [&[0x81, length], text.as_bytes()].concat()
}

async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let byte = tokio::time::timeout(PATIENCE, stream.read_u8()).await;
        head.push(byte.expect("a head in time").unwrap());
    }
    String::from_utf8(head).unwrap()
}

async fn expect(stream: &mut TcpStream, wanted: &[u8]) {
    let mut read = vec![0; wanted.len()];
    let reading = tokio::time::timeout(PATIENCE, stream.read_exact(&mut read)).await;
    reading.expect("bytes in time").unwrap();
    assert_eq!(read, wanted);
}

/// Everything until the end, which must be no reset.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let reading = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await;
    reading.expect("an end in time").unwrap();
    bytes
}

/// A WebSocket through the proxy: the client's end, and the upstream's.
async fn websocket(address: SocketAddr, behind: &TcpListener) -> (TcpStream, TcpStream) {
    let mut client = TcpStream::connect(address).await.unwrap();
    client
        .write_all(b"GET /v1/responses HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: a2V5\r\n\r\n")
        .await
        .unwrap();
    let accepted = tokio::time::timeout(PATIENCE, behind.accept()).await;
    let mut upstream = accepted.expect("the upgrade arrives").unwrap().0;
    upstream.set_nodelay(true).unwrap();
    head(&mut upstream).await;
    upstream
        .write_all(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: eA==\r\n\r\n")
        .await
        .unwrap();
    assert!(head(&mut client).await.starts_with("HTTP/1.1 101 "));
    (client, upstream)
}

async fn start(anthropic: &str, openai: &str, rollout: &str) -> (TestHome, Proxy) {
    let home = TestHome::new();
    home.configure(&format!(
        "[upstreams.anthropic]\nurl = \"{anthropic}\"\n[upstreams.openai]\nurl = \"{openai}\"\n[rollout]\n{rollout}\n"
    ));
    home.install_proxy("1.0.0");
    home.select("1.0.0");
    let proxy = Proxy::start(&home).await;
    (home, proxy)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_the_drain_deadline_websockets_are_told_and_answers_are_cut_and_the_worker_ends_by_itself()
 {
    let behind = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", behind.local_addr().unwrap());
    let upstream = Upstream::start().await.unwrap();
    let (_home, proxy) = start(&upstream.url(), &url, "drain_deadline = \"1s\"").await;
    let first = proxy.active();

    let held = HeldStream::open(proxy.address, &upstream).await;
    let (mut idle, _idle_upstream) = websocket(proxy.address, &behind).await;
    let (mut between, mut between_upstream) = websocket(proxy.address, &behind).await;
    between_upstream.write_all(&frame("whole")).await.unwrap();
    expect(&mut between, &frame("whole")).await;
    let (mut amid, mut amid_upstream) = websocket(proxy.address, &behind).await;
    let (begun, more) = (frame("cut in two"), frame("never seen"));
    amid_upstream.write_all(&begun[..5]).await.unwrap();
    expect(&mut amid, &begun[..5]).await;

    let verdict = proxy.roll(same_version()).await.unwrap();
    assert_eq!(verdict.verdict, Outcome::Kept);
    assert!(
        proxy
            .rolling()
            .draining
            .iter()
            .any(|place| place.generation == first.generation)
    );
    // They work on until the deadline.
    between_upstream.write_all(&frame("drains")).await.unwrap();
    expect(&mut between, &frame("drains")).await;

    for client in [&mut idle, &mut between] {
        assert_eq!(rest(client).await, RESTARTING);
    }
    let told = rest(&mut between_upstream).await;
    assert_eq!(
        (told.len(), &told[..2]),
        (8, &[0x88, 0x82][..]),
        "{told:x?}"
    );
    // The frame under way is finished; of what follows nothing is.
    amid_upstream
        .write_all(&[&begun[5..], &more].concat())
        .await
        .unwrap();
    assert_eq!(rest(&mut amid).await, [&begun[5..], &RESTARTING].concat());

    let outcome = held.ended().await;
    assert!(matches!(outcome.end, End::Cut | End::Reset), "{outcome:?}");
    until("the worker has ended", || {
        !process::is_alive(i32::try_from(first.pid).unwrap())
    })
    .await;
    assert!(!proxy.log().contains("is killed"), "{}", proxy.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_without_an_end_is_cut_by_a_reset_and_holds_nobody_up() {
    let behind = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", behind.local_addr().unwrap());
    let (_home, proxy) = start(&url, &url, "drain_deadline = \"1s\"").await;
    let first = proxy.active();
    let (mut client, mut upstream) = websocket(proxy.address, &behind).await;
    upstream.write_all(&frame("no end")[..4]).await.unwrap();
    expect(&mut client, &frame("no end")[..4]).await;
    proxy.roll(same_version()).await.unwrap();
    let mut bytes = Vec::new();
    let reading = tokio::time::timeout(PATIENCE, client.read_to_end(&mut bytes)).await;
    let error = reading.expect("an end in time").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(bytes, b"", "a word was put into a frame");
    until("the worker has ended", || {
        !process::is_alive(i32::try_from(first.pid).unwrap())
    })
    .await;
    assert!(!proxy.log().contains("is killed"), "{}", proxy.log());
}
