//! The fields behind the last chunk, byte by byte: checked like those of a head, and for names that only a head may have. Pure.

use super::chunked::{BadChunk, is_token};

/// The most fields.
pub const FIELD_LIMIT: u8 = 64;

/// The most bytes of all fields, line ends included.
pub const SIZE_LIMIT: u16 = 8 * 1024;

/// The most bytes of a name that is looked at; none of the forbidden ones is longer.
const NAME_LIMIT: usize = 19;

/// Names that say how long a message is, where it goes, who sent it, how its content is to be read, or something about
/// the connection (RFC 9110, 6.5.1). By then that was decided; a server that merges trailers into the head would
/// decide anew.
pub(super) const FORBIDDEN: [&str; 24] = [
    "authorization",
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "max-forwards",
    "proxy-authorization",
    "proxy-connection",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
];

/// How far the trailers have come.
#[derive(Debug, Default)]
pub(super) struct Trailers {
    place: Place,
    /// The name so far, lower case, hyphens for underscores.
    name: [u8; NAME_LIMIT],
    /// Its length, or one more than fits.
    name_length: u8,
    fields: u8,
    size: u16,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    #[default]
    LineBegin,
    Name,
    Value,
    /// Behind a value's CR.
    Feed,
    /// Behind the CR of the final empty line.
    LastFeed,
}

impl Trailers {
    /// Takes one byte; whether it was the last.
    pub(super) fn step(&mut self, byte: u8) -> Result<bool, BadChunk> {
        self.place = match (self.place, byte) {
            (Place::LineBegin, b'\r') => Place::LastFeed,
            (Place::LastFeed, b'\n') => return Ok(true),
            (Place::LineBegin, _) if is_token(byte) => {
                self.name_length = 0;
                self.fields += 1;
                if self.fields > FIELD_LIMIT {
                    return Err(BadChunk::TrailersTooLarge);
                }
                self.remember(byte);
                Place::Name
            }
            (Place::Name, b':') if self.is_forbidden() => return Err(BadChunk::ForbiddenTrailer),
            (Place::Name, b':') => Place::Value,
            (Place::Name, _) if is_token(byte) => {
                self.remember(byte);
                Place::Name
            }
            (Place::Value, b'\r') => Place::Feed,
            (Place::Value, b'\t' | b' '..=b'~' | 0x80..) => Place::Value,
            (Place::Feed, b'\n') => Place::LineBegin,
            _ => return Err(BadChunk::Trailer),
        };
        if self.place != Place::LastFeed {
            self.size += 1;
            if self.size > SIZE_LIMIT {
                return Err(BadChunk::TrailersTooLarge);
            }
        }
        Ok(false)
    }

    fn remember(&mut self, byte: u8) {
        let length = usize::from(self.name_length);
        if let Some(place) = self.name.get_mut(length) {
            *place = match byte {
                b'_' => b'-',
                _ => byte.to_ascii_lowercase(),
            };
        }
        if length <= NAME_LIMIT {
            self.name_length += 1;
        }
    }

    fn is_forbidden(&self) -> bool {
        self.name
            .get(..usize::from(self.name_length))
            .is_some_and(|name| FORBIDDEN.iter().any(|other| other.as_bytes() == name))
    }
}
