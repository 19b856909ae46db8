//! Limits on how often a key may come: a rate with a burst, for many keys in a bounded table.
//!
//! Shared by all workers. The algorithm is GCRA, the generic cell rate algorithm in its form of
//! virtual scheduling (ITU-T I.371 (03/2004), §A.1). A key has one number: the moment from which
//! it has its whole burst again.
//!
//! ```text
//! until:   the moment at which nothing is used up; in the past for a key at rest
//! a use:   until = max(until, now) + interval
//! allowed: until - now <= burst * interval
//! ```
//!
//! The table is set-associative, as a processor's cache is. A key has eight places. A full set
//! displaces the key that is nearest to its whole burst. That key loses least. A key over its
//! limit cannot be displaced by keys that come once.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::Instant;
use crate::sync::{AtomicU64, Ordering};

/// How often a key may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Time between two uses at the rate; at least a nanosecond.
    pub interval: Duration,
    /// Uses that a key at rest has at once; at least one.
    pub burst: u32,
    /// Longest time that a use which is too early may wait.
    pub delay: Duration,
}

impl Allowance {
    fn interval_ns(self) -> u64 {
        nanos(self.interval).max(1)
    }

    /// How far ahead `until` may be for a use at once.
    fn tolerance_ns(self) -> u64 {
        self.interval_ns()
            .saturating_mul(u64::from(self.burst.max(1)))
    }

    /// Time in which a key that has used all has its whole burst again.
    pub fn window(self) -> Duration {
        Duration::from_nanos(self.tolerance_ns())
    }

    /// The standing of a key by its `until`.
    fn standing(self, until: u64, now: u64) -> Quota {
        let used = until.saturating_sub(now);
        let (all, interval) = (self.tolerance_ns(), self.interval_ns());
        let left = all.saturating_sub(used) / interval;
        let with_one_more = (left + 1).saturating_mul(interval);
        Quota {
            remaining: u32::try_from(left).unwrap_or(u32::MAX),
            next: Duration::from_nanos(with_one_more.saturating_add(used).saturating_sub(all)),
        }
    }

    /// The verdict on a use, and the `until` after it; `None` where it stays.
    fn judge(self, until: u64, now: u64) -> (Verdict, Option<u64>) {
        let next = until.max(now).saturating_add(self.interval_ns());
        let early = next.saturating_sub(now.saturating_add(self.tolerance_ns()));
        if early > nanos(self.delay) {
            let standing = self.standing(until, now);
            let retry_after = Duration::from_nanos(early);
            return (
                Verdict::Refused {
                    standing,
                    retry_after,
                },
                None,
            );
        }
        let standing = self.standing(next, now);
        let verdict = match early {
            0 => Verdict::Allowed { standing },
            _ => Verdict::Delayed {
                standing,
                wait: Duration::from_nanos(early),
            },
        };
        (verdict, Some(next))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The rest of a key's allowance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Uses that it has at once.
    pub remaining: u32,
    /// Time until it has one more.
    pub next: Duration,
}

/// The verdict on a use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// At once.
    Allowed {
        /// The rest of the key's allowance.
        standing: Quota,
    },
    /// After a wait. The use is counted.
    Delayed {
        /// The rest of the key's allowance.
        standing: Quota,
        /// How long.
        wait: Duration,
    },
    /// Not at all. The use is not counted.
    Refused {
        /// The rest of the key's allowance.
        standing: Quota,
        /// Time after which a use is allowed at once, if no other comes before it.
        retry_after: Duration,
    },
}

/// Places that a key has.
const WAYS: usize = 8;

/// The places of keys that share them. The keys are in one line of the processor's cache.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Set {
    /// Hashes of keys; 0 for a free place.
    keys: [AtomicU64; WAYS],
    /// The moment of each, in nanoseconds, at which it has its whole burst again.
    until: [AtomicU64; WAYS],
}

/// The uses of each of many keys under the same allowance.
///
/// Invariant: a key that stays in the table is never allowed more than its allowance: each use is
/// one compare-and-swap of `until`. Two exceptions are bounded. A key that is displaced starts
/// afresh, as a new one does. Workers that bring in the same new key at the same moment may each
/// have one use that is not counted.
#[derive(Debug)]
pub struct LimitTable {
    allowance: Allowance,
    keys: KeyTable,
}

/// The moment at which each of many keys has its whole burst again.
#[derive(Debug)]
pub(crate) struct KeyTable {
    sets: Box<[Set]>,
    /// Secret, so that nobody can choose keys that share a set.
    seed: RandomState,
}

impl LimitTable {
    /// Memory of an entry, in bytes.
    pub const ENTRY_LEN: usize = size_of::<Set>() / WAYS;

    /// A table for so many keys, rounded up to a multiple of eight.
    pub fn new(allowance: Allowance, entries: usize) -> Self {
        LimitTable {
            allowance,
            keys: KeyTable::new(entries),
        }
    }

