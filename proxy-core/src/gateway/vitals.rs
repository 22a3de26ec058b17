//! What the gateway asks of the process around it.

/// The vital signs of this process, read anew for each question; never blocks.
pub trait Vitals: Send + Sync {
    /// Whether new requests should be sent here.
    fn ready(&self) -> bool;
    /// What `/status` shows: a JSON object with camelCase keys.
    fn status(&self) -> serde_json::Value;
}
