//! Hostile answers become 502 or are cut, and nothing of them is ever taken for another request's answer.

use fixtures::answers::{self, Becomes, HostileAnswer};
use fixtures::recorder::{At, Scripted};

use super::*;

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
