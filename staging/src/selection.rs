//! `selection.json`: the package that the launcher starts.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::document::{self, Document, DocumentError};
use crate::home::Home;
use crate::locks::StateLock;
use crate::report::{Exit, Report};
use crate::version::PackageVersion;

/// The selection as it stands on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Selection {
    /// Always written as 1.
    pub schema: u32,
    /// Rises by one with every change; who saw another number saw another selection.
    pub serial: u64,
    /// The package that is started.
    pub version: PackageVersion,
    /// The one before it: what is started if this one is unusable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<PackageVersion>,
    /// Whether a person chose it, so that jobs leave it alone.
    pub pinned: bool,
    /// Who wrote it, such as `person`, `job`.
    pub by: String,
    /// When.
    pub at: Timestamp,
}

impl Document for Selection {
    const SCHEMA: u32 = 1;
    const NAME: &'static str = "selection";
}

/// What to make of the selection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The package to select.
    pub version: PackageVersion,
    /// Whether it is pinned.
    pub pinned: bool,
    /// Who asks for it.
    pub by: String,
}

/// Why the selection was not changed.
#[derive(Debug, thiserror::Error)]
pub enum SelectionError {
    /// Reading or writing failed.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// Somebody changed it meanwhile.
    #[error(
        "the selection changed meanwhile (serial {} expected, {} found): nothing was changed, look at it and ask again",
        serial(expected),
        serial(found)
    )]
    SerialChanged {
        /// The serial that was seen; `None` = no selection.
        expected: Option<u64>,
        /// The serial now.
        found: Option<u64>,
    },
}

fn serial(serial: &Option<u64>) -> String {
    match serial {
        Some(serial) => serial.to_string(),
        None => "none".to_owned(),
    }
}

impl Report for SelectionError {
    fn code(&self) -> &'static str {
        match self {
            SelectionError::Document(error) => error.code(),
            SelectionError::SerialChanged { .. } => "SERIAL_CHANGED",
        }
    }
    fn exit(&self) -> Exit {
        match self {
            SelectionError::Document(error) => error.exit(),
            SelectionError::SerialChanged { .. } => Exit::Deferred,
        }
    }
    fn retry(&self) -> bool {
        match self {
            SelectionError::Document(error) => error.retry(),
            SelectionError::SerialChanged { .. } => true,
        }
    }
}

/// The selection; `None` where nothing was ever selected.
///
/// # Errors
/// [`DocumentError`]
pub fn read(home: &Home) -> Result<Option<Selection>, DocumentError> {
    document::read(&home.selection_file())
}

/// Changes the selection, whatever it was.
///
/// # Errors
/// [`SelectionError::Document`]: also if the old one cannot be read, for its serial would be lost.
pub fn write(_lock: &StateLock, home: &Home, change: Change) -> Result<Selection, SelectionError> {
    let old = read(home)?;
    let new = next(old.as_ref(), change, clock::now());
    document::write(&home.selection_file(), &new)?;
    Ok(new)
}

/// Changes the selection if its serial is still the one that was seen (`None`: if there still is none).
///
/// # Errors
/// [`SelectionError`]
pub fn write_if_serial(
    lock: &StateLock,
    home: &Home,
    expected: Option<u64>,
    change: Change,
) -> Result<Selection, SelectionError> {
    let found = read(home)?.map(|selection| selection.serial);
    if found != expected {
        return Err(SelectionError::SerialChanged { expected, found });
    }
    write(lock, home, change)
}

/// The selection that follows from a change.
fn next(old: Option<&Selection>, change: Change, at: Timestamp) -> Selection {
    let previous = match old {
        // Selecting the same again (to pin it) must not make it its own fallback.
        Some(old) if old.version == change.version => old.previous.clone(),
        Some(old) => Some(old.version.clone()),
        None => None,
    };
    Selection {
        schema: Selection::SCHEMA,
        serial: old.map_or(0, |old| old.serial) + 1,
        version: change.version,
        previous,
        pinned: change.pinned,
        by: change.by,
        at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::home;
    use std::time::Duration;

    fn change(version: &str, pinned: bool) -> Change {
        Change {
            version: version.parse().unwrap(),
            pinned,
            by: "person".into(),
        }
    }

    #[test]
    fn the_serial_rises_and_the_previous_is_the_one_before() {
        let (_folder, home) = home();
        let lock = StateLock::acquire(&home, Duration::ZERO).unwrap();
        assert_eq!(read(&home).unwrap(), None);
        let first = write(&lock, &home, change("1.0.0", false)).unwrap();
        assert_eq!((first.serial, first.previous.clone()), (1, None));
        let second = write(&lock, &home, change("1.1.0", false)).unwrap();
        assert_eq!(
            (second.serial, second.previous.clone()),
            (2, Some(first.version.clone()))
        );
        let pinned = write(&lock, &home, change("1.1.0", true)).unwrap();
        assert_eq!(
            (pinned.serial, pinned.previous.clone(), pinned.pinned),
            (3, Some(first.version), true)
        );
        assert_eq!(read(&home).unwrap(), Some(pinned));
    }

    #[test]
    fn a_serial_seen_too_early_changes_nothing() {
        let (_folder, home) = home();
        let lock = StateLock::acquire(&home, Duration::ZERO).unwrap();
        write_if_serial(&lock, &home, None, change("1.0.0", false)).unwrap();
        for stale in [None, Some(0), Some(2)] {
            let before = std::fs::read(home.selection_file()).unwrap();
            let error = write_if_serial(&lock, &home, stale, change("2.0.0", false)).unwrap_err();
            assert!(
                matches!(error, SelectionError::SerialChanged { found: Some(1), .. }),
                "{error}"
            );
            assert_eq!(std::fs::read(home.selection_file()).unwrap(), before);
        }
        let second = write_if_serial(&lock, &home, Some(1), change("1.1.0", false)).unwrap();
        assert_eq!(second.serial, 2);
    }

    #[test]
    fn a_broken_selection_is_neither_read_nor_replaced() {
        let (_folder, home) = home();
        let lock = StateLock::acquire(&home, Duration::ZERO).unwrap();
        std::fs::write(home.selection_file(), r#"{"schema":1,"serial":"#).unwrap();
        assert!(read(&home).is_err());
        assert!(write(&lock, &home, change("1.0.0", false)).is_err());
        assert_eq!(
            std::fs::read_to_string(home.selection_file()).unwrap(),
            r#"{"schema":1,"serial":"#
        );
    }
}
