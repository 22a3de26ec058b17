//! What the command line says.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::contestants::Name;

pub const USAGE: &str = "cargo bench -p rollproxy-tests --bench serving -- [OPTIONS]
  --quick                one short round, fewer streams: does it work at all?
  --rounds N             how many interleaved rounds (3)
  --only A,B             of keep-alive, one-connection, open-loop, streams, system-calls
  --only-proxy A,B       of direct, nginx, haproxy, before, rollproxy
  --binary FILE          a rollproxy that is built already, in place of building one
  --against FILE         another rollproxy, measured beside it as \"before\"
  --calm SECONDS         how long a sample may wait, and be taken again, while others use the machine (0)
  --json FILE            every figure of every round";

pub struct Options {
    pub quick: bool,
    pub rounds: usize,
    pub only: Vec<String>,
    pub names: Vec<Name>,
    pub binary: Option<PathBuf>,
    pub against: Option<PathBuf>,
    pub calm: Duration,
    pub json: Option<PathBuf>,
}

impl Options {
    /// What cargo itself adds is skipped.
    pub fn read(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            quick: false,
            rounds: 0,
            only: Vec::new(),
            names: Vec::new(),
            binary: None,
            against: None,
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
                "--only-proxy" => {
                    for wanted in value()?.split(',') {
                        let name = Name::ALL.into_iter().find(|name| name.text() == wanted);
                        options
                            .names
                            .push(name.ok_or(format!("no proxy {wanted}"))?);
                    }
                }
                "--binary" => options.binary = Some(value()?.into()),
                "--against" => options.against = Some(value()?.into()),
                "--json" => options.json = Some(value()?.into()),
                other => return Err(format!("{other} is not known")),
            }
        }
        if options.rounds == 0 {
            options.rounds = if options.quick { 1 } else { 3 };
        }
        if options.names.is_empty() {
            options.names = Name::ALL.to_vec();
        }
        if options.against.is_none() {
            options.names.retain(|name| *name != Name::Before);
        }
        Ok(options)
    }

    pub fn wants(&self, scenario: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == scenario)
    }
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is no number"))
}
