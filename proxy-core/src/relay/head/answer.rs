//! The head of an answer.

use super::compose::Lines;
use super::fields::{Fields, Survey};
use super::flaw::{BadHead, Flaw};
use super::lines::{self, Found};
use super::{Slots, Version};
use crate::relay::framing::Framing;

/// What was asked; it decides whether a body follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// `HEAD`: never a body.
    Head,
    /// `CONNECT`: a tunnel, if the answer is yes.
    Connect,
    /// Anything else.
    Other,
}

/// A whole answer head in which nothing is wrong.
#[derive(Debug)]
pub struct AnswerHead<'b> {
    /// From 100 to 999.
    pub status: u16,
    /// The upstream's version.
    pub version: Version,
    /// All fields, also those that end here.
    pub fields: Fields<'b>,
    /// Where the body ends.
    pub framing: Framing,
    /// Bytes of the head in the buffer.
    pub length: usize,
    /// Whether another request may follow on this connection: HTTP/1.1, no `close`, and a body that has an end of its own.
    pub persistent: bool,
    /// The value of `Upgrade`, if `Connection` names it.
    pub upgrade: Option<&'b str>,
    lines: Lines<'b>,
    survey: Survey,
    /// The fields that speak about a body are forbidden here (RFC 9110, 8.6 and 9.3.6; RFC 9112, 6.1). Whoever sends
    /// them anyway means nothing by it, and a client that believed them would wait for ever.
    bodiless: bool,
}

/// What is said to the client instead of what the upstream said to us.
#[derive(Debug, Clone, Copy)]
pub struct Back<'a> {
    /// Say `Connection: close`.
    pub close: bool,
    /// Whether the client knows chunks; if not, `Transfer-Encoding` is left out.
    pub chunks: bool,
    /// Keep `Upgrade`, and say so in `Connection`.
    pub upgrade: bool,
    /// Whole field lines with their line ends, put last.
    pub extra: &'a [u8],
}

impl<'b> AnswerHead<'b> {
    /// `None`: the head is not whole yet. A bad line end or status line is found at once, a bad field when the head is whole.
    ///
    /// # Errors
    /// [`BadHead`] says what is wrong; nothing of this connection can be believed any more.
    pub fn parse(
        bytes: &'b [u8],
        slots: &'b mut Slots<'b>,
        asked: Asked,
    ) -> Result<Option<Self>, BadHead> {
        let extent = match lines::find(bytes)? {
            // Empty lines may come before a request only.
            Found::Whole(extent) if extent.start == 0 => extent,
            Found::Partial { start: 0, line } => {
                return match httparse::Response::new(&mut []).parse(&bytes[..line]) {
                    Ok(_) => Ok(None),
                    Err(error) => Err(bad_head(error)),
                };
            }
            _ => return Err(BadHead::StatusLine),
        };
        let head = &bytes[..extent.end];
        let mut parsed = httparse::Response::new(&mut []);
        let parser = httparse::ParserConfig::default();
        match parser.parse_response_with_uninit_headers(&mut parsed, head, &mut slots.0) {
            Ok(httparse::Status::Complete(length)) if length == head.len() => {}
            Ok(_) => return Err(Flaw::LineEnding.into()),
            Err(error) => return Err(bad_head(error)),
        }
        let status = match parsed.code {
            Some(status) if status >= 100 => status,
            _ => return Err(BadHead::StatusLine),
        };
        let version = Version::of(parsed.version);
        let headers: &'b [httparse::Header<'b>] = parsed.headers;
        let survey = Survey::of(head, headers, version)?;
        let bodiless = status < 200
            || status == 204
            || (asked == Asked::Connect && (200..300).contains(&status));
        // RFC 9112, section 6.3, for what passed the checks.
        let framing = match (survey.coding_line, survey.length) {
            _ if bodiless || status == 304 || asked == Asked::Head => Framing::None,
            (Some(_), _) => Framing::Chunked,
            (None, Some(length)) => Framing::Length(length),
            (None, None) => Framing::UntilClose,
        };
        Ok(Some(Self {
            status,
            version,
            fields: Fields { lines: headers },
            framing,
            length: extent.end,
            persistent: version == Version::Http11
                && !survey.close
                && framing != Framing::UntilClose
                // One that announces a body where there is none may send it, too.
                && !(bodiless && survey.announces_body()),
            upgrade: survey.upgrade_value(headers),
            lines: Lines {
                head,
                fields: extent.fields,
                lines: headers,
            },
            survey,
            bodiless,
        }))
    }

    /// Appends the head as the client gets it: HTTP/1.1, status and reason untouched, every field byte for byte in its
    /// place, except that those which speak about the upstream's connection are left out.
    pub fn write_onward(&self, back: &Back<'_>, out: &mut Vec<u8>) {
        out.reserve(self.lines.head.len() + back.extra.len() + 32);
        out.extend_from_slice(b"HTTP/1.1");
        out.extend_from_slice(&self.lines.head[b"HTTP/1.1".len()..self.lines.fields]);

        let mut touched = self.survey.ending;
        let upgrade = self
            .survey
            .upgrade
            .filter(|_| back.upgrade && self.upgrade.is_some());
        if let Some(number) = upgrade {
            touched.remove(number);
        }
        if let Some(number) = self.survey.coding_line
            && (!back.chunks || self.bodiless)
        {
            touched.insert(number);
        }
        if let Some(number) = self.survey.length_line
            && self.bodiless
        {
            touched.insert(number);
        }
        self.lines.copy_except(touched, out, |_, _| {});
        if upgrade.is_some() {
            out.extend_from_slice(b"Connection: upgrade\r\n");
        } else if back.close {
            out.extend_from_slice(b"Connection: close\r\n");
        }
        out.extend_from_slice(back.extra);
        out.extend_from_slice(b"\r\n");
    }

    /// The fields that are the message's own, for a protocol with other framing: without those that
    /// speak about the connection and `Transfer-Encoding`.
    pub fn end_to_end(&self) -> impl Iterator<Item = (&'b str, &'b [u8])> {
        let mut left_out = self.survey.ending;
        if let Some(number) = self.survey.coding_line {
            left_out.insert(number);
        }
        self.fields
            .iter()
            .enumerate()
            .filter(move |(number, _)| !left_out.contains(*number))
            .map(|(_, field)| field)
    }
}

fn bad_head(error: httparse::Error) -> BadHead {
    match error {
        httparse::Error::HeaderName | httparse::Error::HeaderValue => Flaw::Field.into(),
        httparse::Error::TooManyHeaders => Flaw::TooManyFields.into(),
        _ => BadHead::StatusLine,
    }
}
