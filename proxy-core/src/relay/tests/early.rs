//! Both directions at once: an answer that comes while the request is still being sent.

use tokio::io::AsyncReadExt;

use super::ends::*;
use super::*;

const LARGE: usize = 28 << 20;
const REFUSAL: &str = "HTTP/1.1 413 Too Much\r\nX-Why: size\r\nContent-Length: 16\r\nConnection: close\r\n\r\nthat is too much";
const REFUSED: &str = "HTTP/1.1 413 Too Much\r\nX-Why: size\r\nContent-Length: 16\r\n";

/// What an upstream does after an answer for which it did not read the body.
#[derive(Debug, Clone, Copy)]
enum Then {
    /// Nothing: it keeps the connection and reads no more of it.
    Stays,
    /// It says that nothing more comes, and reads no more.
    Finishes,
    /// It closes: what it did not read makes that a reset.
    Closes,
}

const THEN: [Then; 3] = [Then::Stays, Then::Finishes, Then::Closes];

/// A large request: its head, and its body in pieces.
fn large(chunked: bool) -> (String, Vec<Vec<u8>>) {
    let framing = match chunked {
        true => "Transfer-Encoding: chunked".to_owned(),
        false => format!("Content-Length: {LARGE}"),
    };
    let piece = vec![b'x'; 1 << 20];
    let piece = if chunked { chunk(&piece) } else { piece };
    let mut pieces = vec![piece; LARGE >> 20];
    if chunked {
        pieces.push(b"0\r\n\r\n".to_vec());
    }
    (
        format!("POST /v1/x HTTP/1.1\r\nHost: proxy\r\n{framing}\r\n\r\n"),
        pieces,
    )
}

/// Refuses after the head.
async fn refuse(mut upstream: Peer, then: Then) -> Option<Peer> {
    upstream.send(REFUSAL).await;
    match then {
        Then::Stays => Some(upstream),
        Then::Finishes => {
            upstream.finish().await;
            Some(upstream)
        }
        Then::Closes => None,
    }
}

/// The refusal arrives whole, in whatever way the connection goes on.
async fn expect_refusal(client: &mut Peer) {
    client.expect(REFUSED).await;
    client.expect_end_of_head().await;
    client.expect("that is too much").await;
}

#[tokio::test]
async fn an_early_answer_reaches_a_client_that_is_still_sending() {
    let ends = Ends::start().await;
    for (then, chunked) in THEN.iter().flat_map(|then| [(*then, false), (*then, true)]) {
        let (head, pieces) = large(chunked);
        let (mut client, upstream) = ends.asked(&head).await;
        client.send(&pieces[0]).await;
        let _upstream = refuse(upstream, then).await;
        // It has 27 MB to send, and sends nothing before it has its answer.
        expect_refusal(&mut client).await;
    }
}

#[tokio::test]
async fn an_early_answer_reaches_a_client_that_reads_only_after_it_sent_everything() {
    let ends = Ends::start().await;
    for (then, chunked) in THEN.iter().flat_map(|then| [(*then, false), (*then, true)]) {
        let (head, pieces) = large(chunked);
        let (mut client, upstream) = ends.asked(&head).await;
        let refusing = refuse(upstream, then);
        let sending = async {
            for piece in &pieces {
                client.send(piece).await;
            }
        };
        let (_upstream, ()) = tokio::join!(refusing, sending);
        expect_refusal(&mut client).await;
    }
}

