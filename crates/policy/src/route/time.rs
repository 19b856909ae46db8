//! Windows of the time of day, on some days of the week.
//!
//! This module reads no clock and no file: the time and the rules of the zone are given.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::Weekday;
use jiff::tz::TimeZone;

/// Minutes of a day.
const DAY: u16 = 24 * 60;

/// From a time of day to another, on some days of the week.
///
/// A window that ends before it begins goes on over midnight. Its days are the days on which it
/// begins.
#[derive(Debug, Clone)]
pub struct TimeWindow {
    hours: Hours,
    zone: TimeZone,
    /// As written.
    text: String,
}

/// A window as written, before its zone is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hours {
    /// A bit for each day on which it begins, Monday first.
    days: u8,
    /// In minutes since midnight.
    begin: u16,
    /// In minutes since midnight, not included.
    end: u16,
    /// The name of the zone; `None` is the machine's.
    pub zone: Option<String>,
}

/// Why text is no window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeError {
    /// It has nothing like `08:00-18:00`.
    NoHours,
    /// A day of the week is none.
    Day,
    /// It ends when it begins.
    Empty,
}

impl FromStr for Hours {
    type Err = TimeError;

    /// Reads `22:00-06:00`, `mon-fri 08:00-18:00`, `sat,sun 10:00-16:00 Europe/Berlin`.
    fn from_str(text: &str) -> Result<Self, TimeError> {
        let words: Vec<_> = text.split_ascii_whitespace().collect();
        let is_hours = |it: &&str| it.contains(':');
        let at = words.iter().position(is_hours).ok_or(TimeError::NoHours)?;
        let days = match words[..at] {
            [] => 0b111_1111,
            [days] => read_days(days).ok_or(TimeError::Day)?,
            _ => return Err(TimeError::Day),
        };
        let zone = match words[at + 1..] {
            [] => None,
            [zone] => Some(zone.to_owned()),
            _ => return Err(TimeError::NoHours),
        };
        let (begin, end) = words[at].split_once('-').ok_or(TimeError::NoHours)?;
        let begin = minutes(begin).filter(|&it| it < DAY);
        let (begin, end) = begin.zip(minutes(end)).ok_or(TimeError::NoHours)?;
        if begin == end {
            return Err(TimeError::Empty);
        }
        Ok(Hours {
            days,
            begin,
            end,
            zone,
        })
    }
}

/// `08:30` in minutes. `24:00` is the end of a day.
fn minutes(text: &str) -> Option<u16> {
    let (hour, minute) = text.split_once(':')?;
    let number = |it: &str| {
        let is_digits = it.bytes().all(|byte| byte.is_ascii_digit());
        (is_digits && (1..=2).contains(&it.len())).then(|| it.parse::<u16>().ok())?
    };
    let (hour, minute) = (number(hour)?, number(minute).filter(|_| minute.len() == 2)?);
    let all = hour * 60 + minute;
    (minute < 60 && all <= DAY).then_some(all)
}

/// `mon-fri` or `sat,sun` as bits.
fn read_days(text: &str) -> Option<u8> {
    let day = |it: &str| {
        let names = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
        names.iter().position(|name| it.eq_ignore_ascii_case(name))
    };
    let mut days = 0;
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (mut at, last) = (day(first)?, day(last)?);
        days |= 1 << at;
        while at != last {
            at = (at + 1) % 7;
            days |= 1 << at;
        }
    }
    Some(days)
}

impl TimeWindow {
    /// These hours by the rules of this zone, written as `text`.
    pub fn new(hours: Hours, zone: TimeZone, text: &str) -> Self {
        TimeWindow {
            hours,
            zone,
            text: text.to_owned(),
        }
    }

    /// Whether a time lies in it, in seconds since 1970.
    pub fn contains(&self, unix_seconds: i64) -> bool {
        let Some(now) = self.civil(unix_seconds) else {
            return false;
        };
        let minute = now.hour() as u16 * 60 + now.minute() as u16;
        let today = now.weekday().to_monday_zero_offset();
        let begins_on = |day: i8| self.hours.days >> day & 1 == 1;
        let Hours { begin, end, .. } = self.hours;
        if begin < end {
            begins_on(today) && (begin..end).contains(&minute)
        } else {
            let yesterday = (today + 6) % 7;
            begins_on(today) && minute >= begin || begins_on(yesterday) && minute < end
        }
    }

