//! Pairs of user and password that were right a while ago, by their tags.
//!
//! A table of a fixed size. All workers read it without a lock, while threads write it.
//!
//! ```text
//! tag ─▶ set of 4 places ─▶ both halves the same, and not too long ago?
//! ```
//!
//! A reader may see one half of a tag and the other half of another one, while a place is
//! written. Then it finds what nobody can ask for: 128 bits of a keyed hash.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use evenkeel_policy::Instant;

/// How long a pair is remembered. A client that stays costs one verification in this time.
const KEPT: Duration = Duration::from_secs(300);
/// Places that a tag may be in.
const WAYS: usize = 4;
/// Sets of places, of 24 bytes each: 384 KiB in all.
const SETS: usize = 4096;

/// The keyed hash of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    high: u64,
    low: u64,
}

impl Tag {
    /// Of these bytes.
    pub fn new(bytes: [u8; 16]) -> Self {
        let whole = u128::from_le_bytes(bytes);
        Tag {
            high: (whole >> 64) as u64,
            low: whole as u64,
        }
    }
}

/// The table; it has no memory before the first pair.
#[derive(Debug, Default)]
pub struct Remembered(OnceLock<Box<[Place]>>);

#[derive(Debug, Default)]
struct Place {
    high: AtomicU64,
    low: AtomicU64,
    /// Until when, in nanoseconds of the clock; 0 where the place is free.
    until: AtomicU64,
}

impl Remembered {
    /// Whether a tag was added, not too long ago.
    pub fn has(&self, tag: Tag, now: Instant) -> bool {
        let Some(places) = self.0.get() else {
            return false;
        };
        set_of(places, tag).iter().any(|it| {
            it.low.load(Relaxed) == tag.low
                && it.high.load(Relaxed) == tag.high
                && it.until.load(Relaxed) > now.as_nanos()
        })
    }

    /// Adds a tag. Without room, it replaces the oldest one.
    pub fn add(&self, tag: Tag, now: Instant) {
        let places = self.0.get_or_init(|| {
            let places = (0..SETS * WAYS).map(|_| Place::default());
            places.collect()
        });
        let set = set_of(places, tag);
        let oldest = set.iter().min_by_key(|it| it.until.load(Relaxed));
        if let Some(place) = oldest {
            place.until.store(0, Relaxed);
            place.high.store(tag.high, Relaxed);
            place.low.store(tag.low, Relaxed);
            place.until.store((now + KEPT).as_nanos(), Relaxed);
        }
    }
}

fn set_of(places: &[Place], tag: Tag) -> &[Place] {
    let start = (tag.low as usize % SETS) * WAYS;
    &places[start..start + WAYS]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(number: u128) -> Tag {
        Tag::new(number.to_le_bytes())
    }

    #[test]
    fn is_remembered_for_a_while() {
        let (table, now) = (Remembered::default(), Instant::from_nanos(7));
        assert!(!table.has(tag(1), now));
        table.add(tag(1), now);
        assert!(table.has(tag(1), now));
        assert!(!table.has(tag(1 << 64 | 1), now), "the other half counts");
        assert!(!table.has(tag(1 + SETS as u128), now));
        let last = now + KEPT - Duration::from_nanos(1);
        assert!(table.has(tag(1), last));
        assert!(!table.has(tag(1), now + KEPT));
    }

    #[test]
    fn the_oldest_of_a_set_goes() {
        let (table, mut now) = (Remembered::default(), Instant::from_nanos(7));
        let of_one_set = |it: usize| tag((it * SETS + 5) as u128);
        for number in 0..=WAYS {
            now += Duration::from_millis(1);
            table.add(of_one_set(number), now);
        }
        assert!(!table.has(of_one_set(0), now));
        assert!((1..=WAYS).all(|it| table.has(of_one_set(it), now)));
    }
}
