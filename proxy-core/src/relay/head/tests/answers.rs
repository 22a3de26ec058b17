//! Answers: what is believed, and where their bodies end.

use super::*;

fn framing(head: &str, asked: Asked) -> Result<Framing, BadHead> {
    answer(head.as_bytes(), asked, |head| head.framing)
}

#[test]
fn the_body_of_an_answer_ends_where_the_rfc_says() {
    let length = "Content-Length: 5\r\n";
    let chunks = "Transfer-Encoding: chunked\r\n";
    for (status, asked, lines, expected) in [
        (200, Asked::Other, length, Framing::Length(5)),
        (200, Asked::Other, chunks, Framing::Chunked),
        (200, Asked::Other, "", Framing::UntilClose),
        (500, Asked::Other, "", Framing::UntilClose),
        (999, Asked::Other, length, Framing::Length(5)),
        (205, Asked::Other, length, Framing::Length(5)),
        (200, Asked::Head, length, Framing::None),
        (200, Asked::Head, chunks, Framing::None),
        (200, Asked::Head, "", Framing::None),
        (100, Asked::Other, "", Framing::None),
        (103, Asked::Other, length, Framing::None),
        (101, Asked::Other, "", Framing::None),
        (204, Asked::Other, length, Framing::None),
        (204, Asked::Other, chunks, Framing::None),
        (304, Asked::Other, length, Framing::None),
        (304, Asked::Other, "", Framing::None),
        (200, Asked::Connect, length, Framing::None),
        (299, Asked::Connect, chunks, Framing::None),
        (407, Asked::Connect, length, Framing::Length(5)),
        (502, Asked::Connect, "", Framing::UntilClose),
    ] {
        let head = format!("HTTP/1.1 {status} x\r\n{lines}\r\n");
        assert_eq!(
            framing(&head, asked),
            Ok(expected),
            "{status} {asked:?} {lines}"
        );
    }
}

#[test]
fn an_answer_with_doubtful_framing_is_not_believed_whatever_was_asked() {
    for (lines, flaw) in [
        (
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            Flaw::LengthAndCoding,
        ),
        (
            "Content-Length: 5\r\nContent-Length: 5\r\n",
            Flaw::TwoLengths,
        ),
        ("Content-Length: 5, 5\r\n", Flaw::Length),
        ("Content-Length: -1\r\n", Flaw::Length),
        ("Content-Length:\r\n", Flaw::Length),
        ("Content-Length:\t5\r\n", Flaw::Tab),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            Flaw::TwoCodings,
        ),
        ("Transfer-Encoding: gzip\r\n", Flaw::Coding),
        ("Transfer-Encoding: xchunked\r\n", Flaw::Coding),
        ("Transfer-Encoding: chunked, identity\r\n", Flaw::Coding),
        (
            "Transfer-Encoding: gzip, chunked\r\n",
            Flaw::UnsupportedCoding,
        ),
        ("transfer_encoding: chunked\r\n", Flaw::Misspelled),
        ("Content-Length : 5\r\n", Flaw::Field),
        ("X: y\r\n folded\r\n", Flaw::Field),
        ("X: \0\r\n", Flaw::Field),
        ("X: y\n", Flaw::LineEnding),
    ] {
        for status in [101, 200, 204, 304] {
            for asked in [Asked::Head, Asked::Connect, Asked::Other] {
                let head = format!("HTTP/1.1 {status} x\r\n{lines}\r\n");
                assert_eq!(framing(&head, asked), Err(flaw.into()), "{head:?}");
            }
        }
    }
}

#[test]
fn chunks_from_an_http_1_0_upstream_are_not_believed() {
    assert_eq!(
        framing(
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            Asked::Other
        ),
        Err(Flaw::CodingBeforeHttp11.into())
    );
}

