//! The control API: what crosses `run/control.sock`, and a blocking client for it.
//!
//! The supervisor serves these types; the launcher, the updater and `rollproxy`'s own commands read them.
//! Two versions always meet here, so unknown fields are ignored and absent counters are zero.

pub mod client;
pub mod error;
mod follow;
pub mod http;
pub mod supervisor;
pub mod types;
pub mod watch;

pub use client::{Client, Deadlines};
pub use error::ControlError;
pub use types::{
    By, DrainAnswer, DrainRequest, ErrorBody, Held, HeldStream, Line, Outcome, Place, PlaceName,
    Probation, Rolling, RolloutRecord, RolloutRequest, Status, Step, StreamKind, Streams, Verdict,
};
pub use watch::News;
