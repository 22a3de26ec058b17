//! What we make of a head beside what hyper makes of it. Where we are stricter, it is in what we mean to be stricter in.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{Empty, Full};
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::pure::{BadHead, Flaw, Framing, Refusal};
use super::*;

/// How many heads each test compares.
const HEADS: usize = 3000;

/// What a message was taken for: the part that names it, and how its body is framed. A body of no bytes is none.
type Taken = (String, Framing);

fn settled(framing: Framing) -> Framing {
    match framing {
        Framing::Length(0) => Framing::None,
        framing => framing,
    }
}

fn framing_of(body: &Incoming) -> Framing {
    match body.size_hint().exact() {
        Some(0) => Framing::None,
        Some(length) => Framing::Length(length),
        None => Framing::Chunked,
    }
}

/// The first request that hyper's server sees in these bytes, which end with the connection.
async fn hyper_request(bytes: &[u8]) -> Option<Taken> {
    let (mut client, server) = tokio::io::duplex(256 * 1024);
    let seen = Arc::new(Mutex::new(None));
    let see = Arc::clone(&seen);
    let service = service_fn(move |request: Request<Incoming>| {
        let taken = (request.method().to_string(), framing_of(request.body()));
        see.lock().unwrap().get_or_insert(taken);
        async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) }
    });
    client.write_all(bytes).await.unwrap();
    client.shutdown().await.unwrap();
    // An error is what it makes of bad heads; whether a request was seen is what counts.
    let _ = hyper::server::conn::http1::Builder::new()
        .max_headers(pure::FIELD_LIMIT)
        .half_close(true)
        .serve_connection(TokioIo::new(server), service)
        .await;
    seen.lock().unwrap().take()
}

/// The answer that hyper's client sees in these bytes; interim answers are passed over.
async fn hyper_answer(bytes: &[u8], method: &str) -> Option<Taken> {
    let (client, mut server) = tokio::io::duplex(256 * 1024);
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_headers(pure::FIELD_LIMIT)
        .handshake(TokioIo::new(client))
        .await
        .unwrap();
    let request = Request::builder()
        .method(method)
        .uri("/")
        .body(Full::<Bytes>::default())
        .unwrap();
    let ask = async {
        let answer = sender.send_request(request).await.ok()?;
        let framing = match framing_of(answer.body()) {
            // hyper tells neither from the other before the body is read.
            Framing::Chunked if !answer.headers().contains_key("transfer-encoding") => {
                Framing::UntilClose
            }
            framing => framing,
        };
        Some((answer.status().as_u16().to_string(), framing))
    };
    let serve = async {
        let mut request = [0; 1024];
        let _ = server.read(&mut request).await;
        let _ = server.write_all(bytes).await;
        let _ = server.shutdown().await;
        // What hyper still has to say must not fail before it has read ours.
        let _ = server.read(&mut request).await;
    };
    let (_, _, taken) = tokio::join!(serve, connection, ask);
    taken
}

/// Heads that are fine, slightly damaged, or doubtful in what they say about the body.
fn samples<S: Strategy<Value = Vec<u8>>>(
    fine: S,
    doubtful: impl Strategy<Value = Vec<u8>>,
) -> impl Iterator<Item = Vec<u8>> {
    let damaged = (fine, damage(0..3)).prop_map(|(bytes, damage)| damaged(bytes, damage));
    let either = prop_oneof![damaged, doubtful];
    let mut runner = TestRunner::deterministic();
    (0..HEADS).map(move |_| either.new_tree(&mut runner).unwrap().current())
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future)
}

/// What we refuse and hyper serves, on purpose.
fn is_meant(flaw: Flaw) -> bool {
    match flaw {
        Flaw::TooLarge
        | Flaw::TooManyFields
        | Flaw::TooManyOptions
        | Flaw::LineEnding
        | Flaw::Misspelled
        | Flaw::Tab
        | Flaw::Length
        | Flaw::TwoLengths
        | Flaw::LengthAndCoding
        | Flaw::Coding
        | Flaw::TwoCodings
        | Flaw::UnsupportedCoding => true,
        Flaw::Field | Flaw::CodingBeforeHttp11 => false,
    }
}

