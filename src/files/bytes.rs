//! What was read of a file.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Direct I/O takes whole blocks, and memory that begins with one, in bytes: no
/// disk has longer ones.
pub(super) const BLOCK_LEN: usize = 4096;

/// Bytes of a file, shared by all who waited for them.
#[derive(Clone, Default)]
pub struct FileBytes {
    room: Arc<[u8]>,
    /// Where they are in it.
    range: Range<usize>,
}

impl FileBytes {
    /// Room for so many bytes, to be read into.
    pub(super) fn room(len: usize) -> Self {
        FileBytes {
            room: zeros(len),
            range: 0..len,
        }
    }

    /// Room for so many bytes and what is left of the last block, to be read
    /// into by direct I/O.
    pub(super) fn blocks(len: usize) -> Self {
        let len = len.next_multiple_of(BLOCK_LEN);
        let room = zeros(len + BLOCK_LEN - 1);
        let start = room.as_ptr().align_offset(BLOCK_LEN);
        FileBytes {
            room,
            range: start..start + len,
        }
    }

    /// To be read into, as long as nobody else has it; else it is empty.
    pub(super) fn room_mut(&mut self) -> &mut [u8] {
        match Arc::get_mut(&mut self.room) {
            Some(room) => &mut room[self.range.clone()],
            None => Default::default(),
        }
    }

    /// Leaves what is behind the first `len` bytes out.
    pub(super) fn truncate(&mut self, len: usize) {
        self.range.end = self.range.end.min(self.range.start + len);
    }
}

/// In one step: a collected iterator is copied.
fn zeros(len: usize) -> Arc<[u8]> {
    // SAFETY: zeros are a value of every byte.
    unsafe { Arc::new_zeroed_slice(len).assume_init() }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.room[self.range.clone()]
    }
}

impl fmt::Debug for FileBytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} bytes", self.len())
    }
}
