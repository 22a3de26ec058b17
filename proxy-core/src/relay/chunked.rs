//! Finds the end of a body in chunks (RFC 9112, section 7.1), however it is cut into pieces. Pure.
//!
//! The framing goes on byte for byte, so it must be understood by everybody in the same way: what the grammar does not
//! have is refused, and so is what it has but nobody needs in such amounts.

use super::trailers::Trailers;

/// The most bytes of one size line.
pub const LINE_LIMIT: u16 = 1024;

/// The most bytes of all extensions of one body.
pub const EXTENSIONS_LIMIT: u16 = 16 * 1024;

/// What can be wrong with the framing of a body in chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadChunk {
    /// No hexadecimal digit where a size must begin, or something else behind it than an extension or CR LF.
    #[error("a chunk's size is malformed")]
    Size,
    /// More than 16 digits, or more than a signed number of 64 bits holds.
    #[error("a chunk's size is too large")]
    TooLarge,
    /// A control character, an open quote, an empty extension.
    #[error("a chunk's extension is malformed")]
    Extension,
    /// Of one line, or of all lines together.
    #[error("the chunk extensions are too long")]
    ExtensionsTooLong,
    /// No CR LF where there must be one.
    #[error("a chunk does not end in CR LF")]
    Terminator,
    /// Not a field as in a head.
    #[error("a trailer is malformed")]
    Trailer,
    /// More than 64 fields, or 8 KiB.
    #[error("the trailers are too large")]
    TrailersTooLarge,
    /// One that would say where the message goes, where it ends, or who sent it, when all that was decided long ago.
    #[error("a trailer has a name that only a head may have")]
    ForbiddenTrailer,
}

/// The scanner; it keeps a few numbers, never the bytes.
#[derive(Debug)]
pub struct Chunked {
    state: State,
    /// Of the size that is being read; then of the chunk's data that is still to come.
    left: u64,
    /// Of the size line so far.
    line: u16,
    /// Of all extensions so far.
    extensions: u16,
    trailers: Trailers,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In a size that has so many digits.
    Size(u8),
    Extension(Extension),
    /// Behind the CR of a size line.
    SizeFeed,
    Data,
    /// Behind the data.
    DataReturn,
    DataFeed,
    Trailers,
    Done,
    Broken(BadChunk),
}

/// Where in an extension: `;name`, `;name=value` or `;name="value"`, blanks allowed between the parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extension {
    /// Behind the semicolon, or the equals sign: something must follow.
    Expecting,
    Word,
    Quoted,
    /// Behind a backslash in quotes.
    Escaped,
    /// Behind the closing quote.
    Closed,
    /// Behind a blank that another part must follow.
    Blank,
}

impl Chunked {
    /// Before the first size.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: State::Size(0),
            left: 0,
            line: 0,
            extensions: 0,
            trailers: Trailers::default(),
        }
    }

    /// Whether the final CR LF was seen.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Takes the next bytes; how many of them belong to the body. Less than all only at its end.
    ///
    /// # Errors
    /// [`BadChunk`], and from then on always.
    pub fn scan(&mut self, bytes: &[u8]) -> Result<usize, BadChunk> {
        self.run(bytes, |_| {})
    }

    /// As [`Chunked::scan`], and hands out the chunks' data.
    ///
    /// # Errors
    /// [`BadChunk`], and from then on always.
    pub fn scan_data(
        &mut self,
        bytes: &[u8],
        data: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, BadChunk> {
        self.run(bytes, data)
    }

    fn run(&mut self, bytes: &[u8], mut data: impl FnMut(&[u8])) -> Result<usize, BadChunk> {
        let mut rest = bytes;
        loop {
            match self.state {
                State::Data => {
                    let count =
                        usize::try_from(self.left).map_or(rest.len(), |left| left.min(rest.len()));
                    let (chunk, behind) = rest.split_at(count);
                    if !chunk.is_empty() {
                        data(chunk);
                    }
                    self.left -= count as u64;
                    rest = behind;
                    if self.left > 0 {
                        return Ok(bytes.len());
                    }
                    self.state = State::DataReturn;
                }
                State::Done => return Ok(bytes.len() - rest.len()),
                State::Broken(error) => return Err(error),
                _ => {
                    let Some((&byte, behind)) = rest.split_first() else {
                        return Ok(bytes.len());
                    };
                    rest = behind;
                    self.state = match self.step(byte) {
                        Ok(next) => next,
                        Err(error) => {
                            self.state = State::Broken(error);
                            return Err(error);
                        }
                    };
                }
            }
        }
    }

    /// One byte of the framing.
    fn step(&mut self, byte: u8) -> Result<State, BadChunk> {
        match self.state {
            State::Size(digits) => self.size(digits, byte),
            State::Extension(place) => self.extension(place, byte),
            State::SizeFeed if byte != b'\n' => Err(BadChunk::Size),
            State::SizeFeed if self.left == 0 => Ok(State::Trailers),
            State::SizeFeed => Ok(State::Data),
            State::DataReturn if byte == b'\r' => Ok(State::DataFeed),
            State::DataFeed if byte == b'\n' => {
                self.line = 0;
                Ok(State::Size(0))
            }
            State::DataReturn | State::DataFeed => Err(BadChunk::Terminator),
            State::Trailers => Ok(match self.trailers.step(byte)? {
                true => State::Done,
                false => State::Trailers,
            }),
            State::Data | State::Done | State::Broken(_) => Ok(self.state),
        }
    }

    fn size(&mut self, digits: u8, byte: u8) -> Result<State, BadChunk> {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            b'\r' if digits > 0 => return Ok(State::SizeFeed),
            b';' if digits > 0 => {
                self.count_extension()?;
                return Ok(State::Extension(Extension::Expecting));
            }
            _ => return Err(BadChunk::Size),
        };
        // Half of what 64 bits hold: everybody counts that far, also with signed numbers.
        if digits == 16 || self.left > (i64::MAX as u64) >> 4 {
            return Err(BadChunk::TooLarge);
        }
        self.left = (self.left << 4) | u64::from(digit);
        self.line += 1;
        Ok(State::Size(digits + 1))
    }

    fn extension(&mut self, place: Extension, byte: u8) -> Result<State, BadChunk> {
        use Extension::{Blank, Closed, Escaped, Expecting, Quoted, Word};
        let next = match (place, byte) {
            (Word | Closed, b'\r') => return Ok(State::SizeFeed),
            (Word | Closed | Blank, b';' | b'=') => Expecting,
            (Expecting, b'"') => Quoted,
            (Expecting, b' ' | b'\t') => Expecting,
            (Word | Closed | Blank, b' ' | b'\t') => Blank,
            (Expecting | Word, _) if is_token(byte) => Word,
            (Quoted, b'"') => Closed,
            (Quoted, b'\\') => Escaped,
            (Quoted | Escaped, b'\t' | b' '..=b'~' | 0x80..) => Quoted,
            _ => return Err(BadChunk::Extension),
        };
        self.count_extension()?;
        Ok(State::Extension(next))
    }

    fn count_extension(&mut self) -> Result<(), BadChunk> {
        self.line += 1;
        self.extensions += 1;
        if self.line > LINE_LIMIT || self.extensions > EXTENSIONS_LIMIT {
            return Err(BadChunk::ExtensionsTooLong);
        }
        Ok(())
    }
}

impl Default for Chunked {
    fn default() -> Self {
        Self::new()
    }
}

/// A character of a token (RFC 9110, 5.6.2).
pub(super) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests;
