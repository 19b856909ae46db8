//! Levels that all workers share, each one atomic.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Number of open connections of a listener, over all workers. They share it, so it has a cache
/// line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct OpenCount(AtomicU32);

impl OpenCount {
    /// One is opened, unless there are `limit` of them; whether it is.
    ///
    /// Invariant: there are never more than `limit`, whichever workers add at
    /// once, for the comparison and the addition are one atomic step.
    pub fn try_add(&self, limit: Option<u32>) -> bool {
        let Some(limit) = limit else {
            self.0.fetch_add(1, Ordering::Relaxed);
            return true;
        };
        let more = |open| (open < limit).then_some(open + 1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.0.fetch_update(set, fetch, more).is_ok()
    }

    /// One was closed.
    pub fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many are open.
    pub fn value(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Memory for bodies that are held for slow clients, shared by all workers.
///
/// Invariant: `held` is never more than `limit`, and equals the bytes that were reserved and
/// not released.
#[derive(Debug)]
pub struct BufferMemory {
    limit: AtomicU64,
    held: AtomicU64,
}

impl BufferMemory {
    /// A memory with nothing held.
    pub fn new(limit_bytes: u64) -> Self {
        BufferMemory {
            limit: AtomicU64::new(limit_bytes),
            held: AtomicU64::new(0),
        }
    }

    /// Takes `len` bytes of it; `false`, and nothing taken, where fewer are left.
    pub fn try_reserve(&self, len: u64) -> bool {
        let limit = self.limit();
        let within = |held: u64| held.checked_add(len).filter(|sum| *sum <= limit);
        self.held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within)
            .is_ok()
    }

    /// Releases bytes taken by [`try_reserve`](Self::try_reserve).
    pub fn release(&self, len: u64) {
        self.held.fetch_sub(len, Ordering::Relaxed);
    }

    /// Bytes that are held.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Bytes that may be held.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the limit of held bytes. Bytes that are already held may exceed it.
    pub fn set_limit(&self, limit_bytes: u64) {
        self.limit.store(limit_bytes, Ordering::Relaxed);
    }
}
