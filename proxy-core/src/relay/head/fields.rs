//! The fields of a head, and what they say about the message and the connection.

use httparse::Header;

use super::flaw::Flaw;
use super::{FIELD_LIMIT, Version};
use crate::gateway;

/// How many names `Connection` may list besides those that end here anyway.
const OPTION_LIMIT: usize = 64;

/// The largest length that is believed: what a signed number of 64 bits holds, so that every server counts the same.
const LENGTH_LIMIT: u64 = i64::MAX as u64;

/// The fields of a head, in their order, names and values as they came.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'b> {
    pub(super) lines: &'b [Header<'b>],
}

impl<'b> Fields<'b> {
    /// Name and value of each field.
    pub fn iter(&self) -> impl Iterator<Item = (&'b str, &'b [u8])> + use<'b> {
        self.lines.iter().map(|line| (line.name, line.value))
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lines.len()
    }

    /// The first value of a field, whatever the case of its name.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&'b [u8]> {
        self.lines
            .iter()
            .find(|line| line.name.eq_ignore_ascii_case(name))
            .map(|line| line.value)
    }
}

impl gateway::Fields for Fields<'_> {
    fn first(&self, name: &str) -> Option<&[u8]> {
        self.value(name)
    }
}

/// A set of fields, by their number.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Marked([u64; FIELD_LIMIT / 64]);

impl Marked {
    pub(super) fn insert(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    pub(super) fn contains(&self, number: usize) -> bool {
        self.0[number / 64] & (1 << (number % 64)) != 0
    }

    pub(super) fn remove(&mut self, number: usize) {
        self.0[number / 64] &= !(1 << (number % 64));
    }

    /// From the lowest number to the highest.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> + use<> {
        self.0
            .into_iter()
            .enumerate()
            .flat_map(|(place, mut word)| {
                std::iter::from_fn(move || {
                    (word != 0).then(|| {
                        let bit = word.trailing_zeros() as usize;
                        word &= word - 1;
                        place * 64 + bit
                    })
                })
            })
    }
}

/// What one look at all fields found.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Those that speak about this connection only.
    pub(super) ending: Marked,
    pub(super) host: Option<usize>,
    pub(super) two_hosts: bool,
    pub(super) length: Option<u64>,
    pub(super) length_line: Option<usize>,
    pub(super) coding_line: Option<usize>,
    pub(super) close: bool,
    pub(super) upgrade_named: bool,
    /// The one `Upgrade` that may be followed.
    pub(super) upgrade: Option<usize>,
    pub(super) trailers: bool,
    pub(super) expects_continue: bool,
}

/// The names that mean something here.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    Connection,
    ContentLength,
    Expect,
    Host,
    Te,
    TransferEncoding,
    Upgrade,
    /// `Keep-Alive`, `Proxy-Connection`, `HTTP2-Settings`: they end here, and that is all.
    Ending,
    Misspelled,
}

/// Told apart by length first, so that most names cost no comparison.
fn known(name: &str) -> Option<Known> {
    let is = |other: &str| name.eq_ignore_ascii_case(other);
    match name.len() {
        2 if is("te") => Some(Known::Te),
        4 if is("host") => Some(Known::Host),
        6 if is("expect") => Some(Known::Expect),
        7 if is("upgrade") => Some(Known::Upgrade),
        10 if is("connection") => Some(Known::Connection),
        10 if is("keep-alive") => Some(Known::Ending),
        14 if is("content-length") => Some(Known::ContentLength),
        14 if is("http2-settings") => Some(Known::Ending),
        14 if is("content_length") => Some(Known::Misspelled),
        16 if is("proxy-connection") => Some(Known::Ending),
        17 if is("transfer-encoding") => Some(Known::TransferEncoding),
        17 if is("transfer_encoding") => Some(Known::Misspelled),
        _ => None,
    }
}

/// The elements of a comma-separated list, without the blanks around them and without empty ones.
pub(super) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|element| !element.is_empty())
}

impl Survey {
    /// Whether there is a body, by what the fields say.
    pub(super) fn announces_body(&self) -> bool {
        self.coding_line.is_some() || self.length.is_some_and(|length| length > 0)
    }

