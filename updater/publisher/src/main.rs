//! `rollproxy-publish`: makes a feed, adds releases to it, and promotes them.

mod cli;

use std::process::ExitCode;

use clap::Parser;
use staging::report::{Exit, finish};

fn main() -> ExitCode {
    match cli::Cli::try_parse() {
        Ok(cli) => {
            let format = cli.format();
            finish(cli.run().map(|()| Exit::Done), format)
        }
        Err(error) => {
            // Help and version are answers, not mistakes; a reader that went away is neither.
            let asked = !error.use_stderr();
            let _ = error.print();
            if asked {
                ExitCode::SUCCESS
            } else {
                Exit::Usage.into()
            }
        }
    }
}
