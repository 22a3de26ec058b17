//! The command line: words in, one outcome out.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use publisher::{
    Add, Binaries, Init, METADATA_DAYS, Place, Promote, ROOT_DAYS, Refresh, Source, Validity, add,
    init, promote, refresh,
};
use serde::Serialize;
use staging::report::{Failure, Format, line};
use staging::version::PackageVersion;

/// Makes signed feeds of Rollproxy releases.
///
/// A feed is a folder for any static file server; the keys that sign it stay in another folder.
#[derive(Debug, Parser)]
#[command(
    name = "rollproxy-publish",
    version,
    after_help = "\
Example:
  rollproxy-publish init    --feed ./feed --keys ./keys
  rollproxy-publish add     --feed ./feed --keys ./keys --version 1.4.2 --bin-dir target/release
  rollproxy-publish promote --feed ./feed --keys ./keys --channel stable --version 1.4.2"
)]
pub struct Cli {
    /// How the outcome is printed: text or json
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text")]
    format: Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make the keys, the root of trust and an empty feed
    #[command(after_help = "\
Example:
  rollproxy-publish init --feed ./feed --keys ./keys
Prints the root's digest, which hosts need:
  rollproxy-updater init --feed URL --root URL/metadata/root.json --sha256 DIGEST")]
    Init(InitArgs),
    /// Pack one version and sign it into the feed
    #[command(after_help = "\
Example:
  rollproxy-publish add --feed ./feed --keys ./keys --version 1.4.2 --bin-dir target/release --notes 'Faster starts'")]
    Add(Box<AddArgs>),
    /// Make a channel offer a version that was added
    #[command(after_help = "\
Example:
  rollproxy-publish promote --feed ./feed --keys ./keys --channel stable --version 1.4.2")]
    Promote(PromoteArgs),
    /// Sign the feed anew before it expires
    #[command(after_help = "\
Example:
  rollproxy-publish refresh --feed ./feed --keys ./keys --expires-days 30")]
    Refresh(RefreshArgs),
}

#[derive(Debug, Args)]
struct Common {
    /// The folder that is served to hosts
    #[arg(long, value_name = "DIR")]
    feed: PathBuf,
    /// The folder of the private keys, outside of the feed
    #[arg(long, value_name = "DIR")]
    keys: PathBuf,
    /// Days until the signed metadata expire
    #[arg(long, value_name = "DAYS", default_value_t = METADATA_DAYS, value_parser = clap::value_parser!(u32).range(1..=36500))]
    expires_days: u32,
}

impl Common {
    fn place(&self) -> Place {
        Place::new(&self.feed, &self.keys)
    }

    fn validity(&self) -> Validity {
        Validity {
            days: self.expires_days,
            ..Validity::default()
        }
    }
}

#[derive(Debug, Args)]
struct InitArgs {
    #[command(flatten)]
    common: Common,
    /// Days until the root of trust expires
    #[arg(long, value_name = "DAYS", default_value_t = ROOT_DAYS, value_parser = clap::value_parser!(u32).range(1..=36500))]
    root_expires_days: u32,
}

#[derive(Debug, Args)]
struct AddArgs {
    #[command(flatten)]
    common: Common,
    /// The version, exact semver
    #[arg(long, value_name = "VERSION")]
    version: PackageVersion,
    /// The target triple it runs on
    #[arg(long, value_name = "TRIPLE", default_value = staging::TARGET)]
    target: String,
    /// The folder of the built binaries to pack
    #[arg(
        long,
        value_name = "DIR",
        required_unless_present = "archive",
        conflicts_with = "archive"
    )]
    bin_dir: Option<PathBuf>,
    /// An archive that was packed elsewhere, instead of --bin-dir
    #[arg(long, value_name = "FILE")]
    archive: Option<PathBuf>,
    /// Take the archive as it is, even if hosts would refuse it
    #[arg(long, requires = "archive", hide = true)]
    unchecked: bool,
    /// What people should know about this version
    #[arg(long, value_name = "TEXT", default_value = "")]
    notes: String,
    /// The lowest version that may update to this one directly
    #[arg(long, value_name = "VERSION")]
    minimum_version: Option<PackageVersion>,
    /// Why no update leads on from this version without a person
    #[arg(long, value_name = "REASON")]
    dead_end: Option<String>,
    /// One more file for the package; may be given several times
    #[arg(long, value_name = "PATH=FILE", value_parser = parse_extra, conflicts_with = "archive")]
    extra: Vec<(String, PathBuf)>,
    /// The version compiled into the binaries
    #[arg(long, value_name = "VERSION", default_value = env!("CARGO_PKG_VERSION"), conflicts_with = "archive")]
    compiled_version: String,
    /// The commit the binaries were built from
    #[arg(
        long,
        value_name = "ID",
        default_value = "unknown",
        conflicts_with = "archive"
    )]
    commit: String,
}

