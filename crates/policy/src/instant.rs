//! A moment, as everything here takes and compares it.

use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// Nanoseconds of a clock that never goes back, from wherever it began.
///
/// `std::time::Instant` keeps seconds and nanoseconds apart: to subtract two of
/// them takes 46 instructions, four times for each exchange, and it is twice as
/// large.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// So many nanoseconds after the clock began.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Instant(nanos)
    }

    /// Nanoseconds since the clock began.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How much later it is than `earlier`; zero if it is not.
    #[must_use]
    pub fn duration_since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// How much later it is than `earlier`; `None` if it is earlier.
    #[must_use]
    pub fn checked_duration_since(self, earlier: Instant) -> Option<Duration> {
        self.0.checked_sub(earlier.0).map(Duration::from_nanos)
    }
}

/// In whole nanoseconds, as far as the clock goes: five centuries.
fn nanos(duration: Duration) -> u64 {
    let seconds = duration.as_secs().saturating_mul(1_000_000_000);
    seconds.saturating_add(u64::from(duration.subsec_nanos()))
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add(nanos(duration)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;

    fn sub(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_sub(nanos(duration)))
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.duration_since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_counted_in_nanoseconds_and_never_wraps() {
        let start = Instant::from_nanos(5);
        let later = start + Duration::new(2, 7);
        assert_eq!(later.as_nanos(), 2_000_000_012);
        assert_eq!(later - start, Duration::new(2, 7));
        assert_eq!(start - later, Duration::ZERO);
        assert_eq!(start.checked_duration_since(later), None);
        assert_eq!(start - Duration::from_secs(1), Instant::from_nanos(0));
        assert_eq!(start + Duration::MAX, Instant::from_nanos(u64::MAX));
    }
}
