//! Keeps slow clients from holding slots (`buffer` of an upstream).
//!
//! Owns three means. A request's body is read before the request takes a slot.
//! A response is taken off the endpoint ahead of its client. A client that a
//! slot waits for must keep up a least rate. Per worker; the memory is counted
//! over all workers ([`BufferMemory`]).
//!
//! Invariant: a slot waits for its client only where the body is longer than
//! the buffer or the memory is used up, and then at `min_rate` or faster.

mod pace;
mod request;
mod response;

use std::sync::Arc;

use super::Context;
use crate::metrics::BufferMemory;

pub(super) use pace::taken;
pub use pace::{Pace, Verdict};
pub(super) use request::{ReadAhead, reads_ahead};
pub(super) use response::{Ahead, Rest, fits, response_bound, take_ahead};

/// A part of the memory for buffers; given back when dropped.
#[derive(Debug)]
struct Reserved {
    memory: Arc<BufferMemory>,
    len: usize,
}

impl Reserved {
    fn none(context: &Context) -> Self {
        Reserved {
            memory: context.buffer_memory.clone(),
            len: 0,
        }
    }

    /// Takes `len` bytes more; `false` where there are not as many.
    fn grow(&mut self, len: usize) -> bool {
        let is_granted = self.memory.try_reserve(len as u64);
        if is_granted {
            self.len += len;
        }
        is_granted
    }

    fn shrink(&mut self, len: usize) {
        self.memory.release(len as u64);
        self.len -= len;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.memory.release(self.len as u64);
    }
}
