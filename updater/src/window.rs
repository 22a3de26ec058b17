//! Update windows: the hours in which a job may roll, as a clock on the wall of the configured zone shows them. Pure.

use jiff::civil::{Date, Time, Weekday};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Zoned};

/// What a window may look like.
pub const ALLOWED: &str = "a list of windows such as \"02:00-04:00\" (every day), \"mon-fri 22:00-04:00\" (over midnight) or \"sat,sun 00:00-24:00\"";
/// What a zone may look like.
pub const ALLOWED_ZONE: &str = "a zone that this host's tzdata knows, such as \"Europe/Berlin\" or \"UTC\", or a POSIX rule such as \"CET-1CEST,M3.5.0,M10.5.0/3\"";

/// Minutes of a day.
const DAY: u16 = 24 * 60;
/// A window that this many days do not open may lie in an hour that never is.
const DAYS_AHEAD: i32 = 15;

/// One window: from a minute of certain days on, to a minute of the same day or the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Monday first.
    days: [bool; 7],
    /// Minute of the day, the first that is in it.
    from: u16,
    /// Minute of the day, the first that is not in it; at or before `from` = of the next day.
    to: u16,
}

/// All windows of a host. Without any, it is always time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windows {
    windows: Vec<Window>,
    zone: TimeZone,
}

impl Windows {
    /// These windows in this zone.
    pub fn new(windows: Vec<Window>, zone: TimeZone) -> Self {
        Self { windows, zone }
    }

    /// Whether a job may roll at `now`.
    pub fn is_open(&self, now: Timestamp) -> bool {
        if self.windows.is_empty() {
            return true;
        }
        let clock = now.to_zoned(self.zone.clone());
        self.windows.iter().any(|window| window.shows(&clock))
    }

    /// The first moment from `now` on at which a job may roll; none if the windows never open.
    pub fn opens(&self, now: Timestamp) -> Option<Timestamp> {
        if self.is_open(now) {
            return Some(now);
        }
        let today = now.to_zoned(self.zone.clone()).date();
        let days = (0..=DAYS_AHEAD).filter_map(|day| today.checked_add(day.days()).ok());
        let starts = days.flat_map(|day| self.starts(day));
        // A clock that is set may come to stand in the middle of a window.
        let set = self
            .zone
            .following(now)
            .map(|transition| transition.timestamp())
            .take(4);
        let after = |moment: &Timestamp| *moment > now && self.is_open(*moment);
        starts.chain(set).filter(after).min()
    }

    /// The moments of a day at which the clock shows the beginning of a window: none, one, or two where it is set back.
    fn starts(&self, day: Date) -> Vec<Timestamp> {
        let windows = self.windows.iter().filter(|window| window.is_on(day));
        windows
            .flat_map(|window| {
                let shown = day.to_datetime(time(window.from));
                let ambiguous = self.zone.to_ambiguous_timestamp(shown);
                [ambiguous.earlier(), ambiguous.later()]
            })
            .flatten()
            .collect()
    }
}

impl Window {
    /// Reads a window as [`ALLOWED`] shows it.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_lowercase();
        let (days, hours) = match text.split_once(char::is_whitespace) {
            Some((days, hours)) => (parse_days(days)?, hours.trim()),
            None => ([true; 7], text.as_str()),
        };
        let (from, to) = hours.split_once('-')?;
        let (from, to) = (parse_minute(from)?, parse_minute(to)?);
        // From midnight to midnight is written as 00:00-24:00; the same minute twice could mean nothing as well as a day.
        (from < DAY && from != to).then_some(Self { days, from, to })
    }

    fn is_on(&self, day: Date) -> bool {
        let index = day.weekday().to_monday_zero_offset();
        usize::try_from(index)
            .ok()
            .and_then(|index| self.days.get(index))
            .copied()
            .unwrap_or(false)
    }

    /// Whether the window is open while the clock shows this.
    fn shows(&self, clock: &Zoned) -> bool {
        let minute = u16::try_from(i32::from(clock.hour()) * 60 + i32::from(clock.minute()))
            .unwrap_or(u16::MAX);
        let today = clock.date();
        if self.from < self.to {
            return self.is_on(today) && (self.from..self.to).contains(&minute);
        }
        let began_yesterday = || {
            let yesterday = today.yesterday();
            yesterday.is_ok_and(|yesterday| self.is_on(yesterday)) && minute < self.to
        };
        self.is_on(today) && minute >= self.from || began_yesterday()
    }
}