    /// The time in its zone, for people: `wed 14:05`.
    pub(super) fn local(&self, unix_seconds: i64) -> String {
        let Some(now) = self.civil(unix_seconds) else {
            return String::new();
        };
        let day = match now.weekday() {
            Weekday::Monday => "mon",
            Weekday::Tuesday => "tue",
            Weekday::Wednesday => "wed",
            Weekday::Thursday => "thu",
            Weekday::Friday => "fri",
            Weekday::Saturday => "sat",
            Weekday::Sunday => "sun",
        };
        format!("{day} {:02}:{:02}", now.hour(), now.minute())
    }

    fn civil(&self, unix_seconds: i64) -> Option<jiff::civil::DateTime> {
        let now = Timestamp::from_second(unix_seconds).ok()?;
        Some(self.zone.to_datetime(now))
    }
}

/// Written in the same way.
impl PartialEq for TimeWindow {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl fmt::Display for TimeWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The window that is written, in UTC.
    pub fn window(text: &str) -> TimeWindow {
        TimeWindow::new(text.parse().unwrap(), TimeZone::UTC, text)
    }

    #[test]
    fn windows() {
        // 2026-11-28 is a Saturday.
        let at = |day: u8, hour: u8, minute: u8| {
            let time = format!("2026-11-{day:02}T{hour:02}:{minute:02}:30Z");
            time.parse::<Timestamp>().unwrap().as_second()
        };
        for (text, time, expected) in [
            ("08:00-18:00", at(28, 8, 0), true),
            ("08:00-18:00", at(28, 7, 59), false),
            ("08:00-18:00", at(28, 17, 59), true),
            ("08:00-18:00", at(28, 18, 0), false),
            ("8:00-18:00", at(28, 9, 0), true),
            ("22:00-06:00", at(28, 23, 0), true),
            ("22:00-06:00", at(28, 5, 59), true),
            ("22:00-06:00", at(28, 6, 0), false),
            ("00:00-24:00", at(28, 23, 59), true),
            ("mon-fri 08:00-18:00", at(27, 9, 0), true),
            ("mon-fri 08:00-18:00", at(28, 9, 0), false),
            ("Sat,Sun 08:00-18:00", at(28, 9, 0), true),
            ("fri-mon 08:00-18:00", at(29, 9, 0), true),
            ("fri-mon 08:00-18:00", at(25, 9, 0), false),
            // The day is that on which it begins.
            ("fri 22:00-06:00", at(28, 5, 0), true),
            ("fri 22:00-06:00", at(27, 5, 0), false),
            ("sun 22:00-06:00", at(23, 5, 0), true),
            ("mon 22:00-06:00", at(29, 23, 0), false),
        ] {
            assert_eq!(window(text).contains(time), expected, "{text} at {time}");
        }
        assert_eq!(window("08:00-18:00").local(at(28, 7, 5)), "sat 07:05");
    }

    #[test]
    fn goes_by_the_clock_of_its_zone() {
        let zone = TimeZone::fixed(jiff::tz::offset(5));
        let window = TimeWindow::new("22:00-06:00".parse().unwrap(), zone, "22:00-06:00");
        let at = |time: &str| time.parse::<Timestamp>().unwrap().as_second();
        assert!(window.contains(at("2026-11-28T17:00:00Z")));
        assert!(!window.contains(at("2026-11-28T16:59:59Z")));
        assert!(!window.contains(at("2026-11-28T01:00:00Z")));
    }

    #[test]
    fn what_is_no_window() {
        for (text, expected) in [
            ("", TimeError::NoHours),
            ("22-6", TimeError::NoHours),
            ("22:00", TimeError::NoHours),
            ("24:00-06:00", TimeError::NoHours),
            ("22:00-24:01", TimeError::NoHours),
            ("22:60-23:00", TimeError::NoHours),
            ("22:0-23:00", TimeError::NoHours),
            ("22:00-06:00 UTC x", TimeError::NoHours),
            ("day 22:00-06:00", TimeError::Day),
            ("mon tue 22:00-06:00", TimeError::Day),
            ("mon- 22:00-06:00", TimeError::Day),
            ("22:00-22:00", TimeError::Empty),
        ] {
            assert_eq!(text.parse::<Hours>(), Err(expected), "{text}");
        }
        let hours: Hours = "mon-fri 22:00-06:00 Europe/Berlin".parse().unwrap();
        assert_eq!(hours.zone.as_deref(), Some("Europe/Berlin"));
    }
}
