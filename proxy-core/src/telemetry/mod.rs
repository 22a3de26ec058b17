//! Logs. Metrics and traces come with their own issue.

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Starts logging to standard error. `ROLLPROXY_LOG` chooses what is logged (`debug`,
/// `rollproxy=trace,info`, …); default, and in place of what cannot be understood, `info`.
pub fn start_logging() {
    use std::io::IsTerminal;
    let wanted = std::env::var("ROLLPROXY_LOG")
        .ok()
        .and_then(|text| text.parse::<Targets>().ok())
        .unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let lines = tracing_subscriber::fmt::layer()
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    // A second start (in tests) keeps the first: there is one standard error.
    let _ = tracing_subscriber::registry()
        .with(lines)
        .with(wanted)
        .try_init();
}
