//! Rollproxy: a reverse proxy for LLM APIs that updates itself without cutting a stream.
//!
//! The rooms, and which way the arrows go, are in ARCHITECTURE.md.

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!("Rollproxy runs on Linux (kernel 5.10 or later) on x86_64 and aarch64 only");

pub mod channel;
pub mod cli;
pub mod clock;
pub mod config;
pub mod descriptors;
pub mod gateway;
pub mod relay;
pub mod supervisor;
pub mod telemetry;
pub mod worker;

/// The version this build was compiled as; outside a package it is the version.
pub const COMPILED_VERSION: &str = env!("CARGO_PKG_VERSION");
