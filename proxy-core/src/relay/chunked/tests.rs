use proptest::prelude::*;

use super::super::trailers;
use super::*;

/// How many bytes belong to the body, or why it is refused, and what its data is; in pieces of the given sizes, over and over.
fn scan(bytes: &[u8], pieces: &[usize]) -> (Result<usize, BadChunk>, Vec<u8>) {
    let mut chunks = Chunked::new();
    let mut data = Vec::new();
    let mut taken = 0;
    for size in pieces.iter().cycle() {
        let piece = &bytes[taken..bytes.len().min(taken + size)];
        match chunks.scan_data(piece, &mut |part| data.extend_from_slice(part)) {
            Ok(count) => taken += count,
            Err(error) => {
                assert_eq!(
                    chunks.scan(b"0\r\n\r\n"),
                    Err(error),
                    "a broken body stays broken"
                );
                return (Err(error), data);
            }
        }
        if chunks.is_done() || taken == bytes.len() {
            break;
        }
    }
    (Ok(taken), data)
}

#[track_caller]
fn refused(bytes: &[u8], error: BadChunk) {
    for piece in [bytes.len(), 1, 2, 3, 5] {
        let (found, _) = scan(bytes, &[piece]);
        assert_eq!(
            found,
            Err(error),
            "{}",
            bytes[..bytes.len().min(100)].escape_ascii()
        );
    }
}

/// `bytes` and something behind them: exactly `bytes` is taken, and the data is `data`.
#[track_caller]
fn taken(bytes: &[u8], data: &[u8]) {
    let more = [bytes, b"0\r\n\r\nGET"].concat();
    for piece in [more.len(), 1, 2, 3, 5] {
        let (found, payload) = scan(&more, &[piece]);
        assert_eq!(found, Ok(bytes.len()), "{}", bytes.escape_ascii());
        assert_eq!(payload, data);
    }
}

#[test]
fn a_body_ends_behind_the_last_chunk_and_its_trailers() {
    taken(b"0\r\n\r\n", b"");
    taken(b"5\r\nhello\r\n0\r\n\r\n", b"hello");
    taken(b"0005\r\nhello\r\n000\r\n\r\n", b"hello");
    taken(b"a\r\n0\r\n\r\nhello\r\n00\r\n\r\n", b"0\r\n\r\nhello");
    taken(b"A\r\n0123456789\r\n1\r\n\n\r\n0\r\n\r\n", b"0123456789\n");
    taken(b"0\r\nX-Sum: abc\r\nEmpty:\r\nx:\ty \x80\r\n\r\n", b"");
}

#[test]
fn extensions_are_passed_over() {
    for extension in [
        ";a",
        ";a=b",
        " ;a".trim_start(),
        ";a;b=c",
        "; a = b ; c",
        ";a=\"b c;\\\"\\\\\x7e\u{e9}\"",
        ";a=\"\";b",
        ";\ta\t=\tb\t;c",
    ] {
        taken(
            format!("5{extension}\r\nhello\r\n0{extension}\r\n\r\n").as_bytes(),
            b"hello",
        );
    }
}

#[test]
fn a_size_that_is_no_hexadecimal_number_is_refused() {
    for size in [
        "", "-1", "+5", "0x5", "5_0", " 5", "5 ", "5\t", "\t5", "5 5", "g", "5h", "5,", "\"5\"",
        "5\0", "\u{665}", "5\u{a0}", "5 ;a", ";a", "\r", "5\r",
    ] {
        refused(
            format!("{size}\r\nhello\r\n0\r\n\r\n").as_bytes(),
            BadChunk::Size,
        );
    }
    refused(b"5\nhello\r\n0\r\n\r\n", BadChunk::Size);
    refused(b"\n5\r\nhello\r\n0\r\n\r\n", BadChunk::Size);
    refused(b"5\rxhello\r\n0\r\n\r\n", BadChunk::Size);
    refused(b"5\r\nhello\r\n0\n\n", BadChunk::Size);
}

#[test]
fn a_size_that_not_everybody_can_count_is_too_large() {
    for size in [
        "8000000000000000",
        "ffffffffffffffff",
        "10000000000000005",
        "00000000000000005",
    ] {
        refused(
            format!("{size}\r\nhello\r\n").as_bytes(),
            BadChunk::TooLarge,
        );
    }
    for size in ["7fffffffffffffff", "100000005", "0000000000000006"] {
        assert_eq!(
            scan(format!("{size}\r\nhello").as_bytes(), &[100]).0,
            Ok(size.len() + 7)
        );
    }
}

