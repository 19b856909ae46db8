//! Files of a store as bytes: its head, heads of segments, frames, summaries, footers.
//!
//! Each part has a checksum of its own, and the number of its segment. A frame also has its
//! offset, so that bytes of an older file are never taken for newer ones.

use crate::disk::{Hashes, Position, Size, UNIT};
use crate::key::Secret;
use crate::ledger;
use crate::record::{Cursor, Damage, sum};

/// Length of a store's head.
pub const STORE_HEAD_BYTES: usize = 32;
/// Length of the head of a segment.
pub const SEGMENT_HEAD_BYTES: usize = 32;
/// Length of a frame, which stands before each record.
pub const FRAME_BYTES: usize = 40;
/// Length of a footer, which ends a sealed segment.
pub const FOOTER_BYTES: usize = 40;
/// Bytes of a summary for each frame.
pub const ENTRY_BYTES: usize = 24;

const VERSION: u16 = 1;
const STORE: [u8; 4] = *b"EvkC";
const SEGMENT: [u8; 4] = *b"EvkS";
const RECORD: [u8; 4] = *b"EvkF";
const REMOVAL: [u8; 4] = *b"EvkD";
const FOOTER: [u8; 4] = *b"EvkE";
const SHARED: [u8; 4] = *b"EvkL";

/// Length of the stored position in a shared log of purges.
pub const SHARED_BYTES: usize = 32;

/// Appends the checksum of the bytes since `start`.
fn push_sum(out: &mut Vec<u8>, start: usize) {
    let sum = sum(&out[start..]);
    out.extend_from_slice(&sum.to_le_bytes());
}

/// The part of a thing of this length, without its sum, if that is right.
fn summed(bytes: &[u8], len: usize) -> Result<Cursor<'_>, Damage> {
    let whole = bytes.get(..len).ok_or(Damage::Short)?;
    let (bytes, found) = whole.split_at(len - 8);
    if found != sum(bytes).to_le_bytes() {
        return Err(Damage::Sum);
    }
    Ok(Cursor { bytes, at: 0 })
}

fn check_version(at: &mut Cursor<'_>) -> Result<(), Damage> {
    if at.u16()? != VERSION {
        return Err(Damage::Version);
    }
    at.u16().map(drop)
}

/// The head of a store: it never changes. The secret makes hashes on the disk valid for
/// as long as the store is there.
pub fn store_head(secret: &Secret) -> Vec<u8> {
    let mut out = Vec::with_capacity(STORE_HEAD_BYTES);
    out.extend_from_slice(&STORE);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&[0; 2]);
    out.extend_from_slice(&secret.0);
    push_sum(&mut out, 0);
    out
}

/// The secret in a store's head.
///
/// # Errors
/// If it is something else, damaged, or of another version.
pub fn read_store_head(bytes: &[u8]) -> Result<Secret, Damage> {
    if !bytes.starts_with(&STORE) {
        return Err(Damage::Magic);
    }
    // Another version may have another length, so the version is checked first.
    let mut start = Cursor { bytes, at: 4 };
    check_version(&mut start)?;
    let mut at = summed(bytes, STORE_HEAD_BYTES)?;
    at.at = start.at;
    Ok(Secret(at.take()?))
}

/// Up to where a shared log of purges was applied to a store.
pub fn shared_position(position: ledger::Position) -> Vec<u8> {
    let mut out = Vec::with_capacity(SHARED_BYTES);
    out.extend_from_slice(&SHARED);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&[0; 2]);
    out.extend_from_slice(&position.epoch.to_le_bytes());
    out.extend_from_slice(&position.number.to_le_bytes());
    push_sum(&mut out, 0);
    out
}

/// The same, read.
///
/// # Errors
/// If it is damaged, or of another version.
pub fn read_shared_position(bytes: &[u8]) -> Result<ledger::Position, Damage> {
    let mut at = summed(bytes, SHARED_BYTES)?;
    if at.take()? != SHARED {
        return Err(Damage::Magic);
    }
    check_version(&mut at)?;
    let (epoch, number) = (at.u64()?, at.u64()?);
    Ok(ledger::Position { epoch, number })
}

/// The head of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHead {
    /// Its number.
    pub segment: u32,
    /// The count of purges when the segment began. Its records have survived up to there.
    pub purges: u64,
}

