//! What the command line says.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use harness::machine;

pub const USAGE: &str = "cargo bench -p rollproxy-tests --bench rollouts -- [OPTIONS]
  --quick                everything small and short: does it work at all?
  --rounds N             how many interleaved rounds (5)
  --only A,B             of crowd, restart, memory, freeze, hand-off
  --calm SECONDS         how long a part, or a sample of the hand-off, may wait while others use the machine (0)
  --json FILE            every figure";

pub struct Options {
    pub quick: bool,
    pub rounds: usize,
    only: Vec<String>,
    calm: Duration,
    pub json: Option<PathBuf>,
}

impl Options {
    /// What cargo itself adds is skipped.
    pub fn read(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            quick: false,
            rounds: 0,
            only: Vec::new(),
            calm: Duration::ZERO,
            json: None,
        };
        let mut arguments = arguments.filter(|argument| argument != "--bench");
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--quick" => options.quick = true,
                "--rounds" => options.rounds = number(&value()?)?,
                "--calm" => options.calm = Duration::from_secs(number(&value()?)?),
                "--only" => options.only = value()?.split(',').map(str::to_owned).collect(),
                "--json" => options.json = Some(value()?.into()),
                other => return Err(format!("{other} is not known")),
            }
        }
        if options.rounds == 0 {
            options.rounds = options.pick(5, 1);
        }
        Ok(options)
    }

    /// Waits for a quiet moment, as long as it may.
    pub fn wait_for_calm(&self) {
        machine::wait_for_calm(cores(), Instant::now() + self.calm);
    }

    pub fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == part)
    }

    /// The one number or, where it is only to be seen whether it works, the other.
    pub fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}
