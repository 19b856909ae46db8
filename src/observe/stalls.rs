//! Workers that are stuck. The control thread writes the counts, and readers ask.

use std::sync::atomic::{AtomicU64, Ordering};

/// Workers whose event loop did not come round within a second.
#[derive(Debug, Default)]
pub struct WorkerStalls {
    now: AtomicU64,
    so_far: AtomicU64,
}

impl WorkerStalls {
    /// Sets the number of stuck workers, and adds those that got stuck since the last look.
    pub fn note(&self, now: u64, more: u64) {
        self.now.store(now, Ordering::Relaxed);
        self.so_far.fetch_add(more, Ordering::Relaxed);
    }

    /// Adds the count of the process before an upgrade.
    pub fn add(&self, count: u64) {
        self.so_far.fetch_add(count, Ordering::Relaxed);
    }

    /// Workers that are stuck now.
    pub fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// Times that a worker was stuck for a second or longer.
    pub fn so_far(&self) -> u64 {
        self.so_far.load(Ordering::Relaxed)
    }
}
