//! `verify`.

use std::path::PathBuf;

use clap::Args;
use publisher::{Verified, Verify, verify};
use staging::report::{Failure, Format};

use super::print;

pub(super) const EXAMPLE: &str = "\
Example:
  rollproxy-publish verify --feed ./feed --unpack --patches
Needs no key. Exits 1 and names the first file that is not as it should be.";

#[derive(Debug, Args)]
pub(super) struct Words {
    /// The folder that is served to hosts
    #[arg(long, value_name = "DIR")]
    feed: PathBuf,
    /// The SHA-256 that the first root must have
    #[arg(long, value_name = "DIGEST")]
    sha256: Option<String>,
    /// Warn of what expires within so many days
    #[arg(long, value_name = "DAYS", default_value_t = publisher::WARN_DAYS, value_parser = clap::value_parser!(u32).range(0..=36500))]
    warn_days: u32,
    /// Unpack every archive that a channel names, as hosts do
    #[arg(long)]
    unpack: bool,
    /// Apply every patch whose archives are in the feed
    #[arg(long)]
    patches: bool,
}

impl Words {
    pub(super) fn run(self, format: Format) -> Result<(), Failure> {
        let how = Verify {
            warn_days: self.warn_days,
            root_sha256: self.sha256,
            unpack: self.unpack,
            patches: self.patches,
            ..Verify::default()
        };
        let verified = verify(&self.feed, &how)?;
        print(format, &verified, &told(&verified));
        Ok(())
    }
}

fn told(verified: &Verified) -> String {
    let mut lines = Vec::new();
    for offered in &verified.channels {
        lines.push(format!(
            "{} offers {} for {}",
            offered.channel, offered.version, offered.target
        ));
    }
    for warning in &verified.warnings {
        lines.push(format!(
            "warning: {} expires {}",
            warning.file.display(),
            warning.expires
        ));
    }
    lines.push(format!(
        "the feed is whole: root {}, {} ({} unpacked), {} ({} applied); it expires {}",
        verified.root,
        counted(verified.archives, "archive", "archives"),
        verified.unpacked,
        counted(verified.patches, "patch", "patches"),
        verified.applied,
        verified.expires
    ));
    lines.join("\n")
}

fn counted(count: usize, one: &str, many: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {many}"),
    }
}
