//! The small JSON files of a home: read whole or refused by name, replaced whole, never guessed.

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::files;
use crate::report::{Exit, Report};

/// No document of a home comes near this many bytes; a file beyond it is no document.
pub const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// A type that lives in a file of its own. It has a field `schema`, written as [`Document::SCHEMA`].
pub trait Document: Serialize + DeserializeOwned {
    /// The newest schema this build knows.
    const SCHEMA: u32;
    /// What messages call such a document, such as `selection`.
    const NAME: &'static str;
}

/// Why a document was not read or not written.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The file is there, and reading it failed.
    #[error("reading {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The bytes are not such a document.
    #[error("{path} is no {name}: {why}; mend it or move it away, it is not replaced by itself")]
    Unparsable {
        /// The file.
        path: PathBuf,
        /// The kind of document expected.
        name: &'static str,
        /// Where and how parsing failed.
        why: String,
    },
    /// Written by a newer Rollproxy.
    #[error(
        "{path} is a {name} of schema {found}, and this version knows up to {known}: use the newer Rollproxy that wrote it"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The kind of document.
        name: &'static str,
        /// The schema in the file.
        found: u64,
        /// The newest schema known here.
        known: u32,
    },
    /// The file was not replaced; the old one is as it was.
    #[error("writing {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl Report for DocumentError {
    fn code(&self) -> &'static str {
        match self {
            DocumentError::Read { .. } => "DOCUMENT_READ",
            DocumentError::Unparsable { .. } => "DOCUMENT_UNPARSABLE",
            DocumentError::Newer { .. } => "DOCUMENT_NEWER",
            DocumentError::Write { .. } => "DOCUMENT_WRITE",
        }
    }
    fn exit(&self) -> Exit {
        Exit::Failed
    }
    fn retry(&self) -> bool {
        matches!(self, DocumentError::Write { .. })
    }
}

