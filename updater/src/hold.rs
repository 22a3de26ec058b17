//! `hold`: a person's word that no job rolls for a while. What a person selects is not held.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use staging::clock;
use staging::home::Home;
use staging::locks::StateLock;
use staging::report::{Exit, Failure, Format, line};
use staging::update_state;

use crate::before::LOCK_TIMEOUT;
use crate::settings;

/// A hold that nobody remembers must end: the longest one.
const LONGEST: Duration = update_state::LONGEST_HOLD;

/// What a person wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// No update that a job decides on, for so long.
    For(Duration),
    /// No longer.
    Off,
}

impl std::str::FromStr for Hold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" {
            return Ok(Self::Off);
        }
        settings::duration(text)
            .filter(|time| !time.is_zero() && *time <= LONGEST)
            .map(Self::For)
            .ok_or_else(|| {
                format!("`{text}` is neither `off` nor a time such as `30m`, `24h` or `7d`, at most `90d`")
            })
    }
}

/// What `hold` answers in JSON.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    schema: u32,
    hold_until: Option<Timestamp>,
}

/// Begins or ends a hold; without either, only says what holds.
///
/// # Errors
/// A home that cannot be read or written.
pub fn hold(home: &Home, hold: Option<Hold>, format: Format) -> Result<Exit, Failure> {
    home.check()?;
    let now = clock::now();
    let until = match hold {
        None => update_state::read(home)?.held(now),
        Some(hold) => {
            let until = end(hold, now);
            let lock = StateLock::acquire(home, LOCK_TIMEOUT)?;
            update_state::modify(&lock, home, |state| state.hold_until = until)?;
            until
        }
    };
    match format {
        Format::Json => {
            let answer = Answer {
                schema: 1,
                hold_until: until,
            };
            line(&serde_json::to_string(&answer).unwrap_or_default());
        }
        Format::Text => line(&said(until)),
    }
    Ok(Exit::Done)
}

/// The line about a hold.
pub fn said(until: Option<Timestamp>) -> String {
    match until {
        Some(until) => {
            format!("updates are held until {until} (end that with `rollproxy-updater hold off`)")
        }
        None => "updates are not held".to_owned(),
    }
}

fn end(hold: Hold, now: Timestamp) -> Option<Timestamp> {
    match hold {
        Hold::Off => None,
        Hold::For(time) => SignedDuration::try_from(time)
            .ok()
            .and_then(|time| now.checked_add(time).ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_a_time_or_off_and_ends_some_day() {
        for (text, seconds) in [("30m", 1800), ("24h", 86_400), ("90d", 90 * 86_400)] {
            assert_eq!(text.parse(), Ok(Hold::For(Duration::from_secs(seconds))));
        }
        assert_eq!("off".parse(), Ok(Hold::Off));
        for bad in ["", "0h", "24", "91d", "forever", "-1h", "Off"] {
            assert!(bad.parse::<Hold>().is_err(), "{bad}");
        }
        let now: Timestamp = "2026-03-06T03:00:00Z".parse().unwrap();
        let until = end("24h".parse().unwrap(), now).unwrap();
        assert_eq!(until.to_string(), "2026-03-07T03:00:00Z");
        assert_eq!(end(Hold::Off, now), None);
    }

    #[test]
    fn a_hold_begins_is_shown_and_ends() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::at(folder.path().join("home"));
        home.create().unwrap();
        let held = || update_state::read(&home).unwrap().held(clock::now());
        hold(&home, Some("24h".parse().unwrap()), Format::Text).unwrap();
        let until = held().unwrap();
        hold(&home, None, Format::Json).unwrap();
        assert_eq!(held(), Some(until));
        hold(&home, Some(Hold::Off), Format::Text).unwrap();
        assert_eq!(held(), None);
    }
}
