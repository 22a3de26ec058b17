//! Lengths of time as a person writes them: a whole number and a unit.

use std::time::Duration;

/// Reads `30s`, `90m`, `24h` or `7d`; nothing above a year.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    let refused = || {
        "write it as a whole number with s, m, h or d, such as 90m, 24h or 7d, at most a year"
            .to_owned()
    };
    let unit_at = text
        .find(|c: char| !c.is_ascii_digit())
        .ok_or_else(refused)?;
    let (number, unit) = text.split_at(unit_at);
    let seconds: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(refused()),
    };
    let number: u64 = number.parse().map_err(|_| refused())?;
    number
        .checked_mul(seconds)
        .filter(|all| *all <= 366 * 86_400)
        .map(Duration::from_secs)
        .ok_or_else(refused)
}

/// So many seconds in the largest unit that has no rest.
pub(super) fn shown(seconds: u64) -> String {
    let units = [(86_400, 'd'), (3600, 'h'), (60, 'm')];
    let whole = |(unit, _): &(u64, char)| seconds > 0 && seconds.is_multiple_of(*unit);
    match units.into_iter().find(whole) {
        Some((unit, name)) => format!("{}{name}", seconds / unit),
        None => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_shown_as_they_are_read() {
        for text in ["0s", "59s", "90m", "2h", "36h", "7d", "3601s"] {
            let seconds = parse(text).unwrap().as_secs();
            assert_eq!(shown(seconds), text);
        }
        assert_eq!(shown(86_400), "1d");
    }

    #[test]
    fn spans_read_as_written() {
        for (text, seconds) in [
            ("0s", 0),
            ("90m", 5400),
            ("24h", 86_400),
            ("366d", 31_622_400),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for bad in [
            "",
            "24",
            "h",
            "-1h",
            "1.5h",
            "1w",
            "367d",
            "99999999999999999999h",
            "1h ",
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
