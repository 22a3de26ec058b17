//! `withdraw`.

use clap::Args;
use publisher::{Withdraw, Withdrawn, withdraw};
use staging::report::{Failure, Format};
use staging::version::PackageVersion;

use super::{Common, listed, print};

pub(super) const EXAMPLE: &str = "\
Example:
  rollproxy-publish withdraw --feed ./feed --keys ./keys --version 1.4.2 --instead 1.4.1
Hosts that have 1.4.2 keep it until a higher version is promoted, for they never go back by themselves.";

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
    /// What channels that offered it offer instead. Default: nothing, until the next promotion
    #[arg(long, value_name = "VERSION")]
    instead: Option<PackageVersion>,
}

impl Words {
    pub(super) fn run(self, format: Format) -> Result<(), Failure> {
        let what = Withdraw {
            version: self.version,
            target: self.target,
            instead: self.instead,
            validity: self.common.validity(),
        };
        let withdrawn = withdraw(&self.common.place(), &what)?;
        print(format, &withdrawn, &told(&withdrawn));
        Ok(())
    }
}

fn told(withdrawn: &Withdrawn) -> String {
    let mut lines = vec![format!(
        "withdrew {}: {}",
        withdrawn.version,
        listed(&withdrawn.targets)
    )];
    for after in &withdrawn.channels {
        let offers = after.offers.as_deref().unwrap_or("nothing");
        let barrier = match after.barrier_removed {
            true => ", and has lost that barrier",
            false => "",
        };
        lines.push(format!(
            "{} offers {offers} for {}{barrier}",
            after.channel, after.target
        ));
    }
    lines.push("Nothing refers to these files any more; remove them when you like:".to_owned());
    let files = withdrawn.files.iter();
    lines.extend(files.map(|file| format!("  {}", file.display())));
    lines.join("\n")
}
