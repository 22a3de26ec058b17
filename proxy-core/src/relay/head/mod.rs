//! Heads of requests and answers: parsed, checked, and composed anew for the other side. Pure.
//!
//! What is accepted is what can be understood in one way only, because it goes on byte for byte: the next server must
//! see the same fields and the same end of the body as we do. Parsing allocates nothing, and composing copies whole runs
//! of lines between the few that end here.

mod answer;
mod compose;
mod fields;
mod flaw;
mod lines;
mod request;
mod target;

use std::mem::MaybeUninit;

pub use answer::{AnswerHead, Asked, Back};
pub use fields::Fields;
pub use flaw::{BadHead, Flaw, Refusal};
pub use request::{Onward, RequestHead};
pub use target::Target;

/// The most bytes of a head: first line and fields together.
pub const HEAD_LIMIT: usize = 64 * 1024;

/// The most fields of a head.
pub const FIELD_LIMIT: usize = 256;

/// Room for the fields of one head. It is not initialised, so it costs nothing to make; it lives on the caller's stack.
pub struct Slots<'b>([MaybeUninit<httparse::Header<'b>>; FIELD_LIMIT]);

impl Slots<'_> {
    /// Empty.
    #[must_use]
    pub fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; FIELD_LIMIT])
    }
}

impl Default for Slots<'_> {
    fn default() -> Self {
        Self::new()
    }
}

/// A version of HTTP/1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    Http11,
}

impl Version {
    fn of(minor: Option<u8>) -> Self {
        match minor {
            Some(0) => Self::Http10,
            _ => Self::Http11,
        }
    }
}

#[cfg(test)]
mod tests;
