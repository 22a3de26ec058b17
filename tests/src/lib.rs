//! The harness of the end-to-end tests: real binaries, real homes, real feeds, real signals.
//!
//! Every home, port and feed is of its own and ends with the test, also when the test fails.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod archive;
mod binaries;
mod by_hand;
mod check;
mod command;
mod feed;
mod home;
pub mod machine;
pub mod process;
mod proxy;
mod request;
mod server;
mod terminal;
pub mod tracing;
mod traffic;
mod wait;

pub use archive::{Pack, signed_for, tiny};
pub use binaries::{Binaries, binaries};
pub use by_hand::{ByHand, connection};
pub use check::{Check, Standing};
pub use command::{Finished, Tool};
pub use feed::TestFeed;
pub use home::TestHome;
pub use proxy::{Proxy, Starting};
pub use request::{by_job, by_person, same_version};
pub use server::{FileServer, Trick};
pub use terminal::Terminal;
pub use traffic::{Asked, HeldStream, ask, ask_soon};
pub use wait::{PATIENCE, until, until_some};
