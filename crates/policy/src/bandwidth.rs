//! Bytes in a time: of one response, or of all that have a key in common.
//!
//! A response books a few bytes at a time, and learns when it may send them. That is the virtual
//! scheduling of GCRA (see [`limit`](crate::limit)), with bytes instead of uses. Responses of one
//! key that book one after the other are served in that order, so that they share its rate alike.
//!
//! ```text
//! until:   the moment at which all that was booked was sent at the rate
//! to book: until = max(until, now) + bytes / rate
//! ready:   until - burst / rate, or now
//! ```

use std::time::Duration;

use crate::Instant;
use crate::limit::KeyTable;

/// Bytes in a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRate {
    /// Bytes in a second; at least one.
    pub per_second: u64,
    /// Bytes that may be sent at once after a rest.
    pub burst: u64,
}

/// Least and most bytes that are booked at once.
const QUANTUM_MIN: u64 = 1024;
const QUANTUM_MAX: u64 = 64 * 1024;
/// How many times a second a response books at a low rate.
const BOOKINGS_PER_SECOND: u64 = 10;
/// The least burst, as a part of a second. A response that wakes up late by less keeps its rate.
const BURST_MIN_PARTS: u64 = 4;

impl ByteRate {
    /// Bytes that a response books at once.
    pub fn quantum(self) -> usize {
        let quantum = self.per_second / BOOKINGS_PER_SECOND;
        quantum.clamp(QUANTUM_MIN, QUANTUM_MAX) as usize
    }

    /// Time that so many bytes take.
    fn nanos(self, bytes: u64) -> u64 {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.per_second.max(1));
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }

    /// The time of a whole burst.
    fn tolerance_ns(self) -> u64 {
        let least = (self.per_second / BURST_MIN_PARTS).max(2 * self.quantum() as u64);
        self.nanos(self.burst.max(least))
    }

    /// Books bytes: when they may be sent, and `until` after it.
    fn book(self, until: u64, bytes: u64, now: u64) -> (u64, u64) {
        let after = until.max(now).saturating_add(self.nanos(bytes));
        let ready = after.saturating_sub(self.tolerance_ns()).max(now);
        (ready, after)
    }
}

/// The bookings of one response.
#[derive(Debug, Clone, Copy, Default)]
pub struct Booked {
    until: u64,
}

impl Booked {
    /// Books bytes: the moment from which on they may be sent.
    pub fn book(&mut self, rate: ByteRate, bytes: u64, now: Instant) -> Instant {
        let (ready, after) = rate.book(self.until, bytes, now.as_nanos());
        self.until = after;
        Instant::from_nanos(ready)
    }
}

/// The bookings of the responses of each of many keys. Shared by all workers, and bounded as the
/// table of a [limit](crate::limit) is.
#[derive(Debug)]
pub struct BandwidthTable {
    rate: ByteRate,
    keys: KeyTable,
}

impl BandwidthTable {
    /// A table for so many keys, rounded up to a multiple of eight.
    pub fn new(rate: ByteRate, entries: usize) -> Self {
        BandwidthTable {
            rate,
            keys: KeyTable::new(entries),
        }
    }

    /// Keys with bytes that were sent lately. Looks at all entries.
    pub fn active(&self, now: Instant) -> usize {
        self.keys.active(now)
    }

    /// Books bytes of this key: the moment from which on they may be sent.
    pub fn book(&self, key: &[u8], bytes: u64, now: Instant) -> Instant {
        let ready = self.keys.update(key, now, |until| {
            let (ready, after) = self.rate.book(until, bytes, now.as_nanos());
            (ready, Some(after))
        });
        Instant::from_nanos(ready)
    }

    /// The moment at which all bookings of this key were sent at the rate, in nanoseconds; 0 for
    /// an unknown key.
    pub fn until(&self, key: &[u8]) -> u64 {
        self.keys.until(key)
    }

    /// The moment from which bytes may be sent that were booked up to `until`.
    pub fn ready(&self, until: u64) -> Instant {
        Instant::from_nanos(until.saturating_sub(self.rate.tolerance_ns()))
    }

    /// Gives back booked bytes that are not sent.
    pub fn give_back(&self, key: &[u8], bytes: u64, now: Instant) {
        let nanos = self.rate.nanos(bytes);
        self.keys
            .update(key, now, |until| ((), Some(until.saturating_sub(nanos))));
    }

