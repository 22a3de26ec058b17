//! The process that owns the port and serves no HTTP.
//!
//! `rollout` decides, pure; `run` waits and hands out; `act` carries out effects; `handoff` moves
//! sockets; `requests` checks what people and jobs ask for; `api` is the control socket.

mod act;
mod api;
mod clerk;
mod client;
mod error;
mod handoff;
pub mod handover;
mod held;
mod link;
mod listener;
mod listening;
mod liveness;
mod on_event;
mod origin;
mod process;
mod queue;
mod record;
mod requests;
pub mod rollout;
mod rollouts;
mod run;
mod service_manager;
mod signals;
#[cfg(test)]
mod simulation;
mod snapshot;
mod start;
mod state;
mod status;
mod stop;
mod stopping;
mod switchboard;
mod transfer;

pub use error::SupervisorError;
pub use origin::RUNS_AS;
pub use signals::Blocked;
pub use start::{LeftOpen, serve};
