//! Dates of HTTP (RFC 9110 §5.6.7), as text; what time it is, others know.

use std::time::UNIX_EPOCH;

/// Reads a date in any of the three forms, as seconds since 1970.
///
/// `None` for a malformed date, and for one before 1970. A year of two digits
/// is one of 1970 to 2069.
///
/// Deviation: a leap second (`23:59:60`) is no date here.
pub fn parse(value: &[u8]) -> Option<u64> {
    let date = httpdate::parse_http_date(std::str::from_utf8(value).ok()?).ok()?;
    Some(date.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_dates() {
        for (value, seconds) in [
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", Some(784_111_777)),
            ("Sun Nov  6 08:49:37 1994", Some(784_111_777)),
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Thu, 29 Feb 2024 23:59:59 GMT", Some(1_709_251_199)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(253_402_300_799)),
            ("Tuesday, 31-Dec-69 23:59:59 GMT", Some(3_155_759_999)),
            ("Wed, 31 Dec 1969 23:59:59 GMT", None),
            ("Mon, 06 Nov 1994 08:49:37 GMT", None),
            ("Fri, 30 Feb 2024 00:00:00 GMT", None),
            ("Sun, 06 Nov 1994 24:00:00 GMT", None),
            ("Sun, 06 Nov 1994 08:49:37 UTC", None),
            ("Sun, 06 Nov 1994 08:49:37 +0000", None),
            ("sun, 06 nov 1994 08:49:37 gmt", None),
            ("Sun, 6 Nov 1994 08:49:37 GMT", None),
            ("784111777", None),
            ("\"tag\"", None),
            ("", None),
        ] {
            assert_eq!(parse(value.as_bytes()), seconds, "{value}");
        }
        assert_eq!(parse(b"Sun, 06 Nov 1994 08:49:37 GM\xff"), None);
    }
}
