//! Which command was asked for: decided by the name the launcher was started under, then by the arguments.
//! Written by hand, for a parser's tables would cost more than starting the process does.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use staging::report::{Exit, Failure, Format};

use crate::install;

/// What `--help` prints.
pub const HELP: &str = "\
Starts the selected Rollproxy package.

Usage: rollproxy-launcher <COMMAND>
       rollproxy <COMMAND>            (a link to rollproxy-launcher)
       rollproxy-updater <COMMAND>    (a link to rollproxy-launcher)

Own commands:
  select <VERSION>   Pin an installed version (and so roll back to it)
  select latest      Remove the pin and take the highest version that was kept
  list               List the installed versions
  which [ENTRY]      Print the path of the program that would be started
  install            Put this launcher, or the selected package's, in place with its three names
  --version          Print the selected version; --verbose says more
  --help             Print this

Everything else is passed on to the selected package, arguments untouched.

Options of select, list, which and install:
  --format <text|json>

Options of install:
  --dir <DIR>        Where to [default: where a launcher stands in PATH, else ~/.local/bin]
  --force            Also over a newer launcher, or over files of these names that are none

Environment:
  ROLLPROXY_HOME     Where packages and state are [default: ~/.rollproxy]

Examples:
  rollproxy select 1.4.1        go back to 1.4.1 and stay there
  rollproxy select latest       follow the releases again
  rollproxy list --format json
  rollproxy-launcher install --dir /usr/local/bin
";

/// The name of the launcher itself.
pub const LAUNCHER: &str = "rollproxy-launcher";
/// The main entry of a package.
pub const MAIN: &str = "rollproxy";
/// The entry that brings releases.
pub const UPDATER: &str = "rollproxy-updater";

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    /// Print the version of the selected package.
    Version {
        /// The name that was asked.
        entry: &'static str,
        /// Whether to say more.
        verbose: bool,
    },
    /// Select a version, or the latest one.
    Select {
        /// A version, or `latest`.
        which: String,
        /// How to answer.
        format: Format,
    },
    /// List the installed versions.
    List {
        /// How to answer.
        format: Format,
    },
    /// Say what would be started.
    Which {
        /// The entry.
        entry: String,
        /// How to answer.
        format: Format,
    },
    /// Put a launcher in place.
    Install {
        /// Where to, and over what.
        options: install::Options,
        /// How to answer.
        format: Format,
    },
    /// Print the help.
    Help,
    /// Start an entry of the selected package with the arguments as they are.
    Start {
        /// The entry.
        entry: &'static str,
    },
}

/// A command line that makes no sense, and how the answer was wanted.
#[derive(Debug, PartialEq, Eq)]
pub struct Misuse {
    /// What is wrong, and what would be right.
    pub message: String,
    /// How to answer.
    pub format: Format,
}

impl From<Misuse> for Failure {
    fn from(misuse: Misuse) -> Self {
        Self::new("USAGE", misuse.message, Exit::Usage, false)
    }
}

/// Whether the command line asks for the version, and for whose: the first thing that is looked at.
pub fn version(name: &OsStr, args: &[OsString]) -> Option<Command> {
    let entry = entry(name);
    let verbose = match args {
        [only] => only == "--version" || only == "-V",
        _ => false,
    };
    if verbose {
        return Some(Command::Version {
            entry,
            verbose: false,
        });
    }
    match args {
        // Only the launcher answers for itself at length; an entry knows more about itself than we do.
        [a, b] if entry == LAUNCHER => {
            let both = (a == "--version" || a == "-V") && b == "--verbose"
                || a == "--verbose" && (b == "--version" || b == "-V");
            both.then_some(Command::Version {
                entry,
                verbose: true,
            })
        }
        _ => None,
    }
}

/// The command that a name and its arguments mean.
///
/// # Errors
/// [`Misuse`] when one of our own commands is given something else than it takes.
pub fn parse(name: &OsStr, args: &[OsString]) -> Result<Command, Misuse> {
    if let Some(version) = version(name, args) {
        return Ok(version);
    }
    let entry = entry(name);
    if entry == UPDATER {
        return Ok(Command::Start { entry });
    }
    let first = args.first().and_then(|arg| arg.to_str());
    match first {
        Some(command @ ("select" | "list" | "which" | "install")) => own(command, &args[1..]),
        Some("--help" | "-h") if entry == LAUNCHER => Ok(Command::Help),
        _ => Ok(Command::Start { entry: MAIN }),
    }
}

/// The entry that a name stands for. An unknown name (a renamed file) is the launcher itself.
fn entry(name: &OsStr) -> &'static str {
    match std::path::Path::new(name)
        .file_name()
        .and_then(OsStr::to_str)
    {
        Some(MAIN) => MAIN,
        Some(UPDATER) => UPDATER,
        _ => LAUNCHER,
    }
}

