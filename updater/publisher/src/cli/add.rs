//! `add`.

use std::path::{Path, PathBuf};

use clap::Args;
use publisher::{Add, Added, Binaries, Ramp, Source, add};
use staging::report::{Exit, Failure, Format};
use staging::version::PackageVersion;

use super::ramp::Share;
use super::{Common, print};

pub(super) const EXAMPLE: &str = "\
Example:
  rollproxy-publish add --feed ./feed --keys ./keys --version 1.4.2 --bin-dir target/release --notes 'Faster starts' \\
    --delta-from 1.4.1,1.4.0 --share 10 --over 24h";

/// The most bytes of a file of notes.
const NOTES_LIMIT: u64 = 64 * 1024;

#[derive(Debug, Args)]
pub(super) struct Words {
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
    /// Do not try the version here first. Without it, what hosts would refuse after starting it is refused here
    #[arg(long)]
    no_trial: bool,
    /// Earlier versions in the feed from which patches are made; those that save nothing are left out
    #[arg(long, value_name = "VERSION", value_delimiter = ',')]
    delta_from: Vec<PackageVersion>,
    /// What people should know about this version
    #[arg(long, value_name = "TEXT", default_value = "")]
    notes: String,
    /// The same, in a file of UTF-8 text
    #[arg(long, value_name = "FILE", conflicts_with = "notes")]
    notes_file: Option<PathBuf>,
    /// The lowest version that may update to this one directly
    #[arg(long, value_name = "VERSION")]
    minimum_version: Option<PackageVersion>,
    #[command(flatten)]
    share: Share,
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

impl Words {
    pub(super) fn run(self, format: Format) -> Result<(), Failure> {
        let source = match (&self.bin_dir, self.archive) {
            (_, Some(archive)) if self.unchecked => Source::Unchecked(archive),
            (_, Some(archive)) => Source::Archive(archive),
            (Some(folder), None) => Source::Binaries(Binaries {
                extra: self.extra,
                commit: self.commit,
                ..Binaries::in_folder(folder, &self.compiled_version)?
            }),
            (None, None) => {
                return Err(Failure::new(
                    "USAGE",
                    "name --bin-dir or --archive",
                    Exit::Usage,
                    false,
                ));
            }
        };
        let ramp = match self.share.share {
            Some(share) => Some(Ramp::new(self.share.start(), share, self.share.over())?),
            None => None,
        };
        let what = Add {
            target: self.target,
            notes: match &self.notes_file {
                Some(file) => read_notes(file)?,
                None => self.notes,
            },
            minimum_version: self.minimum_version,
            ramp,
            dead_end: self.dead_end,
            delta_from: self.delta_from,
            trial: !self.no_trial && !self.unchecked,
            validity: self.common.validity(),
            ..Add::new(self.version, source)
        };
        let added = add(&self.common.place(), &what)?;
        print(format, &added, &told(&added));
        Ok(())
    }
}

fn told(added: &Added) -> String {
    let mut lines = vec![format!(
        "{} {} ({} bytes, sha256 {})",
        if added.already {
            "already there:"
        } else {
            "added"
        },
        added.archive,
        added.length,
        added.sha256,
    )];
    for delta in &added.deltas {
        lines.push(format!(
            "patch from {}: {} bytes instead of {}",
            delta.from, delta.length, added.length,
        ));
    }
    for skipped in &added.skipped_deltas {
        lines.push(format!(
            "no patch from {}: it would have {} bytes, and saves nothing",
            skipped.from, skipped.length,
        ));
    }
    lines.push("No host takes it before it is promoted.".to_owned());
    lines.join("\n")
}

fn read_notes(file: &Path) -> Result<String, Failure> {
    let failed = |why: String| {
        let message = format!("cannot read the notes in {}: {why}", file.display());
        Failure::new("NOTES_READ", message, Exit::Failed, false)
    };
    let bytes = staging::files::read_bounded(file, NOTES_LIMIT)
        .map_err(|e| failed(e.to_string()))?
        .ok_or_else(|| failed("there is no such file".to_owned()))?;
    let text = String::from_utf8(bytes).map_err(|_| failed("it is not UTF-8".to_owned()))?;
    Ok(text.trim_end().to_owned())
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
