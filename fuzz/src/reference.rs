//! A second reading of HTTP/1, slow and plain, that shares nothing with the first: what the first accepts it must
//! understand in the same way.

use super::pure::Framing;

/// A message's head, line by line.
pub struct Message<'b> {
    lines: Vec<&'b [u8]>,
}

impl<'b> Message<'b> {
    /// Reads exactly one whole head; `None` if anything about it is odd.
    pub fn read(bytes: &'b [u8]) -> Option<Self> {
        let mut rest = bytes;
        while let Some(behind) = rest.strip_prefix(b"\r\n") {
            rest = behind;
        }
        let mut lines = Vec::new();
        loop {
            let end = rest.iter().position(|byte| b"\r\n".contains(byte))?;
            let (line, behind) = rest.split_at(end);
            rest = behind.strip_prefix(b"\r\n")?;
            if line.is_empty() {
                break;
            }
            lines.push(line);
        }
        let message = Self { lines };
        let fine = rest.is_empty()
            && !message.lines.is_empty()
            && message.lines[1..].iter().all(|line| field(line).is_some());
        fine.then_some(message)
    }

    /// Its three words; the last one may have more spaces in it.
    pub fn first_line(&self) -> [&'b [u8]; 3] {
        let mut words = self.lines[0].splitn(3, |byte| *byte == b' ');
        [(); 3].map(|()| words.next().unwrap_or_default())
    }

    pub fn fields(&self) -> impl Iterator<Item = (&'b str, &'b [u8])> {
        self.lines[1..].iter().filter_map(|line| field(line))
    }

    /// `otherwise` is what it means that nothing is said. Panics where more than one thing is said.
    pub fn framing(&self, otherwise: Framing) -> Framing {
        let said: Vec<_> = self
            .fields()
            .filter_map(|(name, value)| {
                let value = std::str::from_utf8(value).unwrap_or("?");
                match name.to_ascii_lowercase().as_str() {
                    "content-length" => Some(Framing::Length(value.parse().expect("a number"))),
                    "transfer-encoding" => {
                        assert_eq!(value.to_ascii_lowercase(), "chunked");
                        Some(Framing::Chunked)
                    }
                    _ => None,
                }
            })
            .collect();
        assert!(said.len() <= 1, "framing is said {} times", said.len());
        said.first().copied().unwrap_or(otherwise)
    }
}

fn field(line: &[u8]) -> Option<(&str, &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    let name = std::str::from_utf8(name).ok()?;
    let token = |letter: char| letter.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(letter);
    let text = |byte: &u8| *byte == b'\t' || *byte >= b' ' && *byte != 0x7F;
    let fine = !name.is_empty() && name.chars().all(token) && value.iter().all(text);
    fine.then_some((name, trim(value)))
}

fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// The data of exactly one body in chunks; `None` if anything about it is odd.
pub fn chunks(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut rest = bytes;
    let mut data = Vec::new();
    loop {
        let line = line(&mut rest)?;
        let digits = line.split(|byte| *byte == b';').next()?;
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let size = u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        if size == 0 {
            break;
        }
        let (chunk, behind) = rest.split_at_checked(usize::try_from(size).ok()?)?;
        data.extend_from_slice(chunk);
        rest = behind.strip_prefix(b"\r\n")?;
    }
    loop {
        let line = line(&mut rest)?;
        if line.is_empty() {
            return rest.is_empty().then_some(data);
        }
        let (name, _) = field(line)?;
        let name = name.to_ascii_lowercase();
        if ["content-length", "transfer-encoding", "host", "connection"].contains(&name.as_str()) {
            return None;
        }
    }
}

fn line<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let end = rest.iter().position(|byte| b"\r\n".contains(byte))?;
    let (line, behind) = rest.split_at(end);
    *rest = behind.strip_prefix(b"\r\n")?;
    Some(line)
}