#[test]
fn a_status_line_that_is_none_is_not_believed() {
    for line in [
        "HTTP/1.2 200 OK",
        "HTTP/2.0 200 OK",
        "HTTP/1.10 200 OK",
        "http/1.1 200 OK",
        "ICY 200 OK",
        "HTTP/1.1  200 OK",
        "HTTP/1.1\t200 OK",
        "HTTP/1.1 20 OK",
        "HTTP/1.1 2000 OK",
        "HTTP/1.1 099 OK",
        "HTTP/1.1 000 OK",
        "HTTP/1.1 +20 OK",
        "HTTP/1.1 OK",
        "HTTP/1.1",
        "HTTP/1.1 200\tOK",
        "HTTP/1.1 200 O\0K",
        "HTTP/1.1 200 O\rK",
        "HTTP/1.1 200 \u{7f}",
        " HTTP/1.1 200 OK",
        "\r\nHTTP/1.1 200 OK",
        "X: y",
    ] {
        let head = format!("{line}\r\nContent-Length: 5\r\n\r\n");
        assert_eq!(
            framing(&head, Asked::Other),
            Err(BadHead::StatusLine),
            "{line:?}"
        );
    }
}

#[test]
fn an_answer_is_nothing_until_it_is_whole() {
    let head = b"HTTP/1.1 200 all right\r\nX: y\r\n\r\n";
    for cut in 0..head.len() {
        let mut slots = Slots::new();
        let parsed = AnswerHead::parse(&head[..cut], &mut slots, Asked::Other);
        assert!(matches!(parsed, Ok(None)), "{cut}");
    }
    assert_eq!(
        answer(head, Asked::Other, |head| head.length),
        Ok(head.len())
    );
}

#[test]
fn what_can_no_longer_become_an_answer_is_found_before_it_is_whole() {
    for (bytes, bad) in [
        (&b"SSH-2.0"[..], BadHead::StatusLine),
        (b"\x15\x03\x03", BadHead::StatusLine),
        (b"\r\n", BadHead::StatusLine),
        (b"HTTP/1.1 200 OK\n", Flaw::LineEnding.into()),
        (b"HTTP/1.1 2x", BadHead::StatusLine),
        (&[b'a'; 8], BadHead::StatusLine),
    ] {
        let found = answer(bytes, Asked::Other, |_| ());
        assert_eq!(found, Err(bad), "{}", bytes.escape_ascii());
    }
    let mut endless = b"HTTP/1.1 200 OK\r\nX: ".to_vec();
    endless.resize(HEAD_LIMIT, b'a');
    assert_eq!(
        answer(&endless, Asked::Other, |_| ()),
        Err(Flaw::TooLarge.into())
    );
    let many = [
        &b"HTTP/1.1 200 OK\r\n"[..],
        &b"X: y\r\n".repeat(FIELD_LIMIT + 1),
    ]
    .concat();
    assert_eq!(
        answer(&many, Asked::Other, |_| ()),
        Err(Flaw::TooManyFields.into())
    );
}

#[test]
fn an_upstream_connection_persists_when_its_answer_has_an_end_of_its_own() {
    for (head, persistent) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n", true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n", true),
        ("HTTP/1.1 204 OK\r\n", true),
        ("HTTP/1.1 200 OK\r\n", false),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n",
            false,
        ),
        ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n", false),
        (
            "HTTP/1.0 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive\r\n",
            false,
        ),
    ] {
        let bytes = format!("{head}\r\n");
        let found = answer(bytes.as_bytes(), Asked::Other, |head| head.persistent);
        assert_eq!(found, Ok(persistent), "{head}");
    }
}

#[test]
fn status_version_and_upgrade_are_as_sent() {
    let head = b"HTTP/1.0 426\r\nConnection: upgrade\r\nUpgrade: TLS/1.3\r\n\r\n";
    answer(head, Asked::Other, |head| {
        assert_eq!(head.status, 426);
        assert_eq!(head.version, Version::Http10);
        assert_eq!(head.upgrade, Some("TLS/1.3"));
    })
    .unwrap();
    let unnamed = b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\n\r\n";
    assert_eq!(
        answer(unnamed, Asked::Other, |head| head.upgrade.is_some()),
        Ok(false)
    );
}
