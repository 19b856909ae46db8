//! An object as bytes: the form in which a disk or a shared server stores it.
//!
//! A record is a head and a body. The head has a checksum for each block of the body, and ends
//! with its own checksum. A head can thus be read without its body, and a block without the
//! others. Checksums are XXH3 with 64 bits: they detect damage, not forgery.
//!
//! | bytes | of the head |
//! |---|---|
//! | 4 | `EvkR` |
//! | 2, 2 | version, status |
//! | 8 | length of the body |
//! | 8, 8 | the time of writing, in Unix time, and the object's age then, in nanoseconds |
//! | 8 | count of purges up to which it had survived |
//! | 4, 4, 4 | `fresh`, `while_revalidate`, `if_error` of its [`Lifetime`] |
//! | 4 | length of the field lines |
//! | 2, 2, 2 | lengths of key, URL and selector |
//! | 1, 1 | length of the reason, flags |
//! | … | key, selector, reason, field lines |
//! | 8 each | checksum of each [`BLOCK_BYTES`] of the body |
//! | 8 | checksum of the head |
//!
//! Numbers are little-endian. Tags are not part of it: their hashes depend on the secret
//! of a store, so they are made again from the field lines.

use std::time::Duration;

use evenkeel_policy::Instant;
use twox_hash::XxHash3_64;

use crate::freshness::Lifetime;
use crate::key::{Key, Secret};
use crate::object::{self, Body, CHUNK_BYTES, Object, StoredHead};

/// Bytes of the body for each sum: a chunk of an object.
pub const BLOCK_BYTES: usize = 64 * 1024 - 16;
const _: () = assert!(
    BLOCK_BYTES == CHUNK_BYTES,
    "another length is another version"
);

/// Length of the part of a head that says how long it is.
pub const FIXED_BYTES: usize = 64;

/// Longest head. A body of 128 GiB has one of 16 MiB.
pub const MAX_HEAD_BYTES: usize = 16 << 20;

const MAGIC: [u8; 4] = *b"EvkR";
const VERSION: u16 = 1;
const SUM_BYTES: usize = 8;
const SEEN_AT: usize = 32;
const FLAGS_AT: usize = FIXED_BYTES - 1;

const ALWAYS_VALIDATE: u8 = 1;
const FORBID_STALE: u8 = 2;
const PURGED: u8 = 4;

/// The sum of some bytes: XXH3 with 64 bits.
pub fn sum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// Two clocks read at the same moment. Records have times of the wall clock, because the other
/// clock starts again with each process.
///
/// A process reads the pair once. A step of the wall clock then does not change the ages of
/// objects that this process wrote.
#[derive(Debug, Clone, Copy)]
pub struct Clocks {
    /// The clock that never goes back.
    pub now: Instant,
    /// Time since 1970.
    pub unix: Duration,
}

