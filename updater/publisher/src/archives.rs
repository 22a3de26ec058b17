//! What the feed says about archives in their `custom`, and changing it.

use std::collections::HashMap;

use serde_json::Value;
use tough::schema::Target;

use crate::PublishError;
use crate::feed::Feed;
use crate::names::{ArchiveCustom, archive_name, parse_archive};

/// Where the signed list of archives is kept that were published once and withdrawn.
const WITHDRAWN: &str = "x-rollproxy-withdrawn";

impl Feed {
    /// The triples that `version` was added for, or just `target` if one is named.
    ///
    /// # Errors
    /// [`PublishError::VersionUnknown`] if that is none.
    pub(crate) fn triples_with(
        &self,
        version: &str,
        target: Option<&str>,
    ) -> Result<Vec<String>, PublishError> {
        let mut triples: Vec<_> = self
            .targets
            .targets
            .keys()
            .filter_map(|name| parse_archive(name.raw()))
            .filter(|(triple, of)| *of == version && target.is_none_or(|only| only == *triple))
            .map(|(triple, _)| triple.to_owned())
            .collect();
        triples.sort();
        if triples.is_empty() {
            return Err(PublishError::VersionUnknown {
                version: version.to_owned(),
                target: target.unwrap_or("any target").to_owned(),
            });
        }
        Ok(triples)
    }

    /// Changes what the feed says about the archives of `version`; gives their names.
    pub(crate) fn edit_archives(
        &mut self,
        version: &str,
        target: Option<&str>,
        edit: impl Fn(&mut ArchiveCustom),
    ) -> Result<Vec<String>, PublishError> {
        let mut names = Vec::new();
        for triple in self.triples_with(version, target)? {
            let name = archive_name(&triple, version);
            if let Some(archive) = self.target_mut(&name) {
                let mut custom = custom_of(archive, &name)?;
                edit(&mut custom);
                archive.custom = to_map(&custom)?;
            }
            names.push(name);
        }
        Ok(names)
    }

    /// The digest of an archive that was withdrawn.
    pub(crate) fn withdrawn(&self, name: &str) -> Option<&str> {
        self.targets._extra.get(WITHDRAWN)?.get(name)?.as_str()
    }

    /// Remembers, signed, that an archive was published and withdrawn: that version never means anything else.
    pub(crate) fn remember_withdrawn(&mut self, name: &str, sha256: &str) {
        self.touch_targets();
        let all = self
            .targets
            ._extra
            .entry(WITHDRAWN.to_owned())
            .or_insert_with(|| Value::Object(serde_json::Map::new()));
        if let Some(all) = all.as_object_mut() {
            all.insert(name.to_owned(), sha256.into());
        }
    }

    /// An archive that was withdrawn is there again.
    pub(crate) fn forget_withdrawn(&mut self, name: &str) {
        if let Some(Value::Object(all)) = self.targets._extra.get_mut(WITHDRAWN) {
            all.remove(name);
            if all.is_empty() {
                self.targets._extra.remove(WITHDRAWN);
            }
        }
    }
}

/// The `custom` of an archive.
pub(crate) fn custom_of(archive: &Target, name: &str) -> Result<ArchiveCustom, PublishError> {
    serde_json::to_value(&archive.custom)
        .and_then(serde_json::from_value)
        .map_err(|e| PublishError::Custom {
            name: name.to_owned(),
            reason: e.to_string(),
        })
}

/// A `custom` as metadata hold it.
pub(crate) fn to_map(custom: &ArchiveCustom) -> Result<HashMap<String, Value>, PublishError> {
    serde_json::to_value(custom)
        .and_then(serde_json::from_value)
        .map_err(|e| PublishError::Sign {
            role: "targets".into(),
            source: Box::new(e),
        })
}
