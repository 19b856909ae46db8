//! Dates as logs and HTTP write them, in UTC.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];
const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];

/// Time since 1970; none for a clock that is set to before that.
pub fn unix_time(at: SystemTime) -> Duration {
    at.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

/// A moment to the second, split as people write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    year: u64,
    month: u64,
    day: u64,
    second_of_day: u64,
    weekday: usize,
}

impl Moment {
    /// The moment so many seconds after 1970-01-01T00:00:00Z.
    ///
    /// Days to civil date by Howard Hinnant, "chrono-Compatible Low-Level Date
    /// Algorithms", with years that begin in March.
    pub fn from_unix(unix_s: u64) -> Self {
        let days = unix_s / 86_400;
        let shifted = days + 719_468;
        let era = shifted / 146_097;
        let day_of_era = shifted % 146_097;
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let month = if shifted_month < 10 {
            shifted_month + 3
        } else {
            shifted_month - 9
        };
        Moment {
            year: year_of_era + era * 400 + u64::from(month <= 2),
            month,
            day: day_of_year - (153 * shifted_month + 2) / 5 + 1,
            second_of_day: unix_s % 86_400,
            weekday: (days % 7) as usize,
        }
    }

    fn clock(self) -> (u64, u64, u64) {
        let second = self.second_of_day;
        (second / 3_600, second / 60 % 60, second % 60)
    }

    fn month_name(self) -> &'static str {
        MONTHS[(self.month as usize - 1) % 12]
    }

    /// `21/Nov/2026:09:05:01 +0000`, as the combined format has it.
    pub fn combined(self) -> String {
        let (hour, minute, second) = self.clock();
        let mut text = String::with_capacity(26);
        let _ = write!(
            text,
            "{:02}/{}/{}:{hour:02}:{minute:02}:{second:02} +0000",
            self.day,
            self.month_name(),
            self.year
        );
        text
    }

    /// `2026-11-21T09:05:01`, RFC 3339 without fraction and zone.
    pub fn rfc3339(self) -> String {
        let (hour, minute, second) = self.clock();
        format!(
            "{}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}",
            self.year, self.month, self.day
        )
    }

    /// `Sat, 21 Nov 2026 09:05:01 GMT`, as `Date` has it (RFC 9110 §5.6.7).
    /// A year has four digits there: the last four of a later one.
    pub fn http_date(self) -> [u8; 29] {
        let mut date = *b"Thu, 00 Jan 0000 00:00:00 GMT";
        let (hour, minute, second) = self.clock();
        date[..3].copy_from_slice(WEEKDAYS[self.weekday].as_bytes());
        date[8..11].copy_from_slice(self.month_name().as_bytes());
        for (at, number) in [
            (5, self.day),
            (12, self.year / 100 % 100),
            (14, self.year % 100),
            (17, hour),
            (20, minute),
            (23, second),
        ] {
            date[at] = b'0' + (number / 10) as u8;
            date[at + 1] = b'0' + (number % 10) as u8;
        }
        date
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_dates() {
        for (unix_s, combined, rfc3339, http) in [
            (
                0,
                "01/Jan/1970:00:00:00 +0000",
                "1970-01-01T00:00:00",
                "Thu, 01 Jan 1970 00:00:00 GMT",
            ),
            (
                951_782_399,
                "28/Feb/2000:23:59:59 +0000",
                "2000-02-28T23:59:59",
                "Mon, 28 Feb 2000 23:59:59 GMT",
            ),
            (
                951_782_400,
                "29/Feb/2000:00:00:00 +0000",
                "2000-02-29T00:00:00",
                "Tue, 29 Feb 2000 00:00:00 GMT",
            ),
            (
                1_795_251_901,
                "21/Nov/2026:09:05:01 +0000",
                "2026-11-21T09:05:01",
                "Sat, 21 Nov 2026 09:05:01 GMT",
            ),
            (
                4_107_542_400,
                "01/Mar/2100:00:00:00 +0000",
                "2100-03-01T00:00:00",
                "Mon, 01 Mar 2100 00:00:00 GMT",
            ),
        ] {
            let moment = Moment::from_unix(unix_s);
            assert_eq!(moment.combined(), combined);
            assert_eq!(moment.rfc3339(), rfc3339);
            assert_eq!(moment.http_date(), http.as_bytes());
        }
    }
}
