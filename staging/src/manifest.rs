//! `package.json`: what a package says of itself, and every file it consists of.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::report::{Exit, Report};
use crate::version::PackageVersion;
use crate::{digest, files};

/// The name of every package.
pub const NAME: &str = "rollproxy";
/// The file name of the manifest in a package.
pub const FILE: &str = "package.json";
/// The newest manifest schema this build knows.
pub const SCHEMA: u32 = 1;
/// The largest manifest accepted, in bytes.
pub const MAX_BYTES: u64 = 1024 * 1024;

/// A package's manifest, checked: its paths are safe and unique, and its entries name executable files of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Always written as [`SCHEMA`].
    pub schema: u32,
    /// Always [`NAME`].
    pub name: String,
    /// The version, which is also the name of the published folder.
    pub version: PackageVersion,
    /// The target triple it was built for.
    pub target: String,
    /// The oldest launcher that can start it.
    pub min_launcher: PackageVersion,
    /// What it speaks.
    pub protocol: Protocol,
    /// Program name to path in the package.
    pub entries: BTreeMap<String, String>,
    /// Every file of the package but the manifest.
    pub files: Vec<FileEntry>,
    /// Where it came from.
    pub build: Build,
    #[serde(skip)]
    digest: String,
}

/// The protocols of a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protocol {
    /// The channel versions its worker and supervisor understand.
    pub channel: ChannelRange,
    /// The number of the state its supervisor hands over in place.
    pub state: u32,
}

/// An inclusive range of channel versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelRange {
    /// The oldest.
    pub min: u32,
    /// The newest.
    pub max: u32,
}

impl ChannelRange {
    /// Whether a channel version is understood.
    pub fn contains(&self, version: u32) -> bool {
        (self.min..=self.max).contains(&version)
    }
}

/// One file of a package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Relative, `/`-separated.
    pub path: String,
    /// In bytes.
    pub size: u64,
    /// `0555` or `0444`.
    pub mode: String,
    /// Lower-case hex.
    pub sha256: String,
}

impl FileEntry {
    /// The mode as a number.
    pub fn mode_bits(&self) -> u32 {
        if self.is_executable() { 0o555 } else { 0o444 }
    }

    /// Whether the mode says that it can be started.
    pub fn is_executable(&self) -> bool {
        self.mode == "0555"
    }
}

/// Where a package came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Build {
    /// The commit it was built from.
    pub commit: String,
    /// The version compiled into its binaries; the package's own version is the manifest's.
    pub compiled_version: String,
}

/// Why a manifest was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The file is there, or should be, and reading it failed.
    #[error("reading the manifest {path}: {source}")]
    Read {
        /// The manifest.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The folder holds no manifest.
    #[error("{path} is missing: this is no package")]
    Missing {
        /// The manifest.
        path: PathBuf,
    },
    /// Not JSON of this shape.
    #[error("the manifest does not parse: {why}; pack the release again")]
    Unparsable {
        /// Where and how.
        why: String,
    },
    /// Written for a newer Rollproxy.
    #[error(
        "the manifest has schema {found}, and this version knows up to {SCHEMA}: update in smaller steps"
    )]
    Newer {
        /// The schema found.
        found: u64,
    },
    /// A value that breaks a rule.
    #[error("the manifest's `{key}`: {why}; pack the release again")]
    Rule {
        /// The key, as in the JSON.
        key: String,
        /// Which rule.
        why: String,
    },
}

impl Report for ManifestError {
    fn code(&self) -> &'static str {
        match self {
            ManifestError::Read { .. } => "MANIFEST_READ",
            ManifestError::Missing { .. } => "MANIFEST_MISSING",
            ManifestError::Unparsable { .. } => "MANIFEST_UNPARSABLE",
            ManifestError::Newer { .. } => "MANIFEST_NEWER",
            ManifestError::Rule { .. } => "MANIFEST_INVALID",
        }
    }
    fn exit(&self) -> Exit {
        Exit::Failed
    }
    fn retry(&self) -> bool {
        false
    }
}

