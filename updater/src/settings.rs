//! `[update]` of `config.toml`. An error names the file, the key, the value, and what is allowed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::tz::TimeZone;
use staging::home::Home;
use staging::report::{Exit, Failure, Report};
use staging::retention;
use staging::validate::Validator;

use crate::bring;
use crate::deadline::Limits;
use crate::feed::{FeedError, FeedSettings};
use crate::window::{self, Window, Windows};

mod key;
use key::Key;
pub use key::duration;

/// The channel that is followed if none is named.
pub const CHANNEL: &str = "stable";
/// Staging without a byte written.
const INACTIVITY: Duration = Duration::from_secs(120);
/// Staging in all.
const HARD: Duration = Duration::from_secs(900);
/// No configuration comes near this many bytes.
const MAX_BYTES: u64 = 16 * 1024 * 1024;
/// The keys of `[update]` that this version knows.
const KEYS: [&str; 15] = [
    "feed",
    "mirrors",
    "ca_file",
    "channel",
    "windows",
    "time_zone",
    "fleet_lock",
    "fleet_lock_group",
    "keep",
    "reserve",
    "delta",
    "inactivity_timeout",
    "hard_timeout",
    "entry_timeout",
    "self_test_timeout",
];

/// What the updater is told by its home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The feed's URL, as written.
    pub feed: Option<String>,
    /// Whole copies of the feed, as written.
    pub mirrors: Vec<String>,
    /// Certificates in PEM that are trusted besides the machine's own.
    pub ca_file: Option<PathBuf>,
    /// The channel that is followed.
    pub channel: String,
    /// When a job may roll.
    pub windows: Windows,
    /// The server that is asked before a rollout, so that not every host of a fleet rolls at once.
    pub fleet_lock: Option<String>,
    /// The group of hosts that share its places.
    pub fleet_lock_group: String,
    /// Packages that are kept besides those that something names.
    pub keep: usize,
    /// Bytes that stay free on the file system, whatever is brought.
    pub reserve: u64,
    /// Whether a patch may be taken instead of a whole archive.
    pub delta: bool,
    /// How long staging may take.
    pub limits: Limits,
    /// How long each program of a staged package may take to answer `--version`.
    pub entry_timeout: Duration,
    /// How long the staged updater may take for its self-test.
    pub self_test_timeout: Duration,
    /// Keys that this version does not know: told, not refused, so that a rollback survives newer keys.
    pub unknown: Vec<String>,
    /// The file they came from.
    pub file: PathBuf,
}

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("reading {}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{} is not TOML: {why}", file.display())]
    Parse {
        /// The file.
        file: PathBuf,
        /// Where and how parsing failed.
        why: String,
    },
    /// A key has a value that it cannot have.
    #[error("{}: update.{key} is {value}; allowed is {allowed}", file.display())]
    Value {
        /// The file.
        file: PathBuf,
        /// The key below `[update]`.
        key: &'static str,
        /// Its value, as TOML.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },
    /// The feed is not named.
    #[error("{}: update.feed is not set; run `rollproxy-updater init --feed URL --root FILE --sha256 DIGEST`", file.display())]
    NoFeed {
        /// The file.
        file: PathBuf,
    },
    /// The file cannot be written.
    #[error("writing {}: {source}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl Report for SettingsError {
    fn code(&self) -> &'static str {
        match self {
            Self::Read { .. } => "CONFIG_READ",
            Self::Parse { .. } => "CONFIG_PARSE",
            Self::Value { .. } => "CONFIG_VALUE",
            Self::NoFeed { .. } => "FEED_NOT_SET",
            Self::Write { .. } => "CONFIG_WRITE",
        }
    }

    fn exit(&self) -> Exit {
        Exit::Configuration
    }

    fn retry(&self) -> bool {
        false
    }
}

