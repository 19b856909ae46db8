//! Short-term memory about keys, in tables of a fixed size that forget: answers that are not
//! stored, validations that failed, and how often a key was asked for.
//!
//! An entry is one number, with a part of the key's hash and the value, so that workers need no
//! lock. One key may overwrite another's entry: the fact is then found out again.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use evenkeel_policy::Instant;

use crate::key::Key;

/// Keys for which a fact holds until a moment. The fact is a small number.
#[derive(Debug)]
pub struct Until {
    places: Places,
}

/// How often keys were asked for of late.
#[derive(Debug)]
pub struct Uses {
    places: Places,
    window: Duration,
}

/// The rest of a place is the time, in seconds: enough for four years.
const REASON_BITS: u32 = 5;
const REASON_MASK: u32 = (1 << REASON_BITS) - 1;

impl Until {
    /// A table with about this many entries.
    pub fn new(places: usize) -> Self {
        Until {
            places: Places::new(places),
        }
    }

    /// It holds of this key for so long, in whole seconds. Of the reason five bits count.
    pub fn set(&self, key: &Key, now: Instant, time: Duration, reason: u8) {
        let until = seconds(now + time) << REASON_BITS;
        self.places
            .set(key, until | (u32::from(reason) & REASON_MASK));
    }

    /// Why it still holds of this key; `None` where it does not.
    pub fn reason(&self, key: &Key, now: Instant) -> Option<u8> {
        let place = self.places.of(key)?;
        let holds = seconds(now) < place >> REASON_BITS;
        holds.then_some((place & REASON_MASK) as u8)
    }

    /// Whether it still holds of this key.
    pub fn holds(&self, key: &Key, now: Instant) -> bool {
        self.reason(key, now).is_some()
    }

    /// It no longer holds of this key.
    pub fn clear(&self, key: &Key) {
        if self.places.of(key).is_some() {
            self.places.set(key, 0);
        }
    }
}

impl Uses {
    /// A table with about this many entries, that counts requests within about `window`.
    pub fn new(places: usize, window: Duration) -> Self {
        Uses {
            places: Places::new(places),
            window,
        }
    }

    /// The key is asked for; how often that was so of late, this time among them. Two
    /// workers at once may count as one.
    pub fn count(&self, key: &Key, now: Instant) -> u32 {
        let turn = (seconds(now) / (self.window.as_secs().max(1) as u32)) & 0xffff;
        let before = match self.places.of(key) {
            // The count of the turn before still counts half.
            Some(place) if place >> 16 == turn => place & 0xffff,
            Some(place) if (place >> 16) + 1 == turn => (place & 0xffff) / 2,
            _ => 0,
        };
        let count = (before + 1).min(0xffff);
        self.places.set(key, turn << 16 | count);
        count
    }
}

#[derive(Debug)]
struct Places(Box<[AtomicU64]>);

impl Places {
    fn new(count: usize) -> Self {
        let count = count.next_power_of_two();
        Places((0..count).map(|_| AtomicU64::new(0)).collect())
    }

    fn place(&self, key: &Key) -> &AtomicU64 {
        &self.0[key.hash as usize & (self.0.len() - 1)]
    }

    fn set(&self, key: &Key, value: u32) {
        let place = u64::from(fingerprint(key)) << 32 | u64::from(value);
        self.place(key).store(place, Relaxed);
    }

    fn of(&self, key: &Key) -> Option<u32> {
        let place = self.place(key).load(Relaxed);
        ((place >> 32) as u32 == fingerprint(key)).then_some(place as u32)
    }
}

/// Never 0, which marks an empty entry.
fn fingerprint(key: &Key) -> u32 {
    ((key.hash >> 64) as u32).max(1)
}

/// Whole seconds of the clock, rounded up.
fn seconds(at: Instant) -> u32 {
    at.as_nanos().div_ceil(1_000_000_000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::tests::key_of;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn holds_for_a_while() {
        let until = Until::new(100);
        let key = key_of("/a");
        assert!(!until.holds(&key, at(0)));
        until.set(&key, at(10), Duration::from_secs(5), 17);
        assert_eq!(until.reason(&key, at(14)), Some(17));
        assert!(until.holds(&key, at(14)) && !until.holds(&key, at(15)));
        assert!(!until.holds(&key_of("/b"), at(14)));
        until.clear(&key_of("/b"));
        assert!(until.holds(&key, at(14)));
        until.clear(&key);
        assert!(!until.holds(&key, at(14)));
    }

    #[test]
    fn counts_what_is_asked_for_of_late() {
        let uses = Uses::new(100, Duration::from_secs(60));
        let key = key_of("/a");
        let counts = [0, 1, 59, 61, 62, 250].map(|seconds| uses.count(&key, at(seconds)));
        assert_eq!(counts, [1, 2, 3, 2, 3, 1]);
        assert_eq!(uses.count(&key_of("/b"), at(250)), 1);
    }
}
