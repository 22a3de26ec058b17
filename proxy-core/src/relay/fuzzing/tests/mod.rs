//! The corpus, valid messages and random damage to them, through the invariants of the fuzz targets.

mod differential;
#[path = "../../../../../fuzz/src/invariants.rs"]
mod invariants;
#[path = "../../../../../fuzz/src/reference.rs"]
mod reference;

use std::path::Path;

use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::relay::fuzzing as pure;
use pure::{AnswerHead, Asked, RequestHead, Slots};

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/corpus");
    let entries = std::fs::read_dir(folder.join(target)).unwrap();
    let seeds: Vec<_> = entries
        .map(|entry| std::fs::read(entry.unwrap().path()).unwrap())
        .collect();
    assert!(seeds.len() >= 10, "{target} has {} seeds", seeds.len());
    seeds
}

#[test]
fn every_seed_of_the_corpus_keeps_the_invariants() {
    corpus("request-head")
        .iter()
        .for_each(|seed| invariants::request_head(seed));
    corpus("answer-head")
        .iter()
        .for_each(|seed| invariants::answer_head(seed));
    corpus("chunks")
        .iter()
        .for_each(|seed| invariants::chunks(seed));
}

/// Field lines that are fine in any head, also more than once.
fn harmless() -> impl Strategy<Value = String> {
    select(vec![
        "X-A: b",
        "x-a:c",
        "Accept: */*",
        "Cookie: a=b; c",
        "Empty:",
        "X-Blank:\t x \t",
        "X-Odd: \u{e9}\u{7f1}, \"q\"",
        "Connection: keep-alive",
        "connection: X-A, te",
        "Keep-Alive: 5",
        "TE: trailers",
        "Proxy-Connection: close",
        "!#$%&'*+.^_`|~1: odd name",
        "Via: 1.0 x",
        "Authorization: Bearer x",
    ])
    .prop_map(str::to_owned)
}

fn head(
    first: impl Strategy<Value = String>,
    framing: impl Strategy<Value = String>,
    once: Vec<&'static str>,
) -> impl Strategy<Value = Vec<u8>> {
    let once = proptest::sample::subsequence(once.clone(), 0..=once.len());
    (
        first,
        framing,
        once,
        prop::collection::vec(harmless(), 0..8),
        any::<u64>(),
    )
        .prop_map(|(first, framing, once, mut lines, order)| {
            lines.extend(once.into_iter().map(str::to_owned));
            if !framing.is_empty() {
                lines.push(framing);
            }
            // Some order, the same for the same number.
            lines.sort_by_key(|line| {
                line.bytes()
                    .fold(order, |sum, byte| sum.rotate_left(9) ^ u64::from(byte))
            });
            format!(
                "{first}\r\n{}\r\n",
                lines
                    .into_iter()
                    .map(|line| line + "\r\n")
                    .collect::<String>()
            )
            .into_bytes()
        })
}

fn framing_line() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        any::<u32>().prop_map(|length| format!("Content-Length: {length}")),
        Just("transfer-encoding:  Chunked ".to_owned()),
    ]
}

/// Lines that speak about the body in ways that are not all fine.
fn doubtful_framing_line() -> impl Strategy<Value = String> {
    let name = select(vec![
        "Content-Length",
        "Transfer-Encoding",
        "content-LENGTH",
        "transfer_encoding",
    ]);
    let value = select(vec![
        "5",
        "0",
        "+5",
        "-1",
        "5, 5",
        "5 5",
        "0x5",
        "5_0",
        "",
        "99999999999999999999",
        "chunked",
        "CHUNKED",
        "xchunked",
        "chunked, chunked",
        "gzip, chunked",
        "chunked, gzip",
        "identity",
        "chunked,",
        "\"chunked\"",
        "chunked\u{b}",
        "chunked;a=b",
    ]);
    let line = (name, select(vec![":", ": ", " : ", ":\t", ":  "]), value)
        .prop_map(|(name, colon, value)| format!("{name}{colon}{value}"));
    prop::collection::vec(line, 1..3).prop_map(|lines| lines.join("\r\n"))
}

