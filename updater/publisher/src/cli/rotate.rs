//! `rotate`.

use std::path::PathBuf;

use clap::Args;
use publisher::{KeyRole, ROOT_DAYS, Rotate, Rotated, rotate};
use staging::report::{Failure, Format};

use super::{Common, print};

pub(super) const EXAMPLE: &str = "\
Example:
  rollproxy-publish rotate --feed ./feed --keys ./keys --root-keys-dir ./root-keys --role targets
  rollproxy-publish rotate --feed ./feed --keys ./keys --root-keys-dir ./root-keys --role root --lost root-2.pk8
  rollproxy-publish rotate --feed ./feed --keys ./keys --role channel-stable
The new root is signed by the keys of the one before it, two of three unless init was told otherwise: the lost one need not be
there. Hosts follow by themselves. A rotation that was cut short is completed by the same command.";

#[derive(Debug, Args)]
pub(super) struct Words {
    #[command(flatten)]
    common: Common,
    /// root, targets, snapshot, timestamp or channel-NAME; several with commas
    #[arg(long, value_name = "ROLE", value_delimiter = ',', required = true)]
    role: Vec<KeyRole>,
    /// The one key of the root to replace, which need not be there. Default: all keys of the root
    #[arg(long, value_name = "KEYFILE", conflicts_with_all = ["root_keys", "root_threshold"])]
    lost: Option<PathBuf>,
    /// A folder of the root's keys; may be given several times. Default: the one of --keys
    #[arg(long, value_name = "DIR")]
    root_keys_dir: Vec<PathBuf>,
    /// How many keys the root has from now on. Default: as many as before
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=32))]
    root_keys: Option<u8>,
    /// How many of them must sign from now on. Default: as many as before
    #[arg(long, value_name = "N")]
    root_threshold: Option<u8>,
    /// Days until the new root expires
    #[arg(long, value_name = "DAYS", default_value_t = ROOT_DAYS, value_parser = clap::value_parser!(u32).range(1..=36500))]
    root_expires_days: u32,
}

impl Words {
    pub(super) fn run(self, format: Format) -> Result<(), Failure> {
        let how = Rotate {
            lost: self.lost,
            root_keys: self.root_keys,
            root_threshold: self.root_threshold,
            root_days: self.root_expires_days,
            validity: self.common.validity(),
            ..Rotate::new(self.role)
        };
        let place = self.common.place().with_root_keys(&self.root_keys_dir);
        let rotated = rotate(&place, &how)?;
        print(format, &rotated, &told(&rotated));
        Ok(())
    }
}

fn told(rotated: &Rotated) -> String {
    let mut lines = Vec::new();
    for key in &rotated.keys {
        let old = match &key.retired {
            Some(retired) => format!("; the old one is now {}", retired.display()),
            None => "; the old one was not there".to_owned(),
        };
        lines.push(format!("new key {}{old}", key.file.display()));
    }
    if !rotated.channels_left.is_empty() {
        lines.push(format!(
            "not rotated: {}; if their keys were with the others, rotate them, too",
            rotated.channels_left.join(", ")
        ));
    }
    lines.push(format!(
        "the newest root is {} (sha256 {}); hosts that pinned an earlier one follow by themselves",
        rotated.root.display(),
        rotated.root_sha256
    ));
    lines.push(format!("the feed expires {}", rotated.expires));
    lines.push("Back the new keys up, and destroy the old ones.".to_owned());
    lines.join("\n")
}