/// The zone of that name.
pub fn zone(name: &str) -> Option<TimeZone> {
    if name.eq_ignore_ascii_case("utc") {
        return Some(TimeZone::UTC);
    }
    TimeZone::get(name).or_else(|_| TimeZone::posix(name)).ok()
}

fn time(minute: u16) -> Time {
    let (hour, minute) = (minute / 60, minute % 60);
    match (i8::try_from(hour), i8::try_from(minute)) {
        (Ok(hour), Ok(minute)) => Time::new(hour, minute, 0, 0).unwrap_or(Time::MIN),
        _ => Time::MIN,
    }
}

/// `mon`, `mon-fri`, `sat,sun`, or `daily`.
fn parse_days(text: &str) -> Option<[bool; 7]> {
    if text == "daily" {
        return Some([true; 7]);
    }
    let mut days = [false; 7];
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (mut day, last) = (parse_day(first)?, parse_day(last)?);
        loop {
            *days.get_mut(usize::try_from(day.to_monday_zero_offset()).ok()?)? = true;
            if day == last {
                break;
            }
            day = day.next();
        }
    }
    Some(days)
}

fn parse_day(text: &str) -> Option<Weekday> {
    Some(match text {
        "mon" => Weekday::Monday,
        "tue" => Weekday::Tuesday,
        "wed" => Weekday::Wednesday,
        "thu" => Weekday::Thursday,
        "fri" => Weekday::Friday,
        "sat" => Weekday::Saturday,
        "sun" => Weekday::Sunday,
        _ => return None,
    })
}

