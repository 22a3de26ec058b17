//! What a worker holds when much has gone through it: no more than before, in descriptors and in memory.
//!
//! An ordinary run does a tenth, so that a debug build ends within a minute. In full, as for a release:
//! `ROLLPROXY_SOAK=full cargo test -p rollproxy-tests --release --test relay_soak`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fixtures::wire::{Piece, Wire};
use harness::{Proxy, TestHome, process, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

/// How many clients there are at a time.
const CLIENTS: usize = 32;
/// How much memory a worker may grow by.
const GROWTH: u64 = 2 << 20;
/// What the client that never reads is offered.
const LARGE: usize = 200 << 20;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{\"object\":\"ok\"}";
const STREAM: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
const EVENT: &[u8] = b"9\r\ndata: x\n\n\r\n";
const SWITCHED: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_leave_nothing_behind() {
    Soak::start()
        .await
        .expect_no_traces(100_000, requests)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_aborted_streams_leave_nothing_behind() {
    Soak::start()
        .await
        .expect_no_traces(10_000, aborted_streams)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tunnels_leave_nothing_behind() {
    Soak::start().await.expect_no_traces(1_000, tunnels).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_never_reads_costs_no_memory_and_stops_the_upstream() {
    let soak = Soak::start().await;
    soak.each(CLIENTS, requests).await;
    let before = process::resident(soak.pid);
    let mut client = TcpStream::connect(soak.proxy.address).await.unwrap();
    client
        .write_all(&request("GET", "/v1/messages/large", "", 0))
        .await
        .unwrap();
    // Every buffer in between is full when the upstream cannot write for a while.
    let (mut written, mut looks, mut most) = (0, 0, before);
    until("the upstream is stopped", || {
        most = most.max(process::resident(soak.pid));
        let now = soak.upstream.written.load(Ordering::Relaxed);
        looks = if now == written && now > 0 {
            looks + 1
        } else {
            0
        };
        written = now;
        looks == 50
    })
    .await;
    // What the kernel holds of three sockets; far from the whole.
    assert!(written < LARGE / 5, "{written}");
    assert!(most <= before + GROWTH, "from {before} to {most}");

    // Nothing is lost by waiting.
    let mut wire = Wire::new(client);
    let head = wire.head().await.unwrap().unwrap();
    let (mut framing, mut read) = (head.answer_framing(), 0);
    while let Piece::Data(data) = wire.piece(&mut framing).await.unwrap() {
        read += data.len();
    }
    assert_eq!(read, LARGE);
    let after = process::resident(soak.pid);
    assert!(after <= before + GROWTH, "from {before} to {after}");
}

/// A worker among real processes.
struct Soak {
    proxy: Proxy,
    upstream: Lean,
    pid: i32,
    _home: TestHome,
}

impl Soak {
    async fn start() -> Self {
        let home = TestHome::new();
        let upstream = Lean::start().await;
        home.configure_upstream(&format!("http://{}", upstream.address), "");
        home.install_proxy("1.0.0");
        home.select("1.0.0");
        let proxy = Proxy::start(&home).await;
        let pid = proxy.active_pid();
        Self {
            proxy,
            upstream,
            pid,
            _home: home,
        }
    }

    /// Does `clients` as often as was promised, after a warm-up with as many at a time: what is held then is what was
    /// held before.
    async fn expect_no_traces<F>(&self, promised: usize, clients: fn(SocketAddr, usize) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let times = match std::env::var("ROLLPROXY_SOAK").as_deref() {
            Ok("full") => promised,
            _ => promised / 10,
        };
        self.each((times / 5).max(10 * CLIENTS), clients).await;
        let before = [
            self.at_rest(self.pid).await,
            self.at_rest(self.proxy.pid()).await,
        ];
        let resident_before = process::resident(self.pid);
        self.each(times, clients).await;
        for (pid, before) in [self.pid, self.proxy.pid()].into_iter().zip(before) {
            let after = self.at_rest(pid).await;
            assert_eq!(after, before, "process {pid}");
        }
        let resident_after = process::resident(self.pid);
        println!("{times} times: {resident_before} bytes before, {resident_after} after");
        assert!(
            resident_after <= resident_before + GROWTH,
            "from {resident_before} to {resident_after} bytes"
        );
        assert_eq!(self.pid, self.proxy.active_pid(), "the worker is the same");
    }

    /// Does `clients` so many times, by several at once.
    async fn each<F>(&self, times: usize, clients: fn(SocketAddr, usize) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut running = JoinSet::new();
        for client in 0..CLIENTS {
            let share = times / CLIENTS + usize::from(client < times % CLIENTS);
            running.spawn(clients(self.proxy.address, share));
        }
        while let Some(client) = running.join_next().await {
            client.unwrap();
        }
    }

    /// What a process holds when no client is left, and no connection that is kept for reuse.
    async fn at_rest(&self, pid: i32) -> Vec<(i32, String)> {
        self.upstream.hang_up.notify_one();
        // A worker looks at what it keeps for reuse every now and then: what is left after a minute stays for ever.
        until("no connection is left", || {
            tcp_sockets(pid) <= usize::from(pid == self.proxy.pid())
        })
        .await;
        process::descriptors_at_rest(pid).await
    }
}

/// How many of a process's descriptors are TCP sockets: connections, and listeners.
fn tcp_sockets(pid: i32) -> usize {
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    let inodes: Vec<String> = table
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().nth(9))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    process::descriptors(pid)
        .iter()
        .filter(|(_, target)| inodes.contains(target))
        .count()
}

fn request(method: &str, path: &str, fields: &str, body: usize) -> Vec<u8> {
    let length = match body {
        0 => String::new(),
        length => format!("Content-Length: {length}\r\n"),
    };
    let mut bytes =
        format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{length}{fields}\r\n").into_bytes();
    bytes.resize(bytes.len() + body, b'x');
    bytes
}

async fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Requests with small bodies, a hundred a connection.
async fn requests(address: SocketAddr, times: usize) {
    let mut stream = connect(address).await;
    let request = request("POST", "/v1/messages/count_tokens", "", 512);
    let mut answer = vec![0; OK.len()];
    for number in 1..=times {
        stream.write_all(&request).await.unwrap();
        stream.read_exact(&mut answer).await.unwrap();
        assert!(answer == OK);
        if number % 100 == 0 {
            stream = connect(address).await;
        }
    }
}

/// Streams that are left after the first event: by a close, and by a reset.
async fn aborted_streams(address: SocketAddr, times: usize) {
    let request = request("POST", "/v1/messages", "", 512);
    let mut start = vec![0; STREAM.len() + EVENT.len()];
    for number in 0..times {
        let mut stream = connect(address).await;
        stream.write_all(&request).await.unwrap();
        stream.read_exact(&mut start).await.unwrap();
        assert!(start.starts_with(STREAM) && start.ends_with(EVENT));
        if number % 2 == 0 {
            stream.set_zero_linger().unwrap();
        }
    }
}

/// Tunnels that echo: closed in order, left, and reset.
async fn tunnels(address: SocketAddr, times: usize) {
    let fields = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
    let request = request("GET", "/v1/messages/tunnel", fields, 0);
    for number in 0..times {
        let mut wire = Wire::new(connect(address).await);
        wire.stream.write_all(&request).await.unwrap();
        let head = wire.head().await.unwrap().unwrap();
        assert_eq!(head.status(), Some(101));
        let said = vec![b'x'; 1_000];
        let mut heard = vec![0; said.len()];
        for _ in 0..3 {
            wire.stream.write_all(&said).await.unwrap();
            wire.stream.read_exact(&mut heard).await.unwrap();
            assert!(heard == said);
        }
        match number % 3 {
            0 => {
                wire.stream.shutdown().await.unwrap();
                assert_eq!(wire.fill().await.unwrap(), 0);
            }
            1 => wire.stream.set_zero_linger().unwrap(),
            _ => {}
        }
    }
}

/// An upstream that costs little: it answers by the path, and looks at nothing else.
struct Lean {
    address: SocketAddr,
    /// Ends every connection that it has.
    hang_up: Arc<Notify>,
    /// Bytes of large answers that the kernel took.
    written: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Lean {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let written = Arc::new(AtomicUsize::new(0));
        let hang_up = Arc::new(Notify::new());
        let (counted, asked) = (Arc::clone(&written), Arc::clone(&hang_up));
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let counted = Arc::clone(&counted);
                        connections.spawn(async move {
                            // A connection ends when its other side wants it to.
                            let _ended = serve(accepted.unwrap().0, &counted).await;
                        });
                    }
                    () = asked.notified() => connections.shutdown().await,
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Self {
            address,
            hang_up,
            written,
            task,
        }
    }
}

impl Drop for Lean {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(stream: TcpStream, written: &AtomicUsize) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut wire = Wire::new(stream);
    while let Some(head) = wire.head().await? {
        wire.body(head.request_framing()).await?;
        match head.request().1 {
            "/v1/messages" => {
                wire.stream.write_all(STREAM).await?;
                loop {
                    wire.stream.write_all(EVENT).await?;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            "/v1/messages/large" => {
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n");
                wire.stream.write_all(head.as_bytes()).await?;
                let block = vec![b'x'; 64 << 10];
                for _ in 0..LARGE / block.len() {
                    let mut rest = &block[..];
                    while !rest.is_empty() {
                        let length = wire.stream.write(rest).await?;
                        written.fetch_add(length, Ordering::Relaxed);
                        rest = &rest[length..];
                    }
                }
            }
            "/v1/messages/tunnel" => {
                wire.stream.write_all(SWITCHED).await?;
                let (mut reading, mut writing) = wire.stream.split();
                tokio::io::copy(&mut reading, &mut writing).await?;
                return Ok(());
            }
            _ => wire.stream.write_all(OK).await?,
        }
    }
    Ok(())
}