impl SegmentHead {
    /// The head as bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(SEGMENT_HEAD_BYTES);
        out.extend_from_slice(&SEGMENT);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&self.segment.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.purges.to_le_bytes());
        push_sum(&mut out, 0);
        out
    }

    /// Of the beginning of a file.
    ///
    /// # Errors
    /// If it is damaged, or of another version.
    pub fn read(bytes: &[u8]) -> Result<Self, Damage> {
        let mut at = summed(bytes, SEGMENT_HEAD_BYTES)?;
        if at.take()? != SEGMENT {
            return Err(Damage::Magic);
        }
        check_version(&mut at)?;
        let segment = at.u32()?;
        at.u32()?;
        let purges = at.u64()?;
        Ok(SegmentHead { segment, purges })
    }
}

/// Kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A record follows.
    Record,
    /// The records of the key before it are removed. Nothing follows.
    Removal,
}

/// The head that stands before a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Its kind.
    pub kind: Kind,
    /// Hashes of its record.
    pub hashes: Hashes,
    /// Its position.
    pub position: Position,
    /// Length of its record in bytes.
    pub len: u32,
}

impl Frame {
    /// Appends it.
    pub fn push(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(match self.kind {
            Kind::Record => &RECORD,
            Kind::Removal => &REMOVAL,
        });
        out.extend_from_slice(&self.hashes.key.to_le_bytes());
        out.extend_from_slice(&self.hashes.slot.to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes());
        out.extend_from_slice(&self.position.segment.to_le_bytes());
        out.extend_from_slice(&units(self.position.offset).to_le_bytes());
        push_sum(out, start);
    }

    /// Of the bytes at a position.
    ///
    /// # Errors
    /// If it is damaged, or from somewhere else.
    pub fn read(bytes: &[u8], position: Position) -> Result<Self, Damage> {
        let mut at = summed(bytes, FRAME_BYTES)?;
        let kind = match at.take()? {
            RECORD => Kind::Record,
            REMOVAL => Kind::Removal,
            _ => return Err(Damage::Magic),
        };
        let hashes = Hashes {
            key: at.u64()?,
            slot: at.u64()?,
        };
        let len = at.u32()?;
        let found = Position {
            segment: at.u32()?,
            offset: u64::from(at.u32()?) * UNIT,
        };
        if found != position {
            return Err(Damage::Magic);
        }
        Ok(Frame {
            kind,
            hashes,
            position,
            len,
        })
    }

    /// Length of the frame and its record, including the padding.
    pub fn whole_len(&self) -> u64 {
        whole_len(self.len)
    }
}

/// Length of a frame with a record of `len` bytes, up to where the next one begins.
pub fn whole_len(len: u32) -> u64 {
    (FRAME_BYTES as u64 + u64::from(len)).next_multiple_of(UNIT)
}

/// Offsets are below [`crate::disk::MAX_SEGMENT_BYTES`].
fn units(offset: u64) -> u32 {
    (offset / UNIT) as u32
}

/// A frame, in a summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Hashes of its record.
    pub hashes: Hashes,
    /// Its kind.
    pub kind: Kind,
    /// Its position.
    pub position: Position,
    /// How much to read.
    pub size: Size,
    /// The names in the `Vary` of its response ([`crate::vary::names`]).
    pub names: &'a [u8],
}

/// The summary of a segment that is being written.
#[derive(Debug, Default)]
pub struct Summary {
    /// Sets of names, in the order of their numbers here.
    sets: Vec<Box<[u8]>>,
    entries: Vec<u8>,
}

impl Summary {
    /// Adds a frame.
    pub fn add(&mut self, entry: &Entry<'_>) {
        let set = match entry.names {
            b"" => 0,
            names => {
                let known = self.sets.iter().position(|set| **set == *names);
                let at = known.unwrap_or_else(|| {
                    self.sets.push(names.into());
                    self.sets.len() - 1
                });
                // The number of sets is limited so that it fits.
                debug_assert!(at < super::names::MAX_SETS);
                (at + 1) as u8
            }
        };
        let out = &mut self.entries;
        out.extend_from_slice(&entry.hashes.key.to_le_bytes());
        out.extend_from_slice(&entry.hashes.slot.to_le_bytes());
        out.extend_from_slice(&units(entry.position.offset).to_le_bytes());
        let is_removal = entry.kind == Kind::Removal;
        out.extend_from_slice(&[entry.size.0, set, is_removal.into(), 0]);
    }