    /// How long a response of this key would wait now.
    pub fn wait(&self, key: &[u8], now: Instant) -> Duration {
        let bytes = self.rate.quantum() as u64;
        let (ready, _) = self.rate.book(self.keys.until(key), bytes, now.as_nanos());
        Instant::from_nanos(ready).duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: ByteRate = ByteRate {
        per_second: 100_000,
        burst: 30_000,
    };

    fn at(ms: u64) -> Instant {
        Instant::from_nanos((1_000_000 + ms) * 1_000_000)
    }

    /// Bytes that a response of this rate sends in so many milliseconds, when it wakes up
    /// `late_ms` after each moment.
    fn sent_in(rate: ByteRate, ms: u64, late_ms: u64) -> u64 {
        let mut booked = Booked::default();
        let (mut now, mut sent) = (at(0), 0);
        loop {
            let bytes = rate.quantum() as u64;
            let ready = booked.book(rate, bytes, now);
            if ready > now {
                now = ready + Duration::from_millis(late_ms);
            }
            if now > at(ms) {
                return sent;
            }
            sent += bytes;
        }
    }

    #[test]
    fn the_burst_goes_at_once_and_then_the_rate() {
        let mut booked = Booked::default();
        for _ in 0..3 {
            assert_eq!(booked.book(RATE, 10_000, at(0)), at(0));
        }
        assert_eq!(booked.book(RATE, 10_000, at(0)), at(100));
        assert_eq!(booked.book(RATE, 10_000, at(100)), at(200));
        // After a rest there is no more than a burst.
        for _ in 0..3 {
            assert_eq!(booked.book(RATE, 10_000, at(60_000)), at(60_000));
        }
        assert_eq!(booked.book(RATE, 10_000, at(60_000)), at(60_100));
    }

    #[test]
    fn waking_up_late_costs_nothing_of_the_rate() {
        for per_second in [1_024, 100_000, 10 << 20, 1 << 30] {
            let rate = ByteRate {
                per_second,
                burst: 0,
            };
            for late_ms in [0, 30, 100] {
                let sent = sent_in(rate, 10_000, late_ms);
                let due = per_second * 10;
                assert!(sent >= due - due / 20, "{per_second}, {late_ms}: {sent}");
                assert!(
                    sent <= due + due / 20 + 4096,
                    "{per_second}, {late_ms}: {sent}"
                );
            }
        }
    }

    #[test]
    fn responses_of_a_key_share_its_rate_and_others_do_not() {
        let table = BandwidthTable::new(RATE, 100);
        let mut ready = [at(0), at(0)];
        let mut sent = [0_u64; 2];
        // The first books whenever it can; the second comes later.
        for ms in 0..2_000 {
            for (index, ready) in ready.iter_mut().enumerate() {
                if (index == 0 || ms >= 500) && *ready <= at(ms) {
                    sent[index] += 10_000;
                    *ready = table.book(b"a", 10_000, at(ms));
                }
            }
        }
        let late: u64 = sent[1];
        assert!((60_000..=90_000).contains(&late), "{sent:?}");
        assert!(sent[0] + sent[1] <= 250_000, "{sent:?}");
        assert_eq!(table.book(b"b", 10_000, at(2_000)), at(2_000));
        assert_eq!(table.active(at(2_000)), 2);
        assert_eq!(table.active(at(60_000)), 0);
    }

    #[test]
    fn what_is_given_back_is_there_for_others() {
        let table = BandwidthTable::new(RATE, 8);
        for _ in 0..3 {
            table.book(b"a", 10_000, at(0));
        }
        assert_eq!(table.wait(b"a", at(0)), Duration::from_millis(100));
        table.give_back(b"a", 10_000, at(0));
        assert_eq!(table.wait(b"a", at(0)), Duration::ZERO);
        table.give_back(b"never", 10_000, at(0));
        assert_eq!(table.wait(b"never", at(0)), Duration::ZERO);
    }

    #[test]
    fn extremes_do_not_overflow() {
        for (per_second, burst) in [(0, 0), (u64::MAX, u64::MAX), (1, u64::MAX)] {
            let rate = ByteRate { per_second, burst };
            let table = BandwidthTable::new(rate, 0);
            for now in [0, u64::MAX] {
                let now = Instant::from_nanos(now);
                table.book(b"", u64::MAX, now);
                table.give_back(b"", u64::MAX, now);
            }
            assert!(rate.quantum() >= 1024);
        }
    }
}
