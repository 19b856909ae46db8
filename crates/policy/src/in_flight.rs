//! Limits on how many of a key may be in flight at once, for many keys in a bounded table.
//!
//! Shared by all workers. The table is set-associative, as that of [rates](super::limit) is. A
//! place is free as soon as nothing of its key is in flight. A key with something in flight is
//! never displaced. A key is not counted, and passes, if other keys have taken all of its eight
//! places.
//!
//! Invariant: [`InFlightTable::enter`] and [`InFlightTable::leave`] come in pairs, so that the
//! count of a place is the number in flight of its key.

use std::hash::{BuildHasher, RandomState};

use crate::sync::{AtomicU64, Ordering};

/// Places that a key has.
const WAYS: usize = 8;

/// Bits of a place that count; the bits above are of the key's hash.
const COUNT_BITS: u32 = 24;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// The places of keys that share them: one line of the processor's cache.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Set([AtomicU64; WAYS]);

/// The verdict on one more of a key.
#[derive(Debug, PartialEq, Eq)]
pub enum Entering {
    /// Counted, until this place is given back by [`InFlightTable::leave`].
    Counted(CountedAt),
    /// As many are in flight as are allowed.
    Refused,
    /// It passes and is not counted: there is no place for its key.
    NotCounted,
}

/// A place where something in flight is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountedAt(usize);

/// How many of each of many keys are in flight.
#[derive(Debug)]
pub struct InFlightTable {
    sets: Box<[Set]>,
    /// Secret, so that nobody can choose keys that share a set.
    seed: RandomState,
}

impl InFlightTable {
    /// Memory of an entry, in bytes.
    pub const ENTRY_LEN: usize = size_of::<Set>() / WAYS;

    /// The most that can be in flight of a key.
    pub const LIMIT_MAX: u32 = 1_000_000;

    /// A table with places for so many keys, rounded up to a multiple of eight.
    pub fn new(entries: usize) -> Self {
        let sets = entries.div_ceil(WAYS).max(1);
        InFlightTable {
            sets: (0..sets).map(|_| Set::default()).collect(),
            seed: RandomState::new(),
        }
    }

    /// Keys with something in flight. Looks at all places.
    pub fn active(&self) -> usize {
        let places = self.sets.iter().flat_map(|it| &it.0);
        let counts = places.filter(|it| it.load(Ordering::Relaxed) & COUNT_MASK > 0);
        counts.count()
    }

    /// How many of this key are in flight.
    pub fn in_flight(&self, key: &[u8]) -> u32 {
        let (set, tag) = self.place_of(key);
        let places = self.sets[set].0.iter().map(|it| it.load(Ordering::SeqCst));
        let counts = places.filter(|it| it & !COUNT_MASK == tag);
        counts.map(|it| (it & COUNT_MASK) as u32).sum()
    }

    /// Counts one more of this key, unless there are `limit` or more. A limit is at most
    /// [`LIMIT_MAX`](Self::LIMIT_MAX).
    ///
    /// Two workers that bring in a key in the same moment see each other's place, and give theirs
    /// back. A place that another worker has found by then stays: in that moment a key may exceed
    /// the limit by one for each worker.
    pub fn enter(&self, key: &[u8], limit: u32) -> Entering {
        let limit = u64::from(limit.min(Self::LIMIT_MAX));
        let (index, tag) = self.place_of(key);
        let set = &self.sets[index].0;
        loop {
            let of_key = |it: &AtomicU64| is_of(it.load(Ordering::SeqCst), tag);
            let is_free = |it: &AtomicU64| it.load(Ordering::SeqCst) & COUNT_MASK == 0;
            let found = set.iter().position(of_key);
            let Some(way) = found.or_else(|| set.iter().position(is_free)) else {
                return Entering::NotCounted;
            };
            let before = set[way].load(Ordering::SeqCst);
            let is_new = before & COUNT_MASK == 0;
            if !is_new && before & !COUNT_MASK != tag {
                // Another worker was faster.
                continue;
            }
            let count = before & COUNT_MASK;
            if count >= limit {
                return Entering::Refused;
            }
            let after = tag | (count + 1);
            let swapped =
                set[way].compare_exchange(before, after, Ordering::SeqCst, Ordering::SeqCst);
            if swapped.is_err() {
                continue;
            }
            let counted = CountedAt(index * WAYS + way);
            let is_twice = || (0..WAYS).any(|it| it != way && of_key(&set[it]));
            if is_new && is_twice() {
                self.leave(counted);
                std::hint::spin_loop();
                continue;
            }
            return Entering::Counted(counted);
        }
    }

    /// Something that was counted is over.
    pub fn leave(&self, CountedAt(place): CountedAt) {
        self.sets[place / WAYS].0[place % WAYS].fetch_sub(1, Ordering::SeqCst);
    }

    fn place_of(&self, key: &[u8]) -> (usize, u64) {
        let hash = self.seed.hash_one(key);
        // The product's high half is below the number of sets: no division.
        let set = (u128::from(hash) * self.sets.len() as u128) >> 64;
        // The bits that choose the set are the high ones.
        (set as usize, hash << COUNT_BITS)
    }
}

/// Whether something of the key with this tag is in flight at a place.
fn is_of(place: u64, tag: u64) -> bool {
    place & COUNT_MASK > 0 && place & !COUNT_MASK == tag
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(table: &InFlightTable, key: &[u8], limit: u32) -> Option<CountedAt> {
        match table.enter(key, limit) {
            Entering::Counted(place) => Some(place),
            Entering::Refused => None,
            Entering::NotCounted => panic!("no place for {key:?}"),
        }
    }

    #[test]
    fn as_many_as_may_be_are_in_flight() {
        let table = InFlightTable::new(100);
        assert_eq!(InFlightTable::ENTRY_LEN, 8);
        let first = enter(&table, b"a", 2).unwrap();
        let second = enter(&table, b"a", 2).unwrap();
        assert_eq!(enter(&table, b"a", 2), None);
        let other = enter(&table, b"b", 2).unwrap();
        assert_eq!((table.in_flight(b"a"), table.active()), (2, 2));
        table.leave(first);
        let third = enter(&table, b"a", 2).unwrap();
        assert_eq!(enter(&table, b"a", 2), None);
        for place in [second, third, other] {
            table.leave(place);
        }
        assert_eq!((table.in_flight(b"a"), table.active()), (0, 0));
    }

    /// A table that is full counts no further key, and displaces none.
    #[test]
    fn a_flood_of_keys_displaces_none_that_is_in_flight() {
        let table = InFlightTable::new(64);
        let known = enter(&table, b"known", 1).unwrap();
        let mut held = Vec::new();
        let mut not_counted = 0;
        for key in 0..1_000_u32 {
            match table.enter(&key.to_le_bytes(), 1) {
                Entering::Counted(place) => held.push(place),
                Entering::Refused => panic!("{key} was refused"),
                Entering::NotCounted => not_counted += 1,
            }
        }
        assert_eq!(held.len() + 1, 64);
        assert_eq!(not_counted, 1_000 - 63);
        assert_eq!(enter(&table, b"known", 1), None);
        held.into_iter().for_each(|it| table.leave(it));
        table.leave(known);
        assert_eq!(table.active(), 0);
    }
}
