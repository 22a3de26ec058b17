//! The pure parts, for the fuzz targets in `fuzz/` at the top of the repository. Nobody else looks here.

pub use super::chunked::{BadChunk, Chunked};
pub use super::framing::{BadBody, Body, Cut, Framing};
pub use super::head::{
    AnswerHead, Asked, Back, BadHead, FIELD_LIMIT, Fields, Flaw, HEAD_LIMIT, Onward, Refusal,
    RequestHead, Slots, Target, Version,
};

#[cfg(test)]
mod tests;
