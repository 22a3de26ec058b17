//! The harness of the end-to-end tests: real binaries, real homes, real feeds, real signals.
//!
//! Every home, port and feed is of its own and ends with the test, also when the test fails.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod binaries;
mod command;
mod feed;
mod home;
mod proxy;
mod server;
mod wait;

pub use binaries::{Binaries, binaries};
pub use command::{Finished, Tool};
pub use feed::TestFeed;
pub use home::{Fault, TestHome};
pub use proxy::Proxy;
pub use server::{FileServer, Trick};
pub use wait::{PATIENCE, until, until_some};
