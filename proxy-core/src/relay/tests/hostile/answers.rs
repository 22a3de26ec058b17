//! Hostile answers become 502 or are cut, and nothing of them is ever taken for another request's answer.

use fixtures::answers::{self, Becomes, HostileAnswer};
use fixtures::recorder::{At, Scripted};

use super::*;

/// How the bytes of a hostile answer are sent, and to what kind of client.
#[derive(Debug, Clone, Copy)]
enum Answered {
    /// At once, with the client's next request already there.
    Whole,
    /// With the client's next request when all of it was sent: what an upstream sends later than that is the answer, as
    /// far as anybody can tell.
    ByteByByte,
    /// At once, to a client that knows no chunks and only this request.
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
    let version = if old { "HTTP/1.0" } else { "HTTP/1.1" };
    let request = format!(
        "{} /v1/hostile {version}\r\nHost: proxy\r\n\r\n",
        entry.method
    );
    let methods = [entry.method, "GET"];
    let seen = match how {
        Answered::Whole => {
            let both = [request.as_bytes(), LAST].concat();
            proxy.exchange(&both, both.len(), &methods).await
        }
        Answered::ByteByByte => in_turn(proxy, request.as_bytes(), &methods).await,
        Answered::ToAnOldClient => {
            let request = request.as_bytes();
            proxy.exchange(request, request.len(), &methods).await
        }
    };
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

/// Sends the next request when the upstream has sent all that it has to say.
async fn in_turn(proxy: &Recorded, request: &[u8], methods: &[&str]) -> Seen {
    let stream = TcpStream::connect(proxy.address).await.unwrap();
    let (reader, mut writer) = stream.into_split();
    let all_sent = |connections: &[Connection]| {
        let mut requests = connections.iter().flat_map(|it| &it.requests);
        requests.any(|it| it.target == "/v1/hostile" && it.answered)
    };
    let sending = async {
        // What fails here shows in what is read.
        let _ = writer.write_all(request).await;
        let _ = recorded(proxy, "", all_sent).await;
        let _ = writer.write_all(LAST).await;
    };
    tokio::join!(sending, Seen::read(Wire::new(reader), methods)).1
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
    // It comes a moment after the answer before it, on a connection that already waits for its next request.
    for behind in [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"[..],
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoi",
        b"HTTP/1.1 200 OK\r\n",
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
        let hostile = |connections: &[Connection], is: fn(&Connection) -> bool| {
            connections
                .iter()
                .filter(|it| contains(&it.bytes, b"/v1/hostile"))
                .all(is)
        };
        recorded(&proxy, "what nobody asked for was not sent", |all| {
            hostile(all, |it| it.requests.iter().all(|it| it.answered))
        })
        .await
        .unwrap();
        wire.stream.write_all(LAST).await.unwrap();
        let (reader, _writer) = wire.stream.into_split();
        let seen = Seen::read(Wire::new(reader), &["GET"]).await;
        assert_eq!(
            seen.answers,
            [(200, b"/v1/last".to_vec())],
            "{:?} was read as an answer: {seen:?}",
            behind.escape_ascii().to_string()
        );
        // Seen at the latest when it was to be used again.
        recorded(&proxy, "kept with bytes that nobody asked for", |all| {
            hostile(all, |it| it.ended && it.requests.len() == 1)
        })
        .await
        .unwrap();
        proxy.recorder.script(None);
        proxy.sentinel().await.unwrap();
    }
}
