//! Tells the crate which commit it is built from, so that `--version --verbose` can say it.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=ROLLPROXY_COMMIT");
    // It grows with every commit and checkout. Outside a checkout it is not there, and naming a
    // missing file would run this at every build.
    let log = std::path::Path::new("../.git/logs/HEAD");
    if log.exists() {
        println!("cargo:rerun-if-changed={}", log.display());
    }
    let commit = std::env::var("ROLLPROXY_COMMIT").ok().or_else(from_git);
    println!(
        "cargo:rustc-env=ROLLPROXY_COMMIT={}",
        commit.as_deref().unwrap_or("unknown")
    );
}

fn from_git() -> Option<String> {
    let output = Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .output()
        .ok()?;
    let commit = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !commit.is_empty()).then_some(commit)
}
