//! `init`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use publisher::{Init, ROOT_DAYS, ROOT_KEYS, ROOT_THRESHOLD, init};
use staging::report::{Failure, Format};

use super::{Common, print};

pub(super) const EXAMPLE: &str = "\
Example:
  rollproxy-publish init --feed ./feed --keys ./keys --root-keys-dir ./root-keys
Prints the root's digest, which hosts need:
  rollproxy-updater init --feed URL --root URL/metadata/root.json --sha256 DIGEST";

#[derive(Debug, Args)]
pub(super) struct Words {
    #[command(flatten)]
    common: Common,
    /// How many keys the root has
    #[arg(long, value_name = "N", default_value_t = ROOT_KEYS, value_parser = clap::value_parser!(u8).range(1..=32))]
    root_keys: u8,
    /// How many of them must sign a new root
    #[arg(long, value_name = "N", default_value_t = ROOT_THRESHOLD)]
    root_threshold: u8,
    /// A folder for the root's keys, to be kept offline; several take turns. Default: the one of --keys
    #[arg(long, value_name = "DIR")]
    root_keys_dir: Vec<PathBuf>,
    /// Days until the root of trust expires
    #[arg(long, value_name = "DAYS", default_value_t = ROOT_DAYS, value_parser = clap::value_parser!(u32).range(1..=36500))]
    root_expires_days: u32,
}

impl Words {
    pub(super) fn run(self, format: Format) -> Result<(), Failure> {
        let how = Init {
            root_keys: self.root_keys,
            root_threshold: self.root_threshold,
            root_days: self.root_expires_days,
            validity: self.common.validity(),
        };
        let place = self.common.place().with_root_keys(&self.root_keys_dir);
        let made = init(&place, &how)?;
        let keys: Vec<_> = made
            .root_keys
            .iter()
            .map(|key| key.display().to_string())
            .collect();
        let folders: BTreeSet<_> = made.root_keys.iter().map(|key| key.parent()).collect();
        let together = match self.root_keys_dir.len() > 1 && folders.len() < made.root_keys.len() {
            true => {
                "\nwarning: there are fewer --root-keys-dir than keys of the root, so that some lie together"
            }
            false => "",
        };
        let text = format!(
            "made {}\nroot    {}\nsha256  {}\nexpires {} (root {})\n\
             The root is signed by {} of {} keys: {}\n\
             Keep those offline and apart; back the others, in {}, up. Whoever has them can release.{together}",
            self.common.feed.display(),
            made.root.display(),
            made.root_sha256,
            made.expires,
            made.root_expires,
            made.root_threshold,
            made.root_keys.len(),
            keys.join(" "),
            self.common.keys.display(),
        );
        print(format, &made, &text);
        Ok(())
    }
}