impl Manifest {
    /// Puts a manifest together and checks it as [`Manifest::parse`] would.
    ///
    /// # Errors
    /// [`ManifestError::Rule`] for what could not be packed.
    pub fn new(
        version: PackageVersion,
        target: String,
        min_launcher: PackageVersion,
        protocol: Protocol,
        entries: BTreeMap<String, String>,
        files: Vec<FileEntry>,
        build: Build,
    ) -> Result<Manifest, ManifestError> {
        let mut manifest = Manifest {
            schema: SCHEMA,
            name: NAME.to_owned(),
            version,
            target,
            min_launcher,
            protocol,
            entries,
            files,
            build,
            digest: String::new(),
        };
        manifest.check()?;
        manifest.digest = digest::of(&manifest.to_bytes()?);
        Ok(manifest)
    }

    /// Parses and checks the bytes of a manifest.
    ///
    /// # Errors
    /// [`ManifestError`], all but `Read` and `Missing`.
    pub fn parse(bytes: &[u8]) -> Result<Manifest, ManifestError> {
        #[derive(Deserialize)]
        struct Head {
            schema: u64,
        }
        let unparsable = |error: serde_json::Error| ManifestError::Unparsable {
            why: error.to_string(),
        };
        if bytes.len() as u64 > MAX_BYTES {
            return Err(ManifestError::Unparsable {
                why: format!("larger than {MAX_BYTES} bytes"),
            });
        }
        let head: Head = serde_json::from_slice(bytes).map_err(unparsable)?;
        if head.schema > u64::from(SCHEMA) {
            return Err(ManifestError::Newer { found: head.schema });
        }
        let mut manifest: Manifest = serde_json::from_slice(bytes).map_err(unparsable)?;
        manifest.check()?;
        manifest.digest = digest::of(bytes);
        Ok(manifest)
    }

    /// Reads and checks the manifest of a package folder.
    ///
    /// # Errors
    /// [`ManifestError`]
    pub fn read(package: &Path) -> Result<Manifest, ManifestError> {
        let path = package.join(FILE);
        match files::read_bounded(&path, MAX_BYTES) {
            Ok(Some(bytes)) => Manifest::parse(&bytes),
            Ok(None) => Err(ManifestError::Missing { path }),
            Err(source) => Err(ManifestError::Read { path, source }),
        }
    }