fn request(framing: impl Strategy<Value = String>) -> impl Strategy<Value = Vec<u8>> {
    let line = select(vec![
        "GET / HTTP/1.1\r\nHost: here",
        "\r\nPOST /v1/a?b=c HTTP/1.1\r\nHost: here:80",
        "OPTIONS * HTTP/1.1\r\nhOSt:here",
        "PUT http://here/a HTTP/1.1\r\nHOST: HERE",
        "CONNECT here:443 HTTP/1.1\r\nHost: here:443",
        "X-odd /%00~{} HTTP/1.1\r\nHost: [::1]:1",
    ]);
    let once = vec![
        "Upgrade: h2c, websocket",
        "Connection: upgrade",
        "Expect: 100-continue",
    ];
    head(line.prop_map(str::to_owned), framing, once)
}

fn answer(framing: impl Strategy<Value = String>) -> impl Strategy<Value = Vec<u8>> {
    let line = select(vec![
        "HTTP/1.1 200 OK",
        "HTTP/1.1 100 Continue",
        "HTTP/1.1 101 Switching Protocols",
        "HTTP/1.1 204 ",
        "HTTP/1.1 304 \u{e9}  x",
        "HTTP/1.1 599",
    ]);
    let once = vec!["Upgrade: x", "connection: Upgrade, close"];
    head(line.prop_map(str::to_owned), framing, once)
}

/// Bytes put in, taken away or replaced, mostly those that matter.
fn damage(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<(Index, u8, String)>> {
    let bytes = prop_oneof![
        4 => select(vec!["\r", "\n", "\r\n", "\r\n\r\n", " ", "\t", ":", "\0", "\u{b}", ",", "x", "5", "-", "_", "h2c", "\"", "#", ";", "@", "/"])
            .prop_map(str::to_owned),
        2 => select(vec![
            "\r\nContent-Length: 5\r\n", "\r\nTransfer-Encoding: chunked\r\n", "\r\nHost: there\r\n",
            "\r\nConnection: close, x-a\r\n", "\r\nUpgrade: y\r\n", "chunked", "HTTP/1.0",
        ]).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
    ];
    prop::collection::vec((any::<Index>(), 0..4u8, bytes), count)
}

fn damaged(mut bytes: Vec<u8>, damage: Vec<(Index, u8, String)>) -> Vec<u8> {
    for (place, removed, put_in) in damage {
        let begin = place.index(bytes.len() + 1);
        let end = bytes.len().min(begin + usize::from(removed));
        bytes.splice(begin..end, put_in.into_bytes());
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_valid_request_is_accepted_and_keeps_the_invariants(bytes in request(framing_line()), behind in any::<Vec<u8>>()) {
        let mut slots = Slots::new();
        let head = RequestHead::parse(&bytes, &mut slots).unwrap().unwrap();
        prop_assert_eq!(head.length, bytes.len());
        invariants::request_head(&[bytes, behind].concat());
    }

    #[test]
    fn a_valid_answer_is_accepted_and_keeps_the_invariants(bytes in answer(framing_line()), behind in any::<Vec<u8>>()) {
        let mut slots = Slots::new();
        let head = AnswerHead::parse(&bytes, &mut slots, Asked::Other).unwrap().unwrap();
        prop_assert_eq!(head.length, bytes.len());
        invariants::answer_head(&[bytes, behind].concat());
    }

    #[test]
    fn a_damaged_request_keeps_the_invariants(bytes in request(framing_line()), damage in damage(1..4)) {
        invariants::request_head(&damaged(bytes, damage));
    }

    #[test]
    fn a_damaged_answer_keeps_the_invariants(bytes in answer(framing_line()), damage in damage(1..4)) {
        invariants::answer_head(&damaged(bytes, damage));
    }

    #[test]
    fn any_bytes_at_all_keep_the_invariants(bytes in any::<Vec<u8>>()) {
        invariants::request_head(&bytes);
        invariants::answer_head(&bytes);
        invariants::chunks(&bytes);
    }
}
