//! `--version` without starting anything: the selection and one manifest.

use staging::COMMIT;
use staging::launch;
use staging::package::{self, Package};
use staging::report::{Exit, Failure, line, note};

use crate::args::{LAUNCHER, MAIN};

/// What this launcher was compiled as.
pub const COMPILED: &str = env!("CARGO_PKG_VERSION");

/// Prints the version of the package that would be started.
pub fn run(entry: &str, verbose: bool) -> Result<Exit, Failure> {
    // A launcher in a package that is not published answers for that package: so is it validated before it is.
    if entry == LAUNCHER
        && let Some(own) = package::own()
        && !is_published(&own)
    {
        line(&package::version_report(
            LAUNCHER, COMPILED, COMMIT, verbose,
        ));
        return crate::DONE;
    }
    let home = crate::home()?;
    let (version, fallback) = launch::version(&home)?;
    if let Some(fallback) = fallback {
        note(&format!("warning: {fallback}"));
    }
    let name = if entry == LAUNCHER { MAIN } else { entry };
    line(&format!("{name} {version}"));
    if verbose {
        line(&more(&Package::open(&home, &version)?));
    }
    crate::DONE
}

fn more(package: &Package) -> String {
    let build = &package.manifest.build;
    format!(
        "compiled: {}\ncommit: {}\npackage: {}\nlauncher: {COMPILED} ({COMMIT})",
        build.compiled_version,
        build.commit,
        package.root.display()
    )
}

/// Whether a package stands where published packages stand.
fn is_published(own: &Package) -> bool {
    let packages = crate::home().map(|home| home.packages());
    let (Ok(packages), Some(parent)) = (packages, own.root.parent()) else {
        return false;
    };
    // The system names our own executable with all links resolved.
    parent == packages || packages.canonicalize().is_ok_and(|real| parent == real)
}
