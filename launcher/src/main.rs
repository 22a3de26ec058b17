//! Starts the selected Rollproxy package; installed once, and reached by three names.

mod args;
mod install;
mod list;
mod select;
mod start;
mod version;

use std::ffi::OsString;
use std::process::ExitCode;

use args::Command;
use staging::home::Home;
use staging::report::{self, Exit, Failure, Format};

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_default();
    let args: Vec<OsString> = args.collect();
    // Asked most often, and by scripts: answered before anything else is looked at.
    if let Some(Command::Version { entry, verbose }) = args::version(&name, &args) {
        return report::finish(version::run(entry, verbose), Format::Text);
    }
    match args::parse(&name, &args) {
        Ok(command) => run(command, &args),
        Err(misuse) => {
            let format = misuse.format;
            report::finish(Err(misuse.into()), format)
        }
    }
}

fn run(command: Command, args: &[OsString]) -> ExitCode {
    match command {
        Command::Version { entry, verbose } => {
            report::finish(version::run(entry, verbose), Format::Text)
        }
        Command::Help => {
            report::line(args::HELP.trim_end());
            ExitCode::SUCCESS
        }
        Command::Start { entry } => {
            let never =
                home().and_then(|home| start::run(&home, entry, args).map(|never| match never {}));
            if args.iter().any(|arg| arg == "--help" || arg == "-h") {
                // Whoever asks for help before anything can be started gets ours.
                report::note(args::HELP.trim_end());
            }
            report::finish(never, Format::Text)
        }
        Command::Select { which, format } => report::finish(
            home().and_then(|home| select::run(&home, &which, format)),
            format,
        ),
        Command::List { format } => {
            report::finish(home().and_then(|home| list::run(&home, format)), format)
        }
        Command::Install { options, format } => {
            report::finish(install::run(&options, args, format), format)
        }
        Command::Which { entry, format } => report::finish(
            home().and_then(|home| start::which(&home, &entry, format)),
            format,
        ),
    }
}

/// The home that the environment names.
fn home() -> Result<Home, Failure> {
    Ok(Home::from_env(&|name| std::env::var_os(name))?)
}

/// Done, whatever was printed.
const DONE: Result<Exit, Failure> = Ok(Exit::Done);
