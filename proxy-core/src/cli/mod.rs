//! The command line. One file a sub-command; each is thin.

mod demo;
mod drain;
mod picture;
mod restart;
mod serve;
mod status;
mod watch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use staging::home::Home;
use staging::report::{Exit, Failure, Format, finish, line};

use crate::supervisor::{self, handover::Handed};

/// A reverse proxy for LLM APIs that updates itself without cutting a stream.
#[derive(Debug, Parser)]
#[command(
    name = "rollproxy",
    disable_version_flag = true,
    arg_required_else_help = true,
    after_help = "Example:\n  rollproxy serve &\n  export ANTHROPIC_BASE_URL=http://127.0.0.1:8787\n  rollproxy status\n\n\
                  `select`, `list` and `which` belong to the launcher: `rollproxy-launcher --help`."
)]
struct Arguments {
    /// Print the version of the package this program stands in.
    #[arg(long)]
    version: bool,
    /// With --version: also the compiled version, the commit and the package's folder.
    #[arg(long, requires = "version")]
    verbose: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the supervisor: own the port, start a worker, roll when asked.
    #[command(after_help = "Example:\n  ROLLPROXY_HOME=~/.rollproxy rollproxy serve")]
    Serve {
        /// Go on as the supervisor whose state this descriptor holds (by the program before, never by hand).
        #[arg(long, hide = true, value_name = "FD")]
        resume: Option<i32>,
        /// The program before, to be executed again if the state cannot be taken over.
        #[arg(long, hide = true, value_name = "FD", requires = "resume")]
        back: Option<i32>,
        /// Why the other program gave the state back.
        #[arg(long, hide = true, requires = "resume", conflicts_with = "back")]
        came_back: Option<String>,
        /// Read the state that this descriptor holds, and change nothing.
        #[arg(long, hide = true, value_name = "FD", conflicts_with = "resume")]
        check_state: Option<i32>,
        /// A socket that was left open: its name and its descriptor.
        #[arg(long, hide = true, conflicts_with_all = ["resume", "check_state"])]
        given: Vec<supervisor::LeftOpen>,
    },
    /// Serve HTTP for a supervisor (started by it, never by hand).
    #[command(hide = true)]
    Worker {
        /// The number of this worker process.
        #[arg(long)]
        generation: u64,
    },
    /// Show who serves, who stands by and drains, and what the last rollout came to.
    #[command(
        after_help = "Examples:\n  rollproxy status\n  rollproxy status --watch\n  rollproxy status --streams --generation 4\n  rollproxy status --format json | jq .rolling\n\nExit codes: 0 shown, also when SIGINT ends --watch; 1 no supervisor runs (what it last was is shown)."
    )]
    Status {
        /// Go on showing it as it changes: in place on a terminal, else a block (JSON: a line) a change.
        #[arg(long, conflicts_with = "streams")]
        watch: bool,
        /// Show what holds each generation instead: age, kind, bytes, client, route.
        #[arg(long)]
        streams: bool,
        /// Only this generation.
        #[arg(long, requires = "streams")]
        generation: Option<u64>,
        /// `text` or `json`.
        #[arg(long, default_value = "text")]
        format: Format,
    },
    /// End a draining generation before its deadline; what it still serves is cut.
    #[command(
        after_help = "Asks before it cuts anything: at a terminal with a question, elsewhere by having to be run twice within a\nminute. Active, candidate and standby generations are refused.\n\nExamples:\n  rollproxy drain 4 --now\n  rollproxy drain 4 --now --yes\n\nExit codes: 0 the generation is gone, 1 refused (nothing changed), 2 told to end but not seen gone, 75 run it again to confirm."
    )]
    Drain {
        /// The generation's number, as `rollproxy status` shows it.
        generation: u64,
        /// Not when its streams have ended, but now.
        #[arg(long, required = true)]
        now: bool,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        /// `text` or `json`.
        #[arg(long, default_value = "text")]
        format: Format,
    },
    /// Replace the worker by a new generation, with the configuration as it now is.
    #[command(
        after_help = "Examples:\n  rollproxy restart\n  rollproxy restart --supervisor\n  rollproxy restart --supervisor --check\n\nExit codes: 0 kept or moved, 1 failed (nothing changed), 2 activated but not verified, 3 rolled back, 75 deferred or superseded."
    )]
    Restart {
        /// Roll to this installed version instead of the one that runs (selects it when kept).
        #[arg(long)]
        to: Option<String>,
        /// Replace the supervisor itself, in place, by the selected version (or the one of --to).
        #[arg(long)]
        supervisor: bool,
        /// Change nothing: show each condition for replacing the supervisor, and whether it holds.
        #[arg(long)]
        check: bool,
        /// `text` or `json` (a line a step, the verdict last).
        #[arg(long, default_value = "text")]
        format: Format,
    },
    /// Show the main job in a temporary home: streams that live through releases.
    #[command(after_help = "Example:\n  cargo run --release --bin rollproxy -- demo")]
    Demo {
        /// Print plain lines even on a terminal.
        #[arg(long)]
        plain: bool,
    },
}

/// Runs one command.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    if arguments.version {
        let report = staging::package::version_report(
            "rollproxy",
            crate::COMPILED_VERSION,
            staging::COMMIT,
            arguments.verbose,
        );
        line(&report);
        return Exit::Done.into();
    }
    match arguments.command {
        Some(Command::Serve {
            check_state: Some(state),
            ..
        }) => serve::check_state(state),
        Some(Command::Serve {
            resume: Some(state),
            back,
            came_back,
            ..
        }) => finish(
            serve::resume(&Handed {
                state,
                back,
                came_back,
            }),
            Format::Text,
        ),
        Some(Command::Serve { given, .. }) => finish(serve::supervisor(given), Format::Text),
        Some(Command::Worker { generation }) => finish(serve::worker(generation), Format::Text),
        Some(Command::Status {
            watch,
            streams,
            generation,
            format,
        }) => finish(
            match (watch, streams) {
                (true, _) => watch::watch(format),
                (false, true) => status::streams(generation, format),
                (false, false) => status::status(format),
            },
            format,
        ),
        Some(Command::Drain {
            generation,
            now: _,
            yes,
            format,
        }) => finish(drain::drain(generation, yes, format), format),
        Some(Command::Restart {
            to,
            check: true,
            format,
            ..
        }) => finish(restart::check(to.as_deref(), format), format),
        Some(Command::Restart {
            to,
            supervisor: true,
            format,
            ..
        }) => finish(restart::supervisor(to, format), format),
        Some(Command::Restart { to, format, .. }) => finish(restart::restart(to, format), format),
        Some(Command::Demo { plain }) => demo::demo(plain),
        // `arg_required_else_help` leaves only `--verbose` without `--version`, which clap refuses itself.
        None => Exit::Usage.into(),
    }
}

/// Help and usage errors, with the exit codes of DESIGN, section 8.
fn usage(error: &clap::Error) -> ExitCode {
    // A reader that went away is no failure.
    let _ = error.print();
    if error.use_stderr() {
        Exit::Usage.into()
    } else {
        Exit::Done.into()
    }
}

/// The home that the environment names.
fn home() -> Result<Home, Failure> {
    Ok(Home::from_env(&|name| std::env::var_os(name))?)
}
