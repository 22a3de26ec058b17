//! Durations as a person writes them: a whole number and a unit, or a bare `0`.

use std::time::Duration;

/// What a duration may look like; used in every message about one.
pub(super) const ALLOWED: &str =
    "a whole number with ms, s, m, h or d, for example \"250ms\", \"30s\", \"4h\", or \"0\"";

/// A year: longer settings are slips of the hand, and sums of them stay far from overflow.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// Reads `"250ms"`, `"30s"`, `"5m"`, `"4h"`, `"1d"` or `"0"`; `None` for anything else and for more than 366 days.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit_at);
    let number: u64 = number.parse().ok()?;
    let unit_millis: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    let duration = Duration::from_millis(number.checked_mul(unit_millis)?);
    (duration <= LONGEST).then_some(duration)
}

/// The shortest text that [`parse_duration`] reads back as this duration (whole milliseconds).
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis == 0 {
        return "0".to_owned();
    }
    for (unit, unit_millis) in [
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1_000),
    ] {
        if u128::is_multiple_of(millis, unit_millis) {
            return format!("{}{unit}", millis / unit_millis);
        }
    }
    format!("{millis}ms")
}

/// serde: a duration as an integer of milliseconds.
pub(super) mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(value.as_millis()).unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_written() {
        for (text, millis) in [
            ("0", 0),
            ("0s", 0),
            ("250ms", 250),
            ("30s", 30_000),
            ("5m", 300_000),
            ("4h", 14_400_000),
            ("2d", 172_800_000),
        ] {
            assert_eq!(
                parse_duration(text),
                Some(Duration::from_millis(millis)),
                "{text}"
            );
        }
    }

    #[test]
    fn slips_of_the_hand_are_refused() {
        for text in [
            "",
            "30",
            "s",
            "-1s",
            "+1s",
            "1.5s",
            " 30s",
            "30s ",
            "30 s",
            "30S",
            "1h30m",
            "1w",
            "367d",
            "99999999999999999999s",
            "18446744073709551615d",
        ] {
            assert_eq!(parse_duration(text), None, "{text:?}");
        }
    }

    #[test]
    fn format_is_read_back() {
        for text in ["0", "250ms", "1500ms", "30s", "90s", "5m", "4h", "2d"] {
            assert_eq!(format_duration(parse_duration(text).unwrap()), text);
        }
        assert_eq!(format_duration(Duration::from_secs(3_600)), "1h");
    }
}