#[derive(Debug, Args)]
struct PromoteArgs {
    #[command(flatten)]
    common: Common,
    /// The channel, such as stable
    #[arg(long, value_name = "NAME")]
    channel: String,
    /// The version it shall offer
    #[arg(long, value_name = "VERSION")]
    version: PackageVersion,
    /// The target triple
    #[arg(long, value_name = "TRIPLE", default_value = staging::TARGET)]
    target: String,
    /// What people should know; default: what was said when it was added
    #[arg(long, value_name = "TEXT")]
    notes: Option<String>,
}

#[derive(Debug, Args)]
struct RefreshArgs {
    #[command(flatten)]
    common: Common,
}

impl Cli {
    /// How the outcome is printed.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Does what was asked for and prints the outcome.
    pub fn run(self) -> Result<(), Failure> {
        let format = self.format;
        match self.command {
            Command::Init(args) => run_init(&args, format),
            Command::Add(args) => run_add(*args, format),
            Command::Promote(args) => run_promote(args, format),
            Command::Refresh(args) => run_refresh(&args, format),
        }
    }
}

fn run_init(args: &InitArgs, format: Format) -> Result<(), Failure> {
    let how = Init {
        root_days: args.root_expires_days,
        validity: args.common.validity(),
    };
    let made = init(&args.common.place(), &how)?;
    let text = format!(
        "made {}\nroot   {}\nsha256 {}\nexpires {} (root {})\nBack the keys in {} up; whoever has them can release.",
        args.common.feed.display(),
        made.root.display(),
        made.root_sha256,
        made.expires,
        made.root_expires,
        args.common.keys.display(),
    );
    print(format, &made, &text);
    Ok(())
}

fn run_add(args: AddArgs, format: Format) -> Result<(), Failure> {
    let source = match (&args.bin_dir, args.archive) {
        (_, Some(archive)) if args.unchecked => Source::Unchecked(archive),
        (_, Some(archive)) => Source::Archive(archive),
        (Some(folder), None) => Source::Binaries(Binaries {
            extra: args.extra,
            commit: args.commit,
            ..Binaries::in_folder(folder, &args.compiled_version)?
        }),
        (None, None) => {
            return Err(Failure::new(
                "USAGE",
                "name --bin-dir or --archive",
                staging::report::Exit::Usage,
                false,
            ));
        }
    };
    let what = Add {
        target: args.target,
        notes: args.notes,
        minimum_version: args.minimum_version,
        dead_end: args.dead_end,
        validity: args.common.validity(),
        ..Add::new(args.version, source)
    };
    let added = add(&args.common.place(), &what)?;
    let text = format!(
        "{} {} ({} bytes, sha256 {})\nNo host takes it before it is promoted.",
        if added.already {
            "already there:"
        } else {
            "added"
        },
        added.archive,
        added.length,
        added.sha256,
    );
    print(format, &added, &text);
    Ok(())
}

fn run_promote(args: PromoteArgs, format: Format) -> Result<(), Failure> {
    let what = Promote {
        target: args.target,
        notes: args.notes,
        validity: args.common.validity(),
        ..Promote::new(&args.channel, args.version)
    };
    let promoted = promote(&args.common.place(), &what)?;
    let before = match &promoted.before {
        Some(before) if *before != promoted.version => format!(", before {before}"),
        _ => String::new(),
    };
    let text = format!(
        "{} offers {}{before}; the feed expires {}",
        promoted.channel, promoted.version, promoted.expires
    );
    print(format, &promoted, &text);
    Ok(())
}

fn run_refresh(args: &RefreshArgs, format: Format) -> Result<(), Failure> {
    let how = Refresh {
        validity: args.common.validity(),
    };
    let refreshed = refresh(&args.common.place(), &how)?;
    print(
        format,
        &refreshed,
        &format!("signed anew; the feed expires {}", refreshed.expires),
    );
    Ok(())
}

fn print(format: Format, outcome: &impl Serialize, text: &str) {
    match format {
        Format::Text => line(text),
        // A struct of strings and numbers always serialises; an empty line would be noticed.
        Format::Json => line(&serde_json::to_string(outcome).unwrap_or_default()),
    }
}

fn parse_extra(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((path, file)) if !path.is_empty() && !file.is_empty() => {
            Ok((path.into(), file.into()))
        }
        _ => Err(
            "write it as PATH=FILE: the path in the package, and the file to put there".to_owned(),
        ),
    }
}
