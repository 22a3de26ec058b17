//! Patches beside an archive: made from the archives of earlier versions in the feed, and added if they save something.

use std::path::{Path, PathBuf};

use serde::Serialize;
use staging::delta;

use crate::add::Add;
use crate::disk::{self, Measure};
use crate::feed::Feed;
use crate::names::{Delta, archive_name, patch_name};
use crate::{PublishError, verify};

/// A patch that was not added, because it is not smaller than the archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SkippedDelta {
    /// The version it would be made from.
    pub from: String,
    /// Bytes it would have.
    pub length: u64,
}

/// Patches that were made, in the workshop still.
#[derive(Debug, Default)]
pub(crate) struct Deltas {
    pub(crate) patches: Vec<Patch>,
    pub(crate) skipped: Vec<SkippedDelta>,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Patch {
    pub(crate) file: PathBuf,
    pub(crate) measure: Measure,
    pub(crate) delta: Delta,
}

impl Deltas {
    /// Takes a patch if it is smaller than the archive.
    fn sort_in(&mut self, patch: Patch, archive: u64) {
        if patch.delta.length < archive {
            self.patches.push(patch);
        } else {
            self.skipped.push(SkippedDelta {
                from: patch.delta.from,
                length: patch.delta.length,
            });
        }
    }
}

/// Makes the patches that are asked for and not there yet.
pub(crate) fn make(
    feed: &Feed,
    what: &Add,
    there: &[Delta],
    (archive, measure): (&Path, &Measure),
    workshop: &Path,
) -> Result<Deltas, PublishError> {
    let mut all = Deltas::default();
    let mut done: Vec<_> = there.iter().map(|delta| delta.from.clone()).collect();
    for from in what.delta_from.iter().map(ToString::to_string) {
        if done.contains(&from) {
            continue;
        }
        if from == what.version.to_string() {
            return Err(PublishError::DeltaFromItself { version: from });
        }
        let name = archive_name(&what.target, &from);
        let about = feed
            .target(&name)
            .ok_or_else(|| PublishError::VersionUnknown {
                version: from.clone(),
                target: what.target.clone(),
            })?;
        let old = verify::whole_target(&feed.folder, &name, about)?;
        let file = workshop.join(format!("{from}.patch"));
        let made = delta::make(&old, archive, &file).map_err(|source| PublishError::Delta {
            from: from.clone(),
            version: what.version.to_string(),
            source: Box::new(source),
        })?;
        let patch = Patch {
            measure: disk::measure(&file)?,
            file,
            delta: Delta {
                from: from.clone(),
                from_manifest: made.from_manifest,
                target: patch_name(&what.target, &what.version, &from),
                length: made.length,
                sha256: made.sha256,
                content_length: made.content_length,
                content_sha256: made.content_sha256,
            },
        };
        all.sort_in(patch, measure.length);
        done.push(from);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_that_saves_nothing_is_left_out_and_said() {
        let mut all = Deltas::default();
        for (from, length) in [("1.0.0", 99), ("1.1.0", 100), ("1.2.0", 101)] {
            let delta = Delta {
                from: from.into(),
                from_manifest: String::new(),
                target: String::new(),
                length,
                sha256: String::new(),
                content_length: 0,
                content_sha256: String::new(),
            };
            let patch = Patch {
                file: PathBuf::new(),
                measure: disk::measure_bytes(b""),
                delta,
            };
            all.sort_in(patch, 100);
        }
        assert_eq!(all.patches.len(), 1);
        assert_eq!(all.patches[0].delta.from, "1.0.0");
        let skipped: Vec<_> = all.skipped.iter().map(|skipped| skipped.length).collect();
        assert_eq!(skipped, [100, 101]);
    }
}
