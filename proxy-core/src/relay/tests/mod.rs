//! The relay between real sockets: a verifying client on one side, the fixture's upstream on the other.

mod arrival;
mod bodies;
mod bridge;
mod cuts;
mod early;
mod ending;
mod ends;
mod exact;
mod failing;
mod forwarding;
mod giving_back;
mod held;
mod hostile;
mod interim;
mod leaving;
mod limits;
mod pipelining;
mod streaming;
mod timeouts;
mod tls;
mod tunnel_ending;
mod tunnels;
mod upstreams;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fixtures::upstream::Upstream;
use fixtures::wire::Wire;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{Drain, Relay, Tuning};
use crate::config::{Config, Route, Server, Upstream as UpstreamConfig};
use crate::gateway::{Gateway, Vitals};

/// A relay with a listener before it and the fixture's upstream behind it.
struct Proxy {
    relay: Relay,
    upstream: Upstream,
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

struct Process;

impl Vitals for Process {
    fn ready(&self) -> bool {
        true
    }

    fn status(&self) -> serde_json::Value {
        serde_json::json!({ "workerVersion": "1.2.3" })
    }
}

impl Proxy {
    async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    /// `change` may shorten the upstream's time-outs, or send it elsewhere.
    async fn start_with(change: impl FnOnce(&mut UpstreamConfig)) -> Self {
        Self::start_tuned(change, &Tuning::default()).await
    }

    async fn start_tuned(change: impl FnOnce(&mut UpstreamConfig), tuning: &Tuning) -> Self {
        let upstream = Upstream::start().await.unwrap();
        let mut to = UpstreamConfig::new(upstream.url());
        change(&mut to);
        let relay = relay_with(to, 2, tuning);
        Self::before(upstream, relay).await
    }

    /// `change` may shorten the time-outs of the client's side, or add what only a configuration adds.
    async fn start_serving(change: impl FnOnce(&mut Server)) -> Self {
        let upstream = Upstream::start().await.unwrap();
        let mut config = config_to(UpstreamConfig::new(upstream.url()));
        change(&mut config.server);
        let relay = relay_of(config, 2, &Tuning::default());
        Self::before(upstream, relay).await
    }

    async fn before(upstream: Upstream, relay: Relay) -> Self {
        let (address, accepting) = listen(&relay).await;
        Self {
            relay,
            upstream,
            address,
            accepting,
        }
    }

    async fn connect(&self) -> Wire<TcpStream> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Wire::new(stream)
    }

    /// A connection on which a request was already answered.
    async fn connect_and_use(&self) -> Wire<TcpStream> {
        let mut wire = self.connect().await;
        wire.stream.write_all(PLAIN).await.unwrap();
        let head = soon(wire.head()).await.unwrap().unwrap();
        soon(wire.body(head.answer_framing())).await.unwrap();
        assert_eq!(head.status(), Some(200));
        wire
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.relay.abort();
    }
}

/// A request that the fixture answers with a small JSON body.
const PLAIN: &[u8] =
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: proxy\r\ncontent-length: 2\r\n\r\n{}";

fn relay_to(upstream: UpstreamConfig, threads: usize) -> Relay {
    relay_with(upstream, threads, &Tuning::default())
}

fn relay_with(upstream: UpstreamConfig, threads: usize, tuning: &Tuning) -> Relay {
    relay_of(config_to(upstream), threads, tuning)
}

/// Everything goes to this upstream.
fn config_to(upstream: UpstreamConfig) -> Config {
    let mut config = Config::default();
    config.upstreams.insert("fixture".into(), upstream);
    config.routes = vec![Route::new("/v1/*", "fixture")];
    config
}

fn relay_of(config: Config, threads: usize, tuning: &Tuning) -> Relay {
    let gateway = Arc::new(Gateway::new(&config, Arc::new(Process)).unwrap());
    Relay::start_with(Arc::new(config), gateway, threads, tuning).unwrap()
}

/// A port whose connections the relay serves, until the task is ended.
async fn listen(relay: &Relay) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let adopting = relay.clone();
    let accepting = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // A test may have aborted the relay: its connection is closed then, which it sees.
            let _closed = adopting.adopt(stream.into_std().unwrap().into());
        }
    });
    (address, accepting)
}

/// What must happen, and not after minutes.
async fn soon<T>(step: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), step)
        .await
        .expect("in time")
}

/// Waits for something that only can be looked at.
async fn until(mut condition: impl FnMut() -> bool) {
    soon(async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// The status code and the JSON body of the next answer.
async fn json_answer(wire: &mut Wire<TcpStream>) -> (u16, serde_json::Value) {
    let head = soon(wire.head()).await.unwrap().unwrap();
    let body = soon(wire.body(head.answer_framing())).await.unwrap();
    (
        head.status().unwrap(),
        serde_json::from_slice(&body).unwrap(),
    )
}
