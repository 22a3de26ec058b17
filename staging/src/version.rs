//! The version of a package.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::report::{Exit, Report};

/// The longest version accepted, in bytes: it names folders and stands in messages.
pub const MAX_LENGTH: usize = 100;

/// Exact semver without build metadata and without a leading `v`; ordered as semver orders.
///
/// Build metadata is refused because semver ignores it in ordering, while a folder name does not. Cheap to clone, and one
/// word large, for it stands in records and errors everywhere.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PackageVersion(Arc<semver::Version>);

/// A text that is no package version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no package version: {why}; write it as MAJOR.MINOR.PATCH, such as 1.4.2 or 1.5.0-rc.1"
)]
pub struct VersionError {
    /// What was given, shortened.
    pub text: String,
    /// What is wrong with it.
    pub why: String,
}

impl Report for VersionError {
    fn code(&self) -> &'static str {
        "VERSION_INVALID"
    }
    fn exit(&self) -> Exit {
        Exit::Usage
    }
    fn retry(&self) -> bool {
        false
    }
}

impl PackageVersion {
    /// A release version from its three numbers.
    pub fn new(major: u64, minor: u64, patch: u64) -> Self {
        PackageVersion(Arc::new(semver::Version::new(major, minor, patch)))
    }

    /// Whether this is a pre-release, such as `1.5.0-rc.1`.
    pub fn is_prerelease(&self) -> bool {
        !self.0.pre.is_empty()
    }
}

impl FromStr for PackageVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = |why: String| VersionError {
            text: text.chars().take(MAX_LENGTH).collect(),
            why,
        };
        if text.len() > MAX_LENGTH {
            return Err(refuse(format!("longer than {MAX_LENGTH} bytes")));
        }
        let version = semver::Version::parse(text).map_err(|error| refuse(error.to_string()))?;
        if !version.build.is_empty() {
            return Err(refuse("build metadata (`+…`) is not allowed".to_owned()));
        }
        Ok(PackageVersion(Arc::new(version)))
    }
}

impl fmt::Display for PackageVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl Serialize for PackageVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PackageVersion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_exact_semver_is_a_version() {
        for good in ["0.0.0", "1.4.2", "1.5.0-rc.1", "10.20.30-alpha-b.0"] {
            assert_eq!(good.parse::<PackageVersion>().unwrap().to_string(), good);
        }
        for bad in [
            "",
            "1",
            "1.2",
            "v1.2.3",
            "1.2.3.4",
            "01.2.3",
            "1.2.3+build",
            "1.2.3-",
            " 1.2.3",
            "1.2.3 ",
            "1.2.x",
            "^1.2.3",
            "../1.2.3",
            "1.2.3/..",
            "latest",
            "1.2.3\n",
        ] {
            assert!(
                bad.parse::<PackageVersion>().is_err(),
                "{bad:?} was accepted"
            );
        }
        assert!(
            format!("1.2.3-{}", "a".repeat(MAX_LENGTH))
                .parse::<PackageVersion>()
                .is_err()
        );
    }

    #[test]
    fn order_is_semver_order_not_text_order() {
        let rising = [
            "0.9.10",
            "0.10.0",
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-beta",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0",
            "1.0.1",
        ];
        let versions: Vec<PackageVersion> =
            rising.iter().map(|text| text.parse().unwrap()).collect();
        assert!(versions.windows(2).all(|pair| pair[0] < pair[1]));
    }

    fn any_version() -> impl Strategy<Value = PackageVersion> {
        (
            0u64..50,
            0u64..50,
            0u64..50,
            proptest::option::of("[a-z]{1,3}(\\.(0|[1-9][0-9]?))?"),
        )
            .prop_map(|(major, minor, patch, pre)| {
                let text = match pre {
                    Some(pre) => format!("{major}.{minor}.{patch}-{pre}"),
                    None => format!("{major}.{minor}.{patch}"),
                };
                text.parse().unwrap()
            })
    }

    proptest! {
        #[test]
        fn text_and_json_round_trip(version in any_version()) {
            prop_assert_eq!(&version.to_string().parse::<PackageVersion>().unwrap(), &version);
            let json = serde_json::to_string(&version).unwrap();
            prop_assert_eq!(&serde_json::from_str::<PackageVersion>(&json).unwrap(), &version);
        }

        #[test]
        fn order_is_total_and_agrees_with_equality(a in any_version(), b in any_version(), c in any_version()) {
            prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
            prop_assert_eq!(a == b, a.to_string() == b.to_string());
            if a <= b && b <= c {
                prop_assert!(a <= c);
            }
        }

        #[test]
        fn a_prerelease_is_older_than_its_release(version in any_version()) {
            let text = version.to_string();
            if let Some((release, _)) = text.split_once('-') {
                prop_assert!(version.is_prerelease());
                prop_assert!(version < release.parse().unwrap());
            }
        }

        #[test]
        fn any_text_is_parsed_or_refused_but_never_escapes_its_folder(text in "\\PC{0,40}") {
            if let Ok(version) = text.parse::<PackageVersion>() {
                let name = version.to_string();
                prop_assert!(!name.contains('/') && !name.starts_with('.'));
            }
        }
    }
}