impl Settings {
    /// Reads the settings of a home; the defaults where there is no file.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn read(home: &Home) -> Result<Self, SettingsError> {
        let file = home.config_file();
        let text = read(&file)?;
        Self::parse(&file, text.as_deref().unwrap_or_default())
    }

    /// Parses what stands in `file`.
    ///
    /// # Errors
    /// [`SettingsError::Parse`] and [`SettingsError::Value`].
    pub fn parse(file: &Path, text: &str) -> Result<Self, SettingsError> {
        let table = table(file, text)?;
        let empty = toml::Table::new();
        let update = match table.get("update") {
            None => &empty,
            Some(toml::Value::Table(update)) => update,
            Some(_) => {
                return Err(SettingsError::Parse {
                    file: file.to_owned(),
                    why: "`update` is not a table; write [update]".to_owned(),
                });
            }
        };
        let find = |key| Key {
            file,
            key,
            value: update.get(key),
        };
        let inactivity = find("inactivity_timeout").duration()?.unwrap_or(INACTIVITY);
        let hard = find("hard_timeout").duration()?.unwrap_or(HARD);
        let validator = Validator::default();
        Ok(Self {
            feed: find("feed").text("a URL: https://, http:// or file:///")?,
            mirrors: find("mirrors").texts("a list of URLs: https://, http:// or file:///")?,
            ca_file: find("ca_file").read(
                "an absolute path to a file of certificates in PEM",
                |value| {
                    let path = PathBuf::from(value.as_str()?);
                    path.is_absolute().then_some(path)
                },
            )?,
            channel: find("channel")
                .text("a name, such as \"stable\"")?
                .unwrap_or_else(|| CHANNEL.to_owned()),
            windows: Windows::new(
                find("windows")
                    .each(window::ALLOWED, Window::parse)?
                    .unwrap_or_default(),
                find("time_zone")
                    .read(window::ALLOWED_ZONE, |value| window::zone(value.as_str()?))?
                    .unwrap_or(TimeZone::UTC),
            ),
            fleet_lock: find("fleet_lock").read("a URL: https:// or http://", |value| {
                let url = value.as_str()?;
                let of_the_web = url.starts_with("https://") || url.starts_with("http://");
                of_the_web.then(|| url.to_owned())
            })?,
            fleet_lock_group: find("fleet_lock_group")
                .read("a name of letters, digits, dots and dashes", |value| {
                    let plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
                    let name = value.as_str()?;
                    (!name.is_empty() && name.chars().all(plain)).then(|| name.to_owned())
                })?
                .unwrap_or_else(|| "default".to_owned()),
            keep: find("keep")
                .count(1000, "a number of packages from 0 to 1000")?
                .unwrap_or(retention::KEEP),
            reserve: find("reserve").size()?.unwrap_or(bring::RESERVE),
            delta: find("delta").yes_or_no()?.unwrap_or(true),
            limits: Limits { inactivity, hard },
            entry_timeout: find("entry_timeout")
                .duration()?
                .unwrap_or(validator.entry_timeout),
            self_test_timeout: find("self_test_timeout")
                .duration()?
                .unwrap_or(validator.self_test_timeout),
            unknown: update
                .keys()
                .filter(|key| !KEYS.contains(&key.as_str()))
                .cloned()
                .collect(),
            file: file.to_owned(),
        })
    }

    /// What judges a staged package.
    pub fn validator(&self) -> Validator {
        Validator {
            entry_timeout: self.entry_timeout,
            self_test_timeout: self.self_test_timeout,
            ..Validator::default()
        }
    }

    /// Where the feed and its copies are.
    ///
    /// # Errors
    /// [`SettingsError::NoFeed`], and what cannot be used as a feed, with the key that says it.
    pub fn feed_settings(&self) -> Result<FeedSettings, Failure> {
        let named = |key: &'static str| {
            move |error: FeedError| {
                let mut failure = Failure::from(error);
                let file = self.file.display();
                failure.message = format!("{file}: update.{key}: {}", failure.message);
                failure
            }
        };
        FeedSettings::new(self.feed()?)
            .map_err(named("feed"))?
            .with_mirrors(&self.mirrors)
            .map_err(named("mirrors"))?
            .with_ca_file(self.ca_file.clone())
            .map_err(named("ca_file"))
    }

    /// The feed's URL.
    ///
    /// # Errors
    /// [`SettingsError::NoFeed`].
    pub fn feed(&self) -> Result<&str, SettingsError> {
        self.feed.as_deref().ok_or_else(|| SettingsError::NoFeed {
            file: self.file.clone(),
        })
    }
}

/// What `init` does with a configuration that is already there.
#[derive(Debug, PartialEq, Eq)]
pub enum Written {
    /// `[update]` was added.
    Added,
    /// There is an `[update]` already; it is somebody's, and stays.
    Kept,
}

