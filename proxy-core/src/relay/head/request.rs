//! The head of a request.

use super::compose::Lines;
use super::fields::{self, Fields, Survey};
use super::flaw::{Flaw, Refusal};
use super::lines::{self, Extent, Found};
use super::target::Target;
use super::{Slots, Version};
use crate::relay::framing::Framing;

/// A whole request head in which nothing is wrong.
#[derive(Debug)]
pub struct RequestHead<'b> {
    /// As sent.
    pub method: &'b str,
    /// What it is for.
    pub target: Target<'b>,
    /// The client's version.
    pub version: Version,
    /// All fields, also those that end here.
    pub fields: Fields<'b>,
    /// Where the body ends: `None`, `Length` or `Chunked`.
    pub framing: Framing,
    /// Bytes of the head in the buffer, from the first empty line before it to the final one.
    pub length: usize,
    /// Whether another request may follow: HTTP/1.1, and no `close`.
    pub persistent: bool,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub expects_continue: bool,
    /// The value of `Upgrade`, if `Connection` names it and it offers more than `h2c`. It may be a list.
    pub upgrade: Option<&'b str>,
    lines: Lines<'b>,
    survey: Survey,
}

/// What is said to the upstream instead of what the client said to us.
#[derive(Debug, Clone, Copy)]
pub struct Onward<'a> {
    /// The target, in pieces that are written one behind the other.
    pub path_and_query: [&'a str; 4],
    /// The value of `Host`.
    pub authority: &'a str,
    /// Keep `Upgrade`, and say so in `Connection`.
    pub upgrade: bool,
    /// Whole field lines with their line ends, put last.
    pub extra: &'a [u8],
}

impl<'b> RequestHead<'b> {
    /// `None`: the head is not whole yet. What can no longer become valid is refused as early as that is cheap: a bad
    /// line end or first line at once, a bad field when the head is whole.
    ///
    /// # Errors
    /// [`Refusal`] says what is wrong; nothing of this connection can be believed any more.
    pub fn parse(bytes: &'b [u8], slots: &'b mut Slots<'b>) -> Result<Option<Self>, Refusal> {
        let extent = match lines::find(bytes)? {
            Found::Whole(extent) => extent,
            Found::Partial { start, line } => {
                return check_first_line(&bytes[start..line]).map(|()| None);
            }
        };
        Self::read(bytes, &extent, slots).map(Some)
    }

    fn read(bytes: &'b [u8], extent: &Extent, slots: &'b mut Slots<'b>) -> Result<Self, Refusal> {
        let head = &bytes[extent.start..extent.end];
        let first_line = &bytes[extent.start..extent.fields];
        let mut parsed = httparse::Request::new(&mut []);
        match parsed.parse_with_uninit_headers(head, &mut slots.0) {
            // Two parsers that disagree about the end are one too many.
            Ok(httparse::Status::Complete(length)) if length == head.len() => {}
            Ok(_) => return Err(Flaw::LineEnding.into()),
            Err(error) => return Err(refusal(error, first_line)),
        }
        let (Some(method), Some(target)) = (parsed.method, parsed.path) else {
            return Err(Refusal::RequestLine);
        };
        let version = Version::of(parsed.version);
        let headers: &'b [httparse::Header<'b>] = parsed.headers;
        let survey = Survey::of(head, headers, version)?;

