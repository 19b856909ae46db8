//! Reloads of the configuration so far. The control thread writes, and readers ask.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::generation::{GenerationFigures, LoadedConfig};
use crate::metrics::ReasonCounts;

/// The words for why a reload was refused.
pub const REFUSED: [&str; 7] = [
    "mistakes",
    "no-file",
    "failed",
    "timeout",
    "unhealthy",
    "draining",
    "upgrading",
];

#[derive(Debug)]
struct Refused(ReasonCounts);

impl Default for Refused {
    fn default() -> Self {
        Refused(ReasonCounts::new(&REFUSED))
    }
}

/// Reloads so far.
#[derive(Debug, Default)]
pub struct Reloads {
    done: AtomicU64,
    refused: Refused,
    reverted: AtomicU64,
    alive: Mutex<Vec<LoadedConfig>>,
    unconfirmed: Mutex<Option<Unconfirmed>>,
}

/// A configuration in force that is rolled back unless it is confirmed.
#[derive(Debug, Clone)]
pub struct Unconfirmed {
    /// The deadline.
    pub until: Instant,
    /// The hash of the configuration that would come back, as it is shown.
    pub back_to: String,
    /// The number of that configuration's generation, which is kept.
    pub back_to_generation: u32,
}

impl Reloads {
    /// Counts a configuration that has come into force.
    pub fn note_done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a configuration that is now in use.
    pub fn begin(&self, config: LoadedConfig) {
        self.lock().push(config);
    }

    /// Removes the configuration with this number, which nothing uses any more.
    pub fn end(&self, generation: u32) {
        self.lock().retain(|it| it.generation != generation);
    }

    /// The configurations in use, the newest first.
    pub fn alive(&self) -> Vec<GenerationFigures> {
        let kept = self.unconfirmed().map(|it| it.back_to_generation);
        let alive = self.lock();
        let read = alive.iter().rev().map(|it| {
            let mut figures = it.read();
            figures.kept_until_confirmed = kept == Some(it.generation);
            figures
        });
        read.collect()
    }

    /// Sets whether the configuration in force has to be confirmed.
    pub fn await_confirmation(&self, unconfirmed: Option<Unconfirmed>) {
        *self
            .unconfirmed
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = unconfirmed;
    }

    /// The pending rollback of the configuration in force; `None` where it stays.
    pub fn unconfirmed(&self) -> Option<Unconfirmed> {
        let unconfirmed = self.unconfirmed.lock();
        unconfirmed.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<LoadedConfig>> {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a configuration that was refused, so that the one before stayed. `word` is one of
    /// [`REFUSED`].
    pub fn note_refused(&self, word: &'static str) {
        self.refused.0.note(word);
    }

    /// Counts a configuration that was not confirmed and was rolled back.
    pub fn note_reverted(&self) {
        self.reverted.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds the counts of the process before an upgrade.
    pub fn add(&self, done: u64, reverted: u64) {
        self.reverted.fetch_add(reverted, Ordering::Relaxed);
        self.done.fetch_add(done, Ordering::Relaxed);
    }

    /// Configurations that came into force after the first.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Configurations that were rolled back, as nobody confirmed them.
    pub fn reverted(&self) -> u64 {
        self.reverted.load(Ordering::Relaxed)
    }

    /// Configurations that were refused.
    pub fn refused(&self) -> &ReasonCounts {
        &self.refused.0
    }
}
