//! Keeps slow clients from holding slots (`buffer` of an upstream).
//!
//! There are three means. A request's body is read before the request takes a slot
//! (here). A response is taken off the endpoint ahead of its client (`relay`). A
//! client that a slot waits for must keep up a least rate (`pace`). Per worker; the
//! memory is counted over all workers ([`BufferMemory`]).
//!
//! Invariant: a slot waits for its client only where the body is longer than
//! the buffer or the memory is used up, and then at `min_rate` or faster.

mod request;

use std::sync::Arc;

use super::Context;
use crate::metrics::BufferMemory;

pub(super) use request::{ReadAhead, reads_ahead};

/// A part of the memory for buffers; given back when dropped.
#[derive(Debug)]
pub(super) struct Reserved {
    memory: Arc<BufferMemory>,
    len: usize,
}

impl Reserved {
    /// Nothing so far.
    pub fn none(context: &Context) -> Self {
        Reserved {
            memory: context.buffer_memory.clone(),
            len: 0,
        }
    }

    /// Nothing of the same memory.
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

    /// Takes `len` bytes more; `false` where there are not as many.
    pub fn grow(&mut self, len: usize) -> bool {
        let is_granted = self.memory.try_reserve(len as u64);
        if is_granted {
            self.len += len;
        }
        is_granted
    }

    /// Gives `len` bytes back.
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
