//! Which segment is written, and which is reclaimed.
//!
//! Invariant: the files of a store are together no longer than its size. A new segment begins
//! only with room for all of it; then the oldest ones are reclaimed until there is room for the
//! next one too. A record that is kept thus always has a segment to go to.

use std::collections::VecDeque;

use crate::disk::layout::{FOOTER_BYTES, SEGMENT_HEAD_BYTES};
use crate::disk::{MAX_SEGMENT_BYTES, Position};

/// Smallest store, in bytes.
pub const MIN_STORE_BYTES: u64 = 16 << 20;
/// Least number of segments in a store, so that each reclaim drops little.
const MIN_SEGMENTS: u64 = 64;
/// Most segments: each is an open file.
const MAX_SEGMENTS: usize = 4096;
/// Longest segment where the store does not need longer ones to have few.
const LONG_SEGMENT_BYTES: u64 = 256 << 20;

/// Longest record of a store of this size, with its frame: an eighth of it.
pub fn longest_bytes(capacity_bytes: u64) -> u64 {
    (capacity_bytes / 8).min(MAX_SEGMENT_BYTES / 2)
}

/// A segment that is no longer written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sealed {
    /// Its number.
    pub segment: u32,
    /// Length of its file.
    pub bytes: u64,
    /// The count of purges when the segment began.
    pub purges: u64,
}

#[derive(Debug)]
struct Open {
    segment: u32,
    bytes: u64,
    purges: u64,
}

/// The next thing to do in order to write a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Append it here.
    Append(Position),
    /// Seal the open segment.
    Seal,
    /// Begin a segment with this number.
    Begin {
        /// Its number.
        segment: u32,
    },
    /// Reclaim the oldest segment at once, without keeping any of its records.
    Reclaim {
        /// Its number.
        segment: u32,
    },
    /// Do not write it: it is longer than records may be.
    Refuse,
}

/// The segments of a store.
#[derive(Debug)]
pub struct Ring {
    capacity_bytes: u64,
    /// The part of the capacity for files that are not segments.
    reserved_bytes: u64,
    segment_bytes: u64,
    /// The oldest first.
    sealed: VecDeque<Sealed>,
    sealed_bytes: u64,
    open: Option<Open>,
    next: u32,
}

impl Ring {
    /// A ring for a store of this size, with the existing segments, in their order.
    pub fn new(capacity_bytes: u64, found: impl IntoIterator<Item = Sealed>) -> Self {
        let capacity_bytes = capacity_bytes.max(MIN_STORE_BYTES);
        let few = capacity_bytes / (MAX_SEGMENTS as u64 / 2);
        let segment_bytes = (capacity_bytes / MIN_SEGMENTS)
            .min(LONG_SEGMENT_BYTES)
            .max(few);
        let sealed: VecDeque<_> = found.into_iter().collect();
        Ring {
            capacity_bytes,
            reserved_bytes: 0,
            segment_bytes: segment_bytes.min(MAX_SEGMENT_BYTES),
            sealed_bytes: sealed.iter().map(|it| it.bytes).sum(),
            next: sealed.back().map_or(1, |it| it.segment + 1),
            open: None,
            sealed,
        }
    }

    /// Length of a segment, except one with a single longer record.
    pub fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// Longest record, with its frame.
    pub fn longest_bytes(&self) -> u64 {
        longest_bytes(self.capacity_bytes)
    }

    /// Reserves bytes of the store for files that are not segments.
    pub fn reserve(&mut self, bytes: u64) {
        self.reserved_bytes = bytes;
    }

    /// The oldest segment, if the files of the store are longer than they may be.
    pub fn excess(&self) -> Option<u32> {
        let summary = self.open.as_ref().map_or(0, |_| self.segment_bytes / 8);
        let is_over = self.bytes() + summary > self.room_bytes();
        self.oldest().filter(|_| is_over)
    }

