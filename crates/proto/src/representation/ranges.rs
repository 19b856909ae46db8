//! Ranges of bytes (RFC 9110 §14.1.2 and §14.2).

use crate::field::list_items;

/// Most ranges that a request may name.
pub const MAX_RANGES: usize = 16;

/// A part of a representation; it holds at least one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    /// Position of the first byte.
    pub first: u64,
    /// Position of the last byte.
    pub last: u64,
}

impl ByteRange {
    /// Number of bytes; never 0.
    #[expect(clippy::len_without_is_empty, reason = "no range is empty")]
    pub fn len(&self) -> u64 {
        self.last - self.first + 1
    }
}

/// The parts of a representation that a request asks for.
///
/// A request gets no byte twice, and never more than [`MAX_RANGES`] parts.
/// Ranges that overlap or touch become one. A request that names more than
/// [`MAX_RANGES`] gets the whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ranges {
    /// All of it, as if nothing were said of ranges: 200.
    Whole,
    /// None that it has: 416.
    Unsatisfiable,
    /// At least one part, in the order of the representation, with a gap
    /// before each but the first: 206.
    ///
    /// Deviation: RFC 9110 §15.3.7.2 would have them in the order asked for;
    /// in this one a file is read from its start to its end.
    Some(Vec<ByteRange>),
}

/// Reads the value of a `Range` for a representation of `len` bytes. A value
/// that is malformed, or counts in other units, asks for the whole.
///
/// Deviation: so does every range of an empty representation, where RFC 9110
/// §15.5.17 has 416. Caches add a range to each request, and the origin must
/// not refuse those requests for an empty file. A server may ignore any `Range`
/// (§14.2).
pub(super) fn read(value: &[u8], len: u64) -> Ranges {
    if len == 0 {
        return Ranges::Whole;
    }
    let Some(specs) = parse(value) else {
        return Ranges::Whole;
    };
    let mut ranges: Vec<ByteRange> = specs.iter().filter_map(|spec| spec.within(len)).collect();
    if ranges.is_empty() {
        return Ranges::Unsatisfiable;
    }
    ranges.sort_unstable_by_key(|range| range.first);
    // Every last is below `len`, so one more does not overflow.
    ranges.dedup_by(|next, before| {
        let is_one = next.first <= before.last + 1;
        if is_one {
            before.last = before.last.max(next.last);
        }
        is_one
    });
    Ranges::Some(ranges)
}

/// A range as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spec {
    /// `first-last` or `first-`.
    From { first: u64, last: u64 },
    /// `-len`: so many bytes at the end.
    Suffix { len: u64 },
}

impl Spec {
    /// The range within `len` bytes; `None` if it is not satisfiable.
    fn within(&self, len: u64) -> Option<ByteRange> {
        let end = len.checked_sub(1)?;
        let range = match *self {
            Spec::From { first, last } => ByteRange {
                first,
                last: last.min(end),
            },
            Spec::Suffix { len: 0 } => return None,
            Spec::Suffix { len: suffix } => ByteRange {
                first: len.saturating_sub(suffix),
                last: end,
            },
        };
        (range.first <= end).then_some(range)
    }
}

/// `None` if some range is malformed, or there is none, or there are too many.
fn parse(value: &[u8]) -> Option<Vec<Spec>> {
    let at = memchr::memchr(b'=', value)?;
    if !value[..at].eq_ignore_ascii_case(b"bytes") {
        return None;
    }
    let mut specs = Vec::new();
    for item in list_items(&value[at + 1..]) {
        if specs.len() == MAX_RANGES {
            return None;
        }
        specs.push(spec(item)?);
    }
    (!specs.is_empty()).then_some(specs)
}

fn spec(item: &[u8]) -> Option<Spec> {
    let at = memchr::memchr(b'-', item)?;
    let (first, last) = (&item[..at], &item[at + 1..]);
    match (first, last) {
        ([], last) => Some(Spec::Suffix { len: number(last)? }),
        (first, []) => Some(Spec::From {
            first: number(first)?,
            last: u64::MAX,
        }),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(Spec::From { first, last })
        }
    }
}

