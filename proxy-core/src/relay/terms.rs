//! What one exchange is about, for whoever answers it.

use super::framing::Framing;
use super::head::Asked;
use crate::gateway::answers::Shape;

/// What the two sides of a client's connection agreed on for one exchange.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// How many bytes the head has.
    pub(super) head: usize,
    pub(super) framing: Framing,
    pub(super) asked: Asked,
    /// The client is older than HTTP/1.1: no chunks, no interim answers.
    pub(super) is_old: bool,
    /// Whether the client wants the connection to go on.
    pub(super) persistent: bool,
    /// The client waits for our word before it sends its body.
    pub(super) expects_continue: bool,
    /// How an error of ours must look.
    pub(super) shape: Shape,
}
