//! The time of day without a clock call.

use std::time::SystemTime;

use evenkeel_policy::Instant;

use super::line::{Line, two_digits};
use crate::observe::calendar::{Moment, unix_time};

/// Converts instants to time of day, from one instant whose time of day is known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    base: Instant,
    /// Microseconds since 1970 at `base`.
    base_us: u64,
}

impl Clock {
    /// A clock that is set from the system's.
    pub fn new() -> Self {
        Clock {
            base: crate::net::clock::now(),
            base_us: unix_time(SystemTime::now()).as_micros() as u64,
        }
    }

    /// Microseconds since 1970.
    pub fn unix_us(&self, moment: Instant) -> u64 {
        match moment.checked_duration_since(self.base) {
            Some(since) => self.base_us + since.as_micros() as u64,
            None => self.base_us - self.base.duration_since(moment).as_micros() as u64,
        }
    }
}

/// The text of a second, made once for all its lines.
#[derive(Debug, Default)]
pub(super) struct Seconds {
    current: Second,
}

/// A second as text.
#[derive(Debug, Default)]
pub(super) struct Second {
    unix_s: u64,
    /// In the combined format, with a zone of six bytes.
    pub combined: String,
    /// In RFC 3339, without fraction and zone.
    pub rfc3339: String,
}

impl Second {
    #[cold]
    fn new(unix_s: u64) -> Self {
        let moment = Moment::from_unix(unix_s);
        Second {
            unix_s,
            combined: moment.combined(),
            rfc3339: moment.rfc3339(),
        }
    }
}

impl Seconds {
    /// The second with this moment, which is in microseconds since 1970.
    pub fn of(&mut self, unix_us: u64) -> &Second {
        let unix_s = unix_us / 1_000_000;
        if self.current.unix_s != unix_s {
            self.current = Second::new(unix_s);
        }
        &self.current
    }

    /// `2026-11-21T09:05:01.123456Z`.
    pub fn push_rfc3339(&mut self, line: &mut Line<'_>, unix_us: u64) {
        line.bytes(self.of(unix_us).rfc3339.as_bytes());
        let micros = unix_us % 1_000_000;
        line.byte(b'.');
        for two in [micros / 10_000, micros / 100, micros] {
            line.literal(&two_digits(two));
        }
        line.byte(b'Z');
    }
}
