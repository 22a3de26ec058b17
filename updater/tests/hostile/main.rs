//! The updater where nothing is kind to it: killed before each of its calls that change files, and on hosts that are
//! full, read-only, foreign or odd. The product knows nothing of these tests; the kernel stops it for them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests are tests
#![allow(missing_docs)]

mod calls;
mod durability;
mod environment;
mod kill_points;
mod ownership;
mod program;
mod space;
mod supervisor;
mod tracer;
mod world;
