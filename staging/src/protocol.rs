//! The numbers by which two versions know whether they understand each other.

/// The channel between supervisor and worker, as spoken by this build.
pub const CHANNEL_PROTOCOL: u32 = 1;

/// The state that a supervisor hands to the one that replaces it in place, as written by this build.
pub const STATE_PROTOCOL: u32 = 1;

/// The target triple of this build.
pub const TARGET: &str = target();

const fn target() -> &'static str {
    match (cfg!(target_arch = "x86_64"), cfg!(target_env = "musl")) {
        (true, false) => "x86_64-unknown-linux-gnu",
        (true, true) => "x86_64-unknown-linux-musl",
        (false, false) => "aarch64-unknown-linux-gnu",
        (false, true) => "aarch64-unknown-linux-musl",
    }
}

/// Whether a package built for `target` runs on this machine: same processor, Linux; both C libraries do
/// (musl builds are static, and that a gnu build finds its loader is proven by starting it).
pub fn runs_here(target: &str) -> bool {
    let arch = std::env::consts::ARCH;
    matches!(
        target.strip_prefix(arch),
        Some("-unknown-linux-gnu" | "-unknown-linux-musl")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_build_and_its_sibling_run_here_and_nothing_else() {
        let arch = std::env::consts::ARCH;
        assert!(runs_here(TARGET));
        assert!(runs_here(&format!("{arch}-unknown-linux-musl")));
        assert!(runs_here(&format!("{arch}-unknown-linux-gnu")));
        let other = if arch == "x86_64" {
            "aarch64"
        } else {
            "x86_64"
        };
        for bad in [
            "",
            arch,
            &format!("{other}-unknown-linux-gnu"),
            &format!("{arch}-apple-darwin"),
        ] {
            assert!(!runs_here(bad), "{bad:?}");
        }
    }
}