        let host = match survey.host {
            _ if survey.two_hosts => return Err(Refusal::TwoHosts),
            None if version == Version::Http11 => return Err(Refusal::NoHost),
            number => number.map(|number| headers[number].value),
        };
        let target = Target::read(method, target, host)?;
        let is_http11 = version == Version::Http11;
        Ok(Self {
            method,
            target,
            version,
            fields: Fields { lines: headers },
            framing: match (survey.coding_line, survey.length) {
                (Some(_), _) => Framing::Chunked,
                (None, Some(length)) => Framing::Length(length),
                (None, None) => Framing::None,
            },
            length: extent.end,
            persistent: is_http11 && !survey.close,
            // RFC 9110, 7.8 and 10.1.1: neither means anything in HTTP/1.0.
            expects_continue: is_http11 && survey.expects_continue,
            upgrade: is_http11
                .then(|| survey.upgrade_value(headers))
                .flatten()
                .filter(|offered| {
                    fields::list(offered.as_bytes())
                        .any(|protocol| !protocol.eq_ignore_ascii_case(b"h2c"))
                }),
            lines: Lines {
                head,
                fields: extent.fields - extent.start,
                lines: headers,
            },
            survey,
        })
    }

    /// Appends the head as the upstream gets it: HTTP/1.1, every field byte for byte in its place, except that those which
    /// speak about the client's connection are left out and `Host` gets another value (and is put first where it was missing).
    pub fn write_onward(&self, onward: &Onward<'_>, out: &mut Vec<u8>) {
        out.reserve(
            self.lines.head.len()
                + onward
                    .path_and_query
                    .iter()
                    .map(|piece| piece.len())
                    .sum::<usize>()
                + onward.authority.len()
                + onward.extra.len()
                + 64,
        );
        let [base, path, mark, query] = onward.path_and_query;
        for part in [self.method, " ", base, path, mark, query, " HTTP/1.1\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
        let host = |name: &str, out: &mut Vec<u8>| {
            for part in [name, ": ", onward.authority, "\r\n"] {
                out.extend_from_slice(part.as_bytes());
            }
        };
        if self.survey.host.is_none() {
            host("Host", out);
        }
        let mut touched = self.survey.ending;
        let upgrade = self
            .survey
            .upgrade
            .filter(|_| onward.upgrade && self.upgrade.is_some());
        if let Some(number) = upgrade {
            touched.remove(number);
        }
        if let Some(number) = self.survey.host {
            touched.insert(number);
        }
        self.lines.copy_except(touched, out, |number, out| {
            if Some(number) == self.survey.host {
                host(self.lines.lines[number].name, out);
            }
        });
        let connection: &[u8] = match (upgrade.is_some(), self.survey.trailers) {
            (true, true) => b"TE: trailers\r\nConnection: upgrade, TE\r\n",
            (true, false) => b"Connection: upgrade\r\n",
            (false, true) => b"TE: trailers\r\nConnection: TE\r\n",
            (false, false) => b"",
        };
        out.extend_from_slice(connection);
        out.extend_from_slice(onward.extra);
        out.extend_from_slice(b"\r\n");
    }

    /// The fields that are the message's own, for a protocol with other framing: without those that
    /// speak about the connection, `Transfer-Encoding` and `Host`.
    pub fn end_to_end(&self) -> impl Iterator<Item = (&'b str, &'b [u8])> {
        let mut left_out = self.survey.ending;
        for number in [self.survey.host, self.survey.coding_line]
            .into_iter()
            .flatten()
        {
            left_out.insert(number);
        }
        self.fields
            .iter()
            .enumerate()
            .filter(move |(number, _)| !left_out.contains(*number))
            .map(|(_, field)| field)
    }

    /// Whether the client takes trailers (`TE: trailers`).
    #[must_use]
    pub fn takes_trailers(&self) -> bool {
        self.survey.trailers
    }
}

/// As much of the first line as there is, its end included if it is there.
fn check_first_line(line: &[u8]) -> Result<(), Refusal> {
    let whole = line.ends_with(b"\n");
    match httparse::Request::new(&mut []).parse(line) {
        Ok(_) => Ok(()),
        // What is there of a version may be the beginning of one that deserves its own answer.
        Err(httparse::Error::Version) if !whole => Ok(()),
        Err(error) => Err(refusal(error, line)),
    }
}

fn refusal(error: httparse::Error, first_line: &[u8]) -> Refusal {
    match error {
        httparse::Error::HeaderName | httparse::Error::HeaderValue => Flaw::Field.into(),
        httparse::Error::TooManyHeaders => Flaw::TooManyFields.into(),
        httparse::Error::Version if names_a_version(first_line) => Refusal::Version,
        _ => Refusal::RequestLine,
    }
}

/// Whether the line would be fine if it named another version.
fn names_a_version(line: &[u8]) -> bool {
    let line = line.strip_suffix(b"\r\n").unwrap_or(line);
    let mut words = line.split(|byte| *byte == b' ');
    let _method_and_target = (words.next(), words.next());
    let version = words.next().and_then(|word| word.strip_prefix(b"HTTP/"));
    matches!(version, Some([major, b'.', minor]) if major.is_ascii_digit() && minor.is_ascii_digit())
        && words.next().is_none()
}