    /// The bytes to write for this manifest; the same for the same manifest.
    ///
    /// # Errors
    /// [`ManifestError::Unparsable`] if it cannot be put into JSON.
    pub fn to_bytes(&self) -> Result<Vec<u8>, ManifestError> {
        let mut bytes =
            serde_json::to_vec_pretty(self).map_err(|error| ManifestError::Unparsable {
                why: error.to_string(),
            })?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// SHA-256 of the manifest's own bytes, and so, through the digests in it, of the whole package.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The file of that path.
    pub fn file(&self, path: &str) -> Option<&FileEntry> {
        self.files.iter().find(|file| file.path == path)
    }

    /// The bytes of all files together, the manifest's own not counted; `None` beyond what fits a number.
    pub fn total_size(&self) -> Option<u64> {
        self.files
            .iter()
            .try_fold(0u64, |sum, file| sum.checked_add(file.size))
    }

    fn check(&self) -> Result<(), ManifestError> {
        let rule = |key: &str, why: String| {
            Err(ManifestError::Rule {
                key: key.to_owned(),
                why,
            })
        };
        if self.schema == 0 {
            return rule("schema", "0 never existed".to_owned());
        }
        if self.name != NAME {
            return rule("name", format!("is {:?}, expected {NAME:?}", self.name));
        }
        if self.target.is_empty() {
            return rule("target", "is empty".to_owned());
        }
        if self.protocol.channel.min > self.protocol.channel.max {
            return rule("protocol.channel", "min is above max".to_owned());
        }
        let mut folded = HashSet::new();
        for file in &self.files {
            let path = &file.path;
            if let Err(why) = check_path(path) {
                return rule("files", why);
            }
            if !folded.insert(path.to_lowercase()) {
                return rule(
                    "files",
                    format!("{path:?} stands twice, or differs from another only in case"),
                );
            }
            if !matches!(file.mode.as_str(), "0555" | "0444") {
                return rule(
                    "files",
                    format!(
                        "{path:?} has mode {:?}: only 0555 and 0444 are published",
                        file.mode
                    ),
                );
            }
            if !digest::is_digest(&file.sha256) {
                return rule(
                    "files",
                    format!("{path:?} has no lower-case sha256 of 64 digits"),
                );
            }
        }
        let mut spellings: BTreeMap<String, &str> = BTreeMap::new();
        for file in &self.files {
            for parent in parents(&file.path) {
                if folded.contains(&parent.to_lowercase()) {
                    return rule("files", format!("{parent:?} is both a file and a folder"));
                }
                let spelling = spellings.entry(parent.to_lowercase()).or_insert(parent);
                if *spelling != parent {
                    return rule(
                        "files",
                        format!("the folders {spelling:?} and {parent:?} differ only in case"),
                    );
                }
            }
        }
        if self.entries.is_empty() {
            return rule("entries", "is empty".to_owned());
        }
        for (name, path) in &self.entries {
            if name.is_empty() || name.contains('/') {
                return rule("entries", format!("{name:?} is no program name"));
            }
            match self.file(path) {
                None => {
                    return rule(
                        "entries",
                        format!("{name:?} is at {path:?}, which is not among the files"),
                    );
                }
                Some(file) if !file.is_executable() => {
                    return rule(
                        "entries",
                        format!("{name:?} is at {path:?}, whose mode is not 0555"),
                    );
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

/// The folders above a path in a package, innermost last.
pub(crate) fn parents(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at])
}

/// Refuses every path that does not lie plainly below the package root, and the manifest's own.
fn check_path(path: &str) -> Result<(), String> {
    check_plain(path)?;
    if path.eq_ignore_ascii_case(FILE) {
        return Err("the manifest does not list itself".to_owned());
    }
    Ok(())
}

/// Refuses every path that does not lie plainly below the package root.
pub(crate) fn check_plain(path: &str) -> Result<(), String> {
    if path.is_empty() || path.len() > 255 {
        return Err(format!("{path:?} is empty or longer than 255 bytes"));
    }
    if path.starts_with('/') {
        return Err(format!("{path:?} is absolute"));
    }
    if path.chars().any(|c| c.is_control() || c == '\\') {
        return Err(format!("{path:?} holds a control character or a backslash"));
    }
    for part in path.split('/') {
        match part {
            "" => return Err(format!("{path:?} has an empty part")),
            "." | ".." => return Err(format!("{path:?} has a part `{part}`")),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    pub(crate) fn sample() -> Value {
        json!({
            "schema": 1, "name": "rollproxy", "version": "1.4.2", "target": crate::TARGET, "minLauncher": "0.1.0",
            "protocol": {"channel": {"min": 1, "max": 1}, "state": 1},
            "entries": {"rollproxy": "bin/rollproxy"},
            "files": [
                {"path": "bin/rollproxy", "size": 3, "mode": "0555", "sha256": digest::of(b"abc")},
                {"path": "share/notes.txt", "size": 0, "mode": "0444", "sha256": digest::of(b"")},
            ],
            "build": {"commit": "abc", "compiledVersion": "0.1.0"},
        })
    }

    fn parse(value: &Value) -> Result<Manifest, ManifestError> {
        Manifest::parse(value.to_string().as_bytes())
    }

    #[test]
    fn a_good_manifest_parses_ignores_unknown_keys_and_knows_its_digest() {
        let mut value = sample();
        value["later"] = json!({"x": 1});
        let bytes = value.to_string();
        let manifest = Manifest::parse(bytes.as_bytes()).unwrap();
        assert_eq!(manifest.digest(), digest::of(bytes.as_bytes()));
        assert_eq!(manifest.total_size(), Some(3));
        assert_eq!(
            manifest.file("bin/rollproxy").map(FileEntry::mode_bits),
            Some(0o555)
        );
        let again = Manifest::parse(&manifest.to_bytes().unwrap()).unwrap();
        assert_eq!(again.files, manifest.files);
    }

    #[test]
    fn every_broken_rule_is_named() {
        type Break = fn(&mut Value);
        let cases: [(&str, Break); 22] = [
            ("name", |v| v["name"] = json!("nginx")),
            ("schema", |v| v["schema"] = json!(0)),
            ("target", |v| v["target"] = json!("")),
            ("protocol.channel", |v| {
                v["protocol"]["channel"]["min"] = json!(2)
            }),
            ("absolute", |v| v["files"][1]["path"] = json!("/etc/passwd")),
            ("`..`", |v| v["files"][1]["path"] = json!("share/../../x")),
            ("`.`", |v| v["files"][1]["path"] = json!("./x")),
            ("empty part", |v| v["files"][1]["path"] = json!("share//x")),
            ("empty part", |v| v["files"][1]["path"] = json!("share/")),
            ("empty or longer", |v| v["files"][1]["path"] = json!("")),
            ("control", |v| v["files"][1]["path"] = json!("a\u{0}b")),
            ("itself", |v| v["files"][1]["path"] = json!("package.json")),
            ("twice", |v| v["files"][1]["path"] = json!("bin/rollproxy")),
            ("in case", |v| {
                v["files"][1]["path"] = json!("bin/Rollproxy")
            }),
            ("only in case", |v| v["files"][1]["path"] = json!("Bin/x")),
            ("both a file and a folder", |v| {
                v["files"][1]["path"] = json!("bin/rollproxy/x")
            }),
            ("mode", |v| v["files"][1]["mode"] = json!("4555")),
            ("sha256", |v| v["files"][1]["sha256"] = json!("ABC")),
            ("entries", |v| v["entries"] = json!({})),
            ("program name", |v| {
                v["entries"] = json!({"../x": "bin/rollproxy"})
            }),
            ("not among", |v| {
                v["entries"]["rollproxy"] = json!("bin/other")
            }),
            ("not 0555", |v| {
                v["entries"]["rollproxy"] = json!("share/notes.txt")
            }),
        ];
        for (expected, break_it) in cases {
            let mut value = sample();
            break_it(&mut value);
            let error = parse(&value).unwrap_err();
            assert!(matches!(error, ManifestError::Rule { .. }), "{error}");
            assert!(error.to_string().contains(expected), "{expected}: {error}");
        }
    }

    #[test]
    fn missing_keys_wrong_types_and_newer_schemas_are_refused() {
        let keys: Vec<String> = sample().as_object().unwrap().keys().cloned().collect();
        for key in keys {
            let mut value = sample();
            value.as_object_mut().unwrap().remove(&key);
            let error = parse(&value).unwrap_err();
            assert!(
                matches!(error, ManifestError::Unparsable { .. }),
                "{key}: {error}"
            );
        }
        let error = parse(&json!({"schema": 2, "everything": "else"})).unwrap_err();
        assert!(matches!(error, ManifestError::Newer { found: 2 }));
        assert!(parse(&json!([])).is_err());
    }

    #[test]
    fn a_folder_without_manifest_is_no_package() {
        let folder = crate::scratch::Scratch::new();
        assert!(matches!(
            Manifest::read(folder.path()),
            Err(ManifestError::Missing { .. })
        ));
    }

    proptest! {
        #[test]
        fn no_accepted_path_leaves_the_package(path in "[a-zA-Z./\\\\\u{0}]{0,12}") {
            let mut value = sample();
            value["files"][1]["path"] = json!(path);
            if parse(&value).is_ok() {
                let joined = Path::new("/root/of/package").join(&path);
                prop_assert!(joined.components().all(|part| !matches!(part, std::path::Component::ParentDir)));
                prop_assert!(joined.starts_with("/root/of/package") && joined != Path::new("/root/of/package"));
            }
        }

        #[test]
        fn corrupted_bytes_never_panic(at in 0usize..600, byte in any::<u8>()) {
            let mut bytes = sample().to_string().into_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = Manifest::parse(&bytes);
        }
    }
}
