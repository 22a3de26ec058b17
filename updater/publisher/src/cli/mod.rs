//! The command line: words in, one outcome out. A file a command.

mod add;
mod barrier;
mod dead_end;
mod init;
mod promote;
mod ramp;
mod refresh;
mod rotate;
mod span;
mod verify;
mod withdraw;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use publisher::{METADATA_DAYS, Place, Validity};
use serde::Serialize;
use staging::report::{Failure, Format, line};

/// Makes signed feeds of Rollproxy releases.
///
/// A feed is a folder for any static file server; the keys that sign it stay in other folders.
#[derive(Debug, Parser)]
#[command(
    name = "rollproxy-publish",
    version,
    after_help = "\
Example:
  rollproxy-publish init    --feed ./feed --keys ./keys --root-keys-dir ./root-keys
  rollproxy-publish add     --feed ./feed --keys ./keys --version 1.4.2 --bin-dir target/release
  rollproxy-publish promote --feed ./feed --keys ./keys --channel stable --version 1.4.2"
)]
pub struct Cli {
    /// How the outcome is printed: text or json
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text")]
    format: Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make the keys, the root of trust and an empty feed
    #[command(after_help = init::EXAMPLE)]
    Init(init::Words),
    /// Pack one version and sign it into the feed
    #[command(after_help = add::EXAMPLE)]
    Add(Box<add::Words>),
    /// Make a channel offer a version that was added
    #[command(after_help = promote::EXAMPLE)]
    Promote(promote::Words),
    /// Let a version reach hosts share by share
    #[command(after_help = ramp::EXAMPLE)]
    Ramp(ramp::Words),
    /// Make older hosts run a version before they go further
    #[command(after_help = barrier::EXAMPLE)]
    Barrier(barrier::Words),
    /// Let no update lead on from a version without a person
    #[command(after_help = dead_end::EXAMPLE)]
    DeadEnd(dead_end::Words),
    /// Take a version out of the feed and of every channel
    #[command(after_help = withdraw::EXAMPLE)]
    Withdraw(withdraw::Words),
    /// Sign the feed anew before it expires; for cron
    #[command(after_help = refresh::EXAMPLE)]
    Refresh(refresh::Words),
    /// Put new keys in the place of lost, stolen or old ones
    #[command(after_help = rotate::EXAMPLE)]
    Rotate(rotate::Words),
    /// Read the whole feed as a careful host would
    #[command(after_help = verify::EXAMPLE)]
    Verify(verify::Words),
}

/// What nearly every command is told.
#[derive(Debug, Args)]
struct Common {
    /// The folder that is served to hosts
    #[arg(long, value_name = "DIR")]
    feed: PathBuf,
    /// The folder of the private keys, outside of the feed
    #[arg(long, value_name = "DIR")]
    keys: PathBuf,
    /// Days until the signed metadata expire
    #[arg(long, value_name = "DAYS", default_value_t = METADATA_DAYS, value_parser = clap::value_parser!(u32).range(1..=36500))]
    expires_days: u32,
}

impl Common {
    fn place(&self) -> Place {
        Place::new(&self.feed, &self.keys)
    }

    fn validity(&self) -> Validity {
        Validity {
            days: self.expires_days,
            ..Validity::default()
        }
    }
}

impl Cli {
    /// How the outcome is printed.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Does what was asked for and prints the outcome.
    pub fn run(self) -> Result<(), Failure> {
        let format = self.format;
        match self.command {
            Command::Init(words) => words.run(format),
            Command::Add(words) => words.run(format),
            Command::Promote(words) => words.run(format),
            Command::Ramp(words) => words.run(format),
            Command::Barrier(words) => words.run(format),
            Command::DeadEnd(words) => words.run(format),
            Command::Withdraw(words) => words.run(format),
            Command::Refresh(words) => words.run(format),
            Command::Rotate(words) => words.run(format),
            Command::Verify(words) => words.run(format),
        }
    }
}

fn print(format: Format, outcome: &impl Serialize, text: &str) {
    match format {
        Format::Text => line(text),
        // A struct of strings and numbers always serialises; an empty line would be noticed.
        Format::Json => line(&serde_json::to_string(outcome).unwrap_or_default()),
    }
}

/// A list for people.
fn listed(all: &[String]) -> String {
    match all {
        [] => "none".to_owned(),
        all => all.join(", "),
    }
}
