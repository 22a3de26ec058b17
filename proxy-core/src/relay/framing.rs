//! Where a body ends (RFC 9112, section 6), and how far one has come. Pure.

pub use super::chunked::BadChunk as BadBody;
use super::chunked::Chunked;

/// How the end of a body is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// There is no body.
    None,
    /// So many bytes.
    Length(u64),
    /// The last chunk and the trailers behind it.
    Chunked,
    /// The end of the connection; only answers have this.
    UntilClose,
}

/// The sender closed in the middle of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection ended in the middle of a body")]
pub struct Cut;

/// One body while it flows.
#[derive(Debug)]
pub struct Body(State);

#[derive(Debug)]
enum State {
    Length(u64),
    Chunked(Chunked),
    UntilClose { closed: bool },
}

impl Body {
    /// Nothing of it has come yet.
    #[must_use]
    pub fn new(framing: Framing) -> Self {
        Self(match framing {
            Framing::None => State::Length(0),
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Chunked(Chunked::new()),
            Framing::UntilClose => State::UntilClose { closed: false },
        })
    }

    /// Takes the next bytes; how many of them belong to this body, chunk framing included. Less than all only at its end.
    ///
    /// # Errors
    /// [`BadBody`] when the chunk framing is broken; none of these bytes should go on then.
    pub fn accept(&mut self, bytes: &[u8]) -> Result<usize, BadBody> {
        match &mut self.0 {
            State::Length(left) => Ok(take(left, bytes).len()),
            State::Chunked(chunks) => chunks.scan(bytes),
            State::UntilClose { .. } => Ok(bytes.len()),
        }
    }

    /// As [`Body::accept`], and hands out the payload, without chunk framing and trailers. After an error what was
    /// handed out already is still the payload's beginning.
    ///
    /// # Errors
    /// [`BadBody`] when the chunk framing is broken.
    pub fn accept_data(
        &mut self,
        bytes: &[u8],
        data: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, BadBody> {
        let plain = match &mut self.0 {
            State::Length(left) => take(left, bytes),
            State::Chunked(chunks) => return chunks.scan_data(bytes, data),
            State::UntilClose { .. } => bytes,
        };
        if !plain.is_empty() {
            data(plain);
        }
        Ok(plain.len())
    }

    /// Whether its last byte was accepted.
    #[must_use]
    pub fn is_done(&self) -> bool {
        match &self.0 {
            State::Length(left) => *left == 0,
            State::Chunked(chunks) => chunks.is_done(),
            State::UntilClose { closed } => *closed,
        }
    }

    /// The sender closed.
    ///
    /// # Errors
    /// [`Cut`] when the body is not whole.
    pub fn end(&mut self) -> Result<(), Cut> {
        if let State::UntilClose { closed } = &mut self.0 {
            *closed = true;
        }
        if self.is_done() { Ok(()) } else { Err(Cut) }
    }
}

fn take<'b>(left: &mut u64, bytes: &'b [u8]) -> &'b [u8] {
    let count = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
    *left -= count as u64;
    &bytes[..count]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_takes_exactly_so_many_bytes_in_any_pieces() {
        for piece in 1..=6 {
            let mut body = Body::new(Framing::Length(5));
            let mut taken = Vec::new();
            for bytes in b"hello, next".chunks(piece) {
                assert_eq!(body.is_done(), taken.len() == 5);
                let count = body.accept(bytes).unwrap();
                taken.extend_from_slice(&bytes[..count]);
            }
            assert_eq!(taken, b"hello");
            assert!(body.is_done());
            assert_eq!(body.end(), Ok(()));
        }
    }

    #[test]
    fn no_body_is_done_at_once_and_takes_nothing() {
        for framing in [Framing::None, Framing::Length(0)] {
            let mut body = Body::new(framing);
            assert!(body.is_done());
            assert_eq!(body.accept(b"next"), Ok(0));
            assert_eq!(body.accept_data(b"next", &mut |_| panic!("data")), Ok(0));
            assert_eq!(body.end(), Ok(()));
        }
    }

    #[test]
    fn a_body_until_the_close_takes_all_and_is_done_when_the_sender_closed() {
        let mut body = Body::new(Framing::UntilClose);
        assert_eq!(body.accept(b"0\r\n\r\n"), Ok(5));
        assert!(!body.is_done());
        assert_eq!(body.end(), Ok(()));
        assert!(body.is_done());
    }

    #[test]
    fn a_close_in_the_middle_of_a_body_is_a_cut() {
        for (framing, bytes) in [
            (Framing::Length(5), &b"hell"[..]),
            (Framing::Length(5), b""),
            (Framing::Chunked, b""),
            (Framing::Chunked, b"5\r\nhello\r\n"),
            (Framing::Chunked, b"5\r\nhello\r\n0\r\n"),
            (Framing::Chunked, b"5\r\nhello\r\n0\r\n\r"),
        ] {
            let mut body = Body::new(framing);
            assert_eq!(body.accept(bytes), Ok(bytes.len()));
            assert_eq!(body.end(), Err(Cut), "{framing:?} {}", bytes.escape_ascii());
        }
    }

    #[test]
    fn the_payload_comes_without_its_framing() {
        for (framing, bytes, payload, count) in [
            (Framing::Length(5), &b"hello, next"[..], &b"hello"[..], 5),
            (Framing::UntilClose, b"hello", b"hello", 5),
            (
                Framing::Chunked,
                b"2;x=y\r\nhe\r\n03\r\nllo\r\n0\r\nX: y\r\n\r\nnext",
                b"hello",
                31,
            ),
        ] {
            let mut body = Body::new(framing);
            let mut found = Vec::new();
            let taken = body.accept_data(bytes, &mut |data| found.extend_from_slice(data));
            assert_eq!((taken, &found[..]), (Ok(count), payload));
        }
    }

    #[test]
    fn lengths_beyond_memory_are_counted() {
        let mut body = Body::new(Framing::Length(i64::MAX as u64));
        assert_eq!(body.accept(b"hello"), Ok(5));
        assert!(!body.is_done());
        assert_eq!(body.end(), Err(Cut));
    }

    #[test]
    fn a_body_costs_little_memory() {
        assert!(size_of::<Body>() <= 56, "{}", size_of::<Body>());
    }
}
