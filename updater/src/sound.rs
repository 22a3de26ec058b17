//! Whether an installed package can be relied on.

use staging::contents;
use staging::home::Home;
use staging::package::Package;
use staging::report::Failure;
use staging::version::PackageVersion;

/// What is wrong with an installed package, if anything is: its manifest, and names, sizes and modes of its files; with `deep`
/// also every digest. That it could not be looked at just now is nothing wrong with it.
pub fn damage(home: &Home, version: &PackageVersion, deep: bool) -> Option<Failure> {
    let look = || -> Result<(), Failure> {
        let package = Package::open(home, version)?;
        if deep {
            contents::verify(&package.root, &package.manifest)?;
        } else {
            contents::verify_names(&package.root, &package.manifest)?;
        }
        Ok(())
    };
    look().err().filter(|failure| !failure.retry)
}
