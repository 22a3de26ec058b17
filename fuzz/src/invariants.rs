//! What must hold for any bytes whatever. The fuzz targets look for bytes for which it does not hold; a plain
//! `cargo test -p rollproxy` tries the corpus and random damage (`proxy-core/src/relay/fuzzing/tests.rs` includes this file).
//!
//! Whoever includes it names the pure parts `pure` beside it.

use super::pure::{
    AnswerHead, Asked, Back, BadChunk, Body, Framing, Onward, RequestHead, Slots, Target, Version,
};
use super::reference;

/// A request head is understood as a second parser understands it, is whole at one place only, and stays the same
/// request when it was sent on.
pub fn request_head(bytes: &[u8]) {
    check_cuts(bytes, request_end);
    let mut slots = Slots::new();
    match RequestHead::parse(bytes, &mut slots) {
        Ok(None) => {}
        Ok(Some(head)) => accepted_request(bytes, &head),
        Err(refusal) => assert!(matches!(refusal.status(), 400 | 431 | 501 | 505)),
    }
}

/// As [`request_head`], for answers to each kind of request.
pub fn answer_head(bytes: &[u8]) {
    for asked in [Asked::Other, Asked::Head, Asked::Connect] {
        check_cuts(bytes, |bytes| answer_end(bytes, asked));
        let mut slots = Slots::new();
        if let Ok(Some(head)) = AnswerHead::parse(bytes, &mut slots, asked) {
            accepted_answer(bytes, &head, asked);
        }
    }
}

/// A body in chunks has the same end, the same data and the same fault however it is cut, and a second decoder agrees.
/// The first byte says how it is cut.
pub fn chunks(bytes: &[u8]) {
    let Some((&pattern, bytes)) = bytes.split_first() else {
        return;
    };
    let whole = scan(bytes, &[bytes.len()]);
    for pieces in [
        &[1][..],
        &[usize::from(pattern % 16) + 1, usize::from(pattern / 16) + 1],
    ] {
        assert_eq!(scan(bytes, pieces), whole, "in pieces of {pieces:?}");
    }
    let mut body = Body::new(Framing::Chunked);
    assert_eq!(
        body.accept(bytes),
        whole.taken,
        "without looking at the data"
    );
    assert_eq!(body.end().is_ok(), whole.done);
    if whole.done {
        let taken = whole.taken.unwrap_or_default();
        let decoded = reference::chunks(&bytes[..taken]);
        assert_eq!(decoded, Some(whole.data), "a second decoder disagrees");
    }
}

fn accepted_request(bytes: &[u8], head: &RequestHead<'_>) {
    let read = reference::Message::read(&bytes[..head.length]).expect("a second parser refuses it");
    let [method, _target, version] = read.first_line();
    assert_eq!(head.method.as_bytes(), method);
    assert_eq!(
        version,
        match head.version {
            Version::Http10 => b"HTTP/1.0",
            Version::Http11 => b"HTTP/1.1",
        }
    );
    assert!(head.fields.iter().map(own).eq(read.fields().map(own)));
    assert_eq!(head.framing, read.framing(Framing::None));

    if matches!(head.target, Target::Authority(_)) {
        // A tunnel's head goes nowhere.
        return;
    }
    for upgrade in [false, true] {
        let onward = Onward {
            path_and_query: ["/a?b", "", "", ""],
            authority: "upstream:1",
            upgrade,
            extra: b"",
        };
        let mut out = Vec::new();
        head.write_onward(&onward, &mut out);
        let read = reference::Message::read(&out).expect("what goes on is refused");
        assert_eq!(read.first_line(), [method, b"/a?b", b"HTTP/1.1"]);
        assert_eq!(read.framing(Framing::None), head.framing);

        let mut slots = Slots::new();
        let again = RequestHead::parse(&out, &mut slots);
        let again = again
            .expect("what goes on is refused")
            .expect("it is whole");
        assert_eq!(again.length, out.len());
        assert_eq!(again.framing, head.framing);
        assert_eq!(again.fields.value("host"), Some(&b"upstream:1"[..]));
        assert_eq!(again.upgrade, head.upgrade.filter(|_| upgrade));
        assert_eq!(again.takes_trailers(), head.takes_trailers());
        assert!(again.persistent);
        assert!(again.end_to_end().eq(head.end_to_end()));

        let mut twice = Vec::new();
        again.write_onward(&onward, &mut twice);
        assert_eq!(twice, out, "going on a second time changes it");
    }
}

