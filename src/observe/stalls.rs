//! How many workers do not come round. The control thread writes it, readers ask.

use std::sync::atomic::{AtomicU64, Ordering};

/// Workers that did not come round within a second.
#[derive(Debug, Default)]
pub struct WorkerStalls {
    now: AtomicU64,
    so_far: AtomicU64,
}

impl WorkerStalls {
    /// So many are stalled now, so many of them since the last look.
    pub fn note(&self, now: u64, more: u64) {
        self.now.store(now, Ordering::Relaxed);
        self.so_far.fetch_add(more, Ordering::Relaxed);
    }

    /// Adds what the process before an upgrade has counted.
    pub fn add(&self, count: u64) {
        self.so_far.fetch_add(count, Ordering::Relaxed);
    }

    /// Workers that do not come round now.
    pub fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// Times that a worker did not come round within a second.
    pub fn so_far(&self) -> u64 {
        self.so_far.load(Ordering::Relaxed)
    }
}
