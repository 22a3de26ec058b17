//! Which role is believed about what.
//!
//! The TUF client answers with the first role on its way that names a file. That is too kind to a publisher's mistake: a
//! delegation with too wide a path would let a channel's key sign archives, or another channel's file. So the role is named here
//! as well: archives are those of `targets`, and a channel's file is that of its own role, or of `targets` in older feeds.

use jiff::Timestamp;
use sigstore_tuf::{TargetFile, TrustedMetadataSet};

/// Whether `targets` itself says of `name` what was found.
pub(super) fn of_targets(trusted: &TrustedMetadataSet, name: &str, found: &TargetFile) -> bool {
    let targets = trusted.targets_role("targets");
    targets.and_then(|targets| targets.target(name)) == Some(found)
}

/// Whether `targets`, or the role of the channel `channel` as `targets` delegates to it, says of `name` what was found.
pub(super) fn of_channel(
    trusted: &TrustedMetadataSet,
    channel: &str,
    name: &str,
    found: &TargetFile,
    now: Timestamp,
) -> bool {
    let own = trusted.verify_delegated_targets(&format!("channel-{channel}"), "targets", now);
    of_targets(trusted, name, found) || own.is_ok_and(|role| role.target(name) == Some(found))
}
