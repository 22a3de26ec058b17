//! Just enough of HTTP/1.1 for one exchange on a local socket: a head, then a body that is counted,
//! chunked, or ends with the connection. Blocking; the deadlines are those of the reader below.

use std::io::{self, BufRead, Read};

/// The longest answer head that is read, in bytes.
const HEAD_LIMIT: usize = 16 * 1024;
/// The longest line between two chunks, in bytes.
const CHUNK_LINE_LIMIT: usize = 256;

/// Why an answer could not be read.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The connection ended inside the head.
    #[error("the connection ended before the answer began")]
    NoAnswer,
    /// The head is not HTTP/1.
    #[error("the answer is not HTTP/1.1: {0}")]
    Head(&'static str),
    /// Reading failed.
    #[error("reading the answer: {0}")]
    Read(#[source] io::Error),
}

/// How the end of a body is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    /// So many bytes are left.
    Counted(u64),
    /// So many bytes of the current chunk are left; zero = a chunk's first line comes next.
    Chunked(u64),
    /// Everything until the connection ends.
    Close,
    /// Nothing is left.
    Done,
}

/// An answer: its status, and its body as a reader.
///
/// A body that ends early is an error of kind `UnexpectedEof`, so that a cut is never taken for an end.
#[derive(Debug)]
pub struct Answer<R> {
    /// The HTTP status.
    pub status: u16,
    framing: Framing,
    inner: R,
    begun: bool,
}

impl<R: BufRead> Answer<R> {
    /// Reads the head of an answer; the body is then read from the value itself.
    ///
    /// # Errors
    /// [`HttpError`] when the connection ends, times out, or does not speak HTTP/1.1.
    pub fn read_head(mut inner: R) -> Result<Self, HttpError> {
        let mut head = Vec::with_capacity(512);
        loop {
            let before = head.len();
            let room = (HEAD_LIMIT + 1 - before) as u64;
            let got = (&mut inner)
                .take(room)
                .read_until(b'\n', &mut head)
                .map_err(HttpError::Read)?;
            if got == 0 {
                return Err(HttpError::NoAnswer);
            }
            if head.len() > HEAD_LIMIT {
                return Err(HttpError::Head("its head is too long"));
            }
            let line = &head[before..];
            if line == b"\r\n" || line == b"\n" {
                break;
            }
        }
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut parsed = httparse::Response::new(&mut headers);
        match parsed.parse(&head) {
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) => return Err(HttpError::Head("its head is not whole")),
            Err(_) => return Err(HttpError::Head("its head cannot be parsed")),
        }
        let status = parsed.code.ok_or(HttpError::Head("it has no status"))?;
        let framing = framing(status, parsed.headers)?;
        Ok(Self {
            status,
            framing,
            inner,
            begun: false,
        })
    }

    /// Reads the size line that begins a chunk, and the line end that closes the one before.
    fn next_chunk(&mut self) -> io::Result<u64> {
        if self.begun && !self.line()?.is_empty() {
            return Err(invalid("a chunk is longer than it said"));
        }
        self.begun = true;
        let line = self.line()?;
        let digits = line
            .split(|byte| *byte == b';')
            .next()
            .unwrap_or_default()
            .trim_ascii();
        let digits = std::str::from_utf8(digits).map_err(|_| invalid("a chunk has no size"))?;
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(invalid("a chunk has no size"));
        }
        let size = u64::from_str_radix(digits, 16).map_err(|_| invalid("a chunk is too large"))?;
        if size == 0 {
            // Trailers, up to the empty line.
            while !self.line()?.is_empty() {}
        }
        Ok(size)
    }

    /// One line without its end.
    fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        (&mut self.inner)
            .take(CHUNK_LINE_LIMIT as u64)
            .read_until(b'\n', &mut line)?;
        if line.pop() != Some(b'\n') {
            return Err(if line.len() + 1 >= CHUNK_LINE_LIMIT {
                invalid("a line between chunks is too long")
            } else {
                io::ErrorKind::UnexpectedEof.into()
            });
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Ok(line)
    }
}