impl Clocks {
    /// The wall clock at another moment, in nanoseconds since 1970.
    fn unix_nanos(&self, at: Instant) -> u64 {
        let start = nanos(self.unix);
        if at >= self.now {
            start.saturating_add(at.as_nanos() - self.now.as_nanos())
        } else {
            start.saturating_sub(self.now.as_nanos() - at.as_nanos())
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Why bytes are not a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// It ends before its length.
    Short,
    /// The bytes are no record.
    Magic,
    /// Another version wrote it.
    Version,
    /// Its lengths contradict each other, or are too large.
    Lengths,
    /// A byte of it has changed.
    Sum,
    /// It was no response that is stored.
    Fields,
}

impl Damage {
    /// The word for it in counters.
    pub fn word(self) -> &'static str {
        match self {
            Damage::Short => "short",
            Damage::Magic => "magic",
            Damage::Version => "version",
            Damage::Lengths => "lengths",
            Damage::Sum => "sum",
            Damage::Fields => "fields",
        }
    }
}

/// Appends the head of an object's record. Its body follows it.
///
/// `None` if the head would be longer than [`MAX_HEAD_BYTES`]; nothing is appended then.
pub fn push_head(out: &mut Vec<u8>, object: &Object, clocks: &Clocks, now: Instant) -> Option<()> {
    let sums: Vec<u64> = blocks(object).map(sum).collect();
    push_head_with(out, object, object.body_len(), &sums, clocks, now)
}

/// Length of the head of an object's record with a body of this length. `None` if it is longer
/// than [`MAX_HEAD_BYTES`].
pub fn head_len_with(object: &Object, body_len: u64) -> Option<usize> {
    Lengths {
        key: object.key().len(),
        selector: object.selector().len(),
        reason: object.reason().len(),
        lines: object.lines().len(),
        body: body_len,
    }
    .head_len()
}

/// Appends the head of an object's record. The body lies elsewhere: it has this length, and its
/// blocks have these checksums.
///
/// `None` if the head would be longer than [`MAX_HEAD_BYTES`]; then nothing is appended.
pub fn push_head_with(
    out: &mut Vec<u8>,
    object: &Object,
    body_len: u64,
    sums: &[u64],
    clocks: &Clocks,
    now: Instant,
) -> Option<()> {
    let head_len = head_len_with(object, body_len)?;
    let stored = object.stored(now);
    let Lifetime {
        fresh,
        initial_age: _,
        while_revalidate,
        if_error,
        always_validate,
        forbid_stale,
    } = stored.lifetime;
    let flags = [
        (always_validate, ALWAYS_VALIDATE),
        (forbid_stale, FORBID_STALE),
        (stored.is_purged, PURGED),
    ];
    let flags = flags.iter().filter(|(is_set, _)| *is_set);

    let start = out.len();
    out.reserve(head_len);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&object.status().to_le_bytes());
    out.extend_from_slice(&body_len.to_le_bytes());
    out.extend_from_slice(&clocks.unix_nanos(now).to_le_bytes());
    out.extend_from_slice(&nanos(stored.age).to_le_bytes());
    out.extend_from_slice(&object.seen().to_le_bytes());
    for seconds in [fresh, while_revalidate, if_error] {
        out.extend_from_slice(&seconds.to_le_bytes());
    }
    // The lengths fit, because the object stores them in the same types.
    out.extend_from_slice(&(object.lines().len() as u32).to_le_bytes());
    for part in [object.key(), object.url(), object.selector()] {
        out.extend_from_slice(&(part.len() as u16).to_le_bytes());
    }
    out.push(object.reason().len() as u8);
    out.push(flags.fold(0, |all, (_, bit)| all | bit));
    for part in [
        object.key(),
        object.selector(),
        object.reason(),
        object.lines(),
    ] {
        out.extend_from_slice(part);
    }
    for sum in sums {
        out.extend_from_slice(&sum.to_le_bytes());
    }
    let sum = sum(&out[start..]);
    out.extend_from_slice(&sum.to_le_bytes());
    debug_assert_eq!(out.len() - start, head_len);
    Some(())
}

/// Makes a head say that its object was known to be alive as of this count of purges, and
/// stale if one of them was soft. For a whole head, as [`Head::read`] takes it.
pub fn renew(head: &mut [u8], seen: u64, is_purged: bool) {
    let Some((summed, old)) = head.split_last_chunk_mut::<SUM_BYTES>() else {
        return;
    };
    summed[SEEN_AT..SEEN_AT + 8].copy_from_slice(&seen.to_le_bytes());
    if is_purged {
        summed[FLAGS_AT] |= PURGED;
    }
    *old = sum(summed).to_le_bytes();
}

/// The body of an object in blocks of [`BLOCK_BYTES`]; the last one may be shorter.
pub fn blocks(object: &Object) -> impl Iterator<Item = &[u8]> {
    let starts = (0..object.body_len()).step_by(BLOCK_BYTES);
    starts.map(|start| object.body_at(start))
}

/// Lengths of the parts of a record, in bytes.
#[derive(Debug, Clone, Copy)]
struct Lengths {
    key: usize,
    selector: usize,
    reason: usize,
    lines: usize,
    body: u64,
}

impl Lengths {
    fn head_len(&self) -> Option<usize> {
        let parts = self.key + self.selector + self.reason + self.lines;
        let blocks = usize::try_from(self.body.div_ceil(BLOCK_BYTES as u64)).ok()?;
        let sums = blocks.checked_add(1)?.checked_mul(SUM_BYTES)?;
        let all = (FIXED_BYTES + parts).checked_add(sums)?;
        (all <= MAX_HEAD_BYTES).then_some(all)
    }
}

/// The head of a record that is whole.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    bytes: &'a [u8],
    fixed: Fixed,
}

#[derive(Debug, Clone, Copy)]
struct Fixed {
    lengths: Lengths,
    url_len: usize,
    head_len: usize,
    written: u64,
    age: u64,
    seen: u64,
    lifetime: Lifetime,
    status: u16,
    is_purged: bool,
}

