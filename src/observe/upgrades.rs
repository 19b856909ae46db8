//! How often another process was to take over, and what only this process counts of
//! those before it. The control thread writes it, readers ask.

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

/// Tells the process that has taken over what is counted, and waits until it counts from
/// there.
pub struct Tell(Box<dyn Fn() + Send + Sync>);

impl Tell {
    /// Does it like this.
    pub fn new(tell: impl Fn() + Send + Sync + 'static) -> Self {
        Tell(Box::new(tell))
    }
}

impl fmt::Debug for Tell {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Tell")
    }
}

/// Upgrades so far.
#[derive(Debug)]
pub struct Upgrades {
    /// Once another process has taken over.
    tell: OnceLock<Tell>,
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
    /// Another process has taken over.
    pub fn note_done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Whoever is shown figures from now on is told nothing that the process that has
    /// taken over does not know: see [`tell`](Self::tell).
    pub fn tell_by(&self, tell: Tell) {
        // There is one that takes over.
        let _ = self.tell.set(tell);
    }

    /// Tells the process that has taken over, if one has, what is counted. To be called
    /// with figures that somebody is to see. May block for a moment.
    pub fn tell(&self) {
        if let Some(Tell(tell)) = self.tell.get() {
            tell();
        }
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
