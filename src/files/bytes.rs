//! Bytes of files, and the rooms that they are read into.

use std::fmt;
use std::mem::take;
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

/// Block length for direct I/O, in bytes: lengths are multiples of it, and memory is aligned to
/// it. No disk has longer blocks.
pub(super) const BLOCK_LEN: usize = 4096;

/// The result of a read.
pub type ReadBytes = Result<FileBytes, Errno>;

/// Bytes of a file, shared by all waiters.
#[derive(Clone, Default)]
pub struct FileBytes {
    room: Arc<Room>,
    /// The bytes in `room`.
    range: Range<usize>,
}

impl FileBytes {
    /// Room to read this many bytes into. The bytes may be kept.
    pub(super) fn room(len: usize) -> Self {
        FileBytes {
            room: Arc::new(Room(zeros(len))),
            range: 0..len,
        }
    }

    /// Room to read this many bytes into, rounded up to whole blocks, for direct I/O too. Only
    /// for a short time: the room is longer than needed, and holds old bytes.
    pub(super) fn blocks(len: usize) -> Self {
        let len = len.next_multiple_of(BLOCK_LEN);
        let room = Room::of_blocks(len);
        let start = room.0.as_ptr().align_offset(BLOCK_LEN);
        FileBytes {
            room: Arc::new(room),
            range: start..start + len,
        }
    }

    /// The room to read into, while nobody else has it; otherwise empty.
    pub(super) fn room_mut(&mut self) -> &mut [u8] {
        match Arc::get_mut(&mut self.room) {
            Some(room) => &mut room.0[self.range.clone()],
            None => Default::default(),
        }
    }

    /// Cuts the bytes off after the first `len`.
    pub(super) fn truncate(&mut self, len: usize) {
        self.range.end = self.range.end.min(self.range.start + len);
    }
}

/// Number of sizes of reusable rooms: one block, and each next size twice as long.
const SIZES: usize = 7;
/// Most bytes of unused rooms of one size.
const UNUSED_LEN_MAX: usize = 1024 * 1024;

/// Unused rooms, by size.
///
/// Reading threads take rooms, and sending threads return them. An allocator would keep some of
/// each size for each thread, some 3 MB in all.
static UNUSED: [Mutex<Vec<Box<[u8]>>>; SIZES] = [const { Mutex::new(Vec::new()) }; SIZES];

/// Memory that is read into.
#[derive(Default)]
struct Room(Box<[u8]>);

impl Room {
    /// A room for this many bytes, in whole blocks.
    fn of_blocks(len: usize) -> Self {
        let len = len.next_power_of_two().max(BLOCK_LEN) + BLOCK_LEN - 1;
        let unused = unused_of(len).and_then(|mut unused| unused.pop());
        Room(unused.unwrap_or_else(|| zeros(len)))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let len = self.0.len();
        if let Some(mut unused) = unused_of(len)
            && (unused.len() + 1) * len <= UNUSED_LEN_MAX
        {
            unused.push(take(&mut self.0));
        }
    }
}

/// The unused rooms of this length, if those are used again.
fn unused_of(len: usize) -> Option<MutexGuard<'static, Vec<Box<[u8]>>>> {
    let blocks = len.checked_sub(BLOCK_LEN - 1)? / BLOCK_LEN;
    let size = blocks.checked_ilog2()? as usize;
    let is_one = (BLOCK_LEN << size) + BLOCK_LEN - 1 == len;
    let unused = UNUSED.get(size).filter(|_| is_one)?;
    Some(unused.lock().unwrap_or_else(PoisonError::into_inner))
}

/// In one step: a collected iterator is copied.
fn zeros(len: usize) -> Box<[u8]> {
    // SAFETY: zeros are a value of every byte.
    unsafe { Box::new_zeroed_slice(len).assume_init() }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.room.0[self.range.clone()]
    }
}

impl fmt::Debug for FileBytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} bytes", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_are_used_again() {
        // A length that no other test has.
        const LEN: usize = 33 * BLOCK_LEN;
        let mut first = FileBytes::blocks(LEN);
        first.room_mut()[0] = 7;
        let shared = first.clone();
        drop(first);
        assert_eq!(FileBytes::blocks(LEN)[0], 0, "somebody has it");
        drop(shared);
        let both = [FileBytes::blocks(LEN), FileBytes::blocks(LEN)];
        assert!(both.iter().any(|bytes| bytes[0] == 7));
        for bytes in &both {
            assert!(bytes.len() == LEN && bytes.as_ptr().addr().is_multiple_of(BLOCK_LEN));
        }
    }

    #[test]
    fn unused_rooms_are_bounded() {
        const LEN: usize = 17 * BLOCK_LEN;
        let rooms: Vec<FileBytes> = (0..100).map(|_| FileBytes::blocks(LEN)).collect();
        let len = rooms[0].room.0.len();
        drop(rooms);
        let unused = unused_of(len).expect("a size");
        assert!(unused.len() * len <= UNUSED_LEN_MAX);
        assert!((unused.len() + 1) * len > UNUSED_LEN_MAX);
    }

    #[test]
    fn what_is_kept_takes_no_more_than_its_bytes() {
        for len in [0, 1, BLOCK_LEN, 9_000] {
            assert_eq!(FileBytes::room(len).room.0.len(), len);
        }
    }

    #[test]
    fn long_rooms_are_not_used_again() {
        let room = FileBytes::blocks(BLOCK_LEN << SIZES);
        assert!(unused_of(room.room.0.len()).is_none());
        assert!(unused_of(0).is_none());
    }
}