#[test]
fn a_request_is_framed_as_hyper_frames_it_or_refused_for_a_reason_we_mean() {
    let mut stricter = BTreeMap::<String, usize>::new();
    let (mut accepted, mut refused) = (0, 0);
    run(async {
        for bytes in samples(request(framing_line()), request(doubtful_framing_line())) {
            let theirs = hyper_request(&bytes).await;
            let mut slots = Slots::new();
            let text = bytes.escape_ascii();
            match (RequestHead::parse(&bytes, &mut slots), theirs) {
                (Ok(Some(head)), Some(theirs)) => {
                    accepted += 1;
                    let ours = (head.method.to_owned(), settled(head.framing));
                    assert_eq!(ours, theirs, "{text}");
                }
                (Ok(Some(_)), None) => panic!("hyper refuses {text}"),
                (Ok(None), theirs) => assert_eq!(theirs, None, "hyper serves half of {text}"),
                (Err(_), None) => refused += 1,
                (Err(refusal), Some(_)) => {
                    let meant = match refusal {
                        Refusal::Head(flaw) => is_meant(flaw),
                        Refusal::Target
                        | Refusal::NoHost
                        | Refusal::TwoHosts
                        | Refusal::Host
                        | Refusal::OtherHost => true,
                        Refusal::RequestLine | Refusal::Version => false,
                    };
                    assert!(meant, "{refusal:?}, but hyper serves {text}");
                    *stricter.entry(format!("{refusal:?}")).or_default() += 1;
                }
            }
        }
    });
    println!("both accept {accepted}, both refuse {refused}, only we refuse: {stricter:#?}");
    assert!(accepted > HEADS / 10 && refused > HEADS / 10 && stricter.len() > 5);
}

#[test]
fn an_answer_is_framed_as_hyper_frames_it_or_refused_for_a_reason_we_mean() {
    let mut stricter = BTreeMap::<String, usize>::new();
    let (mut accepted, mut refused) = (0, 0);
    run(async {
        for bytes in samples(answer(framing_line()), answer(doubtful_framing_line())) {
            for (asked, method) in [(Asked::Other, "GET"), (Asked::Head, "HEAD")] {
                let theirs = hyper_answer(&bytes, method).await;
                let mut slots = Slots::new();
                let text = bytes.escape_ascii();
                match (AnswerHead::parse(&bytes, &mut slots, asked), theirs) {
                    (Ok(Some(head)), _) if head.status < 200 => {}
                    (Ok(Some(head)), Some(theirs)) => {
                        accepted += 1;
                        let ours = (head.status.to_string(), settled(head.framing));
                        assert_eq!(ours, theirs, "{text}");
                    }
                    (Ok(Some(_)), None) => panic!("hyper refuses {text}"),
                    (Ok(None), theirs) => assert_eq!(theirs, None, "hyper takes half of {text}"),
                    (Err(_), None) => refused += 1,
                    (Err(bad), Some(_)) => {
                        let meant = match bad {
                            BadHead::Head(flaw) => is_meant(flaw),
                            BadHead::StatusLine => bytes.starts_with(b"\r\n"),
                        };
                        assert!(meant, "{bad:?}, but hyper takes {text}");
                        *stricter.entry(format!("{bad:?}")).or_default() += 1;
                    }
                }
            }
        }
    });
    println!("both accept {accepted}, both refuse {refused}, only we refuse: {stricter:#?}");
    assert!(accepted > HEADS / 10 && refused > HEADS / 10 && stricter.len() > 3);
}

#[test]
fn a_target_has_only_characters_that_hyper_takes_too() {
    let mut accepted = 0;
    run(async {
        for byte in 0..=0xFF {
            for target in [&b"/a?c"[..], b"http://here/a?c"] {
                for place in 1..=target.len() {
                    let mut bytes = [b"GET ", target, b" HTTP/1.1\r\nHost: here\r\n\r\n"].concat();
                    bytes.insert(4 + place, byte);
                    let mut slots = Slots::new();
                    if matches!(RequestHead::parse(&bytes, &mut slots), Ok(Some(_))) {
                        let theirs = hyper_request(&bytes).await;
                        assert!(theirs.is_some(), "hyper refuses {}", bytes.escape_ascii());
                        accepted += 1;
                    }
                }
            }
        }
    });
    assert!(accepted > 700, "{accepted}");
}