impl Fixed {
    /// Of bytes that nothing is known of.
    fn read(bytes: &[u8]) -> Result<Self, Damage> {
        let mut at = Cursor { bytes, at: 0 };
        if at.take::<4>()? != MAGIC {
            return Err(Damage::Magic);
        }
        if at.u16()? != VERSION {
            return Err(Damage::Version);
        }
        let status = at.u16()?;
        let body = at.u64()?;
        let (written, age, seen) = (at.u64()?, at.u64()?, at.u64()?);
        let (fresh, while_revalidate, if_error) = (at.u32()?, at.u32()?, at.u32()?);
        let lines = at.u32()? as usize;
        let (key, url_len, selector) = (at.u16()?, at.u16()?, at.u16()?);
        let [reason, flags] = at.take::<2>()?;
        debug_assert_eq!(at.at, FIXED_BYTES);
        let lengths = Lengths {
            key: key.into(),
            selector: selector.into(),
            reason: reason.into(),
            lines,
            body,
        };
        let head_len = lengths.head_len().ok_or(Damage::Lengths)?;
        if url_len > key || flags & !(ALWAYS_VALIDATE | FORBID_STALE | PURGED) != 0 {
            return Err(Damage::Lengths);
        }
        let is_set = |bit| flags & bit != 0;
        Ok(Fixed {
            lengths,
            url_len: url_len.into(),
            head_len,
            written,
            age,
            seen,
            lifetime: Lifetime {
                fresh,
                initial_age: Duration::ZERO,
                while_revalidate,
                if_error,
                always_validate: is_set(ALWAYS_VALIDATE),
                forbid_stale: is_set(FORBID_STALE),
            },
            status,
            is_purged: is_set(PURGED),
        })
    }
}

/// Reads numbers one after another.
#[derive(Debug)]
pub(crate) struct Cursor<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
}