/// Adds `[update]` to the home's configuration, if it has none. What stands there is never changed.
///
/// # Errors
/// [`SettingsError`].
pub fn add(home: &Home, feed: &str, channel: &str) -> Result<Written, SettingsError> {
    let file = home.config_file();
    let text = read(&file)?;
    let Some(text) = addition(&file, text.as_deref().unwrap_or_default(), feed, channel)? else {
        return Ok(Written::Kept);
    };
    staging::files::write_atomic(&file, text.as_bytes())
        .map_err(|source| SettingsError::Write { file, source })?;
    Ok(Written::Added)
}

/// The text with `[update]` added; none if it has one.
fn addition(
    file: &Path,
    text: &str,
    feed: &str,
    channel: &str,
) -> Result<Option<String>, SettingsError> {
    if table(file, text)?.contains_key("update") {
        return Ok(None);
    }
    let gap = match text {
        "" => "",
        text if text.ends_with('\n') => "\n",
        _ => "\n\n",
    };
    let (feed, channel) = (quoted(feed), quoted(channel));
    Ok(Some(format!(
        "{text}{gap}[update]\nfeed = {feed}\nchannel = {channel}\n"
    )))
}

/// A TOML basic string: JSON's strings are such, all but one control character that no URL holds.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn read(file: &Path) -> Result<Option<String>, SettingsError> {
    let failed = |source| SettingsError::Read {
        file: file.to_owned(),
        source,
    };
    staging::files::read_bounded(file, MAX_BYTES)
        .map_err(failed)?
        .map(String::from_utf8)
        .transpose()
        .map_err(|error| failed(std::io::Error::new(std::io::ErrorKind::InvalidData, error)))
}

