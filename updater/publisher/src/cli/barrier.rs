//! `barrier`.

use clap::Args;
use publisher::{Barrier, barrier};
use staging::report::{Failure, Format};
use staging::version::PackageVersion;

use super::{Common, listed, print};

pub(super) const EXAMPLE: &str = "\
Example:
  rollproxy-publish barrier --feed ./feed --keys ./keys --channel stable --version 1.4.2
Hosts that run less than 1.4.2 take 1.4.2 before anything later, also after the next promotions.";

#[derive(Debug, Args)]
pub(super) struct Words {
    #[command(flatten)]
    common: Common,
    /// The channel, such as stable
    #[arg(long, value_name = "NAME")]
    channel: String,
    /// The version that is the barrier
    #[arg(long, value_name = "VERSION")]
    version: PackageVersion,
    /// One target triple. Default: every one the channel offers something for
    #[arg(long, value_name = "TRIPLE")]
    target: Option<String>,
    /// Take the barrier away
    #[arg(long)]
    remove: bool,
}

impl Words {
    pub(super) fn run(self, format: Format) -> Result<(), Failure> {
        let what = Barrier {
            channel: self.channel,
            version: self.version,
            target: self.target,
            remove: self.remove,
            validity: self.common.validity(),
        };
        let set = barrier(&self.common.place(), &what)?;
        let lines: Vec<_> = set
            .barriers
            .iter()
            .map(|triple| {
                format!(
                    "barriers of {} for {}: {}",
                    set.channel,
                    triple.target,
                    listed(&triple.barriers)
                )
            })
            .collect();
        print(format, &set, &lines.join("\n"));
        Ok(())
    }
}