#[test]
fn an_extension_that_is_malformed_is_refused() {
    for line in [
        "5;\r\n",
        "5; \r\n",
        "5;;\r\n",
        "5;a=\r\n",
        "5;a;\r\n",
        "5;a \r\n",
        "5;a b\r\n",
        "5;a\n",
        "5;\n",
        "5;a=\"\r\n\"\r\n",
        "5;a=\"\n\"\r\n",
        "5;a=\"b\r\n",
        "5;a=\"\\\r\n\"\r\n",
        "5;a=\"b\"c\r\n",
        "5;a\0\r\n",
        "5;a=\"\0\"\r\n",
        "5;a\u{b}\r\n",
        "5;a\u{7f}\r\n",
        "5;\u{e9}\r\n",
        "5;a,b\r\n",
    ] {
        refused(
            format!("{line}hello\r\n0\r\n\r\n").as_bytes(),
            BadChunk::Extension,
        );
    }
    refused(b"5;a\rb\r\nhello\r\n0\r\n\r\n", BadChunk::Size);
    refused(b"0;a\r\r\n\r\n", BadChunk::Size);
}

#[test]
fn extensions_are_bounded_a_line_and_a_body() {
    let line = |length: usize| format!("1;{}\r\nx\r\n", "a".repeat(length - 2));
    taken(format!("{}0\r\n\r\n", line(1024)).as_bytes(), b"x");
    refused(line(1025).as_bytes(), BadChunk::ExtensionsTooLong);
    let body = line(1024).repeat(16);
    // 1023 bytes each are extension, so 16 remain.
    taken(
        format!("{body}{}0\r\n\r\n", line(17)).as_bytes(),
        &[b'x'; 17],
    );
    refused(
        format!("{body}{}", line(18)).as_bytes(),
        BadChunk::ExtensionsTooLong,
    );
}

#[test]
fn data_that_does_not_end_where_its_size_says_is_refused() {
    for body in [
        &b"5\r\nhello0\r\n\r\n"[..],
        b"5\r\nhello\n0\r\n\r\n",
        b"5\r\nhello\r0\r\n\r\n",
        b"5\r\nhello\r\r\n0\r\n\r\n",
        b"5\r\nhello!\r\n0\r\n\r\n",
        b"4\r\nhello\r\n0\r\n\r\n",
        b"6\r\nhello\r\n0\r\n\r\n",
    ] {
        refused(body, BadChunk::Terminator);
    }
}

#[test]
fn trailers_are_checked_like_the_fields_of_a_head() {
    for line in [
        "X : y",
        " X: y",
        "\tX: y",
        ": y",
        "X",
        "X y: z",
        "X\0: y",
        "X: \0",
        "X: \u{b}",
        "X: \u{7f}",
        "\u{e9}: y",
        "X: y\r\n folded",
        "X: a\rb",
        "X: a\nb",
    ] {
        refused(format!("0\r\n{line}\r\n\r\n").as_bytes(), BadChunk::Trailer);
    }
    refused(b"0\r\nX: y\n\r\n", BadChunk::Trailer);
    refused(b"0\r\n\n", BadChunk::Trailer);
    refused(b"0\r\n\rX", BadChunk::Trailer);
    refused(b"0\r\nX: y\r\n\r\r\n", BadChunk::Trailer);
}

#[test]
fn a_trailer_that_only_a_head_may_have_is_refused_in_any_spelling() {
    for name in [
        "Content-Length",
        "TRANSFER-ENCODING",
        "host",
        "Connection",
        "te",
        "Upgrade",
        "Expect",
        "Trailer",
        "Content_Length",
        "transfer_Encoding",
        "Authorization",
        "Proxy-Authorization",
        "X-Forwarded-For",
        "Proxy-Connection",
        "Keep-Alive",
        "Content-Encoding",
        "Set-Cookie",
    ] {
        refused(
            format!("0\r\nX: y\r\n{name}: 5\r\n\r\n").as_bytes(),
            BadChunk::ForbiddenTrailer,
        );
        taken(
            format!("0\r\n{name}x: 5\r\nx{name}: 5\r\n\r\n").as_bytes(),
            b"",
        );
    }
    let long = "content-length-".repeat(100);
    taken(format!("0\r\n{long}: 5\r\n\r\n").as_bytes(), b"");
}

