//! A relay whose both ends are in the test's hands, to the byte: no HTTP library stands between a test and the sockets.

use std::io;
use std::panic::Location;

use tokio::io::AsyncReadExt;

use super::*;

/// How long something may take that should take no time.
const PATIENCE: Duration = Duration::from_secs(10);

/// A relay, with a listener in front of it and one behind it.
pub(super) struct Ends {
    pub(super) relay: Relay,
    /// Where the relay's clients connect to.
    pub(super) address: SocketAddr,
    /// The listener that the relay takes for its upstream.
    pub(super) behind: TcpListener,
    accepting: JoinHandle<()>,
}

/// What differs from a plain configuration, as lines of `config.toml`.
#[derive(Default)]
pub(super) struct Lines<'a> {
    pub(super) server: &'a str,
    pub(super) upstream: &'a str,
    pub(super) route: &'a str,
}

impl Ends {
    pub(super) async fn start() -> Self {
        Self::with(Lines::default()).await
    }

    /// One relay thread, so that every connection to the upstream may be used by every client.
    pub(super) async fn with(lines: Lines<'_>) -> Self {
        let behind = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let text = format!(
            "[server]\nlisten = [\"127.0.0.1:0\"]\n{}\n[upstreams.fixture]\nurl = \"http://{}\"\n{}\n\
             [[routes]]\npath = \"/v1/*\"\nupstream = \"fixture\"\n{}\n",
            lines.server,
            behind.local_addr().unwrap(),
            lines.upstream,
            lines.route
        );
        let loaded = crate::config::parse(&text, "test", &|_| None).unwrap();
        let config = loaded.strict().unwrap().config;
        let gateway = Arc::new(Gateway::new(&config, Arc::new(Process)).unwrap());
        let relay = Relay::start(Arc::new(config), gateway, 1).unwrap();
        let (address, accepting) = listen(&relay).await;
        Self {
            relay,
            address,
            behind,
            accepting,
        }
    }

    /// A new client.
    pub(super) async fn client(&self) -> Peer {
        Peer::new(TcpStream::connect(self.address).await.unwrap())
    }

    /// The relay's next connection to the upstream.
    #[track_caller]
    pub(super) fn upstream(&self) -> impl Future<Output = Peer> {
        let from = Location::caller();
        async move {
            let accepted = tokio::time::timeout(PATIENCE, self.behind.accept()).await;
            let accepted = accepted.unwrap_or_else(|_| panic!("{from}: nobody connected"));
            Peer::new(accepted.unwrap().0)
        }
    }

    /// Nobody connects to the upstream, as far as a moment can tell.
    #[track_caller]
    pub(super) fn expect_no_upstream(&self) -> impl Future<Output = ()> {
        let from = Location::caller();
        async move {
            let waited = tokio::time::timeout(MOMENT, self.behind.accept()).await;
            assert!(waited.is_err(), "{from}: a connection to the upstream");
        }
    }

    /// The upstream's `Host`.
    pub(super) fn host(&self) -> String {
        self.behind.local_addr().unwrap().to_string()
    }

    /// The request as the upstream must get it, if it has no field that ends at the relay: `Host: proxy` is replaced.
    pub(super) fn onward(&self, request: impl AsRef<[u8]>) -> Vec<u8> {
        replaced(
            request.as_ref(),
            b": proxy\r\n",
            format!(": {}\r\n", self.host()).as_bytes(),
        )
    }

    /// A client that sent `request`, and the upstream's end of a new connection on which it arrived.
    #[track_caller]
    pub(super) fn asked<'a>(
        &'a self,
        request: impl AsRef<[u8]> + 'a,
    ) -> impl Future<Output = (Peer, Peer)> {
        let from = Location::caller();
        async move {
            let mut client = self.client().await;
            client.send(&request).await;
            let mut upstream = self.upstream().await;
            upstream.expect_at(from, &self.onward(request)).await;
            (client, upstream)
        }
    }

    /// The upstream's end on which `request` arrives next: `before`, which may still get the rest of an earlier
    /// request first, or a new connection.
    pub(super) async fn wherever(&self, mut before: Peer, request: &str) -> Peer {
        let wanted = self.onward(request);
        let on_old = async {
            while !before.read.ends_with(&wanted) {
                if !matches!(before.fill().await, Ok(1..)) {
                    std::future::pending::<()>().await;
                }
            }
        };
        let on_new = async {
            let mut new = self.upstream().await;
            new.expect(&wanted).await;
            new
        };
        let new = tokio::select! {
            () = on_old => None,
            new = on_new => Some(new),
        };
        new.unwrap_or_else(|| {
            before.read.clear();
            before
        })
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.accepting.abort();
        self.relay.abort();
    }
}