    /// The allowance of each key.
    pub fn allowance(&self) -> Allowance {
        self.allowance
    }

    /// Keys that there is room for.
    pub fn capacity(&self) -> usize {
        self.keys.capacity()
    }

    /// Keys that have not got their whole burst. Looks at all entries.
    pub fn active(&self, now: Instant) -> usize {
        self.keys.active(now)
    }

    /// Judges a use of this key, and counts it unless it is refused.
    pub fn take(&self, key: &[u8], now: Instant) -> Verdict {
        let now_ns = now.as_nanos();
        self.keys
            .update(key, now, |until| self.allowance.judge(until, now_ns))
    }

    /// The verdict that a use of this key would get.
    pub fn look(&self, key: &[u8], now: Instant) -> Verdict {
        let until = self.keys.until(key);
        self.allowance.judge(until, now.as_nanos()).0
    }

    /// The rest of this key's allowance.
    pub fn standing(&self, key: &[u8], now: Instant) -> Quota {
        let until = self.keys.until(key);
        self.allowance.standing(until, now.as_nanos())
    }
}

impl KeyTable {
    /// A table for so many keys, rounded up to a multiple of eight.
    pub fn new(entries: usize) -> Self {
        let sets = entries.div_ceil(WAYS).max(1);
        KeyTable {
            sets: (0..sets).map(|_| Set::default()).collect(),
            seed: RandomState::new(),
        }
    }

    /// Keys that there is room for.
    pub fn capacity(&self) -> usize {
        self.sets.len() * WAYS
    }

    /// Keys whose moment is to come. Looks at all entries.
    pub fn active(&self, now: Instant) -> usize {
        let now = now.as_nanos();
        let untils = self.sets.iter().flat_map(|it| &it.until);
        untils.filter(|it| it.load(Ordering::Relaxed) > now).count()
    }

    /// Changes the moment of a key, which it is given if it has none. `change` gives its
    /// result and the moment after it, or `None` where that stays; it may be asked again.
    pub fn update<T>(
        &self,
        key: &[u8],
        now: Instant,
        change: impl Fn(u64) -> (T, Option<u64>),
    ) -> T {
        let (set, key) = self.place_of(key);
        let now = now.as_nanos();
        loop {
            let way = match set.find(key) {
                Some(way) => way,
                None => match set.bring_in(key, now) {
                    Some(way) => way,
                    // Another worker was faster.
                    None => continue,
                },
            };
            let until = &set.until[way];
            let before = until.load(Ordering::Acquire);
            let (result, after) = change(before);
            let Some(after) = after else {
                return result;
            };
            let swapped =
                until.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed);
            if swapped.is_ok() {
                return result;
            }
        }
    }

    /// The moment of a key, 0 for one that is not there.
    pub fn until(&self, key: &[u8]) -> u64 {
        let (set, key) = self.place_of(key);
        set.find(key)
            .map_or(0, |way| set.until[way].load(Ordering::Acquire))
    }

    fn place_of(&self, key: &[u8]) -> (&Set, u64) {
        let hash = self.seed.hash_one(key);
        // The product's high half is below the number of sets: no division.
        let index = (u128::from(hash) * self.sets.len() as u128) >> 64;
        (&self.sets[index as usize], hash.max(1))
    }
}

impl Set {
    fn find(&self, key: u64) -> Option<usize> {
        self.keys
            .iter()
            .position(|it| it.load(Ordering::Acquire) == key)
    }

    /// Gives a new key a place; `None` where another worker changed the set meanwhile.
    ///
    /// Invariant: the place counts nothing for the key, because its `until` is in the past
    /// before it changes hands. A use by the key before it, in this very moment, counts
    /// for the new one, which is refused a use early rather than late.
    #[cold]
    fn bring_in(&self, key: u64, now: u64) -> Option<usize> {
        let untils = self.until.iter().map(|it| it.load(Ordering::Acquire));
        let (way, until) = untils.enumerate().min_by_key(|(_, until)| *until)?;
        let old = self.keys[way].load(Ordering::Acquire);
        if until > now {
            let past =
                self.until[way].compare_exchange(until, 0, Ordering::AcqRel, Ordering::Relaxed);
            past.ok()?;
        }
        let swapped =
            self.keys[way].compare_exchange(old, key, Ordering::SeqCst, Ordering::Relaxed);
        swapped.ok()?;
        let first = self
            .keys
            .iter()
            .position(|it| it.load(Ordering::SeqCst) == key)?;
        if first == way {
            self.take_over_others(way, key);
            return Some(way);
        }
        // Another worker brought the same key in: the first place is the one that counts.
        self.free(way, key);
        Some(first)
    }

