//! What is accepted, what is refused and how, and what goes on.

mod accepted;
mod answers;
mod onward;
mod refused;
mod refused_targets;

use super::*;
use crate::relay::framing::Framing;

/// The request that these bytes are, or why they are refused; they must be whole.
fn request<T>(bytes: &[u8], look: impl FnOnce(&RequestHead<'_>) -> T) -> Result<T, Refusal> {
    let mut slots = Slots::new();
    let head = RequestHead::parse(bytes, &mut slots)?;
    Ok(look(&head.expect("the head is whole")))
}

/// The answer that these bytes are, or why they are not believed; they must be whole.
fn answer<T>(
    bytes: &[u8],
    asked: Asked,
    look: impl FnOnce(&AnswerHead<'_>) -> T,
) -> Result<T, BadHead> {
    let mut slots = Slots::new();
    let head = AnswerHead::parse(bytes, &mut slots, asked)?;
    Ok(look(&head.expect("the head is whole")))
}
