//! Which patch is worth taking, and whether the package it starts from is what it should be.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use staging::contents;
use staging::home::Home;
use staging::package::Package;
use staging::version::PackageVersion;

use super::{Order, part_name};
use crate::feed::Delta;

/// A patch, and the installed package that it starts from.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) delta: Delta,
    pub(super) package: Package,
}

/// The patch to take, if any: the one with the least left to download, from a package that is whole.
pub(super) async fn base_for(order: Order<'_>) -> Option<Base> {
    if !order.delta {
        return None;
    }
    let (home, release) = (order.home, order.release);
    let left = |sha256: &str, length: u64| length - there(home, sha256, length);
    let whole = left(&release.sha256, release.length);
    let deltas = worth_it(&release.custom.deltas, order.installed, whole, |delta| {
        left(&delta.sha256, delta.length)
    });
    let deltas: Vec<Delta> = deltas.into_iter().cloned().collect();
    let home = Arc::new(home.clone());
    let find = move || deltas.into_iter().find_map(|delta| base(&home, delta));
    tokio::task::spawn_blocking(find).await.ok().flatten()
}

/// The patches from installed versions that leave less to download than the whole archive does; the least first.
fn worth_it<'a>(
    deltas: &'a [Delta],
    installed: &[PackageVersion],
    whole: u64,
    left: impl Fn(&Delta) -> u64,
) -> Vec<&'a Delta> {
    let mut worth_it: Vec<&Delta> = deltas
        .iter()
        .filter(|delta| installed.contains(&delta.from) && left(delta) < whole)
        .collect();
    worth_it.sort_by_key(|delta| left(delta));
    worth_it
}

/// The package that a patch starts from, if it is that very one and none of its files is damaged.
fn base(home: &Home, delta: Delta) -> Option<Base> {
    let package = Package::open(home, &delta.from).ok()?;
    let is_it = package.manifest.digest() == delta.from_manifest
        && contents::verify(&package.root, &package.manifest).is_ok();
    is_it.then_some(Base { delta, package })
}

/// Bytes of a download that an earlier run left and this one can go on from.
pub(super) fn there(home: &Home, sha256: &str, length: u64) -> u64 {
    match std::fs::symlink_metadata(home.downloads().join(part_name(sha256))) {
        // More than all of it is none of it.
        Ok(part) if part.is_file() && part.size() <= length => part.size(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta(from: &str, length: u64) -> Delta {
        Delta {
            from: from.parse().unwrap(),
            from_manifest: "00".repeat(32),
            target: format!("rollproxy/x/2.0.0.from-{from}.patch"),
            length,
            sha256: "11".repeat(32),
            content_length: 1_000,
            content_sha256: "22".repeat(32),
        }
    }

    #[test]
    fn the_patch_with_the_least_left_is_first_and_none_that_is_not_smaller() {
        let deltas = [
            delta("1.0.0", 300),
            delta("1.1.0", 90),
            delta("1.2.0", 100),
            delta("1.3.0", 10),
        ];
        let installed: Vec<PackageVersion> = ["1.2.0", "1.1.0", "1.0.0"]
            .iter()
            .map(|version| version.parse().unwrap())
            .collect();
        let from = |whole, left: fn(&Delta) -> u64| -> Vec<String> {
            worth_it(&deltas, &installed, whole, left)
                .iter()
                .map(|delta| delta.from.to_string())
                .collect()
        };
        assert_eq!(from(300, |delta| delta.length), ["1.1.0", "1.2.0"]);
        assert_eq!(from(301, |delta| delta.length), ["1.1.0", "1.2.0", "1.0.0"]);
        assert_eq!(from(90, |delta| delta.length), [""; 0]);
        // An earlier run brought most of one already.
        assert_eq!(
            from(300, |delta| delta.length % 100),
            ["1.0.0", "1.2.0", "1.1.0"]
        );
        assert!(worth_it(&deltas, &[], 1_000, |delta| delta.length).is_empty());
    }
}
