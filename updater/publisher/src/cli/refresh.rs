//! `refresh`.

use clap::Args;
use publisher::{Refresh, refresh, refresh_all};
use staging::report::{Failure, Format};

use super::{Common, listed, print};

pub(super) const EXAMPLE: &str = "\
Example:
  rollproxy-publish refresh --feed ./feed --keys ./timestamp-key --expires-days 7
Takes the key of timestamp alone. What else expires within 30 days is signed, too, if the keys of its role and of snapshot
are there; it then holds for 90 days at least. A root is signed anew by `rotate --role root`.";

#[derive(Debug, Args)]
pub(super) struct Words {
    #[command(flatten)]
    common: Common,
    /// Sign everything but the root, not only what expires soon
    #[arg(long)]
    all: bool,
}

impl Words {
    pub(super) fn run(self, format: Format) -> Result<(), Failure> {
        let how = Refresh {
            validity: self.common.validity(),
        };
        let place = self.common.place();
        let refreshed = match self.all {
            true => refresh_all(&place, &how)?,
            false => refresh(&place, &how)?,
        };
        let mut lines = vec![format!(
            "signed anew: {}; the feed expires {}",
            listed(&refreshed.signed),
            refreshed.expires
        )];
        for waiting in &refreshed.waiting {
            let mend = match waiting.role.as_str() {
                "root" => "rotate --role root",
                _ => "refresh --all",
            };
            lines.push(format!(
                "warning: {} expires {} and was not signed here: run `rollproxy-publish {mend}` where its keys are",
                waiting.role, waiting.expires
            ));
        }
        print(format, &refreshed, &lines.join("\n"));
        Ok(())
    }
}