    /// Looks at each field once; a second time only where `Connection` names fields that nobody expects there.
    pub(super) fn of(head: &[u8], lines: &[Header<'_>], version: Version) -> Result<Self, Flaw> {
        let mut found = Self::default();
        let mut options = Options::default();
        let mut upgrades = 0;
        for (number, line) in lines.iter().enumerate() {
            let Some(name) = known(line.name) else {
                continue;
            };
            match name {
                Known::Connection => {
                    found.ending.insert(number);
                    options.read(number, line.value)?;
                }
                Known::ContentLength => {
                    if found.length_line.replace(number).is_some() {
                        return Err(Flaw::TwoLengths);
                    }
                    no_tab(head, lines, number)?;
                    found.length = Some(read_length(line.value).ok_or(Flaw::Length)?);
                }
                Known::TransferEncoding => {
                    if found.coding_line.replace(number).is_some() {
                        return Err(Flaw::TwoCodings);
                    }
                    no_tab(head, lines, number)?;
                }
                Known::Host => {
                    found.two_hosts |= found.host.replace(number).is_some();
                    no_tab(head, lines, number)?;
                }
                Known::Expect => {
                    found.expects_continue |=
                        list(line.value).any(|each| each.eq_ignore_ascii_case(b"100-continue"));
                }
                Known::Te => {
                    found.ending.insert(number);
                    found.trailers |=
                        list(line.value).any(|each| each.eq_ignore_ascii_case(b"trailers"));
                }
                Known::Upgrade => {
                    found.ending.insert(number);
                    found.upgrade = Some(number);
                    upgrades += 1;
                }
                Known::Ending => found.ending.insert(number),
                Known::Misspelled => return Err(Flaw::Misspelled),
            }
        }
        if let Some(number) = found.coding_line {
            check_coding(lines[number].value, version, found.length.is_some())?;
        }
        if options.others > 0 {
            options.mark(lines, &mut found.ending);
        }
        found.close = options.close;
        found.upgrade_named = options.upgrade;
        if upgrades > 1 {
            // A list over several lines: nobody sends it, and one that is not followed may be ignored.
            found.upgrade = None;
        }
        Ok(found)
    }

    /// The value of the one `Upgrade`, if `Connection` names it.
    pub(super) fn upgrade_value<'b>(&self, lines: &[Header<'b>]) -> Option<&'b str> {
        let number = self.upgrade.filter(|_| self.upgrade_named)?;
        std::str::from_utf8(lines[number].value).ok()
    }
}

/// What the `Connection` lines say.
#[derive(Default)]
struct Options {
    lines: Marked,
    close: bool,
    upgrade: bool,
    /// Names that are not known here: fields of the sender's own that must end here, too.
    others: usize,
}

impl Options {
    fn read(&mut self, number: usize, value: &[u8]) -> Result<(), Flaw> {
        self.lines.insert(number);
        for option in list(value) {
            if option.eq_ignore_ascii_case(b"close") {
                self.close = true;
            } else if option.eq_ignore_ascii_case(b"upgrade") {
                self.upgrade = true;
            } else if !option.eq_ignore_ascii_case(b"keep-alive") {
                self.others += 1;
            }
        }
        if self.others > OPTION_LIMIT {
            return Err(Flaw::TooManyOptions);
        }
        Ok(())
    }

    fn mark(&self, lines: &[Header<'_>], ending: &mut Marked) {
        for connection in self.lines.iter() {
            for option in list(lines[connection].value) {
                for (number, line) in lines.iter().enumerate() {
                    // Those that are known end here anyway, or are the message's own: a `Connection` that names
                    // the length, the coding or the host is nonsense or an attack.
                    if line.name.as_bytes().eq_ignore_ascii_case(option)
                        && known(line.name).is_none()
                    {
                        ending.insert(number);
                    }
                }
            }
        }
    }
}

/// One or more digits, nothing else.
fn read_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 19 {
        return None;
    }
    let mut length: u64 = 0;
    for byte in value {
        if !byte.is_ascii_digit() {
            return None;
        }
        length = length * 10 + u64::from(byte - b'0');
    }
    (length <= LENGTH_LIMIT).then_some(length)
}

fn check_coding(value: &[u8], version: Version, has_length: bool) -> Result<(), Flaw> {
    if version == Version::Http10 {
        return Err(Flaw::CodingBeforeHttp11);
    }
    if has_length {
        return Err(Flaw::LengthAndCoding);
    }
    if value.eq_ignore_ascii_case(b"chunked") {
        return Ok(());
    }
    // RFC 9112, 6.1: a coding that is understood but not supported is 501. One that cannot be read is an attack.
    let registered = |coding: &[u8]| {
        ["gzip", "x-gzip", "deflate", "compress", "x-compress"]
            .iter()
            .any(|known| coding.eq_ignore_ascii_case(known.as_bytes()))
    };
    let mut codings = value.rsplit(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    match codings.next() {
        Some(last) if last.eq_ignore_ascii_case(b"chunked") && codings.all(registered) => {
            Err(Flaw::UnsupportedCoding)
        }
        _ => Err(Flaw::Coding),
    }
}

/// Where a line begins in its head. Names and values are slices of it, so their addresses say.
pub(super) fn begin(head: &[u8], line: &Header<'_>) -> usize {
    line.name.as_ptr().addr() - head.as_ptr().addr()
}

/// Where a line ends, its line end included. `head` ends with the final empty line.
pub(super) fn end(head: &[u8], lines: &[Header<'_>], number: usize) -> usize {
    match lines.get(number + 1) {
        Some(next) => begin(head, next),
        None => head.len() - 2,
    }
}

fn no_tab(head: &[u8], lines: &[Header<'_>], number: usize) -> Result<(), Flaw> {
    let line = &head[begin(head, &lines[number])..end(head, lines, number)];
    match memchr::memchr(b'\t', line) {
        Some(_) => Err(Flaw::Tab),
        None => Ok(()),
    }
}
