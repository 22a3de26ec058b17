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
