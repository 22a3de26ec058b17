//! What the command line says.

use std::path::PathBuf;

pub const USAGE: &str = "cargo bench -p rollproxy-tests --bench rollouts -- [OPTIONS]
  --quick                everything small and short: does it work at all?
  --rounds N             how many interleaved rounds (5)
  --only A,B             of crowd, restart, memory, freeze, hand-off
  --json FILE            every figure";

pub struct Options {
    pub quick: bool,
    pub rounds: usize,
    only: Vec<String>,
    pub json: Option<PathBuf>,
}

impl Options {
    /// What cargo itself adds is skipped.
    pub fn read(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut quick, mut rounds, mut only, mut json) = (false, None, Vec::new(), None);
        let mut arguments = arguments.filter(|argument| argument != "--bench");
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--quick" => quick = true,
                "--rounds" => {
                    let text = value()?;
                    rounds = Some(text.parse().map_err(|_| format!("{text} is no number"))?);
                }
                "--only" => only = value()?.split(',').map(str::to_owned).collect(),
                "--json" => json = Some(value()?.into()),
                other => return Err(format!("{other} is not known")),
            }
        }
        Ok(Self {
            quick,
            rounds: rounds.unwrap_or(if quick { 1 } else { 5 }),
            only,
            json,
        })
    }

    pub fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == part)
    }

    /// The one number or, where it is only to be seen whether it works, the other.
    pub fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}
