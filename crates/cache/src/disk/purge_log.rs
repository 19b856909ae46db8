//! The purges of a store, in a file that is synced before a purge is acknowledged.
//!
//! An entry is its length, the purge, and a sum. A long file is rewritten with the
//! [marks](crate::purge::Purges::marked) that still count. Its head has the count of purges,
//! because the mark of the last purge may be gone.

use crate::purge::{Marked, Strength, Target};
use crate::record::{Cursor, Damage, sum};

const MAGIC: [u8; 8] = *b"EvkP\x01\0\0\0";
const HEAD_BYTES: usize = 24;

const EVERYTHING: u8 = 0;
const URL: u8 = 1;
const PREFIX: u8 = 2;
const TAG: u8 = 3;
const ANY_TAG: u8 = 4;
/// Set for a soft purge.
const SOFT: u8 = 0x80;

/// Longest beginning of a URL: heads of requests are shorter.
pub const MAX_PREFIX_BYTES: usize = 32 * 1024;

/// The beginning of a log, after this many purges.
pub fn head(count: u64) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&count.to_le_bytes());
    let sum = sum(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

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

/// A log that was read.
#[derive(Debug, PartialEq, Eq)]
pub struct Log {
    /// How many purges there were before the entries.
    pub count: u64,
    /// The purges, in the order in which they were made.
    pub entries: Vec<Marked>,
    /// Length of the file up to the end of the last one. An entry that follows was not
    /// written to its end, and so not acknowledged.
    pub len: usize,
}

/// Reads a log.
///
/// # Errors
/// The log is damaged, other than at its end. Purges may be missing, so no object from before
/// may be served.
pub fn read(bytes: &[u8]) -> Result<Log, Damage> {
    let (head, mut rest) = bytes.split_at_checked(HEAD_BYTES).ok_or(Damage::Short)?;
    let mut at = Cursor { bytes: head, at: 0 };
    if at.take()? != MAGIC {
        return Err(Damage::Magic);
    }
    let count = at.u64()?;
    if at.u64()? != sum(&head[..HEAD_BYTES - 8]) {
        return Err(Damage::Sum);
    }
    let mut entries = Vec::new();
    while !rest.is_empty() {
        match read_entry(rest) {
            Ok((marked, len)) => {
                entries.push(marked);
                rest = &rest[len..];
            }
            // Space that was allocated for the last entry, and not written, is zero.
            Err(Damage::Short) => break,
            Err(_) if rest.iter().all(|&byte| byte == 0) => break,
            Err(damage) => return Err(damage),
        }
    }
    Ok(Log {
        count,
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
        let mut out = head(9);
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
        assert_eq!(read_all.count, 9);
        for len in 0..HEAD_BYTES {
            assert!(read(&bytes[..len]).is_err());
        }
        for len in HEAD_BYTES..bytes.len() {
            let found = read(&bytes[..len]).unwrap();
            let whole = ends.iter().filter(|end| **end <= len).count() - 1;
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
        assert_eq!(read(&[b'#'; 100]), Err(Damage::Magic));
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
            let _ = read(&[head(1), bytes].concat());
        }
    }
}