impl<R: BufRead> Read for Answer<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        loop {
            match self.framing {
                Framing::Done => return Ok(0),
                Framing::Close => return self.inner.read(buf),
                Framing::Counted(0) => self.framing = Framing::Done,
                Framing::Counted(left) => {
                    let got = read_some(&mut self.inner, buf, left)?;
                    self.framing = Framing::Counted(left - got as u64);
                    return Ok(got);
                }
                Framing::Chunked(0) => {
                    self.framing = match self.next_chunk()? {
                        0 => Framing::Done,
                        size => Framing::Chunked(size),
                    };
                }
                Framing::Chunked(left) => {
                    let got = read_some(&mut self.inner, buf, left)?;
                    self.framing = Framing::Chunked(left - got as u64);
                    return Ok(got);
                }
            }
        }
    }
}

fn read_some(inner: &mut impl Read, buf: &mut [u8], left: u64) -> io::Result<usize> {
    let most = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
    match inner.read(&mut buf[..most])? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        got => Ok(got),
    }
}

fn framing(status: u16, headers: &[httparse::Header<'_>]) -> Result<Framing, HttpError> {
    if status == 204 || status == 304 || (100..200).contains(&status) {
        return Ok(Framing::Done);
    }
    let named = |name: &str| {
        headers
            .iter()
            .find(|header| header.name.eq_ignore_ascii_case(name))
            .map(|header| header.value.trim_ascii())
    };
    if let Some(coding) = named("transfer-encoding") {
        return if coding.eq_ignore_ascii_case(b"chunked") {
            Ok(Framing::Chunked(0))
        } else {
            Err(HttpError::Head("its transfer coding is unknown"))
        };
    }
    match named("content-length") {
        None => Ok(Framing::Close),
        Some(value) => std::str::from_utf8(value)
            .ok()
            .and_then(|text| text.parse().ok())
            .map(Framing::Counted)
            .ok_or(HttpError::Head("its length is not a number")),
    }
}

fn invalid(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body_of(bytes: &[u8]) -> io::Result<(u16, Vec<u8>)> {
        // One byte at a time: no framing may depend on how the bytes arrive.
        let reader = io::BufReader::with_capacity(1, bytes);
        let mut answer = Answer::read_head(reader).map_err(io::Error::other)?;
        let mut body = Vec::new();
        answer.read_to_end(&mut body)?;
        Ok((answer.status, body))
    }

    #[test]
    fn reads_every_framing() {
        let cases: [(&[u8], u16, &[u8]); 5] = [
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcX",
                200,
                b"abc",
            ),
            (b"HTTP/1.1 409 Conflict\r\n\r\nabc", 409, b"abc"),
            (
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nt: v\r\n\r\n",
                200,
                b"abc0123456789",
            ),
            (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b""),
        ];
        for (wire, status, body) in cases {
            assert_eq!(body_of(wire).unwrap(), (status, body.to_vec()));
        }
    }

    #[test]
    fn a_cut_is_never_taken_for_an_end() {
        let cuts: [&[u8]; 5] = [
            b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n",
        ];
        for wire in cuts {
            assert_eq!(
                body_of(wire).unwrap_err().kind(),
                io::ErrorKind::UnexpectedEof,
                "{}",
                String::from_utf8_lossy(wire)
            );
        }
        assert!(matches!(
            Answer::read_head(&b""[..]),
            Err(HttpError::NoAnswer)
        ));
        assert!(matches!(
            Answer::read_head(&b"HTTP/1.1 200 OK\r\nA: b\r\n"[..]),
            Err(HttpError::NoAnswer)
        ));
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        for wire in [
            &b"SSH-2.0\r\n\r\n"[..],
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        ] {
            assert!(matches!(Answer::read_head(wire), Err(HttpError::Head(_))));
        }
        let endless = vec![b'a'; HEAD_LIMIT * 2];
        assert!(matches!(
            Answer::read_head(&endless[..]),
            Err(HttpError::Head("its head is too long"))
        ));
        let bad_size =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n";
        assert_eq!(
            body_of(bad_size).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }
}
