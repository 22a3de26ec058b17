//! The command line of `rollproxy-updater`.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use staging::home::Home;
use staging::package;
use staging::report::{self, Exit, Failure, Format};
use staging::version::PackageVersion;

use crate::hold::{self, Hold};
use crate::{gc, history, init, job, selftest, settings, verify};

const NAME: &str = "rollproxy-updater";
const COMPILED: &str = env!("CARGO_PKG_VERSION");

const EXAMPLES: &str = "\
Examples:
  rollproxy-updater init --feed https://releases.example/rollproxy --root root.json --sha256 2c26b4…
  rollproxy-updater check --dry-run && echo nothing new
  rollproxy-updater check --format json

Exit codes:
  0 done, or nothing to do    1 failed, nothing changed    2 activated, but not verified    3 rolled back
  64 usage    69 no usable package    75 deferred    78 configuration    100 --dry-run: an update is available

Environment:
  ROLLPROXY_HOME    where packages and state are [default: ~/.rollproxy]";

/// Brings signed releases of Rollproxy onto this host.
#[derive(Debug, Parser)]
#[command(name = NAME, disable_version_flag = true, after_help = EXAMPLES)]
struct Cli {
    /// Print the version
    #[arg(long, short = 'V')]
    version: bool,
    /// With --version: also the compiled version, the commit and the package
    #[arg(long, requires = "version")]
    verbose: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make the home, pin the feed's root of trust, and name the feed
    #[command(
        after_help = "Example:\n  rollproxy-updater init --feed https://releases.example/rollproxy --root root.json --sha256 2c26b4…"
    )]
    Init(Init),
    /// Look for a release, bring it here, and roll to it
    #[command(
        after_help = "Examples:\n  rollproxy-updater check\n  rollproxy-updater check --dry-run    exit 100 = an update is available\n  rollproxy-updater check --format json"
    )]
    Check(Check),
    /// Say whether installed packages still are what their manifests say
    #[command(
        after_help = "Examples:\n  rollproxy-updater verify\n  rollproxy-updater verify 1.4.2 --format json\n\nExit code 1 = something is damaged; the file is named."
    )]
    Verify(Verify),
    /// Keep checks from updating for a while; what a person selects is not held
    #[command(
        after_help = "Examples:\n  rollproxy-updater hold 24h\n  rollproxy-updater hold off\n  rollproxy-updater hold --format json    only says until when"
    )]
    Hold(HoldArgs),
    /// Remove packages that nothing names, and what dead jobs left
    #[command(
        after_help = "Examples:\n  rollproxy-updater gc --dry-run\n  rollproxy-updater gc --keep 1 --format json\n\nNamed, and so never removed: what is selected, was selected before or is pending; what any generation, the supervisor\nor a job needs; and whatever runs."
    )]
    Gc(Gc),
    /// Show earlier jobs and how they ended, the newest first
    #[command(
        after_help = "Examples:\n  rollproxy-updater history\n  rollproxy-updater history --limit 1 --format json"
    )]
    History(History),
}

#[derive(Debug, Args)]
struct Verify {
    /// The version; without one, every installed version
    #[arg(value_name = "VERSION")]
    version: Option<PackageVersion>,
    /// How to answer: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = format)]
    format: Format,
}

#[derive(Debug, Args)]
struct HoldArgs {
    /// How long (such as 30m, 24h, 7d; at most 90d), or `off`; without it, say what holds
    #[arg(value_name = "TIME|off")]
    hold: Option<Hold>,
    /// How to answer: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = format)]
    format: Format,
}

#[derive(Debug, Args)]
struct Gc {
    /// How many packages to keep besides those that something names [default: update.keep, which is 3]
    #[arg(long, value_name = "N")]
    keep: Option<usize>,
    /// Only say what would be removed
    #[arg(long)]
    dry_run: bool,
    /// How to answer: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = format)]
    format: Format,
}

#[derive(Debug, Args)]
struct History {
    /// How many jobs to show
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
    /// How to answer: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = format)]
    format: Format,
}

#[derive(Debug, Args)]
struct Init {
    /// URL of the feed: https://, http:// or file:///
    #[arg(long, value_name = "URL")]
    feed: String,
    /// The publisher's root.json
    #[arg(long, value_name = "FILE|URL")]
    root: String,
    /// SHA-256 of root.json, as the publisher says it elsewhere
    #[arg(long, value_name = "HEX")]
    sha256: String,
    /// The channel to follow
    #[arg(long, value_name = "NAME", default_value = settings::CHANNEL)]
    channel: String,
    /// How to answer: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = format)]
    format: Format,
}

