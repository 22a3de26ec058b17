//! Logs. Metrics and traces come with their own issue.

/// Starts logging to standard error. `ROLLPROXY_LOG` chooses what is logged (`debug`, `rollproxy=trace`, …); default `info`.
pub fn start_logging() {
    use std::io::IsTerminal;
    let filter = tracing_subscriber::EnvFilter::try_from_env("ROLLPROXY_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    // A second start (in tests) keeps the first: there is one standard error.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .try_init();
}