#[test]
fn trailers_are_bounded_in_number_and_size() {
    let many = |count: usize| format!("0\r\n{}\r\n", "X: y\r\n".repeat(count));
    taken(many(usize::from(trailers::FIELD_LIMIT)).as_bytes(), b"");
    refused(
        many(usize::from(trailers::FIELD_LIMIT) + 1).as_bytes(),
        BadChunk::TrailersTooLarge,
    );
    let large = |size: usize| format!("0\r\nX: {}\r\n\r\n", "y".repeat(size - 5));
    taken(large(usize::from(trailers::SIZE_LIMIT)).as_bytes(), b"");
    refused(
        large(usize::from(trailers::SIZE_LIMIT) + 1).as_bytes(),
        BadChunk::TrailersTooLarge,
    );
}

#[test]
fn a_large_chunk_is_skipped_not_read() {
    let mut chunks = Chunked::new();
    chunks.scan(b"7fffffffffffffff\r\n").unwrap();
    let piece = vec![b'\r'; 1 << 20];
    // 64 GiB: byte by byte this would take a minute.
    for _ in 0..1 << 16 {
        assert_eq!(chunks.scan(&piece), Ok(piece.len()));
    }
    assert!(!chunks.is_done());
}

/// A valid body, and its data.
fn body() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let extension = prop_oneof![4 => Just(""), 1 => Just(";a"), 1 => Just(";a;b = \"c\\\"\"")];
    let chunk = (
        prop::collection::vec(any::<u8>(), 1..40),
        extension,
        0..3usize,
        any::<bool>(),
    );
    let trailer = prop_oneof![Just("X-Sum: 1\r\n"), Just("y:\r\n")];
    (
        prop::collection::vec(chunk, 0..6),
        prop::collection::vec(trailer, 0..3),
    )
        .prop_map(|(chunks, trailers)| {
            let mut bytes = Vec::new();
            let mut payload = Vec::new();
            for (data, extension, zeros, upper) in chunks {
                let size = format!("{}{:x}", "0".repeat(zeros), data.len());
                let size = if upper { size.to_uppercase() } else { size };
                bytes.extend_from_slice(format!("{size}{extension}\r\n").as_bytes());
                bytes.extend_from_slice(&data);
                bytes.extend_from_slice(b"\r\n");
                payload.extend_from_slice(&data);
            }
            bytes.extend_from_slice(b"0\r\n");
            for trailer in trailers {
                bytes.extend_from_slice(trailer.as_bytes());
            }
            bytes.extend_from_slice(b"\r\n");
            (bytes, payload)
        })
}

proptest! {
    #[test]
    fn a_body_in_any_pieces_is_the_same_body(
        (bytes, payload) in body(),
        pieces in prop::collection::vec(1..20usize, 1..8),
    ) {
        let more = [&bytes[..], b"\r\n0\r\n\r\n"].concat();
        prop_assert_eq!(scan(&more, &[more.len()]), (Ok(bytes.len()), payload.clone()));
        prop_assert_eq!(scan(&more, &pieces), (Ok(bytes.len()), payload));
    }

    #[test]
    fn a_damaged_body_in_any_pieces_has_the_same_fate(
        (mut bytes, _) in body(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![
            any::<u8>(), prop::sample::select(b"\r\n;:0 \t\"=".to_vec())
        ]), 1..4),
        pieces in prop::collection::vec(1..20usize, 1..8),
    ) {
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        let whole = scan(&bytes, &[bytes.len()]);
        let cut = scan(&bytes, &pieces);
        prop_assert_eq!(&whole, &cut);
        if whole.0 == Ok(bytes.len()) {
            // What is missing is missing in both.
            let mut chunks = Chunked::new();
            chunks.scan(&bytes).unwrap();
            let mut pieces = Chunked::new();
            for byte in &bytes {
                pieces.scan(&[*byte]).unwrap();
            }
            prop_assert_eq!(chunks.is_done(), pieces.is_done());
        }
    }
}
