//! Buffers, from a free list that each thread keeps for itself.
//!
//! Two sizes: small ones hold a head for as long as its exchange lasts, large
//! ones hold a body for the moment between a read and a write. The last one
//! given back is the next one taken, so it is still in the processor's cache.

use std::cell::RefCell;

/// Length of a small buffer, in bytes.
pub const SMALL_LEN: usize = 16 * 1024;
/// Length of a large buffer, in bytes: at 300 KB responses, reads of 16 KiB
/// cost twice the processor time that reads of 256 KiB do.
pub const LARGE_LEN: usize = 256 * 1024;
/// Small buffers kept for reuse, per thread.
const SMALL_KEPT: usize = 512;
/// Large buffers kept for reuse, per thread.
const LARGE_KEPT: usize = 8;
/// Large buffers in use at once, per thread; beyond it small ones do.
const LARGE_IN_USE: usize = 256;

/// Free buffers of one thread.
struct FreeLists {
    small: Vec<Box<[u8]>>,
    large: Vec<Box<[u8]>>,
    large_in_use: usize,
}

thread_local! {
    static FREE: RefCell<FreeLists> = const {
        RefCell::new(FreeLists { small: Vec::new(), large: Vec::new(), large_in_use: 0 })
    };
}

/// A range of bytes, partly filled.
///
/// Invariant: `start <= end <= bytes.len()`. Dropping it returns it to its thread's free list.
#[derive(Debug)]
pub struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Buffer {
    /// An empty buffer of [`SMALL_LEN`].
    pub fn small() -> Self {
        let reused = FREE.with_borrow_mut(|free| free.small.pop());
        Self::from(reused, SMALL_LEN)
    }

    /// An empty buffer of [`LARGE_LEN`], or a small one when this thread has
    /// too many large ones in use.
    pub fn large() -> Self {
        let reused = FREE.with_borrow_mut(|free| {
            if free.large_in_use >= LARGE_IN_USE {
                return Err(());
            }
            free.large_in_use += 1;
            Ok(free.large.pop())
        });
        match reused {
            Ok(reused) => Self::from(reused, LARGE_LEN),
            Err(()) => Self::small(),
        }
    }

    /// An empty buffer that holds at least `len` bytes.
    pub fn with_capacity(len: usize) -> Self {
        if len <= SMALL_LEN {
            Self::small()
        } else {
            // Never of LARGE_LEN, which the free list counts.
            Self::from(None, len.next_power_of_two() + 1)
        }
    }

    fn from(reused: Option<Box<[u8]>>, len: usize) -> Self {
        Buffer {
            bytes: reused.unwrap_or_else(|| vec![0; len].into_boxed_slice()),
            start: 0,
            end: 0,
        }
    }

    /// The bytes that are filled.
    pub fn filled(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The bytes that are filled, to be changed in place.
    pub fn filled_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    /// The room behind the filled bytes.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.end..]
    }

    /// Whether nothing is filled.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Number of filled bytes.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Bytes that it can hold in all.
    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Free bytes in front of the filled ones.
    pub fn headroom(&self) -> usize {
        self.start
    }

    /// Counts `len` bytes of the room as filled.
    pub fn fill(&mut self, len: usize) {
        self.end = (self.end + len).min(self.bytes.len());
    }

    /// Takes `len` bytes off the front.
    pub fn consume(&mut self, len: usize) {
        self.start = (self.start + len).min(self.end);
        if self.start == self.end {
            self.clear();
        }
    }

    /// Takes `len` bytes off the front and leaves their place to
    /// [`prepend`](Self::prepend).
    pub fn skip(&mut self, len: usize) {
        self.start = (self.start + len).min(self.end);
    }

    /// Takes the last `len` bytes back that were skipped.
    pub fn restore(&mut self, len: usize) {
        self.start = self.start.saturating_sub(len);
    }

    /// Keeps the first `len` filled bytes only.
    pub fn truncate(&mut self, len: usize) {
        self.end = self.end.min(self.start + len);
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.start = 0;
        self.end = 0;
    }

    /// Empties it, and leaves `len` bytes free in front of the next content.
    pub fn clear_with_headroom(&mut self, len: usize) {
        self.start = len.min(self.bytes.len());
        self.end = self.start;
    }

    /// Moves the filled bytes to the front, so that the room is all behind.
    pub fn compact(&mut self) {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
    }

    /// Puts `bytes` right in front of the filled ones; `false`, and nothing
    /// changed, where they do not fit.
    #[must_use]
    pub fn prepend(&mut self, bytes: &[u8]) -> bool {
        if bytes.len() > self.start {
            return false;
        }
        let at = self.start - bytes.len();
        self.bytes[at..self.start].copy_from_slice(bytes);
        self.start = at;
        true
    }

    /// Puts `bytes` behind the filled ones; `false`, and nothing changed,
    /// where they do not fit.
    #[must_use]
    pub fn append(&mut self, bytes: &[u8]) -> bool {
        let Some(room) = self.bytes.get_mut(self.end..self.end + bytes.len()) else {
            return false;
        };
        room.copy_from_slice(bytes);
        self.end += bytes.len();
        true
    }

    /// Moves the filled bytes into a buffer of at least `len` bytes, with
    /// `headroom` of them free in front.
    pub fn enlarge(&mut self, len: usize, headroom: usize) {
        let mut larger = Buffer::with_capacity(len.max(self.len() + headroom));
        larger.clear_with_headroom(headroom);
        let copied = larger.append(self.filled());
        debug_assert!(copied, "it was made for them");
        *self = larger;
    }

    /// Makes room: by moving the filled bytes to the front, or into a large
    /// buffer where that is not enough. A large one that is full stays so.
    pub fn grow(&mut self) {
        if self.start > 0 || self.capacity() >= LARGE_LEN {
            self.compact();
            return;
        }
        let mut larger = Buffer::from(None, LARGE_LEN);
        // It is a large one from here on, and its drop counts it out again.
        FREE.with_borrow_mut(|free| free.large_in_use += 1);
        let copied = larger.append(self.filled());
        debug_assert!(copied, "a small buffer fits into a large one");
        *self = larger;
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        // A buffer dropped while its thread ends has no list to return to.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if bytes.len() == LARGE_LEN {
                free.large_in_use = free.large_in_use.saturating_sub(1);
                if free.large.len() < LARGE_KEPT {
                    free.large.push(bytes);
                }
            } else if bytes.len() == SMALL_LEN && free.small.len() < SMALL_KEPT {
                free.small.push(bytes);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_from_both_ends_and_refuses_what_does_not_fit() {
        let mut buffer = Buffer::small();
        buffer.clear_with_headroom(4);
        assert!(buffer.append(b"body"));
        assert!(!buffer.prepend(b"too long"));
        assert!(buffer.prepend(b"head"));
        assert_eq!(buffer.filled(), b"headbody");
        buffer.consume(2);
        buffer.compact();
        assert_eq!(buffer.filled(), b"adbody");
        assert_eq!(buffer.room().len(), SMALL_LEN - 6);
        assert!(!buffer.append(&[0; SMALL_LEN]));
        buffer.fill(SMALL_LEN);
        buffer.grow();
        buffer.truncate(6);
        assert_eq!(buffer.filled(), b"adbody");
        assert_eq!(buffer.capacity(), LARGE_LEN);
    }

    #[test]
    fn large_buffers_run_out_and_small_ones_do_instead() {
        let held: Vec<_> = (0..LARGE_IN_USE).map(|_| Buffer::large()).collect();
        assert!(held.iter().all(|buffer| buffer.capacity() == LARGE_LEN));
        assert_eq!(Buffer::large().capacity(), SMALL_LEN);
        drop(held);
        assert_eq!(Buffer::large().capacity(), LARGE_LEN);
    }
}
