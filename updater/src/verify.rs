//! `verify`: whether installed packages still are what their manifests say. Reads only.

use serde::Serialize;
use staging::contents;
use staging::home::Home;
use staging::package::{self, Package};
use staging::report::{Exit, Failure, Format, finish, line};
use staging::version::PackageVersion;

/// One installed package.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verified {
    /// The version.
    pub version: PackageVersion,
    /// Whether every file is there and is what the manifest says, and nothing else is.
    pub sound: bool,
    /// Files that the manifest names.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// What is wrong.
    pub error: Option<Failure>,
}

/// What `verify` answers in JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    schema: u32,
    outcome: &'static str,
    packages: Vec<Verified>,
    error: Option<Failure>,
}

/// Verifies `version`, or every installed one, and prints the outcome. The exit code is 1 if anything is damaged.
pub fn verify(
    home: &Home,
    version: Option<&PackageVersion>,
    format: Format,
) -> std::process::ExitCode {
    let packages = match examine(home, version) {
        Ok(packages) => packages,
        Err(failure) => return finish(Err(failure), format),
    };
    let failure = verdict(&packages);
    let exit = failure.as_ref().map_or(Exit::Done, |failure| failure.exit);
    match format {
        Format::Json => {
            let answer = Answer {
                schema: 1,
                outcome: if failure.is_none() {
                    "sound"
                } else {
                    "damaged"
                },
                packages,
                error: failure,
            };
            // Plain fields always serialise; if they ever do not, the exit code still tells.
            line(&serde_json::to_string(&answer).unwrap_or_default());
            exit.into()
        }
        Format::Text => {
            for package in &packages {
                line(&shown(package));
            }
            if packages.is_empty() {
                line("no package is installed");
            }
            finish(failure.map_or(Ok(Exit::Done), Err), format)
        }
    }
}

/// Looks at `version`, or at every installed one.
///
/// # Errors
/// The home or its packages cannot be read, or `version` is not installed.
fn examine(home: &Home, version: Option<&PackageVersion>) -> Result<Vec<Verified>, Failure> {
    let versions = match version {
        // That it is not there at all is another thing than that it is damaged.
        Some(version) => match Package::open(home, version) {
            Err(missing @ package::PackageError::Missing { .. }) => return Err(missing.into()),
            _ => vec![version.clone()],
        },
        None => package::list(home)?,
    };
    Ok(versions
        .into_iter()
        .map(|version| one(home, version))
        .collect())
}

fn one(home: &Home, version: PackageVersion) -> Verified {
    let package = match Package::open(home, &version) {
        Ok(package) => package,
        Err(error) => {
            return Verified {
                version,
                sound: false,
                files: 0,
                bytes: 0,
                error: Some(error.into()),
            };
        }
    };
    let error = contents::verify(&package.root, &package.manifest)
        .err()
        .map(Failure::from);
    Verified {
        version,
        sound: error.is_none(),
        files: package.manifest.files.len(),
        bytes: package.manifest.total_size().unwrap_or(0),
        error,
    }
}

/// The failure of the whole, which names the first damaged package and its file.
fn verdict(packages: &[Verified]) -> Option<Failure> {
    let damaged: Vec<&Verified> = packages.iter().filter(|package| !package.sound).collect();
    let first = damaged.first()?;
    let why = first
        .error
        .as_ref()
        .map_or("it is damaged", |error| error.message.as_str());
    let more = match damaged.len() {
        1 => String::new(),
        count => format!(" (and {} more)", count - 1),
    };
    Some(Failure::new(
        "PACKAGE_DAMAGED",
        format!(
            "package {} is damaged: {why}{more}; `rollproxy-updater check --now` brings a selected version again, `rollproxy-launcher select` takes another",
            first.version
        ),
        Exit::Failed,
        false,
    ))
}

fn shown(package: &Verified) -> String {
    match &package.error {
        None => format!(
            "{} is sound ({} files, {} bytes)",
            package.version, package.files, package.bytes
        ),
        Some(error) => format!("{} is damaged: {}", package.version, error.message),
    }
}
