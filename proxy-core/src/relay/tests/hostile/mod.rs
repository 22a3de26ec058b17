//! What attackers send, on both sides, against the real relay: the tables of `fixtures`, each entry whole, byte by byte
//! and behind a good request. The upstream is a recorder that keeps every byte, and each case ends with a good request of
//! another client: it must get its own answer, whatever came before.

mod answers;
mod requests;

use std::sync::atomic::{AtomicUsize, Ordering};

use fixtures::recorder::{Connection, Recorder};
use fixtures::wire::{Framing, Head, Piece};
use tokio::net::tcp::OwnedReadHalf;

use super::*;

/// A relay before a recording upstream.
struct Recorded {
    recorder: Recorder,
    relay: Relay,
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Recorded {
    async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let recorder = Recorder::start().await.unwrap();
        let mut config = Config::default();
        config
            .upstreams
            .insert("recorder".into(), UpstreamConfig::new(recorder.url()));
        config.routes = vec![Route::new("/v1/*", "recorder")];
        change(&mut config);
        let gateway = Arc::new(Gateway::new(&config, Arc::new(Process)).unwrap());
        let relay = Relay::start(Arc::new(config), gateway, 1).unwrap();
        let (address, accepting) = listen(&relay).await;
        Self {
            recorder,
            relay,
            address,
            accepting,
        }
    }

    /// Sends the bytes, so many at a time, and reads all that comes back meanwhile.
    async fn exchange(&self, bytes: &[u8], pieces: usize, methods: &[&str]) -> Seen {
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (reader, mut writer) = stream.into_split();
        let sending = async {
            for piece in bytes.chunks(pieces) {
                // Refused in its midst: what the relay says is read below.
                if writer.write_all(piece).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::join!(sending, Seen::read(Wire::new(reader), methods)).1
    }

    /// Another client's good request, which must get its own answer over a connection of its own choice.
    async fn sentinel(&self) -> Result<(), String> {
        let seen = self.exchange(SENTINEL, SENTINEL.len(), &["GET"]).await;
        match seen.answers.as_slice() {
            [(200, body)] if body == b"/v1/sentinel" => Ok(()),
            _ => Err(format!("the next client saw {seen:?}")),
        }
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.accepting.abort();
        self.relay.abort();
    }
}

const SENTINEL: &[u8] = b"GET /v1/sentinel HTTP/1.1\r\nHost: proxy\r\nConnection: close\r\n\r\n";
const LAST: &[u8] = b"GET /v1/last HTTP/1.1\r\nHost: proxy\r\nConnection: close\r\n\r\n";

/// How long a client waits for what must come.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a client saw on its connection.
#[derive(Debug)]
struct Seen {
    /// Status and body of each whole answer; interim ones are left out.
    answers: Vec<(u16, Vec<u8>)>,
    /// Status and beginning of the body of one that was cut.
    cut: Option<(u16, Vec<u8>)>,
    end: End,
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    Closed,
    /// Reset, or closed inside an answer.
    Cut,
    /// Nothing more came, and the connection stayed.
    Open,
    /// Something that is no answer.
    Garbage(String),
}

impl Seen {
    /// Reads answers to requests of these methods, and on until the end: an answer too many is seen, too.
    async fn read(mut wire: Wire<OwnedReadHalf>, methods: &[&str]) -> Self {
        let mut seen = Self {
            answers: Vec::new(),
            cut: None,
            end: End::Open,
        };
        if let Ok(end) = tokio::time::timeout(PATIENCE, seen.take(&mut wire, methods)).await {
            seen.end = end;
        }
        seen
    }

    async fn take(&mut self, wire: &mut Wire<OwnedReadHalf>, methods: &[&str]) -> End {
        loop {
            let head = match wire.head().await {
                Ok(None) => return End::Closed,
                Ok(Some(head)) => head,
                Err(error) => return End::of(&error),
            };
            let Some(status) = head.status() else {
                return End::Garbage(head.start);
            };
            if status < 200 {
                continue;
            }
            let mut framing = framing_of(&head, methods.get(self.answers.len()));
            let mut body = Vec::new();
            loop {
                match wire.piece(&mut framing).await {
                    Ok(Piece::Data(data)) => body.extend_from_slice(&data),
                    Ok(Piece::End) => break,
                    Err(error) => {
                        self.cut = Some((status, body));
                        return End::of(&error);
                    }
                }
            }
            self.answers.push((status, body));
        }
    }

    fn statuses(&self) -> Vec<u16> {
        self.answers.iter().map(|(status, _)| *status).collect()
    }
}

fn framing_of(head: &Head, method: Option<&&str>) -> Framing {
    match method {
        Some(&"HEAD") if head.status() == Some(200) => Framing::Length(0),
        _ => head.answer_framing(),
    }
}

impl End {
    fn of(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::InvalidData => Self::Garbage(error.to_string()),
            _ => Self::Cut,
        }
    }
}

/// Runs all cases, some at a time, each worker with its own relay and upstream; fails with all that went wrong.
async fn judge<T, F>(cases: Vec<T>, name: impl Fn(&T) -> String, case: F)
where
    T: Sync,
    F: AsyncFn(&Recorded, &T) -> Result<(), String>,
{
    const WORKERS: usize = 4;
    let next = AtomicUsize::new(0);
    let worker = async || {
        let mut failures = Vec::new();
        let mut proxy = Recorded::start().await;
        while let Some(entry) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            proxy.recorder.clear();
            if let Err(failure) = case(&proxy, entry).await {
                failures.push(format!("{}: {failure}", name(entry)));
                // What this one left behind must not blame the next.
                proxy = Recorded::start().await;
            }
        }
        failures
    };
    let (a, b, c, d) = tokio::join!(worker(), worker(), worker(), worker());
    let failures = [a, b, c, d].concat();
    assert!(
        failures.is_empty(),
        "{} of {} failed with {WORKERS} workers:\n{}",
        failures.len(),
        cases.len(),
        failures.join("\n")
    );
}

fn expect(condition: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if condition { Ok(()) } else { Err(what()) }
}

/// Waits for what the upstream must see.
async fn recorded(
    proxy: &Recorded,
    what: &str,
    condition: impl Fn(&[Connection]) -> bool,
) -> Result<Vec<Connection>, String> {
    let seen = tokio::time::timeout(PATIENCE, async {
        loop {
            let connections = proxy.recorder.connections();
            if condition(&connections) {
                return connections;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    seen.await.map_err(|_elapsed| {
        let connections = proxy.recorder.connections();
        format!("{what}; the upstream has {}", shown(&connections))
    })
}

/// The connections that brought anything, for a message.
fn shown(connections: &[Connection]) -> String {
    let all: Vec<_> = connections
        .iter()
        .filter(|connection| !connection.bytes.is_empty())
        .map(|connection| {
            let bytes = &connection.bytes[..connection.bytes.len().min(600)];
            let end = if connection.ended { "|" } else { "…" };
            format!("{}{end}", bytes.escape_ascii())
        })
        .collect();
    format!("[{}]", all.join("  "))
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    part.is_empty() || bytes.windows(part.len()).any(|window| window == part)
}