#[tokio::test]
async fn an_early_answer_reaches_a_client_that_takes_its_time_to_send_everything() {
    let ends = Ends::start().await;
    let slowly = async |then| {
        let head = "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: 600000\r\n\r\n";
        let (mut client, upstream) = ends.asked(head).await;
        let _upstream = refuse(upstream, then).await;
        // 12 s in all, and never a pause that would be one.
        for _ in 0..60 {
            client.send([b'x'; 10_000]).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        expect_refusal(&mut client).await;
    };
    tokio::join!(slowly(Then::Stays), slowly(Then::Closes));
}

#[tokio::test]
async fn an_answer_written_before_the_upstream_resets_is_not_lost() {
    let ends = Ends::start().await;
    for _ in 0..20 {
        let (mut client, mut upstream) = ends.asked(large(false).0).await;
        upstream.send(REFUSAL).await;
        // The client's bytes meet a socket that is gone.
        drop(upstream);
        client.send([b'x'; 100_000]).await;
        expect_refusal(&mut client).await;
    }
}

#[tokio::test]
async fn a_connection_serves_on_when_the_body_of_a_refused_request_has_come() {
    let ends = Ends::start().await;
    let head = "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: 200000\r\n\r\n";
    let (mut client, mut upstream) = ends.asked(head).await;
    let refusal = "HTTP/1.1 401 No\r\nContent-Length: 2\r\n\r\nno";
    upstream.send(refusal).await;
    client.expect(refusal).await;
    client.send([b'x'; 200_000]).await;
    let next = "GET /v1/next HTTP/1.1\r\nHost: proxy\r\n\r\n";
    client.send(next).await;
    let mut upstream = ends.wherever(upstream, next).await;
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes";
    upstream.send(answer).await;
    client.expect(answer).await;
}

#[tokio::test]
async fn both_directions_flow_at_once() {
    let ends = Ends::start().await;
    let head = "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nTransfer-Encoding: chunked\r\n\r\n";
    let (mut client, mut upstream) = ends.asked(head).await;
    let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    upstream.send(answer).await;
    client.expect(answer).await;
    for number in 0..100 {
        let question = chunk(format!("question {number}").as_bytes());
        client.send(&question).await;
        upstream.expect(&question).await;
        let answer = chunk(format!("answer {number}").as_bytes());
        upstream.send(&answer).await;
        client.expect(&answer).await;
    }
    client.send("0\r\n\r\n").await;
    upstream.expect("0\r\n\r\n").await;
    client.expect_silence().await;
    upstream.send("0\r\n\r\n").await;
    client.expect("0\r\n\r\n").await;
}

#[tokio::test]
async fn two_large_bodies_pass_each_other() {
    const LENGTH: usize = 8 << 20;
    let ends = Ends::start().await;
    let head = format!("POST /v1/x HTTP/1.1\r\nHost: proxy\r\nContent-Length: {LENGTH}\r\n\r\n");
    let (client, upstream) = ends.asked(head).await;
    let up = fixtures::script::noise(1, LENGTH);
    let down = fixtures::script::noise(2, LENGTH);
    let answer = [
        format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n").as_bytes(),
        &down,
    ]
    .concat();
    // The last byte of the answer waits for the whole request, for an exchange is over with its answer.
    let (most, last) = answer.split_at(answer.len() - 1);
    let (mut from_client, mut to_client) = client.stream.into_split();
    let (mut from_upstream, mut to_upstream) = upstream.stream.into_split();
    let (mut came_up, mut came_down) = (vec![0; up.len()], vec![0; answer.len()]);
    let client = async {
        let written = to_client.write_all(&up);
        let read = from_client.read_exact(&mut came_down);
        let (written, read) = tokio::join!(written, read);
        written.unwrap();
        read.unwrap();
    };
    let upstream = async {
        let written = to_upstream.write_all(most);
        let read = from_upstream.read_exact(&mut came_up);
        let (written, read) = tokio::join!(written, read);
        written.unwrap();
        read.unwrap();
        to_upstream.write_all(last).await.unwrap();
    };
    soon(async { tokio::join!(client, upstream) }).await;
    assert!(came_up == up && came_down == answer);
}

/// A client whose side of the relay takes little at once.
fn narrow_client(relay: &Relay) -> tokio::net::UnixStream {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&theirs, 4096).unwrap();
    ours.set_nonblocking(true).unwrap();
    relay.adopt(theirs.into()).unwrap();
    tokio::net::UnixStream::from_std(ours).unwrap()
}

#[tokio::test]
async fn an_early_answer_that_its_client_takes_late_is_whole() {
    const BODY: &[u8] = &[b'y'; 24_000];
    let ends = Ends::start().await;
    for close in ["", "Connection: close\r\n"] {
        let client = narrow_client(&ends.relay);
        let (mut reading, mut writing) = client.into_split();
        let head =
            format!("POST /v1/x HTTP/1.1\r\nHost: proxy\r\n{close}Content-Length: {LARGE}\r\n\r\n");
        writing.write_all(head.as_bytes()).await.unwrap();
        let mut upstream = ends.upstream().await;
        upstream.head().await;
        // The upstream takes no more of the body, and the client takes nothing of the answer yet.
        let sending = tokio::spawn(async move {
            let sent = writing.write_all(&vec![b'x'; LARGE]).await;
            (writing, sent)
        });
        let answer = [b"HTTP/1.1 413 No\r\nContent-Length: 24000\r\n\r\n", BODY].concat();
        upstream.send(&answer).await;
        // It reads only now that all of it was taken.
        let (_writing, sent) = soon(sending).await.unwrap();
        sent.unwrap();
        // The line that says so arrives, too.
        let mut came = vec![0; answer.len() + close.len()];
        soon(tokio::io::AsyncReadExt::read_exact(&mut reading, &mut came))
            .await
            .unwrap();
        assert!(came.ends_with(BODY), "{close}");
    }
}

#[tokio::test]
async fn the_last_answer_ends_although_its_request_does_not() {
    let ends = Ends::start().await;
    let request = "POST /v1/x HTTP/1.1\r\nHost: proxy\r\nConnection: close\r\nContent-Length: 1000\r\n\r\nsome";
    let mut client = ends.client().await;
    client.send(request).await;
    let mut upstream = ends.upstream().await;
    upstream.until(b"some").await;
    upstream
        .send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        .await;
    client
        .expect("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        .await;
    client.expect_closed().await;
}
