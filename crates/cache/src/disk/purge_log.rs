//! The purges of a store, in a file that is synced before a purge is acknowledged.
//!
//! An entry is its length, the purge, and a sum. The file begins with a head and is
//! written anew with the [marks](crate::purge::Purges::marked) that still count when it
//! is long.

use crate::purge::{Marked, Strength, Target};
use crate::record::{Cursor, Damage, sum};

/// The beginning of the file.
pub const HEAD: [u8; 8] = *b"EvkP\x01\0\0\0";

const EVERYTHING: u8 = 0;
const URL: u8 = 1;
const PREFIX: u8 = 2;
const TAG: u8 = 3;
const ANY_TAG: u8 = 4;
/// Set for a soft purge.
const SOFT: u8 = 0x80;

/// Longest beginning of a URL: heads of requests are shorter.
pub const MAX_PREFIX_BYTES: usize = 32 * 1024;

/// Appends an entry. A longer beginning of a URL than fits is cut, which purges more.
pub fn push(out: &mut Vec<u8>, marked: &Marked) {
    let hash;
    let (kind, bytes): (u8, &[u8]) = match &marked.target {
        Target::Everything => (EVERYTHING, &[]),
        Target::Url(url) => {
            hash = url.to_le_bytes();
            (URL, &hash)
        }
        Target::Prefix(prefix) => (PREFIX, &prefix[..prefix.len().min(MAX_PREFIX_BYTES)]),
        Target::Tag(tag) => {
            hash = u128::from(*tag).to_le_bytes();
            (TAG, &hash[..8])
        }
        Target::AnyTag => (ANY_TAG, &[]),
    };
    let kind = match marked.strength {
        Strength::Hard => kind,
        Strength::Soft => kind | SOFT,
    };
    let start = out.len();
    // Twice: a length that was changed must not look like an entry without its end.
    let len = bytes.len() as u16;
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&(!len).to_le_bytes());
    out.push(kind);
    out.extend_from_slice(&marked.count.to_le_bytes());
    out.extend_from_slice(bytes);
    let sum = sum(&out[start..]);
    out.extend_from_slice(&sum.to_le_bytes());
}

/// What a log says.
#[derive(Debug, PartialEq, Eq)]
pub struct Log {
    /// The purges, in the order in which they were made.
    pub entries: Vec<Marked>,
    /// Length of the file up to the end of the last one. What follows is an entry that was
    /// not written to its end, and so not acknowledged.
    pub len: usize,
}

/// Reads a log.
///
/// # Errors
/// If it is damaged in its midst: purges may be missing, so that no object from before
/// may be served.
pub fn read(bytes: &[u8]) -> Result<Log, Damage> {
    let Some(mut rest) = bytes.strip_prefix(&HEAD) else {
        // A file that was begun and no more has no purge.
        if !HEAD.starts_with(bytes) {
            return Err(Damage::Magic);
        }
        return Ok(Log {
            entries: Vec::new(),
            len: 0,
        });
    };
    let mut entries = Vec::new();
    while !rest.is_empty() {
        match read_entry(rest) {
            Ok((marked, len)) => {
                entries.push(marked);
                rest = &rest[len..];
            }
            // What was allocated for the last entry and not written is zero.
            Err(Damage::Short) => break,
            Err(_) if rest.iter().all(|&byte| byte == 0) => break,
            Err(damage) => return Err(damage),
        }
    }
    Ok(Log {
        entries,
        len: bytes.len() - rest.len(),
    })
}

fn read_entry(bytes: &[u8]) -> Result<(Marked, usize), Damage> {
    let mut at = Cursor { bytes, at: 0 };
    let len = at.u16()?;
    if at.u16()? != !len {
        return Err(Damage::Lengths);
    }
    let [kind] = at.take()?;
    let count = at.u64()?;
    let name = at.slice(len.into())?;
    let summed = &bytes[..at.at];
    if at.u64()? != sum(summed) {
        return Err(Damage::Sum);
    }
    let mut hash = Cursor { bytes: name, at: 0 };
    let target = match kind & !SOFT {
        EVERYTHING => Target::Everything,
        URL => Target::Url(u128::from_le_bytes(hash.take()?)),
        PREFIX => Target::Prefix(name.into()),
        TAG => Target::Tag(hash.u64()?),
        ANY_TAG => Target::AnyTag,
        _ => return Err(Damage::Version),
    };
    let strength = if kind & SOFT == 0 {
        Strength::Hard
    } else {
        Strength::Soft
    };
    let marked = Marked {
        count,
        strength,
        target,
    };
    Ok((marked, at.at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn marked(count: u64, strength: Strength, target: Target) -> Marked {
        Marked {
            count,
            strength,
            target,
        }
    }

    fn all() -> Vec<Marked> {
        use Strength::{Hard, Soft};
        vec![
            marked(1, Hard, Target::Everything),
            marked(2, Soft, Target::Url(u128::MAX - 7)),
            marked(3, Hard, Target::Prefix((*b"http://a/").into())),
            marked(u64::MAX, Soft, Target::Tag(77)),
            marked(5, Hard, Target::AnyTag),
            marked(6, Hard, Target::Prefix((*b"").into())),
        ]
    }

    fn log(entries: &[Marked]) -> Vec<u8> {
        let mut out = HEAD.to_vec();
        for entry in entries {
            push(&mut out, entry);
        }
        out
    }

    #[test]
    fn purges_come_back_and_a_torn_one_does_not() {
        let entries = all();
        let bytes = log(&entries);
        let read_all = read(&bytes).unwrap();
        assert_eq!((&read_all.entries, read_all.len), (&entries, bytes.len()));
        let ends: Vec<_> = (0..=entries.len())
            .map(|n| log(&entries[..n]).len())
            .collect();
        for len in 0..bytes.len() {
            let found = read(&bytes[..len]).unwrap();
            let whole = ends.iter().filter(|end| **end <= len).count().max(1) - 1;
            assert_eq!(found.entries, entries[..whole], "{len}");
            assert!(found.len <= len);
        }
        // Room that was allocated.
        let longer = [&bytes[..], &[0; 100]].concat();
        assert_eq!(read(&longer).unwrap().entries, entries);
    }

    #[test]
    fn a_changed_bit_is_seen() {
        let bytes = log(&all());
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&bytes).is_err(), "{bit}");
        }
        assert_eq!(read(b"#!/bin/sh"), Err(Damage::Magic));
    }

    #[test]
    fn a_long_beginning_is_cut() {
        let long = vec![b'a'; MAX_PREFIX_BYTES + 1];
        let found = read(&log(&[marked(
            1,
            Strength::Hard,
            Target::Prefix(long.into()),
        )]));
        let expected = Target::Prefix(vec![b'a'; MAX_PREFIX_BYTES].into());
        assert_eq!(found.unwrap().entries[0].target, expected);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
            let _ = read(&[&HEAD[..], &bytes].concat());
        }
    }
}