    /// Length of the summary and its footer, in bytes.
    pub fn len(&self) -> u64 {
        (self.sets_len() + self.entries.len() + FOOTER_BYTES) as u64
    }

    /// Its length with one more frame, whose response has these names, at most.
    pub fn len_with(&self, names: &[u8]) -> u64 {
        self.len() + (ENTRY_BYTES + 2 + names.len()) as u64
    }

    /// Whether there is no frame.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn sets_len(&self) -> usize {
        self.sets.iter().map(|set| set.len() + 2).sum()
    }

    /// The summary and its footer, which are written at this position.
    pub fn bytes(&self, position: Position) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len() as usize);
        for set in &self.sets {
            out.extend_from_slice(&(set.len() as u16).to_le_bytes());
            out.extend_from_slice(set);
        }
        out.extend_from_slice(&self.entries);
        let sum = sum(&out);
        let start = out.len();
        out.extend_from_slice(&FOOTER);
        out.extend_from_slice(&position.segment.to_le_bytes());
        out.extend_from_slice(&position.offset.to_le_bytes());
        out.extend_from_slice(&(self.sets_len() as u32).to_le_bytes());
        out.extend_from_slice(&((self.entries.len() / ENTRY_BYTES) as u32).to_le_bytes());
        out.extend_from_slice(&sum.to_le_bytes());
        push_sum(&mut out, start);
        out
    }
}

/// The end of a sealed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footer {
    /// Position of the summary, at the end of the records.
    pub position: Position,
    sets_len: u32,
    entries: u32,
    sum: u64,
}

impl Footer {
    /// Of the last [`FOOTER_BYTES`] of a file.
    ///
    /// # Errors
    /// If the segment was not sealed, or is damaged.
    pub fn read(bytes: &[u8], segment: u32) -> Result<Self, Damage> {
        let mut at = summed(bytes, FOOTER_BYTES)?;
        if at.take()? != FOOTER || at.u32()? != segment {
            return Err(Damage::Magic);
        }
        Ok(Footer {
            position: Position {
                segment,
                offset: at.u64()?,
            },
            sets_len: at.u32()?,
            entries: at.u32()?,
            sum: at.u64()?,
        })
    }

    /// Length of the summary in bytes, without the footer.
    pub fn summary_len(&self) -> u64 {
        u64::from(self.sets_len) + u64::from(self.entries) * ENTRY_BYTES as u64
    }

    /// The entries of a summary, the newest first.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn entries<'a>(
        &self,
        summary: &'a [u8],
    ) -> Result<impl Iterator<Item = Entry<'a>> + use<'a>, Damage> {
        if summary.len() as u64 != self.summary_len() {
            return Err(Damage::Short);
        }
        if sum(summary) != self.sum {
            return Err(Damage::Sum);
        }
        let (sets, entries) = summary.split_at(self.sets_len as usize);
        let mut at = Cursor { bytes: sets, at: 0 };
        let mut sets = vec![&b""[..]];
        while at.at < at.bytes.len() {
            let len = at.u16()?;
            sets.push(at.slice(len.into())?);
        }
        let (entries, _) = entries.as_chunks::<ENTRY_BYTES>();
        let segment = self.position.segment;
        let last_set = sets.len() - 1;
        if entries
            .iter()
            .any(|entry| usize::from(entry[SET_AT]) > last_set)
        {
            return Err(Damage::Lengths);
        }
        let entries = entries.iter().rev();
        Ok(entries.filter_map(move |bytes| {
            let mut at = Cursor { bytes, at: 0 };
            let hashes = Hashes {
                key: at.u64().ok()?,
                slot: at.u64().ok()?,
            };
            let offset = u64::from(at.u32().ok()?) * UNIT;
            let [size, set, is_removal, _] = at.take().ok()?;
            Some(Entry {
                hashes,
                kind: if is_removal == 0 {
                    Kind::Record
                } else {
                    Kind::Removal
                },
                position: Position { segment, offset },
                size: Size(size),
                names: sets[usize::from(set)],
            })
        }))
    }
}

/// Offset of the number of the set in an entry of a summary.
const SET_AT: usize = 21;

#[cfg(test)]
mod tests;
