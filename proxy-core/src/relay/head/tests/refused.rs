//! Requests that somebody could understand in another way than we do, by the classes that attacks are known by.

use super::*;

/// A request with `Host` and these lines besides, each one's line end added.
fn with(lines: &[&str]) -> Vec<u8> {
    let mut head = b"POST /v1 HTTP/1.1\r\nHost: here\r\n".to_vec();
    for line in lines {
        head.extend_from_slice(line.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head
}

fn verdict(bytes: &[u8]) -> Result<Framing, Refusal> {
    let mut slots = Slots::new();
    match RequestHead::parse(bytes, &mut slots)? {
        Some(head) => Ok(head.framing),
        None => panic!("not whole: {:?}", bytes.escape_ascii().to_string()),
    }
}

#[track_caller]
pub(super) fn all_refused<'a>(
    heads: impl IntoIterator<Item = &'a [u8]>,
    refusal: impl Into<Refusal>,
) {
    let refusal = refusal.into();
    for head in heads {
        assert_eq!(
            verdict(head),
            Err(refusal),
            "{}",
            head[..head.len().min(200)].escape_ascii()
        );
    }
}

#[track_caller]
fn values_refused(name: &str, values: &[&str], refusal: Flaw) {
    for value in values {
        all_refused([&with(&[&format!("{name}: {value}")])[..]], refusal);
    }
}

#[test]
fn a_length_beside_a_coding_is_refused_in_any_order_and_spelling() {
    for lines in [
        ["Content-Length: 5", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 5"],
        ["transfer-encoding: CHUNKED", "content-LENGTH: 0"],
        ["Content-Length: 5", "Transfer-Encoding: identity"],
        ["Content-Length: 5", "Transfer-Encoding:"],
        ["Content-Length: 5", "Transfer-Encoding: gzip, chunked"],
    ] {
        all_refused([&with(&lines)[..]], Flaw::LengthAndCoding);
    }
}

#[test]
fn a_coding_that_is_not_exactly_chunked_is_refused() {
    values_refused(
        "Transfer-Encoding",
        &[
            "",
            "xchunked",
            "chunkedx",
            "chunked, chunked",
            "chunked,",
            ",chunked",
            ", chunked",
            "chunked, ",
            "chunked;q=1",
            "chunked ;",
            "\"chunked\"",
            "'chunked'",
            "chunk",
            "chunked identity",
            "chunked, identity",
            "identity",
            "identity, chunked",
            "gzip",
            "chunked, gzip",
            "gzip, chunked, chunked",
            "gzip,, chunked",
            "gzip;x, chunked",
            "cow, chunked",
            "trailers",
            "chun ked",
            "chunked\u{a0}",
            "\u{ff43}hunked",
        ],
        Flaw::Coding,
    );
}

#[test]
fn control_characters_around_a_coding_are_refused() {
    values_refused(
        "Transfer-Encoding",
        &[
            "chunked\u{b}",
            "\u{b}chunked",
            "chunked\u{c}",
            "\u{0}chunked",
            "chunked\u{0}",
            "chunked\u{8}",
            "chunked\u{7f}",
            "chunked\rx",
        ],
        Flaw::Field,
    );
}

#[test]
fn a_tab_beside_a_value_that_frames_or_routes_is_refused() {
    for line in [
        "Transfer-Encoding:\tchunked",
        "Transfer-Encoding: chunked\t",
        "Transfer-Encoding: \t chunked",
        "Content-Length:\t5",
        "Content-Length: 5\t",
    ] {
        all_refused([&with(&[line])[..]], Flaw::Tab);
    }
    all_refused([&b"GET / HTTP/1.1\r\nHost:\there\r\n\r\n"[..]], Flaw::Tab);
}

#[test]
fn two_codings_are_refused_even_if_they_agree() {
    for second in ["chunked", "identity", "", "x"] {
        let second = format!("Transfer-Encoding: {second}");
        all_refused(
            [
                &with(&["Transfer-Encoding: chunked", &second])[..],
                &with(&[&second, "transfer-encoding: chunked"])[..],
            ],
            Flaw::TwoCodings,
        );
    }
}

#[test]
fn a_known_coding_before_chunked_is_not_implemented() {
    let codings = [
        "gzip, chunked",
        "GZIP,Chunked",
        "x-gzip, chunked",
        "deflate, gzip, chunked",
        "compress , chunked",
    ];
    values_refused("Transfer-Encoding", &codings, Flaw::UnsupportedCoding);
    assert_eq!(Refusal::from(Flaw::UnsupportedCoding).status(), 501);
}

#[test]
fn a_coding_in_http_1_0_is_refused() {
    all_refused(
        [
            &b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"[..],
            b"POST / HTTP/1.0\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"POST / HTTP/1.0\r\nTransfer-Encoding: identity\r\n\r\n",
        ],
        Flaw::CodingBeforeHttp11,
    );
}

#[test]
fn a_length_that_is_not_only_digits_is_refused() {
    values_refused(
        "Content-Length",
        &[
            "",
            "+5",
            "-1",
            "-0",
            "5, 5",
            "5,5",
            ",5",
            "5,",
            "5 5",
            " 5 5",
            "0x5",
            "5_0",
            "5.0",
            "5e1",
            "5;",
            "\"5\"",
            "five",
            "\u{665}",
            "5\u{a0}",
            "9223372036854775808",
            "18446744073709551616",
            "12345678901234567890",
            "00000000000000000005",
        ],
        Flaw::Length,
    );
}

#[test]
fn two_lengths_are_refused_even_if_they_agree() {
    for (first, second) in [("5", "5"), ("5", "6"), ("5", ""), ("0", "0")] {
        all_refused(
            [&with(&[
                &format!("Content-Length: {first}"),
                "X: y",
                &format!("content-length: {second}"),
            ])[..]],
            Flaw::TwoLengths,
        );
    }
}

#[test]
fn framing_names_with_underscores_are_refused() {
    for line in ["Content_Length: 5", "transfer_encoding: chunked"] {
        all_refused([&with(&[line])[..]], Flaw::Misspelled);
    }
}

#[test]
fn a_folded_line_is_refused() {
    for lines in [
        ["X-A: b", " c"],
        ["X-A: b", "\tc"],
        ["Transfer-Encoding:", " chunked"],
        ["X-A: b", " Content-Length: 5"],
        ["X-A: b", " "],
    ] {
        all_refused([&with(&lines)[..]], Flaw::Field);
    }
}

#[test]
fn blanks_before_the_first_field_are_refused() {
    all_refused(
        [
            &b"GET / HTTP/1.1\r\n Host: here\r\n\r\n"[..],
            b"GET / HTTP/1.1\r\n\tHost: here\r\n\r\n",
            b"GET / HTTP/1.1\r\n \r\nHost: here\r\n\r\n",
        ],
        Flaw::Field,
    );
}

#[test]
fn a_name_that_is_no_token_is_refused() {
    for line in [
        "Content-Length : 5",
        "Content-Length\t: 5",
        "Transfer-Encoding : chunked",
        "Content Length: 5",
        ": 5",
        "X-A",
        "X(A): b",
        "X\u{0}A: b",
        "X-\u{e9}: b",
        "\"Host\": b",
        "X[a]: b",
        "Content-Length\u{0}: 5",
    ] {
        all_refused([&with(&[line])[..]], Flaw::Field);
    }
}

#[test]
fn control_characters_in_a_value_are_refused() {
    for byte in (0..0x20)
        .chain([0x7F])
        .filter(|byte| !b"\t\r\n".contains(byte))
    {
        for place in 0..3 {
            let mut head = with(&["X-A: bc"]);
            let value = head.windows(2).position(|two| two == b"bc").unwrap();
            head.insert(value + place, byte);
            all_refused([&head[..]], Flaw::Field);
        }
    }
}

#[test]
fn a_bare_line_feed_is_refused_wherever_it_stands() {
    let whole = &with(&["Content-Length: 5", "X-A: b"]);
    let ends: Vec<usize> = memchr::memmem::find_iter(whole, b"\r\n").collect();
    for end in ends {
        let mut head = whole.clone();
        head.remove(end);
        all_refused([&head[..]], Flaw::LineEnding);
    }
    all_refused(
        [
            &b"\nGET / HTTP/1.1\r\nHost: here\r\n\r\n"[..],
            b"\r\n\nGET / HTTP/1.1\r\nHost: here\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: here\r\nX: a\nContent-Length: 5\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: here\r\n\nX: y\r\n\r\n",
        ],
        Flaw::LineEnding,
    );
}

#[test]
fn a_bare_carriage_return_is_refused_wherever_it_stands() {
    let whole = with(&["Content-Length: 5", "X-A: b"]);
    for place in 0..=whole.len() {
        let mut head = whole.clone();
        head.insert(place, b'\r');
        let mut slots = Slots::new();
        let parsed = RequestHead::parse(&head, &mut slots);
        if place == whole.len() {
            assert!(parsed.unwrap().is_some(), "behind the head");
        } else {
            assert!(parsed.is_err(), "{}", head.escape_ascii());
        }
    }
}

#[test]
fn a_request_line_is_three_words_with_one_space_between() {
    for line in [
        "GET  / HTTP/1.1",
        "GET /  HTTP/1.1",
        "GET / HTTP/1.1 ",
        " GET / HTTP/1.1",
        "GET\t/ HTTP/1.1",
        "GET /\tHTTP/1.1",
        "GET / x HTTP/1.1",
        "GET /",
        "GET / ",
        "GET",
        "GET HTTP/1.1",
        " / HTTP/1.1",
        "G(T / HTTP/1.1",
        "G\u{0}T / HTTP/1.1",
        "G\u{e9}T / HTTP/1.1",
        "\u{16}\u{3}\u{1}",
        "GET /\u{0} HTTP/1.1",
        "GET /\u{7f} HTTP/1.1",
    ] {
        let head = format!("{line}\r\nHost: here\r\n\r\n");
        all_refused([head.as_bytes()], Refusal::RequestLine);
    }
}

#[test]
fn a_version_that_is_not_spoken_here_is_said_so() {
    for version in ["HTTP/1.2", "HTTP/2.0", "HTTP/0.9", "HTTP/3.0"] {
        let head = format!("GET / {version}\r\nHost: here\r\n\r\n");
        all_refused([head.as_bytes()], Refusal::Version);
    }
    assert_eq!(Refusal::Version.status(), 505);
}

#[test]
fn a_version_that_is_none_is_refused() {
    for version in [
        "http/1.1",
        "HTTP/1.10",
        "HTTP/01.1",
        "HTTP/1",
        "HTTP/1.",
        "HTTP/1.1x",
        "HTTP /1.1",
        "HTTPS/1.1",
        "HTTP/1,1",
        "XTTP/1.1",
    ] {
        let head = format!("GET / {version}\r\nHost: here\r\n\r\n");
        all_refused([head.as_bytes()], Refusal::RequestLine);
    }
}

#[test]
fn a_head_over_64_kib_is_too_large_as_soon_as_that_is_clear() {
    let of = |length: usize| {
        let mut head = b"GET / HTTP/1.1\r\nHost: here\r\nX: ".to_vec();
        head.resize(length - 4, b'a');
        head.extend_from_slice(b"\r\n\r\n");
        head
    };
    assert!(verdict(&of(HEAD_LIMIT)).is_ok());
    all_refused([&of(HEAD_LIMIT + 1)[..]], Flaw::TooLarge);
    assert_eq!(Refusal::from(Flaw::TooLarge).status(), 431);

    let mut slots = Slots::new();
    let head = of(HEAD_LIMIT + 1);
    assert!(matches!(
        RequestHead::parse(&head[..HEAD_LIMIT - 1], &mut slots),
        Ok(None)
    ));
    all_refused([&head[..HEAD_LIMIT]], Flaw::TooLarge);
    all_refused([&vec![b'A'; HEAD_LIMIT][..]], Flaw::TooLarge);
    all_refused([&b"\r\n".repeat(HEAD_LIMIT / 2)[..]], Flaw::TooLarge);
}

#[test]
fn more_than_256_fields_are_too_many_as_soon_as_that_is_clear() {
    let of = |count: usize| {
        let lines: Vec<&str> = std::iter::repeat_n("X: y", count - 1).collect();
        with(&lines)
    };
    assert!(verdict(&of(FIELD_LIMIT)).is_ok());
    let head = of(FIELD_LIMIT + 1);
    all_refused(
        [&head[..], &head[..head.len() - 2], &of(4000)[..]],
        Flaw::TooManyFields,
    );
    assert_eq!(Refusal::from(Flaw::TooManyFields).status(), 431);
}

#[test]
fn a_connection_that_names_thousands_of_fields_is_refused() {
    let named = |count: usize| with(&[&format!("Connection: {}", "x-a,".repeat(count))]);
    assert!(verdict(&named(64)).is_ok());
    all_refused([&named(65)[..], &named(10_000)[..]], Flaw::TooManyOptions);
    let spread: Vec<&str> = std::iter::repeat_n("Connection: x-a", 65).collect();
    all_refused([&with(&spread)[..]], Flaw::TooManyOptions);
}

#[test]
fn what_can_no_longer_become_valid_is_refused_before_it_is_whole() {
    for (bytes, refusal) in [
        (&b"\x16\x03\x01\x02"[..], Refusal::RequestLine),
        (b"GET /\n", Flaw::LineEnding.into()),
        (b"GET / HTTP/1.1\r\nHost: here\n", Flaw::LineEnding.into()),
        (b"GET  ", Refusal::RequestLine),
        (b" GET", Refusal::RequestLine),
        (b"GET /\r", Refusal::RequestLine),
        (b"GET / HTTP/1.9\r\n", Refusal::Version),
        (b"PRI * HTTP/2.0\r\n", Refusal::Version),
        (b"GET / http/1.1\r\n", Refusal::RequestLine),
    ] {
        all_refused([bytes], refusal);
    }
}

#[test]
fn every_other_refusal_is_a_bad_request_and_repeats_nothing_of_it() {
    let head = with(&["X-Secret : sesame"]);
    let refusal = verdict(&head).unwrap_err();
    assert_eq!(refusal.status(), 400);
    assert_eq!(refusal.to_string(), "a field of the head is malformed");
}
