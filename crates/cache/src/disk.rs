//! A store on a disk, without its I/O: layout, index, and which segment is written and
//! which reclaimed.
//!
//! The store is a folder of segments: files numbered in the order of their creation. One
//! segment is open: records are appended to it. When it is full, a summary of its records
//! follows, and the segment never changes again. When the store has reached its size, the
//! oldest segment is removed. Its records that were asked for are first written again (FIFO
//! with reinsertion: Yang et al., HotOS '23).
//!
//! ```text
//! segment  ┌ head ┬ frame, record ┬ frame, record ┬ … ┬ summary ┬ footer ┐
//! ```
//!
//! The [`index`] is in memory. It maps a hash to the place of a record, and holds nothing else:
//! the reader of the record compares its key. At start the index is filled from the summaries,
//! the newest first, so that the newest record of a key is found. A segment without summary is
//! read record by record.
//!
//! A removal is a frame without a record. It applies to earlier records of its key. A purge is
//! written to the [`purge_log`], before it is acknowledged.

pub mod index;
pub mod layout;
pub mod names;
pub mod purge_log;
pub mod ring;

/// Records begin at multiples of this many bytes.
pub const UNIT: u64 = 8;

/// Longest segment: its places are in 28 bits of [`UNIT`].
pub const MAX_SEGMENT_BYTES: u64 = UNIT << 28;

/// Position of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// Number of the segment.
    pub segment: u32,
    /// Bytes from the beginning of its file.
    pub offset: u64,
}

/// Hashes that a record is found by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hashes {
    /// Of the key.
    pub key: u64,
    /// Hash of the key and the selecting fields; the key's hash without any selecting fields.
    pub slot: u64,
}

/// Length of a frame and its record, rounded up so that it fits a byte. A read takes this many
/// bytes at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Size(pub u8);

impl Size {
    /// Lengths are rounded to an eighth of a power of two, and to this many bytes.
    const STEP: u64 = 64;

    /// The smallest that holds `len` bytes.
    pub fn of(len: u64) -> Self {
        let steps = len.div_ceil(Self::STEP);
        if steps < 8 {
            return Size(steps as u8);
        }
        let exponent = steps.ilog2() - 3;
        let mantissa = steps.div_ceil(1 << exponent);
        // A mantissa of 16 is the first of the next exponent.
        let class = u64::from(exponent + 1) * 8 + (mantissa - 8);
        Size(u8::try_from(class).unwrap_or(u8::MAX))
    }

    /// The most bytes of this size.
    pub fn max_len(self) -> u64 {
        let class = u64::from(self.0);
        if class < 8 {
            return class * Self::STEP;
        }
        let mantissa = class % 8 + 8;
        (mantissa * Self::STEP) << (class / 8 - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_hold_what_they_are_of_and_little_more() {
        let mut last = Size(0);
        let around = |len: u64| len.saturating_sub(1)..=len + 1;
        let small = 0..5000_u64;
        for len in small.chain((13..34).flat_map(|power| around(1 << power))) {
            let size = Size::of(len);
            assert!(size.0 >= last.0, "{len}");
            assert!(size.max_len() >= len, "{len}");
            assert!(size.max_len() <= len + len / 8 + Size::STEP, "{len}");
            assert_eq!(Size::of(size.max_len()), size, "{len}");
            last = size;
        }
        assert!(last.0 < 250);
    }
}
