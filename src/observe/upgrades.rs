//! How often another process was to take over. The control thread writes it, readers
//! ask.

use std::sync::atomic::{AtomicU64, Ordering};

/// Upgrades so far.
#[derive(Debug, Default)]
pub struct Upgrades {
    failed: AtomicU64,
}

impl Upgrades {
    /// A program did not take over.
    pub fn note_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds what the process before an upgrade has counted.
    pub fn add(&self, failed: u64) {
        self.failed.fetch_add(failed, Ordering::Relaxed);
    }

    /// Times that a program did not take over.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }
}
