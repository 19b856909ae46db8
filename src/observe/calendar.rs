//! Dates in the forms of logs and HTTP, in UTC.

use std::io::Write;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// Time since 1970; zero for a clock that is set to before 1970.
pub fn unix_time(at: SystemTime) -> Duration {
    at.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

/// A moment to the second, in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment(DateTime);

impl Moment {
    /// The moment this many seconds after 1970-01-01T00:00:00Z, but at most the end of the year
    /// 9999.
    pub fn from_unix(unix_s: u64) -> Self {
        let timestamp = i64::try_from(unix_s)
            .ok()
            .and_then(|unix_s| Timestamp::from_second(unix_s).ok());
        Moment(timestamp.map_or(DateTime::MAX, |it| TimeZone::UTC.to_datetime(it)))
    }

    /// `21/Nov/2026:09:05:01 +0000`, as in the combined format.
    pub fn combined(self) -> String {
        self.0.strftime("%d/%b/%Y:%H:%M:%S +0000").to_string()
    }

    /// `2026-11-21T09:05:01`, RFC 3339 without fraction and zone.
    pub fn rfc3339(self) -> String {
        self.0.strftime("%Y-%m-%dT%H:%M:%S").to_string()
    }

    /// `Sat, 21 Nov 2026 09:05:01 GMT`, as in `Date` (RFC 9110 §5.6.7).
    pub fn http_date(self) -> [u8; 29] {
        let mut date = [b' '; 29];
        let text = self.0.strftime("%a, %d %b %Y %H:%M:%S GMT");
        // There is room, as years here have four digits.
        let _ = write!(date.as_mut_slice(), "{text}");
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
            // A year has four digits in all three.
            (
                u64::MAX,
                "31/Dec/9999:23:59:59 +0000",
                "9999-12-31T23:59:59",
                "Fri, 31 Dec 9999 23:59:59 GMT",
            ),
        ] {
            let moment = Moment::from_unix(unix_s);
            assert_eq!(moment.combined(), combined);
            assert_eq!(moment.rfc3339(), rfc3339);
            assert_eq!(moment.http_date(), http.as_bytes());
        }
    }
}
