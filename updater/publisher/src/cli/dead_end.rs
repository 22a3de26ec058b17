//! `dead-end`.

use clap::Args;
use publisher::{DeadEnd, dead_end};
use staging::report::{Failure, Format};
use staging::version::PackageVersion;

use super::{Common, listed, print};

pub(super) const EXAMPLE: &str = "\
Example:
  rollproxy-publish dead-end --feed ./feed --keys ./keys --version 1.4.2 --reason 'Convert the state by hand: see URL'
Hosts that run it show the reason and take no update by themselves, until:
  rollproxy-publish dead-end --feed ./feed --keys ./keys --version 1.4.2 --remove";

#[derive(Debug, Args)]
pub(super) struct Words {
    #[command(flatten)]
    common: Common,
    /// The version
    #[arg(long, value_name = "VERSION")]
    version: PackageVersion,
    /// One target triple. Default: every one the version was added for
    #[arg(long, value_name = "TRIPLE")]
    target: Option<String>,
    /// Why, and what a person has to do
    #[arg(
        long,
        value_name = "TEXT",
        required_unless_present = "remove",
        conflicts_with = "remove"
    )]
    reason: Option<String>,
    /// It is no dead end any more
    #[arg(long)]
    remove: bool,
}

impl Words {
    pub(super) fn run(self, format: Format) -> Result<(), Failure> {
        let what = DeadEnd {
            version: self.version,
            target: self.target,
            reason: self.reason,
            validity: self.common.validity(),
        };
        let set = dead_end(&self.common.place(), &what)?;
        let how = match &set.dead_end {
            Some(reason) => format!("{} is a dead end: {reason}", set.version),
            None => format!("{} is no dead end", set.version),
        };
        print(format, &set, &format!("{how} ({})", listed(&set.archives)));
        Ok(())
    }
}
