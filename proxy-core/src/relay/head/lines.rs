//! Where a head ends, and what can be said before it is whole.

use super::flaw::Flaw;
use super::{FIELD_LIMIT, HEAD_LIMIT};

/// The place of a whole head in a buffer.
pub(super) struct Extent {
    /// Where its first line begins, behind the empty lines before it.
    pub(super) start: usize,
    /// Where its first field begins, or the final empty line.
    pub(super) fields: usize,
    /// Behind the final empty line.
    pub(super) end: usize,
}

/// What is known of a head after one look at its line ends.
pub(super) enum Found {
    Whole(Extent),
    /// The part of the first line that is there, its end included; empty as long as there are only empty lines.
    Partial {
        start: usize,
        line: usize,
    },
}

/// Looks at every line end once: each must be CR LF, the empty line is the end.
///
/// This is stricter than httparse, which takes a bare LF for a line end; what it does with bare CRs is what we want.
pub(super) fn find(bytes: &[u8]) -> Result<Found, Flaw> {
    let window = &bytes[..bytes.len().min(HEAD_LIMIT)];
    let mut start = 0;
    let mut fields = None;
    let mut line = 0;
    let mut count = 0;
    for feed in memchr::memchr_iter(b'\n', window) {
        if feed == 0 || window[feed - 1] != b'\r' {
            return Err(Flaw::LineEnding);
        }
        let empty = feed == line + 1;
        if !empty && window[line] == b'\r' {
            // Nearly the end, and for some servers it is; nobody should wait for another.
            return Err(Flaw::LineEnding);
        }
        line = feed + 1;
        match fields {
            None if empty => start = line,
            None => fields = Some(line),
            Some(fields) if empty => {
                return Ok(Found::Whole(Extent {
                    start,
                    fields,
                    end: line,
                }));
            }
            Some(_) => {
                count += 1;
                if count > FIELD_LIMIT {
                    return Err(Flaw::TooManyFields);
                }
            }
        }
    }
    if bytes.len() >= HEAD_LIMIT {
        return Err(Flaw::TooLarge);
    }
    Ok(Found::Partial {
        start,
        line: fields.unwrap_or(window.len()),
    })
}