fn table(file: &Path, text: &str) -> Result<toml::Table, SettingsError> {
    text.parse().map_err(|error: toml::de::Error| {
        let line = error
            .span()
            .and_then(|span| text.get(..span.start))
            .map(|before| format!("line {}: ", before.matches('\n').count() + 1))
            .unwrap_or_default();
        SettingsError::Parse {
            file: file.to_owned(),
            // The message alone: the rendered error quotes the file, and with it what may be secret.
            why: format!("{line}{}", error.message()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Settings, SettingsError> {
        Settings::parse(Path::new("/h/config.toml"), text)
    }

    #[test]
    fn nothing_said_is_the_defaults() {
        for text in ["", "[server]\nlisten = []\n", "[update]\n"] {
            let settings = parsed(text).unwrap();
            assert_eq!(settings.channel, "stable");
            assert_eq!(settings.limits.inactivity.as_secs(), 120);
            assert_eq!(settings.limits.hard.as_secs(), 900);
            assert!(settings.unknown.is_empty());
            assert!(matches!(settings.feed(), Err(SettingsError::NoFeed { .. })));
        }
    }

    #[test]
    fn every_key_is_read_and_an_unknown_one_is_told() {
        let settings = parsed(
            "[update]\nfeed = \"https://x/\"\nchannel = \"beta\"\ninactivity_timeout = \"250ms\"\nhard_timeout = \"15m\"\nwindow = \"night\"\nmirrors = [\"https://a/\", \"https://b/\"]\nca_file = \"/etc/ca.pem\"\nwindows = [\"mon-fri 02:00-04:00\"]\ntime_zone = \"CET-1CEST,M3.5.0,M10.5.0/3\"\nfleet_lock = \"https://l/\"\nfleet_lock_group = \"web\"\nkeep = 0\nreserve = \"1GiB\"\ndelta = false\n",
        )
        .unwrap();
        assert_eq!(settings.feed().unwrap(), "https://x/");
        assert_eq!(settings.channel, "beta");
        assert_eq!(settings.limits.inactivity, Duration::from_millis(250));
        assert_eq!(settings.limits.hard, Duration::from_secs(900));
        assert_eq!(settings.unknown, ["window"]);
        assert_eq!(settings.mirrors, ["https://a/", "https://b/"]);
        assert_eq!(settings.ca_file, Some(PathBuf::from("/etc/ca.pem")));
        assert!(
            !settings
                .windows
                .is_open("2026-03-07T02:30:00Z".parse().unwrap())
        );
        assert!(
            settings
                .windows
                .is_open("2026-03-06T01:30:00Z".parse().unwrap())
        );
        assert_eq!(settings.fleet_lock.as_deref(), Some("https://l/"));
        assert_eq!(settings.fleet_lock_group, "web");
        assert_eq!(
            (settings.keep, settings.reserve, settings.delta),
            (0, 1 << 30, false)
        );
        let plain = parsed("").unwrap();
        assert_eq!(
            (plain.keep, plain.reserve, plain.delta),
            (3, 64 << 20, true)
        );
        assert_eq!((plain.fleet_lock, plain.ca_file), (None, None));
    }

    #[test]
    fn an_error_names_file_key_value_and_what_is_allowed() {
        for (line, key, value) in [
            ("feed = 7", "update.feed", "7"),
            ("feed = \"\"", "update.feed", "\"\""),
            ("channel = []", "update.channel", "[]"),
            (
                "mirrors = \"https://x/\"",
                "update.mirrors",
                "\"https://x/\"",
            ),
            ("mirrors = [7]", "update.mirrors", "[7]"),
            ("ca_file = \"ca.pem\"", "update.ca_file", "\"ca.pem\""),
            ("windows = \"night\"", "update.windows", "\"night\""),
            ("windows = [\"nightly\"]", "update.windows", "nightly"),
            (
                "time_zone = \"Middle/Earth\"",
                "update.time_zone",
                "Middle/Earth",
            ),
            (
                "fleet_lock = \"file:///x\"",
                "update.fleet_lock",
                "file:///x",
            ),
            (
                "fleet_lock_group = \"a b\"",
                "update.fleet_lock_group",
                "a b",
            ),
            ("keep = -1", "update.keep", "-1"),
            ("keep = \"3\"", "update.keep", "\"3\""),
            ("reserve = 64", "update.reserve", "64"),
            ("reserve = \"64MB\"", "update.reserve", "64MB"),
            ("delta = \"yes\"", "update.delta", "\"yes\""),
            ("hard_timeout = 900", "update.hard_timeout", "900"),
            ("hard_timeout = \"0s\"", "update.hard_timeout", "\"0s\""),
            ("hard_timeout = \"5\"", "update.hard_timeout", "\"5\""),
            ("hard_timeout = \"-5s\"", "update.hard_timeout", "\"-5s\""),
            (
                "hard_timeout = \"9999999999h\"",
                "update.hard_timeout",
                "9999999999h",
            ),
            (
                "inactivity_timeout = \"2 s\"",
                "update.inactivity_timeout",
                "\"2 s\"",
            ),
        ] {
            let error = parsed(&format!("[update]\n{line}\n")).unwrap_err();
            let text = error.to_string();
            for part in ["/h/config.toml", key, value, "allowed is"] {
                assert!(text.contains(part), "{text} lacks {part}");
            }
            assert_eq!(error.exit(), Exit::Configuration);
        }
        let text = parsed("a = 1\nb = \n").unwrap_err().to_string();
        assert!(
            text.contains("/h/config.toml") && text.contains("line 2"),
            "{text}"
        );
        assert!(parsed("update = 3").is_err());
    }

    #[test]
    fn what_may_hold_a_password_is_not_shown() {
        for line in [
            "feed = [\"https://ann:s3cret@x/\"]",
            "mirrors = \"https://ann:s3cret@x/\"",
            "fleet_lock = \"ftp://ann:s3cret@x/\"",
        ] {
            let text = parsed(&format!("[update]\n{line}\n"))
                .unwrap_err()
                .to_string();
            assert!(
                !text.contains("s3cret") && text.contains("not shown"),
                "{text}"
            );
        }
        let settings =
            parsed("[update]\nfeed = \"https://x/\"\nmirrors = [\"ftp://ann:s3cret@x/\"]\n");
        let failure = settings.unwrap().feed_settings().unwrap_err();
        assert_eq!(failure.exit, Exit::Configuration);
        assert!(
            failure
                .message
                .starts_with("/h/config.toml: update.mirrors: "),
            "{failure}"
        );
        assert!(!failure.message.contains("s3cret"), "{failure}");
    }

    #[test]
    fn a_configuration_that_is_there_is_only_added_to() {
        let file = Path::new("/h/config.toml");
        let feed = "https://x/\"quoted\"";
        for before in ["", "[server]\nlisten = []\n", "# mine"] {
            let after = addition(file, before, feed, "beta").unwrap().unwrap();
            assert!(after.starts_with(before));
            let settings = parsed(&after).unwrap();
            assert_eq!(settings.feed.as_deref(), Some(feed));
            assert_eq!(settings.channel, "beta");
            assert_eq!(addition(file, &after, "https://y/", "z").unwrap(), None);
        }
        assert!(addition(file, "not toml", feed, "beta").is_err());
    }
}
