//! HTTP/2 between real sockets: a client on one side, an upstream on the other, one relay thread between them.

mod bodies;
mod clients;
mod ending;
mod heads;
mod onward;
mod played;
mod refusing;
mod retrying;
mod upstreams;
mod vanishing;

use std::cell::Cell;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fixtures::script::Script;
use fixtures::upstream::Upstream;
use h2::RecvStream;
use h2::client::SendRequest;
use http::{HeaderMap, Request, Response};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, LocalSet};

use super::super::counters::Counters;
use super::super::thread::{Setup, Thread};
use super::super::tls::Tls;
use super::super::{Drain, Phase};
use super::{PREFACE, serve};
use crate::config::{Config, Route, Upstream as UpstreamConfig};
use crate::gateway::{Decision, Gateway, RequestHead, Target, Vitals};

/// One relay thread, served by the test's own.
struct Front {
    thread: Rc<Thread>,
    phase: watch::Sender<Phase>,
    address: SocketAddr,
    /// Connections being served.
    open: Rc<Cell<usize>>,
    accepting: JoinHandle<()>,
}

struct Process;

impl Vitals for Process {
    fn ready(&self) -> bool {
        true
    }

    fn status(&self) -> serde_json::Value {
        serde_json::json!({})
    }
}

impl Front {
    async fn to(upstream: &Upstream) -> Self {
        Self::with(UpstreamConfig::new(upstream.url()), |_| {}).await
    }

    async fn with(upstream: UpstreamConfig, change: impl FnOnce(&mut Config)) -> Self {
        Self::trusting(Tls::default(), upstream, change).await
    }

    async fn trusting(
        tls: Tls,
        upstream: UpstreamConfig,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let mut config = Config::default();
        config.upstreams.insert("fixture".into(), upstream);
        config.routes = vec![Route::new("/v1/*", "fixture")];
        change(&mut config);
        let gateway = Gateway::new(&config, Arc::new(Process)).unwrap();
        let (phase, watched) = watch::channel(Phase::Serving);
        let thread = Rc::new(Thread::new(Setup {
            number: 0,
            config: Arc::new(config),
            gateway: Arc::new(gateway),
            counters: Arc::new(Counters::default()),
            phase: watched,
            tls,
        }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let open = Rc::new(Cell::new(0));
        let accepting =
            tokio::task::spawn_local(accept(Rc::clone(&thread), listener, Rc::clone(&open)));
        Self {
            thread,
            phase,
            address,
            open,
            accepting,
        }
    }

    fn drain(&self) {
        self.phase.send_replace(Phase::Draining(Drain::Close));
    }

    /// Where requests go.
    fn target(&self) -> Arc<Target> {
        let none = HeaderMap::new();
        let decision = self.thread.gateway.decide(&RequestHead {
            method: "POST",
            path: "/v1/x",
            query: None,
            upgrade: None,
            fields: &none,
        });
        match decision {
            Decision::Forward(forward) => Arc::clone(forward.target),
            Decision::Answer(answer) => panic!("{answer:?}"),
        }
    }

    fn exchanges(&self) -> u64 {
        self.thread.counters.load().exchanges
    }

    async fn socket(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    async fn connect(&self) -> Http2 {
        Http2::over(self.socket().await, h2::client::Builder::new()).await
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.accepting.abort();
        self.phase.send_replace(Phase::Aborted);
    }
}

/// As the connection loop will: reads at least the preface, and hands over what it read.
async fn accept(thread: Rc<Thread>, listener: TcpListener, open: Rc<Cell<usize>>) {
    loop {
        let (mut stream, peer) = listener.accept().await.unwrap();
        let (thread, open) = (Rc::clone(&thread), Rc::clone(&open));
        tokio::task::spawn_local(async move {
            stream.set_nodelay(true).unwrap();
            open.set(open.get() + 1);
            let mut first = Vec::new();
            while first.len() < PREFACE.len() {
                assert!(stream.read_buf(&mut first).await.unwrap() > 0);
            }
            assert_eq!(&first[..PREFACE.len()], PREFACE);
            serve(&thread, stream, first, Some(peer)).await;
            open.set(open.get() - 1);
        });
    }
}

/// A client that can do what hyper's does not.
struct Http2 {
    sender: SendRequest<Bytes>,
    /// How its connection ended.
    driver: JoinHandle<Result<(), h2::Error>>,
}

impl Http2 {
    async fn over(stream: TcpStream, builder: h2::client::Builder) -> Self {
        let (sender, connection) = builder.handshake(stream).await.unwrap();
        Self {
            sender,
            driver: tokio::task::spawn_local(connection),
        }
    }

    /// A whole request, and the head of its answer.
    async fn ask(&mut self, request: Request<()>, body: &'static [u8]) -> Response<RecvStream> {
        let (answer, mut stream) = soon(self.sender.clone().ready())
            .await
            .unwrap()
            .send_request(request, false)
            .unwrap();
        stream.send_data(Bytes::from_static(body), true).unwrap();
        soon(answer).await.unwrap()
    }
}

impl Drop for Http2 {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

fn post(path: &str) -> http::request::Builder {
    Request::post(format!("http://proxy{path}"))
}

/// A request for the script's stream.
fn streaming(script: &Script) -> http::request::Builder {
    let mut request = post("/v1/messages");
    for (name, value) in script.fields() {
        request = request.header(name, value);
    }
    request
}

/// The whole body, or what came before its end.
async fn read(body: &mut RecvStream) -> Result<Vec<u8>, (Vec<u8>, h2::Error)> {
    let mut bytes = Vec::new();
    while let Some(data) = soon(body.data()).await {
        match data {
            Ok(data) => {
                body.flow_control().release_capacity(data.len()).unwrap();
                bytes.extend_from_slice(&data);
            }
            Err(error) => return Err((bytes, error)),
        }
    }
    Ok(bytes)
}

async fn json(answer: Response<RecvStream>) -> (u16, serde_json::Value) {
    let status = answer.status().as_u16();
    let body = read(&mut answer.into_body()).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap())
}

/// Exactly so many bytes of a body, as they come.
async fn bytes(body: &mut RecvStream, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < count {
        let data = soon(body.data()).await.expect("more").unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        bytes.extend_from_slice(&data);
    }
    bytes
}

async fn trailers(body: &mut RecvStream) -> Option<HeaderMap> {
    soon(body.trailers()).await.unwrap()
}

/// Everything on one thread, as in the relay.
async fn local<T>(test: impl Future<Output = T>) -> T {
    let test: Pin<Box<dyn Future<Output = T> + '_>> = Box::pin(test);
    LocalSet::new().run_until(test).await
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
