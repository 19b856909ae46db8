//! Memory for held bodies, counted over all workers.

use std::sync::Arc;

use crate::metrics::BufferMemory;

/// A part of the buffer memory; released when dropped.
#[derive(Debug)]
pub(super) struct Reserved {
    memory: Arc<BufferMemory>,
    len: usize,
}

impl Reserved {
    /// An empty reservation.
    pub fn none(memory: &Arc<BufferMemory>) -> Self {
        Reserved {
            memory: memory.clone(),
            len: 0,
        }
    }

    /// An empty reservation of the same memory.
    pub fn none_left(&self) -> Self {
        Reserved {
            memory: self.memory.clone(),
            len: 0,
        }
    }

    /// Bytes that are reserved.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Reserves `len` more bytes; `false` if there are not as many.
    pub fn grow(&mut self, len: usize) -> bool {
        let is_granted = self.memory.try_reserve(len as u64);
        if is_granted {
            self.len += len;
        }
        is_granted
    }

    /// Releases `len` bytes.
    pub fn shrink(&mut self, len: usize) {
        self.memory.release(len as u64);
        self.len -= len;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.memory.release(self.len as u64);
    }
}
