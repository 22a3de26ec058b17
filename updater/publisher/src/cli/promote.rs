//! `promote`.

use clap::Args;
use publisher::{Promote, Promoted, promote};
use staging::report::{Failure, Format};
use staging::version::PackageVersion;

use super::{Common, listed, print};

pub(super) const EXAMPLE: &str = "\
Example:
  rollproxy-publish promote --feed ./feed --keys ./keys --channel stable --version 1.4.2
The first promotion of a channel makes its key, and takes the key of targets; later ones take the keys of the channel, of
snapshot and of timestamp.";

#[derive(Debug, Args)]
pub(super) struct Words {
    #[command(flatten)]
    common: Common,
    /// The channel, such as stable
    #[arg(long, value_name = "NAME")]
    channel: String,
    /// The version it shall offer
    #[arg(long, value_name = "VERSION")]
    version: PackageVersion,
    /// The target triple
    #[arg(long, value_name = "TRIPLE", default_value = staging::TARGET)]
    target: String,
    /// What people should know; default: what was said when it was added
    #[arg(long, value_name = "TEXT")]
    notes: Option<String>,
}

impl Words {
    pub(super) fn run(self, format: Format) -> Result<(), Failure> {
        let what = Promote {
            target: self.target,
            notes: self.notes,
            validity: self.common.validity(),
            ..Promote::new(&self.channel, self.version)
        };
        let promoted = promote(&self.common.place(), &what)?;
        print(format, &promoted, &told(&promoted, &self.common));
        Ok(())
    }
}

fn told(promoted: &Promoted, common: &Common) -> String {
    let before = match &promoted.before {
        Some(before) if *before != promoted.version => format!(", before {before}"),
        _ => String::new(),
    };
    let mut text = format!(
        "{} offers {}{before}; the feed expires {}",
        promoted.channel, promoted.version, promoted.expires
    );
    if !promoted.barriers.is_empty() {
        text.push_str(&format!("\nbarriers: {}", listed(&promoted.barriers)));
    }
    if promoted.new_channel {
        text.push_str(&format!(
            "\nThe channel is new: its key is {}",
            common
                .keys
                .join(format!("channel-{}.pk8", promoted.channel))
                .display()
        ));
    }
    text
}
