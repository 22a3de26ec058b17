//! Hostile requests are refused before a byte of them is forwarded; odd but legal ones arrive once and as they came.

use fixtures::recorder::{At, Scripted};
use fixtures::requests::{self, Hostile, Legal, Reach, SMUGGLED};

use super::*;

const FIRST: &[u8] = b"GET /v1/first HTTP/1.1\r\nHost: proxy\r\n\r\n";

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

#[tokio::test]
async fn a_body_that_pauses_is_408_and_not_completed_by_what_comes_later() {
    let proxy = Recorded::start_with(|config| {
        config.server.body_timeout = Duration::from_millis(200);
    })
    .await;
    for (fields, begun) in [
        ("Content-Length: 200", "half of it"),
        ("Transfer-Encoding: chunked", "64\r\nhalf of it"),
        ("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n"),
    ] {
        proxy.recorder.clear();
        let mut wire = Wire::new(TcpStream::connect(proxy.address).await.unwrap());
        let request =
            format!("POST /v1/hostile HTTP/1.1\r\nHost: proxy\r\n{fields}\r\n\r\n{begun}");
        wire.stream.write_all(request.as_bytes()).await.unwrap();
        assert_eq!(json_answer(&mut wire).await.0, 408, "{fields} {begun:?}");
        // The relay may already have closed.
        let _ = wire.stream.write_all(SMUGGLED).await;
        let (reader, _writer) = wire.stream.into_split();
        let seen = Seen::read(Wire::new(reader), &["GET"]).await;
        assert!(
            seen.answers.is_empty() && seen.end != End::Open,
            "{fields} {begun:?}: {seen:?}"
        );
        let left = |connections: &[Connection]| {
            connections
                .iter()
                .filter(|it| contains(&it.bytes, b"/v1/hostile"))
                .all(|it| it.ended && it.requests.iter().all(|request| !request.whole))
        };
        let connections = recorded(&proxy, "not left after the pause", left)
            .await
            .unwrap();
        for connection in &connections {
            assert!(!contains(&connection.bytes, b"/v1/smuggled"));
        }
        proxy.sentinel().await.unwrap();
    }
}

#[tokio::test]
async fn a_switch_that_is_not_granted_opens_no_tunnel() {
    let proxy = Recorded::start().await;
    let asks = b"GET /v1/hostile HTTP/1.1\r\nHost: proxy\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 777\r\n\r\n";
    let bytes = [asks.as_slice(), LAST].concat();
    let seen = proxy.exchange(&bytes, bytes.len(), &["GET", "GET"]).await;
    assert_eq!(
        seen.answers,
        [(200, b"/v1/hostile".to_vec()), (200, b"/v1/last".to_vec())],
        "{seen:?}"
    );
    // Behind it only requests, read and composed by the relay: their Host is the upstream's own.
    let connections = proxy.recorder.connections();
    let requests: Vec<_> = connections.iter().flat_map(|it| &it.requests).collect();
    assert_eq!(requests.len(), 2, "{}", shown(&connections));
    for request in requests {
        assert!(!contains(&request.head, b"Host: proxy\r\n"), "{request:?}");
    }
    proxy.sentinel().await.unwrap();
}
