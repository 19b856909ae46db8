//! Whether a read from a disk is worth a place in the page cache.
//!
//! Files may be many times the size of memory. Then most of them are displaced
//! before they are read again. A place for such a file costs as much as the
//! read, and displaces files that are read often. So a file that was not read a
//! little before passes by the cache.
//!
//! That is the ghost list of 2Q (Johnson and Shasha, "2Q: A Low Overhead High
//! Performance Buffer Management Replacement Algorithm", VLDB 1994). The
//! distance in bytes between two reads is what Linux calls the refault distance
//! (`mm/workingset.c`).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::hash::mix;

/// The share of memory that the page cache is taken to have. Names, the
/// kernel's data on each file, and programs need the rest.
const CACHE_SHARE: f64 = 0.5;
/// One read in so many is worth a place in any case. Files that are read one
/// after the other, always in the same order, would never get one.
const CHANCE: u64 = 128;
/// Bytes of a file, about; there is one trace for so many bytes of the cache.
const FILE_LEN: u64 = 4096;
/// Traces there are at least, and at most: 4 MiB of them.
const TRACES_MIN: u64 = 1 << 10;
const TRACES_MAX: u64 = 1 << 20;
/// Steps of time in which the cache would be filled once.
const STEPS: u64 = 1 << 10;
/// A file that is read again within so many steps is worth a place.
///
/// A larger number would let in more files, which displace as much as is
/// displaced themselves. Among files that are read alike, it makes no
/// difference which have a place, and a place costs as much as none.
const SOON: u64 = STEPS / 8;

/// The worth of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worth {
    /// A place in the page cache, which has room.
    Room,
    /// A place in the page cache, in which something else is displaced.
    Displacing,
    /// No place.
    Nothing,
}

/// The recent reads, by any thread.
///
/// Its time is the number of bytes that were read.
#[derive(Debug)]
pub struct ReadHistory {
    /// Bytes that the page cache may hold.
    cache_len: u64,
    /// Bytes read since the beginning.
    read_len: AtomicU64,
    /// The trace of each file, unless another has taken its place: some bits of
    /// its key, and when it was read last. Made when the cache may be full.
    traces: OnceLock<Box<[AtomicU32]>>,
}

impl ReadHistory {
    /// Nothing was read yet. `memory_len` is all the memory there is, in bytes.
    pub fn new(memory_len: u64) -> Self {
        ReadHistory {
            cache_len: ((memory_len as f64 * CACHE_SHARE) as u64).max(1),
            read_len: AtomicU64::new(0),
            traces: OnceLock::new(),
        }
    }

    /// Notes a read of `len` bytes from the disk, known by a `hash`, and says
    /// what it is worth.
    ///
    /// The cache has room until as many bytes were read as it may hold, and
    /// whenever `has_room` says so.
    pub fn worth(&self, hash: u64, len: u64, has_room: bool) -> Worth {
        let now = self.read_len.fetch_add(len, Ordering::Relaxed);
        if now < self.cache_len || has_room {
            return Worth::Room;
        }
        let traces = self.traces.get_or_init(|| {
            let count = (self.cache_len / FILE_LEN).clamp(TRACES_MIN, TRACES_MAX);
            let none = std::iter::repeat_with(AtomicU32::default);
            none.take(count.next_power_of_two() as usize).collect()
        });
        // Mixed, for the hash may be of another quality than is needed here.
        let mixed = mix(hash);
        let at = mixed as usize & (traces.len() - 1);
        let step = now / (self.cache_len / STEPS).max(1);
        // Not what an empty place holds.
        let tag = (mixed >> 48) as u16 | 1;
        let trace = u32::from(tag) << 16 | u32::from(step as u16);
        let before = traces[at].swap(trace, Ordering::Relaxed);
        let age = (step as u16).wrapping_sub(before as u16);
        let is_read_again = (before >> 16) as u16 == tag && u64::from(age) < SOON;
        if is_read_again || mix(hash ^ now).is_multiple_of(CHANCE) {
            Worth::Displacing
        } else {
            Worth::Nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 10_000;
    /// As many files as the cache may hold.
    const HELD: u64 = 5_000;
    const MEMORY_LEN: u64 = 2 * HELD * LEN;

    /// The share of these reads that is worth a place.
    fn kept(history: &ReadHistory, reads: impl IntoIterator<Item = u64>) -> f64 {
        let (mut kept, mut all) = (0, 0);
        for key in reads {
            kept += u32::from(history.worth(key, LEN, false) != Worth::Nothing);
            all += 1;
        }
        f64::from(kept) / f64::from(all)
    }

    /// So much was read that the cache may be full.
    fn filled() -> ReadHistory {
        let history = ReadHistory::new(MEMORY_LEN);
        kept(&history, 1_000_000..1_000_000 + HELD);
        history
    }

    #[test]
    fn all_is_kept_until_the_cache_may_be_full() {
        let history = ReadHistory::new(MEMORY_LEN);
        assert_eq!(kept(&history, 0..HELD), 1.0);
        assert!(kept(&history, HELD..2 * HELD) < 0.1);
        let key = 3 * HELD;
        assert_eq!(history.worth(key, LEN, true), Worth::Room);
    }

    #[test]
    fn what_is_read_once_passes_by_but_for_a_few() {
        let share = kept(&filled(), 0..100_000);
        assert!((0.004..0.016).contains(&share), "{share}");
    }

    #[test]
    fn what_is_read_again_soon_is_kept_and_later_is_not() {
        let again_after = |count: u64| {
            let history = filled();
            kept(&history, 0..count);
            kept(&history, 0..count)
        };
        // Some have lost their traces to others.
        assert!(again_after(HELD / 100) > 0.95);
        assert!(again_after(HELD / 10) > 0.9);
        assert!(again_after(HELD * 2 / 10) < 0.1);
        assert!(again_after(HELD * 40) < 0.1);
    }

    #[test]
    fn what_is_read_always_in_the_same_order_is_kept_in_the_end() {
        let history = filled();
        let count = HELD * 12 / 10;
        let mut cold: Vec<u64> = (0..count).collect();
        for _ in 0..400 {
            cold.retain(|&key| history.worth(key, LEN, false) == Worth::Nothing);
            // Others are read meanwhile.
            kept(&history, 2_000_000..2_000_000 + count - cold.len() as u64);
        }
        let left = cold.len() as f64 / count as f64;
        assert!(left < 0.1, "{left}");
    }

    #[test]
    fn at_random_over_four_times_the_memory_one_in_forty_is_kept() {
        let history = filled();
        let mut state = 7;
        let mut next = || {
            state += 1;
            mix(state) % (8 * HELD)
        };
        kept(&history, std::iter::repeat_with(&mut next).take(100_000));
        let share = kept(&history, std::iter::repeat_with(&mut next).take(100_000));
        assert!((0.015..0.035).contains(&share), "{share}");
    }
}