fn own(command: &str, args: &[OsString]) -> Result<Command, Misuse> {
    let mut format = Format::Text;
    let mut words = Vec::new();
    let mut wrong = None;
    let mut options = install::Options::default();
    let mut args = args.iter();
    while let Some(raw) = args.next() {
        let arg = raw.to_string_lossy();
        if command == "install" {
            if arg == "--force" {
                options.force = true;
                continue;
            }
            if arg == "--dir" {
                options.folder = args.next().map(PathBuf::from);
                if options.folder.is_none() {
                    wrong.get_or_insert("--dir needs a folder".to_owned());
                }
                continue;
            }
            if let Some(folder) = arg.strip_prefix("--dir=") {
                options.folder = Some(PathBuf::from(folder));
                continue;
            }
        }
        let value = match arg.split_once('=') {
            Some(("--format", value)) => value.to_owned(),
            _ if arg == "--format" => args
                .next()
                .map(|value| value.to_string_lossy().into_owned())
                .unwrap_or_default(),
            _ if arg == "--help" || arg == "-h" => return Ok(Command::Help),
            _ if arg.starts_with('-') => {
                wrong.get_or_insert(format!("{command} does not know the option `{arg}`"));
                continue;
            }
            _ => {
                words.push(arg.into_owned());
                continue;
            }
        };
        match value.as_str() {
            "text" => format = Format::Text,
            "json" => format = Format::Json,
            other => {
                wrong.get_or_insert(format!("--format is text or json, not `{other}`"));
            }
        }
    }
    let misuse = |message| Misuse { message, format };
    if let Some(message) = wrong {
        return Err(misuse(message));
    }
    let mut words = words.into_iter();
    let (word, more) = (words.next(), words.next());
    if let Some(more) = more {
        return Err(misuse(format!(
            "{command} does not know what to do with `{more}`"
        )));
    }
    match (command, word) {
        ("select", Some(which)) => Ok(Command::Select { which, format }),
        ("select", None) => Err(misuse(
            "select needs a version or `latest`; `list` shows the installed ones".to_owned(),
        )),
        ("install", None) => Ok(Command::Install { options, format }),
        ("list", None) => Ok(Command::List { format }),
        ("list" | "install", Some(word)) => Err(misuse(format!(
            "{command} does not know what to do with `{word}`"
        ))),
        (_, entry) => Ok(Command::Which {
            entry: entry.unwrap_or_else(|| MAIN.to_owned()),
            format,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(name: &str, args: &[&str]) -> Result<Command, Misuse> {
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        parse(OsStr::new(name), &args)
    }

    fn start(entry: &'static str) -> Result<Command, Misuse> {
        Ok(Command::Start { entry })
    }

    #[test]
    fn the_name_decides_first() {
        assert_eq!(parsed("/usr/bin/rollproxy", &["serve"]), start(MAIN));
        assert_eq!(parsed("rollproxy", &["--help"]), start(MAIN));
        assert_eq!(parsed("rollproxy-launcher", &["serve", "-x"]), start(MAIN));
        assert_eq!(parsed("rollproxy-launcher", &[]), start(MAIN));
        assert_eq!(parsed("rollproxy-launcher", &["--help"]), Ok(Command::Help));
        assert_eq!(parsed("renamed", &["-h"]), Ok(Command::Help));
        // The updater has no commands of ours: all of it is passed on.
        assert_eq!(
            parsed("rollproxy-updater", &["select", "x"]),
            start(UPDATER)
        );
        assert_eq!(parsed("rollproxy-updater", &["--help"]), start(UPDATER));
    }

    #[test]
    fn version_is_ours_when_it_stands_alone() {
        for (name, entry) in [
            ("rollproxy", MAIN),
            ("./rollproxy-updater", UPDATER),
            ("rollproxy-launcher", LAUNCHER),
        ] {
            for flag in ["--version", "-V"] {
                assert_eq!(
                    parsed(name, &[flag]),
                    Ok(Command::Version {
                        entry,
                        verbose: false
                    })
                );
            }
        }
        for args in [["--version", "--verbose"], ["--verbose", "-V"]] {
            assert_eq!(
                parsed("rollproxy-launcher", &args),
                Ok(Command::Version {
                    entry: LAUNCHER,
                    verbose: true
                })
            );
            assert_eq!(parsed("rollproxy", &args), start(MAIN));
        }
        assert_eq!(parsed("rollproxy", &["serve", "--version"]), start(MAIN));
    }

    #[test]
    fn own_commands_take_a_format_anywhere() {
        let select = Ok(Command::Select {
            which: "1.2.3".to_owned(),
            format: Format::Json,
        });
        for args in [
            &["select", "1.2.3", "--format", "json"][..],
            &["select", "--format=json", "1.2.3"],
        ] {
            assert_eq!(parsed("rollproxy", args), select);
            assert_eq!(parsed("rollproxy-launcher", args), select);
        }
        assert_eq!(
            parsed("rollproxy", &["which"]),
            Ok(Command::Which {
                entry: MAIN.to_owned(),
                format: Format::Text
            })
        );
        assert_eq!(
            parsed("rollproxy", &["list", "--format", "text"]),
            Ok(Command::List {
                format: Format::Text
            })
        );
        assert_eq!(
            parsed("rollproxy", &["select", "--help"]),
            Ok(Command::Help)
        );
    }

    #[test]
    fn misuse_is_named() {
        for (args, part) in [
            (&["select"][..], "needs a version or `latest`"),
            (&["select", "1.0.0", "2.0.0"], "`2.0.0`"),
            (&["select", "1.0.0", "--force"], "`--force`"),
            (&["list", "all"], "`all`"),
            (&["list", "--format", "yaml"], "not `yaml`"),
            (&["list", "--format"], "not ``"),
            (&["which", "a", "b"], "`b`"),
        ] {
            let misuse = parsed("rollproxy", args).unwrap_err();
            assert!(misuse.message.contains(part), "{misuse:?}");
            assert_eq!(Failure::from(misuse).exit, Exit::Usage);
        }
        let misuse = parsed("rollproxy", &["list", "--all", "--format", "json"]).unwrap_err();
        assert_eq!(misuse.format, Format::Json);
    }
}
