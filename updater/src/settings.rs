//! `[update]` of `config.toml`. An error names the file, the key, the value, and what is allowed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use staging::home::Home;
use staging::report::{Exit, Report};
use staging::validate::Validator;

use crate::deadline::Limits;

/// The channel that is followed if none is named.
pub const CHANNEL: &str = "stable";
/// Staging without a byte written.
const INACTIVITY: Duration = Duration::from_secs(120);
/// Staging in all.
const HARD: Duration = Duration::from_secs(900);
/// No configuration comes near this many bytes.
const MAX_BYTES: u64 = 16 * 1024 * 1024;
/// The keys of `[update]` that this version knows.
const KEYS: [&str; 6] = [
    "feed",
    "channel",
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
    /// The channel that is followed.
    pub channel: String,
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
            channel: find("channel")
                .text("a name, such as \"stable\"")?
                .unwrap_or_else(|| CHANNEL.to_owned()),
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

/// One key of `[update]`.
struct Key<'a> {
    file: &'a Path,
    key: &'static str,
    value: Option<&'a toml::Value>,
}

impl Key<'_> {
    fn text(&self, allowed: &'static str) -> Result<Option<String>, SettingsError> {
        match self.value {
            None => Ok(None),
            Some(toml::Value::String(text)) if !text.is_empty() => Ok(Some(text.clone())),
            Some(value) => Err(self.refused(value, allowed)),
        }
    }

    fn duration(&self) -> Result<Option<Duration>, SettingsError> {
        const ALLOWED: &str =
            "a time longer than zero, such as \"250ms\", \"30s\", \"15m\" or \"4h\"";
        let Some(value) = self.value else {
            return Ok(None);
        };
        value
            .as_str()
            .and_then(duration)
            .filter(|duration| !duration.is_zero())
            .map(Some)
            .ok_or_else(|| self.refused(value, ALLOWED))
    }

    fn refused(&self, value: &toml::Value, allowed: &'static str) -> SettingsError {
        SettingsError::Value {
            file: self.file.to_owned(),
            key: self.key,
            // For a person JSON shows the same: a number, a quoted string, a list.
            value: serde_json::to_string(value).unwrap_or_else(|_| "unreadable".to_owned()),
            allowed,
        }
    }
}

/// A number and a unit: `250ms`, `30s`, `15m`, `4h`.
fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    // A hundred years is enough, and far from any overflow.
    let seconds = |each: u64| {
        number
            .checked_mul(each)
            .filter(|all| *all <= 100 * 366 * 86_400)
            .map(Duration::from_secs)
    };
    match unit {
        "ms" => seconds(1).map(|_| Duration::from_millis(number)),
        "s" => seconds(1),
        "m" => seconds(60),
        "h" => seconds(3600),
        _ => None,
    }
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
            "[update]\nfeed = \"https://x/\"\nchannel = \"beta\"\ninactivity_timeout = \"250ms\"\nhard_timeout = \"15m\"\nwindow = \"night\"\n",
        )
        .unwrap();
        assert_eq!(settings.feed().unwrap(), "https://x/");
        assert_eq!(settings.channel, "beta");
        assert_eq!(settings.limits.inactivity, Duration::from_millis(250));
        assert_eq!(settings.limits.hard, Duration::from_secs(900));
        assert_eq!(settings.unknown, ["window"]);
    }

    #[test]
    fn an_error_names_file_key_value_and_what_is_allowed() {
        for (line, key, value) in [
            ("feed = 7", "update.feed", "7"),
            ("feed = \"\"", "update.feed", "\"\""),
            ("channel = []", "update.channel", "[]"),
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
