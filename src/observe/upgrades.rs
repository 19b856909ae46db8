//! Upgrades so far, and the counts of earlier processes that only this process has. The control
//! thread writes, and readers ask.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::metrics::{ReasonCounts, Reasons, Saved};

/// The words for why an upgrade failed.
pub const FAILED: [&str; 6] = [
    "not-started",
    "ended",
    "refused",
    "timeout",
    "stopping",
    "panicked",
];

/// Reports the counts to the process that has taken over, and waits until it has them.
pub struct CountsReport(Box<dyn Fn() + Send + Sync>);

impl CountsReport {
    /// A report by this function.
    pub fn new(tell: impl Fn() + Send + Sync + 'static) -> Self {
        CountsReport(Box::new(tell))
    }
}

impl fmt::Debug for CountsReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("CountsReport")
    }
}

/// Upgrades so far.
#[derive(Debug)]
pub struct Upgrades {
    /// Once another process has taken over.
    tell: OnceLock<CountsReport>,
    done: AtomicU64,
    failed: ReasonCounts,
    /// Processor time of the processes before, in microseconds.
    cpu_us_before: AtomicU64,
}

impl Default for Upgrades {
    fn default() -> Self {
        Upgrades {
            tell: OnceLock::new(),
            done: AtomicU64::new(0),
            failed: ReasonCounts::new(&FAILED),
            cpu_us_before: AtomicU64::new(0),
        }
    }
}

impl Upgrades {
    /// Counts a process that has taken over.
    pub fn note_done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the report to the process that has taken over. From now on nobody is shown counts
    /// that it lacks: see [`tell`](Self::tell).
    pub fn tell_by(&self, tell: CountsReport) {
        // Only one process takes over.
        let _ = self.tell.set(tell);
    }

    /// Reports the counts to the process that has taken over, if there is one. To be called
    /// before figures are shown. May block for a moment.
    pub fn tell(&self) {
        if let Some(CountsReport(tell)) = self.tell.get() {
            tell();
        }
    }

    /// Counts a program that did not take over; `word` is one of [`FAILED`].
    pub fn note_failed(&self, word: &'static str) {
        self.failed.note(word);
    }

    /// Adds the increase of the counts of the process before, since the report `before`.
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

    /// All counts so far, with the processor time of all processes; `cpu_us` is that of this one.
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