impl<'a> Cursor<'a> {
    /// The next `len` bytes.
    pub fn slice(&mut self, len: usize) -> Result<&'a [u8], Damage> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let taken = rest.get(..len).ok_or(Damage::Short)?;
        self.at += len;
        Ok(taken)
    }

    pub fn take<const LEN: usize>(&mut self) -> Result<[u8; LEN], Damage> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let taken = rest.first_chunk().ok_or(Damage::Short)?;
        self.at += LEN;
        Ok(*taken)
    }

    pub fn u16(&mut self) -> Result<u16, Damage> {
        self.take().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, Damage> {
        self.take().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Damage> {
        self.take().map(u64::from_le_bytes)
    }
}

/// Length of the head that begins with these bytes: [`FIXED_BYTES`] are enough. Its sum
/// is not checked.
///
/// # Errors
/// If no head begins so.
pub fn head_len(start: &[u8]) -> Result<usize, Damage> {
    Fixed::read(start).map(|fixed| fixed.head_len)
}

impl<'a> Head<'a> {
    /// The head that some bytes begin with. Bytes after it are ignored.
    ///
    /// # Errors
    /// If it is damaged or something else.
    pub fn read(bytes: &'a [u8]) -> Result<Self, Damage> {
        let fixed = Fixed::read(bytes)?;
        let bytes = bytes.get(..fixed.head_len).ok_or(Damage::Short)?;
        let (summed, found) = bytes.split_at(fixed.head_len - SUM_BYTES);
        if found != sum(summed).to_le_bytes() {
            return Err(Damage::Sum);
        }
        let head = Head { bytes, fixed };
        if !(200..=999).contains(&fixed.status)
            || head.reason().iter().any(|&byte| is_line_end(byte))
            || !are_lines(head.lines())
        {
            return Err(Damage::Fields);
        }
        Ok(head)
    }

    fn part(&self, start: usize, len: usize) -> &'a [u8] {
        &self.bytes[start..start + len]
    }

    /// The key that the object is stored under.
    pub fn key(&self) -> &'a [u8] {
        self.part(FIXED_BYTES, self.fixed.lengths.key)
    }

    /// The URL at the beginning of its key.
    pub fn url(&self) -> &'a [u8] {
        self.part(FIXED_BYTES, self.fixed.url_len)
    }

    /// The selecting fields of its request ([`crate::vary`]).
    pub fn selector(&self) -> &'a [u8] {
        let start = FIXED_BYTES + self.fixed.lengths.key;
        self.part(start, self.fixed.lengths.selector)
    }

    /// The status code.
    pub fn status(&self) -> u16 {
        self.fixed.status
    }

    fn reason_start(&self) -> usize {
        FIXED_BYTES + self.fixed.lengths.key + self.fixed.lengths.selector
    }

    /// The reason phrase.
    pub fn reason(&self) -> &'a [u8] {
        self.part(self.reason_start(), self.fixed.lengths.reason)
    }

    /// Field lines, each with its end.
    pub fn lines(&self) -> &'a [u8] {
        let start = self.reason_start() + self.fixed.lengths.reason;
        self.part(start, self.fixed.lengths.lines)
    }

    /// Length of the head: the body begins there, in bytes.
    pub fn head_len(&self) -> usize {
        self.fixed.head_len
    }

    /// Length of the body in bytes.
    pub fn body_len(&self) -> u64 {
        self.fixed.lengths.body
    }

    /// The writer's count of purges when the object was last known to be alive.
    pub fn seen(&self) -> u64 {
        self.fixed.seen
    }

    /// The object's age: its age when it was written, and the time since. If the wall
    /// clock went back meanwhile, the difference is added too: too old is safe.
    pub fn age(&self, clocks: &Clocks, now: Instant) -> Duration {
        let since = clocks.unix_nanos(now).abs_diff(self.fixed.written);
        Duration::from_nanos(self.fixed.age.saturating_add(since))
    }

    /// Whether these bytes are block `index` of the body.
    pub fn is_block(&self, index: usize, block: &[u8]) -> bool {
        let sums_end = self.fixed.head_len - SUM_BYTES;
        let sums_start = sums_end - self.block_count() * SUM_BYTES;
        let (sums, _) = self.bytes[sums_start..sums_end].as_chunks::<SUM_BYTES>();
        sums.get(index) == Some(&sum(block).to_le_bytes())
    }

    /// How many blocks the body has.
    pub fn block_count(&self) -> usize {
        // As many as have sums in the head, which lies in memory.
        self.body_len().div_ceil(BLOCK_BYTES as u64) as usize
    }

    /// Whether these bytes are the body.
    pub fn is_body(&self, body: &[u8]) -> bool {
        let mut blocks = body.chunks(BLOCK_BYTES).enumerate();
        body.len() as u64 == self.body_len() && blocks.all(|(index, it)| self.is_block(index, it))
    }

    /// The object, with a verified body: by [`is_body`](Self::is_body), or block by block.
    ///
    /// `seen` is the count of purges up to which it is known to have survived here:
    /// [`seen`](Self::seen) if the same store wrote it.
    ///
    /// # Errors
    /// It has too many tags, or the body has another length.
    pub fn object(
        &self,
        body: &Body<'_>,
        secret: &Secret,
        clocks: &Clocks,
        now: Instant,
        seen: u64,
    ) -> Result<Object, Damage> {
        let object = self.with_body(body, secret, clocks, now, seen)?;
        if object.body_len() != self.body_len() {
            return Err(Damage::Lengths);
        }
        Ok(object)
    }

    /// The object without its body, for one that is sent from a file.
    ///
    /// # Errors
    /// If it has more tags than are kept.
    pub fn without_body(
        &self,
        secret: &Secret,
        clocks: &Clocks,
        now: Instant,
        seen: u64,
    ) -> Result<Object, Damage> {
        self.with_body(&Body::Short(b""), secret, clocks, now, seen)
    }

    fn with_body(
        &self,
        body: &Body<'_>,
        secret: &Secret,
        clocks: &Clocks,
        now: Instant,
        seen: u64,
    ) -> Result<Object, Damage> {
        let key = Key::new(secret, self.key().to_vec(), self.fixed.url_len);
        let (reason, lines, selector) = (self.reason(), self.lines(), self.selector());
        let head = StoredHead::read(secret, self.status(), reason, lines, selector);
        let lifetime = Lifetime {
            initial_age: self.age(clocks, now),
            ..self.fixed.lifetime
        };
        let head = head.ok_or(Damage::Fields)?;
        let object = Object::new(&key, &head, body, &lifetime, now, seen);
        let object = object.ok_or(Damage::Lengths)?;
        if self.fixed.is_purged {
            object.set_seen(seen, true);
        }
        Ok(object)
    }
}

fn is_line_end(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n' | b'\0')
}

/// Whether an answer may have these lines: else one that was forged at a shared server
/// could end the head and begin another answer.
fn are_lines(bytes: &[u8]) -> bool {
    let mut len = 0;
    for line in object::lines(bytes) {
        let Some(text) = line.whole.strip_suffix(b"\r\n") else {
            return false;
        };
        if line.name.is_empty() || text.iter().any(|&byte| is_line_end(byte)) {
            return false;
        }
        len += line.whole.len();
    }
    len == bytes.len()
}

#[cfg(test)]
mod tests;