    /// Bytes that segments may take.
    fn room_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.reserved_bytes)
    }

    /// Bytes of all files of segments, without the summary that the open one gets.
    pub fn bytes(&self) -> u64 {
        self.sealed_bytes + self.open_bytes()
    }

    /// A count of purges that all records are known to have survived; it may be lower than
    /// necessary.
    pub fn purges(&self) -> Option<u64> {
        let sealed = self.sealed.iter().map(|it| it.purges);
        let open = self.open.iter().map(|open| open.purges);
        sealed.chain(open).min()
    }

    /// The count of purges in the head of a segment, which was not known so far.
    pub fn set_purges(&mut self, segment: u32, purges: u64) {
        let found = self.sealed.iter_mut().find(|it| it.segment == segment);
        if let Some(found) = found {
            found.purges = purges;
        }
    }

    /// The file of a segment has another length than was thought, or is gone.
    pub fn set_bytes(&mut self, segment: u32, bytes: Option<u64>) {
        if let Some(at) = self.sealed.iter().position(|it| it.segment == segment) {
            self.sealed_bytes -= self.sealed[at].bytes;
            match bytes {
                Some(bytes) => {
                    self.sealed[at].bytes = bytes;
                    self.sealed_bytes += bytes;
                }
                None => drop(self.sealed.remove(at)),
            }
        }
    }

    /// The segment that is being written.
    pub fn open(&self) -> Option<u32> {
        self.open.as_ref().map(|open| open.segment)
    }

    /// Bytes of the segment that is being written.
    pub fn open_bytes(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.bytes)
    }

    /// The next step in order to write a frame and its record, `len` bytes together.
    /// `summary_len` is the length of the summary with an entry for it.
    pub fn step(&self, len: u64, summary_len: u64) -> Step {
        let own_len = SEGMENT_HEAD_BYTES as u64 + len + 2 * FOOTER_BYTES as u64;
        if len > self.longest_bytes() {
            return Step::Refuse;
        }
        if let Some(open) = &self.open {
            let is_empty = open.bytes <= SEGMENT_HEAD_BYTES as u64;
            if open.bytes + len + summary_len <= self.segment_bytes || is_empty {
                return Step::Append(Position {
                    segment: open.segment,
                    offset: open.bytes,
                });
            }
            return Step::Seal;
        }
        let wanted = self.segment_bytes.max(own_len);
        match self.sealed.front() {
            Some(oldest)
                if self.sealed_bytes + wanted > self.room_bytes()
                    || self.sealed.len() >= MAX_SEGMENTS =>
            {
                Step::Reclaim {
                    segment: oldest.segment,
                }
            }
            _ => Step::Begin { segment: self.next },
        }
    }

    /// Notes that a segment has begun.
    pub fn begin(&mut self, purges: u64) {
        self.open = Some(Open {
            segment: self.next,
            bytes: SEGMENT_HEAD_BYTES as u64,
            purges,
        });
        self.next += 1;
    }

    /// Notes that bytes were appended.
    pub fn append(&mut self, len: u64) {
        if let Some(open) = &mut self.open {
            open.bytes += len;
        }
    }

    /// Notes that the open segment was sealed; `bytes` is its final length.
    pub fn seal(&mut self, bytes: u64) {
        if let Some(open) = self.open.take() {
            self.sealed_bytes += bytes;
            self.sealed.push_back(Sealed {
                segment: open.segment,
                bytes,
                purges: open.purges,
            });
        }
    }

    /// The open segment was given up, with its file.
    pub fn abandon(&mut self) {
        self.open = None;
    }

    /// The segment to reclaim now, while the open one is written, so that there is room
    /// for the next one: the oldest.
    pub fn victim(&self) -> Option<u32> {
        let open = self.open.as_ref()?;
        let expected = open.bytes.max(self.segment_bytes) + self.segment_bytes;
        let oldest = self.sealed.front()?;
        let is_wanted = self.sealed_bytes + expected > self.room_bytes()
            || self.sealed.len() + 1 >= MAX_SEGMENTS;
        is_wanted.then_some(oldest.segment)
    }

    /// The oldest segment, except the open one.
    pub fn oldest(&self) -> Option<u32> {
        self.sealed.front().map(|it| it.segment)
    }

    /// The oldest segment was removed.
    pub fn reclaim(&mut self) -> Option<Sealed> {
        let gone = self.sealed.pop_front()?;
        self.sealed_bytes -= gone.bytes;
        Some(gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Writes records of these lengths; checks the invariant after each step.
    fn write(ring: &mut Ring, lens: &[u64]) -> usize {
        let mut kept = 0;
        let mut entries = 0;
        let mut oldest = 0;
        let mut files = ring.bytes();
        for &len in lens {
            loop {
                let summary = (entries + 1) * 24 + FOOTER_BYTES as u64;
                match ring.step(len, summary) {
                    Step::Append(position) => {
                        assert_eq!(Some(position.segment), ring.open());
                        assert!(position.offset + len <= MAX_SEGMENT_BYTES);
                        ring.append(len);
                        files += len;
                        entries += 1;
                        kept += 1;
                        while let Some(victim) = ring.victim() {
                            let gone = ring.reclaim().unwrap();
                            assert_eq!(gone.segment, victim);
                            files -= gone.bytes;
                        }
                        assert!(files + summary <= ring.capacity_bytes, "{files}");
                        break;
                    }
                    Step::Seal => {
                        let summary = entries * 24 + FOOTER_BYTES as u64;
                        let before = ring.bytes() - ring.sealed_bytes;
                        ring.seal(before + summary);
                        files += summary;
                        entries = 0;
                    }
                    Step::Begin { segment } => {
                        assert!(segment > oldest);
                        oldest = segment;
                        ring.begin(0);
                        files += SEGMENT_HEAD_BYTES as u64;
                    }
                    Step::Reclaim { .. } => files -= ring.reclaim().unwrap().bytes,
                    Step::Refuse => {
                        assert!(len > ring.longest_bytes());
                        break;
                    }
                }
                assert_eq!(ring.bytes(), files);
            }
        }
        kept
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn never_grows_beyond_its_size(
            lens in proptest::collection::vec(prop_oneof![
                20 => 5_u64..2000,
                10 => 5_u64..40_000,
                1 => 5_u64..(3 << 17),
            ], 1..2000),
        ) {
            let mut ring = Ring::new(0, []);
            let lens: Vec<_> = lens.iter().map(|len| len * 8).collect();
            let kept = write(&mut ring, &lens);
            let fit = lens.iter().filter(|len| **len <= ring.longest_bytes()).count();
            prop_assert_eq!(kept, fit);
        }
    }

    #[test]
    fn a_store_that_is_full_keeps_most_of_its_size() {
        let mut ring = Ring::new(1 << 30, []);
        assert_eq!(ring.segment_bytes(), 16 << 20);
        write(&mut ring, &vec![80_000; 40_000]);
        assert!(ring.bytes() > (1 << 30) * 95 / 100, "{}", ring.bytes());
        // A smaller size, at the next start.
        let sealed = ring.sealed.clone();
        let mut smaller = Ring::new(256 << 20, sealed);
        write(&mut smaller, &[80_000; 1000]);
        assert!(smaller.bytes() <= 256 << 20);
    }

    #[test]
    fn large_stores_have_few_segments() {
        for (capacity, segment) in [
            (1 << 30, 16 << 20),
            (100 << 30, 256 << 20),
            (2 << 40, 1 << 30),
            (1 << 50, MAX_SEGMENT_BYTES),
        ] {
            let ring = Ring::new(capacity, []);
            assert_eq!(ring.segment_bytes(), segment);
            assert!(ring.longest_bytes() <= MAX_SEGMENT_BYTES / 2);
        }
        // After many starts with little in between.
        let found = (1..6000).map(|segment| Sealed {
            segment,
            bytes: 100,
            purges: u64::from(segment),
        });
        let mut ring = Ring::new(1 << 30, found);
        assert_eq!(ring.purges(), Some(1));
        write(&mut ring, &[80]);
        assert!(ring.sealed.len() < MAX_SEGMENTS);
        assert_eq!(ring.purges(), Some(0));
        ring.abandon();
        assert_eq!((ring.open(), ring.victim()), (None, None));
    }
}