/// A number of digits; one that is too large is the largest.
fn number(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| {
        digits.iter().fold(0u64, |sum, digit| {
            sum.saturating_mul(10)
                .saturating_add(u64::from(digit - b'0'))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(ranges: &[(u64, u64)]) -> Ranges {
        let range = |&(first, last)| ByteRange { first, last };
        Ranges::Some(ranges.iter().map(range).collect())
    }

    #[test]
    fn reads_one_range() {
        for (value, ranges) in [
            ("bytes=0-0", some(&[(0, 0)])),
            ("bytes=0-499", some(&[(0, 499)])),
            ("bytes=500-999", some(&[(500, 999)])),
            ("bytes=999-", some(&[(999, 999)])),
            ("bytes=0-", some(&[(0, 999)])),
            ("bytes=0-5000", some(&[(0, 999)])),
            ("bytes=-1", some(&[(999, 999)])),
            ("bytes=-500", some(&[(500, 999)])),
            ("bytes=-1000", some(&[(0, 999)])),
            ("bytes=-1001", some(&[(0, 999)])),
            ("BYTES=0-0", some(&[(0, 0)])),
            ("bytes= 0-0 ", some(&[(0, 0)])),
            ("bytes=,0-0,", some(&[(0, 0)])),
            ("bytes=000-0000000000000000000000001", some(&[(0, 1)])),
            ("bytes=1-99999999999999999999999", some(&[(1, 999)])),
            // Twice 2 to the 64th, and 8.
            ("bytes=9-36893488147419103240", some(&[(9, 999)])),
            ("bytes=-99999999999999999999999", some(&[(0, 999)])),
            ("bytes=0-18446744073709551615", some(&[(0, 999)])),
        ] {
            assert_eq!(read(value.as_bytes(), 1000), ranges, "{value}");
        }
        let ranges = read(b"bytes=2-5", 1000);
        let Ranges::Some(ranges) = ranges else {
            panic!("{ranges:?}");
        };
        assert_eq!(ranges[0].len(), 4);
    }

    #[test]
    fn nothing_that_is_there_is_unsatisfiable() {
        for value in [
            "bytes=-0",
            "bytes=-000",
            "bytes=1000-",
            "bytes=1000-1000",
            "bytes=2000-3000, -0",
            "bytes=18446744073709551615-",
            "bytes=99999999999999999999999-",
            "bytes=18446744073709551615-18446744073709551615",
        ] {
            let ranges = read(value.as_bytes(), 1000);
            assert_eq!(ranges, Ranges::Unsatisfiable, "{value}");
        }
    }

    #[test]
    fn what_is_malformed_asks_for_the_whole() {
        for value in [
            "",
            "bytes",
            "bytes=",
            "bytes=,",
            "bytes=-",
            "bytes=0",
            "bytes=5-4",
            "bytes=0-1,5-4",
            "bytes=0-1,x",
            "bytes=0-1 2-3",
            "bytes=0 - 1",
            "bytes=0-1-2",
            "bytes=--1",
            "bytes=+1-2",
            "bytes=0x0-1",
            "bytes=1.0-2",
            "bytes=0-\u{0661}",
            "bytes:0-1",
            "bytes =0-1",
            "0-1",
            "=0-1",
            "items=0-1",
            "byte=0-1",
            "bytes=0-1;2-3",
        ] {
            assert_eq!(read(value.as_bytes(), 1000), Ranges::Whole, "{value}");
        }
    }

    #[test]
    fn joins_what_overlaps_or_touches() {
        for (value, ranges) in [
            ("bytes=0-1,4-5", some(&[(0, 1), (4, 5)])),
            ("bytes=0-1,3-5", some(&[(0, 1), (3, 5)])),
            ("bytes=0-1,2-5", some(&[(0, 5)])),
            ("bytes=0-5,2-3", some(&[(0, 5)])),
            ("bytes=0-9,2-3,5-12", some(&[(0, 12)])),
            ("bytes=4-5 ,\t0-1", some(&[(0, 1), (4, 5)])),
            ("bytes=-5,0-0", some(&[(0, 0), (995, 999)])),
            ("bytes=500-,-600", some(&[(400, 999)])),
            ("bytes=0-,0-,0-,-1", some(&[(0, 999)])),
            ("bytes=0-0,2000-", some(&[(0, 0)])),
            ("bytes=-0,1-1", some(&[(1, 1)])),
        ] {
            assert_eq!(read(value.as_bytes(), 1000), ranges, "{value}");
        }
    }

    #[test]
    fn bounds_how_many_there_are() {
        let list = |count: u64| {
            let specs: Vec<_> = (0..count).map(|at| format!("{0}-{0}", at * 2)).collect();
            format!("bytes={}", specs.join(","))
        };
        let Ranges::Some(ranges) = read(list(16).as_bytes(), 1000) else {
            panic!("sixteen are too many");
        };
        assert_eq!(ranges.len(), MAX_RANGES);
        assert_eq!(read(list(17).as_bytes(), 1000), Ranges::Whole);
        let alike = format!("bytes={}", "0-,".repeat(17));
        assert_eq!(read(alike.as_bytes(), 1000), Ranges::Whole);
    }

    #[test]
    fn ends_of_what_is_empty_and_of_what_is_huge() {
        for (value, len, ranges) in [
            ("bytes=0-", 0, Ranges::Whole),
            ("bytes=0-0", 0, Ranges::Whole),
            ("bytes=0-1023", 0, Ranges::Whole),
            ("bytes=5-", 0, Ranges::Whole),
            ("bytes=-0", 0, Ranges::Whole),
            ("bytes=-5", 0, Ranges::Whole),
            ("bytes=0-,-1", 0, Ranges::Whole),
            ("bytes=0-1,5-9", 0, Ranges::Whole),
            ("bytes=0-0", 1, some(&[(0, 0)])),
            ("bytes=0-", u64::MAX, some(&[(0, u64::MAX - 1)])),
            ("bytes=0-,-1", u64::MAX, some(&[(0, u64::MAX - 1)])),
            ("bytes=-1", u64::MAX, some(&[(u64::MAX - 1, u64::MAX - 1)])),
        ] {
            assert_eq!(read(value.as_bytes(), len), ranges, "{value} of {len}");
        }
    }
}
