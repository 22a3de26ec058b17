//! Brings signed releases of Rollproxy onto this host.

fn main() -> std::process::ExitCode {
    updater::cli::run(std::env::args_os())
}
