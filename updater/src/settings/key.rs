//! One key of `[update]`: from what stands there to what it means, or an error that names all of it.

use std::path::Path;
use std::time::Duration;

use super::SettingsError;

/// One key of `[update]`.
pub(super) struct Key<'a> {
    pub(super) file: &'a Path,
    pub(super) key: &'static str,
    pub(super) value: Option<&'a toml::Value>,
}

impl<'a> Key<'a> {
    pub(super) fn text(&self, allowed: &'static str) -> Result<Option<String>, SettingsError> {
        self.read(allowed, |value| {
            value
                .as_str()
                .filter(|text| !text.is_empty())
                .map(str::to_owned)
        })
    }

    pub(super) fn texts(&self, allowed: &'static str) -> Result<Vec<String>, SettingsError> {
        let texts = self.each(allowed, |text| (!text.is_empty()).then(|| text.to_owned()))?;
        Ok(texts.unwrap_or_default())
    }

    /// A list of texts, each read by `read`.
    pub(super) fn each<T>(
        &self,
        allowed: &'static str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<Vec<T>>, SettingsError> {
        self.read(allowed, |value| {
            value
                .as_array()?
                .iter()
                .map(|each| each.as_str().and_then(&read))
                .collect()
        })
    }

    pub(super) fn duration(&self) -> Result<Option<Duration>, SettingsError> {
        const ALLOWED: &str =
            "a time longer than zero, such as \"250ms\", \"30s\", \"15m\" or \"4h\"";
        self.read(ALLOWED, |value| {
            duration(value.as_str()?).filter(|duration| !duration.is_zero())
        })
    }

    pub(super) fn size(&self) -> Result<Option<u64>, SettingsError> {
        self.read("a size such as \"64MiB\", \"2GiB\" or \"0B\"", |value| {
            size(value.as_str()?)
        })
    }

    pub(super) fn yes_or_no(&self) -> Result<Option<bool>, SettingsError> {
        self.read("true or false", toml::Value::as_bool)
    }

    pub(super) fn count(
        &self,
        most: usize,
        allowed: &'static str,
    ) -> Result<Option<usize>, SettingsError> {
        self.read(allowed, |value| {
            let count = usize::try_from(value.as_integer()?).ok()?;
            (count <= most).then_some(count)
        })
    }

    /// What the value means to `read`; none if the key is not set.
    pub(super) fn read<T>(
        &self,
        allowed: &'static str,
        read: impl FnOnce(&'a toml::Value) -> Option<T>,
    ) -> Result<Option<T>, SettingsError> {
        let Some(value) = self.value else {
            return Ok(None);
        };
        read(value)
            .map(Some)
            .ok_or_else(|| self.refused(value, allowed))
    }

    fn refused(&self, value: &toml::Value, allowed: &'static str) -> SettingsError {
        SettingsError::Value {
            file: self.file.to_owned(),
            key: self.key,
            value: shown(value),
            allowed,
        }
    }
}

/// A value as it may be shown. For a person JSON shows the same: a number, a quoted string, a list.
fn shown(value: &toml::Value) -> String {
    let text = serde_json::to_string(value).unwrap_or_else(|_| "unreadable".to_owned());
    // Wherever in the URL the password ends, it is not shown.
    if text.contains('@') {
        return "(not shown, for it may hold a password)".to_owned();
    }
    text
}

/// A number and a unit: `250ms`, `30s`, `15m`, `4h`, `2d`.
pub fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = number_and_unit(text)?;
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
        "d" => seconds(86_400),
        _ => None,
    }
}

/// A number and a unit: `0B`, `512KiB`, `64MiB`, `2GiB`.
fn size(text: &str) -> Option<u64> {
    let (number, unit) = number_and_unit(text)?;
    let shift = match unit {
        "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

fn number_and_unit(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    Some((number.parse().ok()?, unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit_and_do_not_overflow() {
        for (text, bytes) in [
            ("0B", Some(0)),
            ("64MiB", Some(64 << 20)),
            ("3KiB", Some(3072)),
            ("1GiB", Some(1 << 30)),
            ("64", None),
            ("64MB", None),
            ("MiB", None),
            ("-1MiB", None),
            ("99999999999TiB", None),
        ] {
            assert_eq!(size(text), bytes, "{text}");
        }
        assert_eq!(duration("2d"), Some(Duration::from_secs(172_800)));
        assert_eq!(duration("99999999999999d"), None);
    }
}