fn accepted_answer(bytes: &[u8], head: &AnswerHead<'_>, asked: Asked) {
    let read = reference::Message::read(&bytes[..head.length]).expect("a second parser refuses it");
    let [_version, status, _reason] = read.first_line();
    assert_eq!(head.status.to_string().as_bytes(), status);
    assert!(head.fields.iter().map(own).eq(read.fields().map(own)));
    let tunnel = asked == Asked::Connect && head.status / 100 == 2;
    let bodiless = tunnel
        || asked == Asked::Head
        || head.status / 100 == 1
        || matches!(head.status, 204 | 304);
    assert_eq!(
        head.framing,
        match bodiless {
            true => Framing::None,
            false => read.framing(Framing::UntilClose),
        }
    );

    for (upgrade, chunks) in [(false, true), (true, true), (false, false)] {
        let back = Back {
            close: false,
            chunks,
            upgrade,
            extra: b"",
        };
        let mut out = Vec::new();
        head.write_onward(&back, &mut out);
        reference::Message::read(&out).expect("what goes back is refused");
        let mut slots = Slots::new();
        let again = AnswerHead::parse(&out, &mut slots, asked);
        let again = again
            .expect("what goes back is refused")
            .expect("it is whole");
        assert_eq!(again.length, out.len());
        assert_eq!(again.status, head.status);
        assert_eq!(again.upgrade, head.upgrade.filter(|_| upgrade));
        assert_eq!(
            again.framing,
            match head.framing {
                Framing::Chunked if !chunks => Framing::UntilClose,
                framing => framing,
            }
        );
        if !tunnel && head.status >= 200 && head.status != 204 {
            assert!(again.end_to_end().eq(head.end_to_end()));
        }
        let mut twice = Vec::new();
        again.write_onward(&back, &mut twice);
        assert_eq!(twice, out, "going back a second time changes it");
    }
}

fn own((name, value): (&str, &[u8])) -> (String, Vec<u8>) {
    (name.to_owned(), value.to_vec())
}

fn request_end(bytes: &[u8]) -> Result<Option<usize>, ()> {
    let mut slots = Slots::new();
    match RequestHead::parse(bytes, &mut slots) {
        Ok(head) => Ok(head.map(|head| head.length)),
        Err(_) => Err(()),
    }
}

fn answer_end(bytes: &[u8], asked: Asked) -> Result<Option<usize>, ()> {
    let mut slots = Slots::new();
    match AnswerHead::parse(bytes, &mut slots, asked) {
        Ok(head) => Ok(head.map(|head| head.length)),
        Err(_) => Err(()),
    }
}

/// A head that is whole is nothing before its last byte and the same behind it; one that is refused is never whole
/// before, and what was refused once is refused with more bytes, too.
fn check_cuts(bytes: &[u8], end: impl Fn(&[u8]) -> Result<Option<usize>, ()>) {
    let whole = end(bytes);
    let mut refused = false;
    for cut in cuts(bytes) {
        let part = end(&bytes[..cut]);
        match whole {
            Ok(Some(end)) => assert_eq!(part, Ok((cut >= end).then_some(end)), "cut at {cut}"),
            Ok(None) => assert_eq!(part, Ok(None), "cut at {cut}"),
            Err(()) => assert!(!matches!(part, Ok(Some(_))), "cut at {cut}"),
        }
        assert!(part.is_err() || !refused, "hopeful again at {cut}");
        refused = part.is_err();
    }
}

/// Some thirty places to cut, others for other bytes.
fn cuts(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let step = bytes.len() / 32 + 1;
    let first = bytes.iter().fold(0usize, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(usize::from(*byte))
    }) % step;
    (first..=bytes.len()).step_by(step)
}

#[derive(Debug, PartialEq)]
struct Scanned {
    taken: Result<usize, BadChunk>,
    done: bool,
    data: Vec<u8>,
}

fn scan(bytes: &[u8], pieces: &[usize]) -> Scanned {
    let mut body = Body::new(Framing::Chunked);
    let mut data = Vec::new();
    let mut taken = 0;
    let mut sizes = pieces.iter().cycle();
    while taken < bytes.len() && !body.is_done() {
        let size = *sizes.next().unwrap_or(&1);
        let piece = &bytes[taken..bytes.len().min(taken + size)];
        match body.accept_data(piece, &mut |part| data.extend_from_slice(part)) {
            Ok(count) => {
                assert!(count == piece.len() || body.is_done());
                taken += count;
            }
            Err(error) => {
                return Scanned {
                    taken: Err(error),
                    done: false,
                    data,
                };
            }
        }
    }
    Scanned {
        taken: Ok(taken),
        done: body.is_done(),
        data,
    }
}
