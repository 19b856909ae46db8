//! The time of day without a clock call.

use std::cell::{Cell, RefCell};
use std::time::{Instant, SystemTime};

use super::line::{Line, two_digits};
use crate::observe::calendar::{Moment, unix_time};

/// Moments that were taken anyway, relative to one whose time of day is known.
#[derive(Debug)]
pub(super) struct Clock {
    base: Cell<(Instant, u64)>,
    second: RefCell<Second>,
}

/// The current second as text.
#[derive(Debug, Default)]
pub(super) struct Second {
    unix_s: u64,
    /// As the combined format has it, with a zone of six bytes.
    pub combined: String,
    /// As RFC 3339 has it, without fraction and zone.
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

impl Clock {
    pub fn new() -> Self {
        Clock {
            base: Cell::new(base()),
            second: RefCell::default(),
        }
    }

    /// Follows a clock that was set.
    pub fn synchronise(&self) {
        self.base.set(base());
    }

    /// Microseconds since 1970.
    pub fn unix_us(&self, now: Instant) -> u64 {
        let (base, unix_us) = self.base.get();
        unix_us + now.saturating_duration_since(base).as_micros() as u64
    }

    /// Writes with the text of the second that `unix_us` is in.
    pub fn with_second(&self, unix_us: u64, write: impl FnOnce(&Second)) {
        let unix_s = unix_us / 1_000_000;
        let mut second = self.second.borrow_mut();
        if second.unix_s != unix_s {
            *second = Second::new(unix_s);
        }
        write(&second);
    }

    /// `2026-11-21T09:05:01.123456Z`.
    pub fn push_rfc3339(&self, line: &mut Line<'_>, unix_us: u64) {
        self.with_second(unix_us, |second| {
            line.bytes(second.rfc3339.as_bytes());
        });
        let micros = unix_us % 1_000_000;
        line.byte(b'.');
        for two in [micros / 10_000, micros / 100, micros] {
            line.literal(&two_digits(two));
        }
        line.byte(b'Z');
    }
}

fn base() -> (Instant, u64) {
    let unix = unix_time(SystemTime::now());
    (Instant::now(), unix.as_micros() as u64)
}
