//! How often another process was to take over, and what only this process counts of
//! those before it. The control thread writes it, readers ask.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::metrics::{ReasonCounts, Reasons, Saved};

/// The words for why an upgrade failed.
pub const FAILED: [&str; 5] = ["not-started", "ended", "refused", "timeout", "stopping"];

/// Upgrades so far.
#[derive(Debug)]
pub struct Upgrades {
    done: AtomicU64,
    failed: ReasonCounts,
    /// Processor time of the processes before, in microseconds.
    cpu_us_before: AtomicU64,
}

impl Default for Upgrades {
    fn default() -> Self {
        Upgrades {
            done: AtomicU64::new(0),
            failed: ReasonCounts::new(&FAILED),
            cpu_us_before: AtomicU64::new(0),
        }
    }
}

impl Upgrades {
    /// Another process has taken over.
    pub fn note_done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// A program did not take over; why, is one of the words of [`FAILED`].
    pub fn note_failed(&self, word: &'static str) {
        self.failed.note(word);
    }

    /// Adds what the process before has counted, as far as it is more than `before`.
    pub fn add(&self, saved: &Saved, before: &Saved) {
        let more = |name| {
            let count = saved.of(name).value();
            count.saturating_sub(before.of(name).value())
        };
        self.done.fetch_add(more("done"), Ordering::Relaxed);
        self.cpu_us_before
            .fetch_add(more("cpu_us"), Ordering::Relaxed);
        self.failed.add(saved.of("failed"), before.of("failed"));
    }

    /// What was counted so far, with the processor time of all processes; `cpu_us` is
    /// that of this one.
    pub fn save(&self, cpu_us: u64) -> Saved {
        Saved::named([
            ("done", Saved::number(self.done())),
            ("failed", self.failed.save()),
            ("cpu_us", Saved::number(cpu_us + self.cpu_us_before())),
        ])
    }

    /// Times that another process has taken over.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Times that a program did not take over.
    pub fn failed(&self) -> Reasons {
        self.failed.read()
    }

    /// Processor time of the processes before, in microseconds.
    pub fn cpu_us_before(&self) -> u64 {
        self.cpu_us_before.load(Ordering::Relaxed)
    }
}
