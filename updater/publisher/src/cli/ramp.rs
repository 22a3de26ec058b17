//! `ramp`.

use std::time::Duration;

use clap::Args;
use publisher::{Ramp, Ramped, SetRamp, ramp};
use staging::report::{Failure, Format};
use staging::version::PackageVersion;

use super::{Common, listed, print, span};

pub(super) const EXAMPLE: &str = "\
Example:
  rollproxy-publish ramp --feed ./feed --keys ./keys --version 1.4.2 --share 10 --over 24h
Ten percent of hosts take it now, all of them a day later. To hold it back from hosts that have not taken it yet, and to let
all of them take it at once:
  rollproxy-publish ramp --feed ./feed --keys ./keys --version 1.4.2 --share 0 --over 24h --start 2100-01-01T00:00:00Z
  rollproxy-publish ramp --feed ./feed --keys ./keys --version 1.4.2 --off";

/// How a version reaches hosts.
#[derive(Debug, Args)]
pub(super) struct Share {
    /// The share of hosts that take it at the start, in percent
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100), requires = "over")]
    pub(super) share: Option<u8>,
    /// How long after the start all hosts take it, such as 90m, 24h or 7d
    #[arg(long, value_name = "TIME", value_parser = span::parse, requires = "share")]
    over: Option<Duration>,
    /// When it starts, RFC 3339; before that no host takes it. Default: now
    #[arg(long, value_name = "TIME", requires = "share")]
    start: Option<jiff::Timestamp>,
}

impl Share {
    pub(super) fn start(&self) -> jiff::Timestamp {
        self.start.unwrap_or_else(jiff::Timestamp::now)
    }

    pub(super) fn over(&self) -> Duration {
        self.over.unwrap_or_default()
    }
}

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
    #[command(flatten)]
    share: Share,
    /// End the ramp: every host takes it at once
    #[arg(long, conflicts_with = "share", required_unless_present = "share")]
    off: bool,
}

impl Words {
    pub(super) fn run(self, format: Format) -> Result<(), Failure> {
        let set = match self.share.share {
            Some(share) => Some(Ramp::new(self.share.start(), share, self.share.over())?),
            None => None,
        };
        let what = SetRamp {
            version: self.version,
            target: self.target,
            ramp: set,
            validity: self.common.validity(),
        };
        let ramped = ramp(&self.common.place(), &what)?;
        print(format, &ramped, &told(&ramped));
        Ok(())
    }
}

fn told(ramped: &Ramped) -> String {
    let how = match &ramped.ramp {
        Some(ramp) => format!(
            "{}% of hosts take {} from {} on, all of them {} later",
            ramp.share,
            ramped.version,
            ramp.start,
            span::shown(ramp.duration_ms / 1000),
        ),
        None => format!("every host takes {} as soon as it looks", ramped.version),
    };
    format!("{how}: {}", listed(&ramped.archives))
}
