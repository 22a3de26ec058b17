//! `rollproxy`: supervisor, worker, and the commands that talk to them.

fn main() -> std::process::ExitCode {
    rollproxy::cli::main()
}
