//! Reads answers as they come, framing and all: a proxy may frame anew, but nothing may be missing or more.

/// An answer that is being read.
pub struct AnswerReader {
    state: State,
    /// A head that has not come whole.
    partial: Vec<u8>,
}

#[derive(Clone, Copy)]
enum State {
    Head,
    Length(usize),
    Chunk(Chunk),
    Done,
}

#[derive(Clone, Copy)]
enum Chunk {
    Size(usize),
    SizeEnd(usize),
    Data(usize),
    DataEnd(&'static [u8]),
    LastEnd(&'static [u8]),
}

/// Why an answer is wrong.
pub type Fault = String;

impl AnswerReader {
    pub fn new() -> Self {
        Self {
            state: State::Head,
            partial: Vec::new(),
        }
    }

    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Takes what came; hands out the body's bytes.
    pub fn read(
        &mut self,
        mut bytes: &[u8],
        body: &mut dyn FnMut(&[u8]) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        if matches!(self.state, State::Head) {
            let held = self.partial.len();
            let length = if held == 0 {
                self.head(bytes)?
            } else {
                let mut all = std::mem::take(&mut self.partial);
                all.extend_from_slice(bytes);
                let length = self.head(&all)?.map(|length| length - held);
                self.partial = if length.is_none() { all } else { Vec::new() };
                length
            };
            match length {
                Some(length) => bytes = &bytes[length..],
                None => {
                    if held == 0 {
                        self.partial.extend_from_slice(bytes);
                    }
                    return Ok(());
                }
            }
        }
        while !bytes.is_empty() {
            let taken = match &mut self.state {
                State::Head | State::Done => return Err("bytes after the answer's end".into()),
                State::Length(left) => {
                    let taken = bytes.len().min(*left);
                    body(&bytes[..taken])?;
                    *left -= taken;
                    if *left == 0 {
                        self.state = State::Done;
                    }
                    taken
                }
                State::Chunk(Chunk::Data(left)) => {
                    let taken = bytes.len().min(*left);
                    body(&bytes[..taken])?;
                    *left -= taken;
                    if *left == 0 {
                        self.state = State::Chunk(Chunk::DataEnd(b"\r\n"));
                    }
                    taken
                }
                State::Chunk(chunk) => {
                    let next = chunk.next(bytes[0])?;
                    self.state = next.map_or(State::Done, State::Chunk);
                    1
                }
            };
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    /// The head's length, once it is whole.
    fn head(&mut self, bytes: &[u8]) -> Result<Option<usize>, Fault> {
        let Some(length) = head_length(bytes) else {
            return Ok(None);
        };
        let head = &bytes[..length];
        if !head.starts_with(b"HTTP/1.1 200 ") {
            let line = head.split(|byte| *byte == b'\r').next().unwrap_or(head);
            return Err(format!("answered {:?}", String::from_utf8_lossy(line)));
        }
        self.state = if let Some(length) = field(head, b"content-length") {
            let length: Option<usize> = std::str::from_utf8(length)
                .ok()
                .and_then(|text| text.parse().ok());
            State::Length(length.ok_or("a content-length that is no number")?)
        } else if field(head, b"transfer-encoding").is_some() {
            State::Chunk(Chunk::Size(0))
        } else {
            return Err("an answer without framing".into());
        };
        Ok(Some(length))
    }
}

impl Chunk {
    /// What follows after this byte of framing; nothing after the last.
    fn next(self, byte: u8) -> Result<Option<Self>, Fault> {
        let wrong = || format!("byte {byte:#04x} in the framing of a chunk");
        Ok(Some(match self {
            Self::Size(size) => match (byte as char).to_digit(16) {
                Some(digit) => Self::Size(size << 4 | digit as usize),
                None if byte == b'\r' => Self::SizeEnd(size),
                None => return Err(wrong()),
            },
            Self::SizeEnd(size) if byte == b'\n' => match size {
                0 => Self::LastEnd(b"\r\n"),
                _ => Self::Data(size),
            },
            Self::DataEnd([expected, rest @ ..]) if byte == *expected => match rest {
                [] => Self::Size(0),
                _ => Self::DataEnd(rest),
            },
            Self::LastEnd([expected, rest @ ..]) if byte == *expected => match rest {
                [] => return Ok(None),
                _ => Self::LastEnd(rest),
            },
            _ => return Err(wrong()),
        }))
    }
}

/// The length of the head that `bytes` begins with, its empty line included.
pub fn head_length(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(next) = bytes[at..].iter().position(|byte| *byte == b'\n') {
        at += next + 1;
        if bytes[..at].ends_with(b"\r\n\r\n") {
            return Some(at);
        }
    }
    None
}

/// A field's value; the name is given in lower case.
pub fn field<'a>(head: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    head.split(|byte| *byte == b'\n').find_map(|line| {
        let (is, value) = line.split_at_checked(name.len())?;
        let value = value.strip_prefix(b":")?;
        is.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
    })
}