#[derive(Debug, Args)]
struct Check {
    /// Only say whether an update is available (exit 100)
    #[arg(long)]
    dry_run: bool,
    /// Do not wait: for the next attempt after a failure, this host's turn, an update window; and try again what was refused here
    #[arg(long)]
    now: bool,
    /// Only say whether this updater can work with this home
    #[arg(long, conflicts_with_all = ["dry_run", "now"])]
    self_test: bool,
    /// How to answer: text or json
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = format)]
    format: Format,
}

fn format(text: &str) -> Result<Format, String> {
    text.parse()
}

/// Runs the command that `args` (the program's name first) mean.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help is asked for, and is no error. Somebody who stopped reading is none either.
            let _ = error.print();
            return if error.use_stderr() {
                Exit::Usage.into()
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    if cli.version {
        report::line(&package::version_report(
            NAME,
            COMPILED,
            staging::COMMIT,
            cli.verbose,
        ));
        return ExitCode::SUCCESS;
    }
    match cli.command {
        Some(Command::Init(options)) => init(options),
        Some(Command::Check(options)) if options.self_test => {
            let result = home().and_then(|home| selftest::self_test(&home));
            report::finish(result, options.format)
        }
        Some(Command::Check(options)) => check(&options),
        Some(Command::Verify(options)) => match home() {
            Ok(home) => verify::verify(&home, options.version.as_ref(), options.format),
            Err(failure) => report::finish(Err(failure), options.format),
        },
        Some(Command::Hold(options)) => {
            let result = home().and_then(|home| hold::hold(&home, options.hold, options.format));
            report::finish(result, options.format)
        }
        Some(Command::Gc(options)) => {
            let asked = gc::Options {
                keep: options.keep,
                dry_run: options.dry_run,
                format: options.format,
            };
            let result = home().and_then(|home| gc::gc(&home, &asked));
            report::finish(result, options.format)
        }
        Some(Command::History(options)) => {
            let result =
                home().and_then(|home| history::history(&home, options.limit, options.format));
            report::finish(result, options.format)
        }
        None => report::finish(
            Err(Failure::new(
                "USAGE",
                "name a command: check, init, hold, gc, verify or history; --help says more",
                Exit::Usage,
                false,
            )),
            Format::Text,
        ),
    }
}

fn init(options: Init) -> ExitCode {
    let format = options.format;
    let options = init::Options {
        feed: options.feed,
        root: options.root,
        sha256: options.sha256,
        channel: options.channel,
        format,
    };
    let result = home().and_then(|home| block_on(init::init(&home, &options))?);
    report::finish(result, format)
}

fn check(options: &Check) -> ExitCode {
    let format = options.format;
    let options = job::Options {
        dry_run: options.dry_run,
        now: options.now,
        format,
    };
    let answer = home().and_then(|home| block_on(job::check(&home, &options)));
    match answer {
        Ok(answer) => answer.finish(format),
        Err(failure) => {
            let mut answer = crate::answer::Answer::default();
            answer.fail(failure);
            answer.finish(format)
        }
    }
}

fn home() -> Result<Home, Failure> {
    Ok(Home::from_env(&|name| std::env::var_os(name))?)
}

/// Runs a future to its end. Blocking work that was left behind does not hold the process back.
fn block_on<T>(work: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| {
            Failure::new(
                "RUNTIME",
                format!("the runtime cannot be started: {source}"),
                Exit::Failed,
                true,
            )
        })?;
    let result = runtime.block_on(work);
    runtime.shutdown_background();
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once(NAME).chain(args.iter().copied()))
    }

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn commands_are_understood() {
        let cli = parsed(&["check", "--dry-run", "--format", "json"]).unwrap();
        let Some(Command::Check(check)) = cli.command else {
            panic!("not a check");
        };
        assert!(check.dry_run && !check.self_test && check.format == Format::Json);
        let init = [
            "init",
            "--feed",
            "file:///f",
            "--root",
            "r",
            "--sha256",
            "00",
        ];
        let Some(Command::Init(init)) = parsed(&init).unwrap().command else {
            panic!("not an init");
        };
        assert_eq!(init.channel, "stable");
        let cli = parsed(&["--version", "--verbose"]).unwrap();
        assert!(cli.version && cli.verbose);
    }

    #[test]
    fn misuse_is_exit_64_and_help_is_0() {
        for args in [
            &["check", "--format", "yaml"][..],
            &["check", "--self-test", "--dry-run"],
            &["init", "--feed", "file:///f"],
            &["--verbose"],
            &["update"],
        ] {
            assert!(parsed(args).unwrap_err().use_stderr(), "{args:?}");
        }
        for args in [&["--help"][..], &["check", "--help"], &["init", "-h"]] {
            let error = parsed(args).unwrap_err();
            assert!(!error.use_stderr());
            assert!(error.to_string().contains("Example"), "{error}");
        }
    }
}
