//! What a package is and how it gets onto disk.
//!
//! Synchronous, and it knows nobody: launcher, updater and proxy all stand on it. The way of a release through
//! this crate is [`archive`] (policy while unpacking) into a [`stage`] folder, [`validate`], [`publish`], and at last
//! [`selection`]; who may take a step is decided by [`locks`] and [`ownership`], what was done is told by [`journal`].

#[cfg(not(target_os = "linux"))]
compile_error!("Rollproxy runs on Linux only: it relies on pidfds, SCM_RIGHTS and /proc");
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("Rollproxy is built for x86_64 and aarch64 only");

pub mod archive;
pub mod clock;
pub mod contents;
pub mod delta;
pub mod digest;
pub mod document;
mod elf;
pub mod files;
pub mod home;
pub mod journal;
pub mod launch;
pub mod litter;
pub mod locks;
pub mod manifest;
pub mod node;
pub mod ownership;
pub mod pack;
pub mod package;
pub mod policy;
pub mod process;
pub mod protocol;
pub mod publish;
pub mod report;
pub mod retention;
#[cfg(test)]
mod scratch;
pub mod selection;
pub mod share;
pub mod space;
pub mod stage;
pub mod update_state;
pub mod validate;
pub mod version;

pub use protocol::{CHANNEL_PROTOCOL, STATE_PROTOCOL, TARGET};

/// The commit this build was made from, or `unknown` where neither git nor `ROLLPROXY_COMMIT` told.
pub const COMMIT: &str = env!("ROLLPROXY_COMMIT");
