//! The wire between a supervisor and one worker: a closed vocabulary, and datagrams that carry sockets.
//!
//! One JSON object a datagram on a `SOCK_SEQPACKET` pair, at most one descriptor with it. Two
//! versions always meet here, so unknown fields are ignored and whatever cannot be understood is
//! dropped and counted, never guessed.

mod message;
mod transport;

pub use message::{
    Addressee, Blame, Dropped, Id, MAX_DATAGRAM, ToSupervisor, ToWorker, decode, encode,
};
pub use transport::{Channel, Datagram, SendFailure, pair};