/// Reads a document; `None` if the file is not there.
///
/// # Errors
/// [`DocumentError`] naming the file, if it cannot be read, is not such a document, or is newer than known.
pub fn read<T: Document>(path: &Path) -> Result<Option<T>, DocumentError> {
    match files::read_bounded(path, MAX_BYTES) {
        Ok(Some(bytes)) => parse(path, &bytes).map(Some),
        Ok(None) => Ok(None),
        Err(source) => Err(DocumentError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Parses the bytes of a document that came from `path`.
///
/// # Errors
/// As [`read`].
pub fn parse<T: Document>(path: &Path, bytes: &[u8]) -> Result<T, DocumentError> {
    // The schema alone first: what else a newer one holds is nobody's business here.
    #[derive(serde::Deserialize)]
    struct Head {
        schema: u64,
    }
    let unparsable = |why: String| DocumentError::Unparsable {
        path: path.to_owned(),
        name: T::NAME,
        why,
    };
    let head: Head =
        serde_json::from_slice(bytes).map_err(|error| unparsable(error.to_string()))?;
    if head.schema > u64::from(T::SCHEMA) {
        return Err(DocumentError::Newer {
            path: path.to_owned(),
            name: T::NAME,
            found: head.schema,
            known: T::SCHEMA,
        });
    }
    if head.schema == 0 {
        return Err(unparsable("schema 0 never existed".to_owned()));
    }
    serde_json::from_slice(bytes).map_err(|error| unparsable(error.to_string()))
}

/// Replaces a document as a whole, durably.
///
/// # Errors
/// [`DocumentError::Write`]; the old file is untouched then.
pub fn write<T: Document>(path: &Path, document: &T) -> Result<(), DocumentError> {
    let failed = |source: io::Error| DocumentError::Write {
        path: path.to_owned(),
        source,
    };
    let mut bytes = serde_json::to_vec_pretty(document).map_err(|error| failed(error.into()))?;
    bytes.push(b'\n');
    files::write_atomic(path, &bytes).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::Deserialize;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Note {
        schema: u32,
        text: String,
        count: u64,
    }

    impl Document for Note {
        const SCHEMA: u32 = 2;
        const NAME: &'static str = "note";
    }

    fn note() -> Note {
        Note {
            schema: 2,
            text: "hello".into(),
            count: 7,
        }
    }

    #[test]
    fn absent_is_none_and_written_is_read_back() {
        let folder = crate::scratch::Scratch::new();
        let path = folder.path().join("note.json");
        assert_eq!(read::<Note>(&path).unwrap(), None);
        write(&path, &note()).unwrap();
        assert_eq!(read::<Note>(&path).unwrap(), Some(note()));
    }

    #[test]
    fn a_newer_schema_is_refused_by_name_even_if_nothing_else_fits() {
        let folder = crate::scratch::Scratch::new();
        let path = folder.path().join("note.json");
        std::fs::write(&path, r#"{"schema":3,"shape":"unknown"}"#).unwrap();
        let error = read::<Note>(&path).unwrap_err();
        assert!(
            matches!(
                error,
                DocumentError::Newer {
                    found: 3,
                    known: 2,
                    ..
                }
            ),
            "{error}"
        );
        assert!(error.to_string().contains("note.json"));
    }

    #[test]
    fn an_older_schema_and_unknown_fields_are_read() {
        let folder = crate::scratch::Scratch::new();
        let path = folder.path().join("note.json");
        std::fs::write(
            &path,
            r#"{"schema":1,"text":"hello","count":7,"later":true}"#,
        )
        .unwrap();
        assert_eq!(read::<Note>(&path).unwrap().map(|note| note.count), Some(7));
    }

    #[test]
    fn empty_truncated_and_schemaless_files_are_errors_that_name_the_file() {
        let folder = crate::scratch::Scratch::new();
        let path = folder.path().join("note.json");
        let whole = serde_json::to_vec(&note()).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let error = read::<Note>(&path).unwrap_err();
            assert!(
                matches!(error, DocumentError::Unparsable { .. }),
                "{length}: {error}"
            );
            assert!(error.to_string().contains("note.json"));
            assert_eq!(
                std::fs::read(&path).unwrap(),
                &whole[..length],
                "reading changed the file"
            );
        }
        std::fs::write(&path, r#"{"text":"hello","count":7}"#).unwrap();
        assert!(read::<Note>(&path).is_err());
    }

    #[test]
    fn what_is_no_file_or_too_large_is_refused_at_once_and_named() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let folder = crate::scratch::Scratch::new();
        let pipe = folder.path().join("pipe.json");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let within = folder.path().join("folder.json");
        std::fs::create_dir(&within).unwrap();
        let large = folder.path().join("large.json");
        std::fs::File::create(&large)
            .and_then(|file| file.set_len(MAX_BYTES + 1))
            .unwrap();
        let endless = std::path::PathBuf::from("/dev/zero");
        for (path, part) in [
            (pipe, "not a regular file"),
            (within, "not a regular file"),
            (endless, "not a regular file"),
            (large, "larger than the 16777216 bytes"),
        ] {
            let (told, answer) = std::sync::mpsc::channel();
            let asked = path.clone();
            std::thread::spawn(move || told.send(read::<Note>(&asked)));
            // Reading a pipe that nobody writes to would never end.
            let error = answer
                .recv_timeout(std::time::Duration::from_secs(20))
                .unwrap()
                .unwrap_err();
            assert_eq!(error.code(), "DOCUMENT_READ");
            let text = error.to_string();
            assert!(
                text.contains(part) && text.contains(path.to_str().unwrap()),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn random_corruption_is_an_error_or_what_the_bytes_say_but_never_a_default(
            at in 0usize..40, byte in any::<u8>(), tail in proptest::collection::vec(any::<u8>(), 0..8)
        ) {
            let folder = crate::scratch::Scratch::new();
            let path = folder.path().join("note.json");
            let mut bytes = serde_json::to_vec(&note()).unwrap();
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.extend(tail);
            std::fs::write(&path, &bytes).unwrap();
            match read::<Note>(&path) {
                Ok(None) => prop_assert!(false, "a file that is there was taken for absent"),
                Ok(Some(read)) => {
                    // Whatever came out stands in the bytes.
                    let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
                    prop_assert_eq!(value["text"].as_str(), Some(read.text.as_str()));
                    prop_assert_eq!(value["count"].as_u64(), Some(read.count));
                }
                Err(error) => prop_assert!(error.to_string().contains("note.json")),
            }
            prop_assert_eq!(std::fs::read(&path).unwrap(), bytes);
        }
    }
}