/// `HH:MM`, or `24:00`, as a minute of the day.
fn parse_minute(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let number = |text: &str| -> Option<u16> {
        let plain = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| text.parse().ok()).flatten()
    };
    let (hour, minute) = (number(hour)?, number(minute)?);
    let all = hour * 60 + minute;
    (minute < 60 && all <= DAY).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BERLIN: &str = "CET-1CEST,M3.5.0,M10.5.0/3";

    fn windows(zone_name: &str, texts: &[&str]) -> Windows {
        let windows = texts.iter().map(|text| Window::parse(text).unwrap());
        Windows::new(windows.collect(), zone(zone_name).unwrap())
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// When it opens next, as UTC.
    fn opens(windows: &Windows, now: &str) -> String {
        let opens = windows.opens(at(now));
        opens.map_or_else(|| "never".to_owned(), |opens| opens.to_string())
    }

    #[test]
    fn what_is_no_window_is_refused() {
        for good in [
            "02:00-04:00",
            "mon-fri 02:00-04:00",
            "sun 00:00-24:00",
            "Sat,Sun 00:00-24:00",
            "fri-mon 22:00-04:00",
            "daily 23:59-00:00",
            "mon,wed-thu   08:30-09:00",
        ] {
            assert!(Window::parse(good).is_some(), "{good}");
        }
        for bad in [
            "",
            "night",
            "02:00",
            "2:00-4:00",
            "02:00-04:60",
            "24:00-04:00",
            "02:00-24:01",
            "02:00-02:00",
            "mo 02:00-04:00",
            "mon- 02:00-04:00",
            "mon 02:00-04:00 05:00-06:00",
            "+2:00-04:00",
            "mon-fri",
        ] {
            assert!(Window::parse(bad).is_none(), "{bad}");
        }
        assert!(zone("Middle/Earth").is_none());
        assert_eq!(zone("utc"), Some(TimeZone::UTC));
    }

    #[test]
    fn without_windows_it_is_always_time() {
        let always = windows("UTC", &[]);
        assert!(always.is_open(at("2026-03-04T05:06:07Z")));
        assert_eq!(
            opens(&always, "2026-03-04T05:06:07Z"),
            "2026-03-04T05:06:07Z"
        );
    }

    #[test]
    fn days_and_hours_and_the_next_opening() {
        // 2026-03-06 is a Friday.
        let weekdays = windows("UTC", &["mon-fri 02:00-04:00"]);
        for (now, open, next) in [
            ("2026-03-06T01:59:59Z", false, "2026-03-06T02:00:00Z"),
            ("2026-03-06T02:00:00Z", true, "2026-03-06T02:00:00Z"),
            ("2026-03-06T03:59:59Z", true, "2026-03-06T03:59:59Z"),
            ("2026-03-06T04:00:00Z", false, "2026-03-09T02:00:00Z"),
            ("2026-03-07T03:00:00Z", false, "2026-03-09T02:00:00Z"),
        ] {
            assert_eq!(weekdays.is_open(at(now)), open, "{now}");
            assert_eq!(opens(&weekdays, now), next, "{now}");
        }
        let whole = windows("UTC", &["sun 00:00-24:00"]);
        assert!(whole.is_open(at("2026-03-08T00:00:00Z")));
        assert!(whole.is_open(at("2026-03-08T23:59:59Z")));
        assert!(!whole.is_open(at("2026-03-09T00:00:00Z")));
        let two = windows("UTC", &["mon 02:00-03:00", "sat 12:00-13:00"]);
        assert_eq!(opens(&two, "2026-03-06T05:00:00Z"), "2026-03-07T12:00:00Z");
    }

    #[test]
    fn over_midnight_the_window_belongs_to_the_day_it_began_on() {
        let friday = windows("UTC", &["fri 22:00-04:00"]);
        for (now, open) in [
            ("2026-03-06T03:00:00Z", false),
            ("2026-03-06T21:59:00Z", false),
            ("2026-03-06T22:00:00Z", true),
            ("2026-03-07T03:59:00Z", true),
            ("2026-03-07T04:00:00Z", false),
            ("2026-03-07T22:00:00Z", false),
        ] {
            assert_eq!(friday.is_open(at(now)), open, "{now}");
        }
        assert_eq!(
            opens(&friday, "2026-03-07T04:00:00Z"),
            "2026-03-13T22:00:00Z"
        );
    }

    #[test]
    fn the_zone_says_what_the_clock_shows_in_winter_and_in_summer() {
        let berlin = windows(BERLIN, &["02:00-04:00"]);
        assert_eq!(
            opens(&berlin, "2026-01-10T12:00:00Z"),
            "2026-01-11T01:00:00Z"
        );
        assert_eq!(
            opens(&berlin, "2026-07-10T12:00:00Z"),
            "2026-07-11T00:00:00Z"
        );
    }

    #[test]
    fn an_hour_that_is_skipped_opens_where_the_clock_lands() {
        // On 2026-03-29 the clock goes from 02:00 to 03:00, which is 01:00 UTC.
        let before = "2026-03-28T23:00:00Z";
        for (hours, next) in [
            ("02:30-04:00", "2026-03-29T01:00:00Z"),
            ("02:00-04:00", "2026-03-29T01:00:00Z"),
            // Of this one nothing is left that night.
            ("02:15-02:45", "2026-03-30T00:15:00Z"),
        ] {
            assert_eq!(opens(&windows(BERLIN, &[hours]), before), next, "{hours}");
        }
        let never = windows(BERLIN, &["sun 02:15-02:45"]);
        assert_eq!(
            opens(&never, "2026-03-28T23:00:00Z"),
            "2026-04-05T00:15:00Z"
        );
    }

    #[test]
    fn an_hour_that_comes_twice_opens_twice() {
        // On 2026-10-25 the clock goes from 03:00 back to 02:00, which is 01:00 UTC.
        let berlin = windows(BERLIN, &["02:00-02:30"]);
        for (now, open) in [
            ("2026-10-25T00:00:00Z", true),
            ("2026-10-25T00:30:00Z", false),
            ("2026-10-25T01:00:00Z", true),
            ("2026-10-25T01:29:00Z", true),
            ("2026-10-25T01:30:00Z", false),
        ] {
            assert_eq!(berlin.is_open(at(now)), open, "{now}");
        }
        assert_eq!(
            opens(&berlin, "2026-10-25T00:30:00Z"),
            "2026-10-25T01:00:00Z"
        );
        assert_eq!(
            opens(&berlin, "2026-10-25T01:30:00Z"),
            "2026-10-26T01:00:00Z"
        );
    }

    #[test]
    fn the_next_opening_is_open_and_nothing_before_it_is() {
        let berlin = windows(BERLIN, &["sat,sun 01:30-02:20", "wed 23:10-00:40"]);
        let mut now = at("2026-03-20T00:03:00Z");
        for _ in 0..600 {
            let next = berlin.opens(now).unwrap();
            assert!(berlin.is_open(next), "{now}: {next}");
            // Every minute between is closed.
            let mut between = now;
            while between < next {
                assert!(
                    !berlin.is_open(between),
                    "{now}: {between} is open, not {next}"
                );
                between += 7.minutes();
            }
            now += 29.minutes();
        }
    }
}
