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
        if made.length >= measure.length {
            all.skipped.push(SkippedDelta {
                from: from.clone(),
                length: made.length,
            });
        } else {
            all.patches.push(Patch {
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
            });
        }
        done.push(from);
    }
    Ok(all)
}
