//! What attackers send, on both sides, against the real relay: the tables of `fixtures`, each entry whole, byte by byte
//! and behind a good request. The upstream is a recorder that keeps every byte, and each case ends with a good request of
//! another client: it must get its own answer, whatever came before.

use std::sync::atomic::{AtomicUsize, Ordering};

use fixtures::answers::{self, Becomes, HostileAnswer};
use fixtures::recorder::{At, Connection, Recorder, Scripted};
use fixtures::requests::{self, Hostile, Legal, Reach, SMUGGLED};
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
        let recorder = Recorder::start().await.unwrap();
        let relay = relay_to(UpstreamConfig::new(recorder.url()), 1);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let adopting = relay.clone();
        let accepting = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                adopting.adopt(stream.into_std().unwrap().into()).unwrap();
            }
        });
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
const FIRST: &[u8] = b"GET /v1/first HTTP/1.1\r\nHost: proxy\r\n\r\n";
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

/// How the bytes of an entry are sent.
#[derive(Debug, Clone, Copy)]
enum Sent {
    Whole,
    ByteByByte,
    BehindAGoodRequest,
}

const WAYS: [Sent; 3] = [Sent::Whole, Sent::ByteByByte, Sent::BehindAGoodRequest];

impl Sent {
    /// A huge head byte by byte would only take long.
    fn pieces(self, length: usize) -> usize {
        match self {
            Self::ByteByByte => 1 + length / 2_000,
            Self::Whole | Self::BehindAGoodRequest => length.max(1),
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

async fn refused(proxy: &Recorded, (entry, way): &(Hostile, Sent)) -> Result<(), String> {
    let first = matches!(way, Sent::BehindAGoodRequest);
    let bytes = [if first { FIRST } else { b"" }, &entry.bytes, SMUGGLED].concat();
    let seen = proxy
        .exchange(&bytes, way.pieces(bytes.len()), &["GET", "GET"])
        .await;
    let statuses = seen.statuses();
    let refusal = match (statuses.as_slice(), first) {
        ([refusal], false) | ([200, refusal], true) => entry.status.contains(refusal),
        _ => false,
    };
    expect(refusal && seen.cut.is_none(), || {
        let saw = shown(&proxy.recorder.connections());
        format!(
            "expected {:?}, saw {statuses:?} and {:?}; upstream {saw}",
            entry.status, seen.end
        )
    })?;
    expect(seen.end != End::Open, || "not closed".to_owned())?;
    if entry.reach == Reach::Begun {
        let is_cut = |connections: &[Connection]| {
            connections
                .iter()
                .filter(|connection| contains(&connection.bytes, b"/v1/hostile"))
                .all(|connection| connection.ended)
        };
        recorded(proxy, "the broken body's connection was not cut", is_cut).await?;
    }
    proxy.sentinel().await?;
    never_reached(entry, first, &proxy.recorder.connections())
}

/// Nothing of a hostile request but what may have been forwarded before it turned bad.
fn never_reached(entry: &Hostile, first: bool, connections: &[Connection]) -> Result<(), String> {
    let complain = |what: &str| Err(format!("{what}: upstream {}", shown(connections)));
    let mut good = Vec::new();
    for connection in connections {
        if contains(&connection.bytes, b"/v1/smuggled") {
            return complain("the smuggled request was forwarded");
        }
        let mut understood = 0;
        for request in &connection.requests {
            understood += request.head.len() + request.body.len();
            match request.target.as_str() {
                "/v1/hostile" if entry.reach == Reach::Begun => {
                    if request.whole {
                        return complain("the broken body was brought to an end");
                    }
                    if Some(request) != connection.requests.last() {
                        return complain("the connection was used again");
                    }
                    // Whatever follows is a beginning of this body, which its own reader does not understand.
                    understood = connection.bytes.len();
                }
                target => good.push(target),
            }
        }
        if understood != connection.bytes.len() {
            return complain("there is more than requests");
        }
    }
    let expected: &[&str] = if first {
        &["/v1/first", "/v1/sentinel"]
    } else {
        &["/v1/sentinel"]
    };
    good.sort_unstable();
    if good != expected {
        return complain("other requests than the good ones were forwarded");
    }
    Ok(())
}

#[tokio::test]
async fn hostile_heads_are_refused_and_not_a_byte_of_them_is_forwarded() {
    let cases = hostile_requests(Reach::Nothing);
    assert!(cases.len() > 500, "{}", cases.len());
    judge(
        cases,
        |(entry, way)| format!("{} {way:?}", entry.name),
        refused,
    )
    .await;
}

#[tokio::test]
async fn bodies_that_turn_bad_are_refused_and_never_brought_to_an_end() {
    let cases = hostile_requests(Reach::Begun);
    assert!(cases.len() > 200, "{}", cases.len());
    judge(
        cases,
        |(entry, way)| format!("{} {way:?}", entry.name),
        refused,
    )
    .await;
}

fn hostile_requests(reach: Reach) -> Vec<(Hostile, Sent)> {
    requests::hostile()
        .into_iter()
        .filter(|entry| entry.reach == reach)
        .flat_map(|entry| WAYS.map(|way| (entry.clone(), way)))
        .collect()
}

async fn forwarded(proxy: &Recorded, (entry, way): &(Legal, Sent)) -> Result<(), String> {
    let first = matches!(way, Sent::BehindAGoodRequest);
    let mut targets = vec!["/v1/first", &entry.target, "/v1/last"];
    let mut bytes = [if first { FIRST } else { b"" }, &entry.bytes].concat();
    if !first {
        targets.remove(0);
    }
    if entry.persistent {
        bytes.extend_from_slice(LAST);
    } else {
        targets.pop();
    }
    let seen = proxy
        .exchange(&bytes, way.pieces(bytes.len()), &["GET", "GET", "GET"])
        .await;
    let answered: Vec<_> = seen
        .answers
        .iter()
        .map(|(status, body)| (*status, String::from_utf8_lossy(body).into_owned()))
        .collect();
    let expected: Vec<_> = targets
        .iter()
        .map(|target| (200, (*target).to_owned()))
        .collect();
    expect(answered == expected && seen.end == End::Closed, || {
        format!("expected {expected:?}, saw {answered:?} and {:?}", seen.end)
    })?;
    let connections = proxy.recorder.connections();
    let all: Vec<_> = connections.iter().flat_map(|it| &it.requests).collect();
    expect(all.len() == targets.len(), || shown(&connections))?;
    let found: Vec<_> = all.iter().filter(|it| it.target == entry.target).collect();
    let [request] = found.as_slice() else {
        return Err(format!(
            "forwarded {} times: {}",
            found.len(),
            shown(&connections)
        ));
    };
    expect(request.whole && request.body == *entry.body, || {
        format!(
            "the body came as {:?}",
            request.body.escape_ascii().to_string()
        )
    })?;
    let head = String::from_utf8_lossy(&request.head).to_ascii_lowercase();
    expect(contains(&request.head, entry.present), || {
        format!("a field is not as it came: {head}")
    })?;
    let kept = entry
        .absent
        .iter()
        .find(|name| head.contains(&format!("\r\n{name}:")));
    expect(kept.is_none(), || format!("{kept:?} was forwarded: {head}"))?;
    proxy.sentinel().await
}

#[tokio::test]
async fn odd_but_legal_requests_are_forwarded_once_and_as_they_came() {
    let cases: Vec<_> = requests::legal()
        .into_iter()
        .flat_map(|entry| WAYS.map(|way| (entry.clone(), way)))
        .collect();
    judge(
        cases,
        |(entry, way)| format!("{} {way:?}", entry.name),
        forwarded,
    )
    .await;
}

/// How the bytes of a hostile answer are sent, and to what kind of client.
#[derive(Debug, Clone, Copy)]
enum Answered {
    Whole,
    ByteByByte,
    ToAnOldClient,
}

async fn answered(
    proxy: &Recorded,
    (entry, how): &(HostileAnswer, Answered),
) -> Result<(), String> {
    proxy.recorder.script(Some(Scripted {
        target: "/v1/hostile".into(),
        at: At::End,
        bytes: entry.bytes.to_vec(),
        pieces: match how {
            Answered::ByteByByte => 1 + entry.bytes.len() / 2_000,
            _ => entry.bytes.len().max(1),
        },
        close: entry.close,
    }));
    let old = matches!(how, Answered::ToAnOldClient);
    let request = match old {
        true => format!(
            "{} /v1/hostile HTTP/1.0\r\nHost: proxy\r\n\r\n",
            entry.method
        ),
        false => format!(
            "{} /v1/hostile HTTP/1.1\r\nHost: proxy\r\n\r\n{}",
            entry.method,
            String::from_utf8_lossy(LAST)
        ),
    };
    let seen = proxy
        .exchange(request.as_bytes(), request.len(), &[entry.method, "GET"])
        .await;
    as_it_should(entry, &seen, old)?;
    let is_left = |connections: &[Connection]| {
        connections
            .iter()
            .filter(|connection| contains(&connection.bytes, b"/v1/hostile"))
            .all(|connection| connection.ended && connection.requests.len() == 1)
    };
    recorded(proxy, "the connection was kept or used again", is_left).await?;
    proxy.recorder.script(None);
    proxy.sentinel().await
}

/// One answer at most for the hostile one, and behind it nothing but the next request's own.
fn as_it_should(entry: &HostileAnswer, seen: &Seen, old: bool) -> Result<(), String> {
    let complain = || {
        let answers: Vec<_> = seen
            .answers
            .iter()
            .chain(&seen.cut)
            .map(|(status, body)| format!("{status} {}", body[..body.len().min(80)].escape_ascii()))
            .collect();
        Err(format!(
            "expected {:?}, saw {answers:?} and {:?}",
            entry.becomes, seen.end
        ))
    };
    let (first, rest) = match seen.answers.split_first() {
        Some((first, rest)) => (Some(first), rest),
        None => (None, [].as_slice()),
    };
    let bad_gateway = first.is_some_and(|(status, _)| *status == 502);
    let whole = |status: u16, body: &[u8]| first.is_some_and(|it| it.0 == status && it.1 == body);
    let cut = |body: &[u8]| {
        let begun = seen.cut.as_ref().filter(|_| first.is_none());
        begun.is_some_and(|it| it.0 == 200 && body.starts_with(&it.1)) && seen.end == End::Cut
    };
    let good = match entry.becomes {
        Becomes::BadGateway => bad_gateway,
        Becomes::Cut(body) => bad_gateway || cut(body),
        Becomes::Whole(status, body) => whole(status, body),
        Becomes::WholeOrBadGateway(status, body) => bad_gateway || whole(status, body),
    };
    let own = match rest {
        [] => true,
        [(200, body)] => !old && body == b"/v1/last",
        _ => false,
    };
    let ended = matches!(seen.end, End::Closed | End::Cut);
    if good && own && ended {
        Ok(())
    } else {
        complain()
    }
}

#[tokio::test]
async fn hostile_answers_become_502_or_are_cut_and_their_connection_is_left() {
    let cases: Vec<_> = answers::hostile()
        .into_iter()
        .flat_map(|entry| {
            [
                Answered::Whole,
                Answered::ByteByByte,
                Answered::ToAnOldClient,
            ]
            .map(|how| (entry.clone(), how))
        })
        .collect();
    judge(
        cases,
        |(entry, how)| format!("{} {how:?}", entry.name),
        answered,
    )
    .await;
}

#[tokio::test]
async fn an_answer_before_its_request_is_nobodys() {
    let proxy = Recorded::start().await;
    // The second answer comes a moment after the first, on a connection that may already wait for its next request.
    for behind in [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"[..],
        b"H",
        b"\r\n",
    ] {
        proxy.recorder.clear();
        let good = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        proxy.recorder.script(Some(Scripted {
            target: "/v1/hostile".into(),
            at: At::End,
            bytes: [good, behind].concat(),
            pieces: good.len(),
            close: false,
        }));
        let mut wire = Wire::new(TcpStream::connect(proxy.address).await.unwrap());
        wire.stream
            .write_all(b"GET /v1/hostile HTTP/1.1\r\nHost: proxy\r\n\r\n")
            .await
            .unwrap();
        let head = soon(wire.head()).await.unwrap().unwrap();
        let body = soon(wire.body(head.answer_framing())).await.unwrap();
        assert_eq!(body, b"hello");
        let left = |connections: &[Connection]| {
            connections
                .iter()
                .filter(|it| contains(&it.bytes, b"/v1/hostile"))
                .all(|it| it.ended)
        };
        recorded(&proxy, "kept with bytes that nobody asked for", left)
            .await
            .unwrap();
        wire.stream.write_all(LAST).await.unwrap();
        let (reader, _writer) = wire.stream.into_split();
        let seen = Seen::read(Wire::new(reader), &["GET"]).await;
        assert_eq!(seen.answers, [(200, b"/v1/last".to_vec())], "{seen:?}");
        proxy.recorder.script(None);
        proxy.sentinel().await.unwrap();
    }
}

#[tokio::test]
async fn a_body_that_its_client_leaves_is_not_completed_by_the_next_request() {
    let proxy = Recorded::start().await;
    for (fields, begun) in [
        ("Content-Length: 200", "half of it"),
        ("Content-Length: 200", ""),
        ("Transfer-Encoding: chunked", "64\r\nhalf of it"),
        ("Transfer-Encoding: chunked", "5\r\nhello\r\n"),
        ("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n"),
    ] {
        proxy.recorder.clear();
        let mut client = TcpStream::connect(proxy.address).await.unwrap();
        let request =
            format!("POST /v1/hostile HTTP/1.1\r\nHost: proxy\r\n{fields}\r\n\r\n{begun}");
        client.write_all(request.as_bytes()).await.unwrap();
        let begun = |connections: &[Connection]| {
            connections
                .iter()
                .any(|it| contains(&it.bytes, b"/v1/hostile"))
        };
        recorded(&proxy, "not forwarded at once", begun)
            .await
            .unwrap();
        drop(client);
        let left = |connections: &[Connection]| {
            connections
                .iter()
                .filter(|it| contains(&it.bytes, b"/v1/hostile"))
                .all(|it| it.ended && it.requests.iter().all(|request| !request.whole))
        };
        recorded(&proxy, "not left with its client", left)
            .await
            .unwrap();
        proxy.sentinel().await.unwrap();
    }
}

#[tokio::test]
async fn an_answer_before_the_body_leaves_no_room_for_a_request_in_it() {
    let proxy = Recorded::start().await;
    for keeps in [false, true] {
        proxy.recorder.clear();
        proxy.recorder.script(Some(Scripted {
            target: "/v1/hostile".into(),
            at: At::Head,
            bytes: b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno".to_vec(),
            pieces: usize::MAX,
            close: false,
        }));
        let head = format!(
            "POST /v1/hostile HTTP/1.1\r\nHost: proxy\r\nContent-Length: {}\r\n\r\n",
            SMUGGLED.len()
        );
        let mut wire = Wire::new(TcpStream::connect(proxy.address).await.unwrap());
        wire.stream.write_all(head.as_bytes()).await.unwrap();
        let answer = soon(wire.head()).await.unwrap().unwrap();
        assert_eq!(answer.status(), Some(401));
        assert_eq!(
            soon(wire.body(answer.answer_framing())).await.unwrap(),
            b"no"
        );
        // Others come while the body is owed, and after it was sent or left.
        proxy.sentinel().await.unwrap();
        if keeps {
            // The relay may already have closed.
            let _ = wire.stream.write_all(SMUGGLED).await;
            let _ = wire.stream.write_all(LAST).await;
            let (reader, _writer) = wire.stream.into_split();
            let seen = Seen::read(Wire::new(reader), &["GET"]).await;
            let own = seen
                .answers
                .iter()
                .all(|it| *it == (200, b"/v1/last".to_vec()));
            assert!(
                own && seen.answers.len() <= 1 && seen.end != End::Open,
                "{seen:?}"
            );
        } else {
            drop(wire);
        }
        proxy.sentinel().await.unwrap();
        for connection in proxy.recorder.connections() {
            for request in connection.requests {
                assert_ne!(request.target, "/v1/smuggled");
                if request.target == "/v1/hostile" {
                    assert!(SMUGGLED.starts_with(&request.body), "{request:?}");
                }
            }
        }
    }
}