    /// Frees the places behind this one that have the same key, and takes over their latest
    /// moment.
    fn take_over_others(&self, way: usize, key: u64) {
        for other in way + 1..WAYS {
            if self.keys[other].load(Ordering::SeqCst) == key {
                let until = self.until[other].load(Ordering::Acquire);
                self.until[way].fetch_max(until, Ordering::AcqRel);
                self.free(other, key);
            }
        }
    }

    /// Frees a place, unless another worker has given it to another key.
    fn free(&self, way: usize, key: u64) {
        let _ = self.keys[way].compare_exchange(key, 0, Ordering::SeqCst, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn allowance(interval_ms: u64, burst: u32, delay_ms: u64) -> Allowance {
        Allowance {
            interval: Duration::from_millis(interval_ms),
            burst,
            delay: Duration::from_millis(delay_ms),
        }
    }

    fn at(ms: u64) -> Instant {
        Instant::from_nanos((1_000_000 + ms) * 1_000_000)
    }

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let table = LimitTable::new(allowance(100, 3, 0), 100);
        for remaining in [2, 1, 0] {
            let Verdict::Allowed { standing } = table.take(b"a", at(0)) else {
                panic!("refused with {remaining} left");
            };
            assert_eq!(standing.remaining, remaining);
        }
        let refused = Verdict::Refused {
            standing: Quota {
                remaining: 0,
                next: Duration::from_millis(60),
            },
            retry_after: Duration::from_millis(60),
        };
        assert_eq!(table.take(b"a", at(40)), refused);
        assert_eq!(table.look(b"a", at(40)), refused);
        assert!(matches!(table.take(b"b", at(40)), Verdict::Allowed { .. }));
        assert!(matches!(table.take(b"a", at(100)), Verdict::Allowed { .. }));
        assert!(matches!(table.take(b"a", at(100)), Verdict::Refused { .. }));
        assert_eq!(table.active(at(100)), 2);
        assert_eq!(table.active(at(1_000)), 0);
        let rested = Quota {
            remaining: 3,
            next: Duration::from_millis(100),
        };
        assert_eq!(table.standing(b"a", at(1_000)), rested);
        assert_eq!(table.standing(b"never", at(0)), rested);
    }

    #[test]
    fn early_uses_wait_in_order() {
        let table = LimitTable::new(allowance(100, 1, 250), 8);
        assert!(matches!(table.take(b"a", at(0)), Verdict::Allowed { .. }));
        for expected in [100, 200] {
            let Verdict::Delayed { wait, .. } = table.take(b"a", at(0)) else {
                panic!("no wait of {expected} ms");
            };
            assert_eq!(wait, Duration::from_millis(expected));
        }
        let Verdict::Refused { retry_after, .. } = table.take(b"a", at(0)) else {
            panic!("waits beyond the bound");
        };
        assert_eq!(retry_after, Duration::from_millis(300));
    }

    #[test]
    fn extremes_neither_overflow_nor_divide_by_zero() {
        let most = Allowance {
            interval: Duration::MAX,
            burst: u32::MAX,
            delay: Duration::MAX,
        };
        let table = LimitTable::new(most, 0);
        assert_eq!(table.capacity(), WAYS);
        for now in [0, u64::MAX] {
            let now = Instant::from_nanos(now);
            assert!(!matches!(table.take(b"", now), Verdict::Refused { .. }));
        }
        let least = Allowance {
            interval: Duration::ZERO,
            burst: 0,
            delay: Duration::ZERO,
        };
        let table = LimitTable::new(least, 1);
        assert!(matches!(table.take(b"", at(0)), Verdict::Allowed { .. }));
        assert!(matches!(table.take(b"", at(0)), Verdict::Refused { .. }));
        assert!(matches!(table.take(b"", at(1)), Verdict::Allowed { .. }));
    }

    /// A key over its limit stays so, whatever other keys come.
    #[test]
    fn a_flood_of_a_million_keys_displaces_no_key_that_is_over_its_limit() {
        let table = LimitTable::new(allowance(1_000, 5, 0), 10_000);
        assert_eq!(LimitTable::ENTRY_LEN, 16);
        assert_eq!(table.capacity(), 10_000);
        let known: Vec<[u8; 1]> = (0..100).map(|it| [it]).collect();
        for key in &known {
            while !matches!(table.take(key, at(0)), Verdict::Refused { .. }) {}
        }
        for flood in 0..1_000_000_u32 {
            table.take(&flood.to_le_bytes(), at(0));
        }
        assert!(table.active(at(0)) <= table.capacity());
        for key in &known {
            let verdict = table.take(key, at(999));
            assert!(matches!(verdict, Verdict::Refused { .. }), "{key:?}");
            let verdict = table.take(key, at(1_000));
            assert!(matches!(verdict, Verdict::Allowed { .. }), "{key:?}");
        }
    }
}