/// How long is waited for what must not happen.
pub(super) const MOMENT: Duration = Duration::from_millis(60);

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Closed,
    Reset,
}

/// One end of a connection, with what was read and not yet looked at.
pub(super) struct Peer {
    pub(super) stream: TcpStream,
    read: Vec<u8>,
}

impl Peer {
    pub(super) fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            read: Vec::new(),
        }
    }

    /// Everything is taken by the kernel.
    #[track_caller]
    pub(super) fn send(&mut self, bytes: impl AsRef<[u8]>) -> impl Future<Output = ()> {
        let from = Location::caller();
        async move {
            let sent = tokio::time::timeout(3 * PATIENCE, self.stream.write_all(bytes.as_ref()));
            let sent = sent.await.unwrap_or_else(|_| panic!("{from}: not taken"));
            sent.unwrap_or_else(|error| panic!("{from}: not sent: {error}"));
        }
    }

    /// As much as is taken until nobody takes any more; how much that was.
    pub(super) async fn send_until_stuck(&mut self, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while sent < bytes.len() {
            let writing = self.stream.write(&bytes[sent..]);
            match tokio::time::timeout(Duration::from_millis(200), writing).await {
                Ok(written) => sent += written.unwrap(),
                Err(_stuck) => break,
            }
        }
        sent
    }

    /// One chunk of a chunked body.
    #[track_caller]
    pub(super) fn send_chunk(&mut self, data: impl AsRef<[u8]>) -> impl Future<Output = ()> {
        self.send(chunk(data.as_ref()))
    }

    /// Nothing more will be sent.
    pub(super) async fn finish(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    /// Ends the connection by a reset.
    pub(super) fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }

    async fn fill(&mut self) -> io::Result<usize> {
        self.read.reserve(64 * 1024);
        self.stream.read_buf(&mut self.read).await
    }

    /// Exactly these bytes arrive next; more may follow.
    #[track_caller]
    pub(super) fn expect(&mut self, wanted: impl AsRef<[u8]>) -> impl Future<Output = ()> {
        let from = Location::caller();
        async move { self.expect_at(from, wanted.as_ref()).await }
    }

    async fn expect_at(&mut self, from: &Location<'_>, wanted: &[u8]) {
        let mut checked = 0;
        loop {
            let length = self.read.len().min(wanted.len());
            assert!(
                self.read[checked..length] == wanted[checked..length],
                "{from}:\nwanted {}\n  came {}",
                shown(wanted),
                shown(&self.read)
            );
            checked = length;
            if length == wanted.len() {
                self.read.drain(..length);
                return;
            }
            let filled = tokio::time::timeout(PATIENCE, self.fill()).await;
            let why = match filled {
                Ok(Ok(1..)) => continue,
                Ok(Ok(_)) => "the connection was closed".to_owned(),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "nothing more came".to_owned(),
            };
            panic!(
                "{from}: {why}\nwanted {}\n  came {}",
                shown(wanted),
                shown(&self.read)
            );
        }
    }

    /// The next bytes up to and with `end`.
    #[track_caller]
    pub(super) fn until(&mut self, end: &[u8]) -> impl Future<Output = Vec<u8>> {
        let from = Location::caller();
        async move {
            loop {
                let found = match end {
                    b"" => Some(0),
                    _ => self.read.windows(end.len()).position(|part| part == end),
                };
                if let Some(at) = found {
                    return self.read.drain(..at + end.len()).collect();
                }
                let filled = tokio::time::timeout(PATIENCE, self.fill()).await;
                assert!(
                    matches!(filled, Ok(Ok(1..))),
                    "{from}: {filled:?} after {}",
                    shown(&self.read)
                );
            }
        }
    }

    /// A head, as text.
    #[track_caller]
    pub(super) fn head(&mut self) -> impl Future<Output = String> {
        let head = self.until(b"\r\n\r\n");
        async move { String::from_utf8_lossy(&head.await).into_owned() }
    }

    /// The end of a head, perhaps after the news that the connection ends with this answer.
    #[track_caller]
    pub(super) fn expect_end_of_head(&mut self) -> impl Future<Output = ()> {
        let from = Location::caller();
        async move {
            let line = self.until(b"\r\n").await;
            if line != b"\r\n" {
                assert!(
                    line.eq_ignore_ascii_case(b"connection: close\r\n"),
                    "{from}: {}",
                    shown(&line)
                );
                self.expect_at(from, b"\r\n").await;
            }
        }
    }

    /// A whole answer whose body has a length: its status, head and body.
    #[track_caller]
    pub(super) fn answer(&mut self) -> impl Future<Output = (u16, String, String)> {
        let from = Location::caller();
        async move {
            let head = self.head().await;
            let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
            let length = field(&head, "content-length").and_then(|length| length.parse().ok());
            let (Some(status), Some(length)) = (status, length) else {
                panic!("{from}: no answer with a length: {head}");
            };
            while self.read.len() < length {
                let filled = tokio::time::timeout(PATIENCE, self.fill()).await;
                assert!(
                    matches!(filled, Ok(Ok(1..))),
                    "{from}: {filled:?} in the body of {head}"
                );
            }
            let body: Vec<u8> = self.read.drain(..length).collect();
            (status, head, String::from_utf8_lossy(&body).into_owned())
        }
    }

    /// Everything that still comes, and how the connection ends.
    #[track_caller]
    pub(super) fn rest(&mut self) -> impl Future<Output = (Vec<u8>, End)> {
        let from = Location::caller();
        async move {
            loop {
                let filled = tokio::time::timeout(PATIENCE, self.fill()).await;
                let end = match filled {
                    Ok(Ok(1..)) => continue,
                    Ok(Ok(_)) => End::Closed,
                    Ok(Err(_)) => End::Reset,
                    Err(_) => panic!("{from}: no end after {}", shown(&self.read)),
                };
                return (std::mem::take(&mut self.read), end);
            }
        }
    }

    /// The connection ends without another byte, in whatever way.
    #[track_caller]
    pub(super) fn expect_end(&mut self) -> impl Future<Output = End> {
        let from = Location::caller();
        let rest = self.rest();
        async move {
            let (bytes, end) = rest.await;
            assert!(bytes.is_empty(), "{from}: {} before the end", shown(&bytes));
            end
        }
    }

    /// The connection is closed without another byte, and not by a reset.
    #[track_caller]
    pub(super) fn expect_closed(&mut self) -> impl Future<Output = ()> {
        let from = Location::caller();
        let end = self.expect_end();
        async move { assert_eq!(end.await, End::Closed, "{from}") }
    }

    /// Nothing comes and nothing ends, as far as a moment can tell.
    #[track_caller]
    pub(super) fn expect_silence(&mut self) -> impl Future<Output = ()> {
        let from = Location::caller();
        async move {
            let filled = tokio::time::timeout(MOMENT, self.fill()).await;
            assert!(
                filled.is_err() && self.read.is_empty(),
                "{from}: {filled:?} {}",
                shown(&self.read)
            );
        }
    }
}

/// One chunk of a chunked body.
pub(super) fn chunk(data: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{:x}\r\n", data.len()).into_bytes();
    bytes.extend_from_slice(data);
    bytes.extend_from_slice(b"\r\n");
    bytes
}

/// The value of a head's first field of this name.
pub(super) fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().find_map(|line| {
        let (field, value) = line.split_once(':')?;
        field.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

/// The bytes with the first `from` in them made `to`.
pub(super) fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    match bytes.windows(from.len()).position(|part| part == from) {
        None => bytes.to_vec(),
        Some(at) => [&bytes[..at], to, &bytes[at + from.len()..]].concat(),
    }
}

/// Bytes as a failed test shows them: not all of a large body.
pub(super) fn shown(bytes: &[u8]) -> String {
    const SHOWN: usize = 2_000;
    let start = &bytes[..bytes.len().min(SHOWN)];
    format!("{} bytes: \"{}\"", bytes.len(), start.escape_ascii())
}
