//! How often another configuration was asked for. The control thread writes it,
//! readers ask.

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

/// A configuration in force that goes back by itself unless it is confirmed.
#[derive(Debug, Clone)]
pub struct Unconfirmed {
    /// When.
    pub until: Instant,
    /// The hash of the configuration that comes back, as it is shown.
    pub back_to: String,
    /// The number of the generation that it was, and is kept as.
    pub back_to_generation: u32,
}

impl Reloads {
    /// Another configuration has come into force.
    pub fn note_done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// This one is in use from now on.
    pub fn begin(&self, config: LoadedConfig) {
        self.lock().push(config);
    }

    /// Nothing uses the one with this number any more.
    pub fn end(&self, generation: u32) {
        self.lock().retain(|it| it.generation != generation);
    }

    /// Those that are in use, the newest first.
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

    /// Whether the configuration in force is to be confirmed from now on.
    pub fn await_confirmation(&self, unconfirmed: Option<Unconfirmed>) {
        *self
            .unconfirmed
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = unconfirmed;
    }

    /// What becomes of the configuration in force unless it is confirmed; `None` where it
    /// stays.
    pub fn unconfirmed(&self) -> Option<Unconfirmed> {
        let unconfirmed = self.unconfirmed.lock();
        unconfirmed.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<LoadedConfig>> {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One was refused, and the one of before stayed; why, is one of the words of
    /// [`REFUSED`].
    pub fn note_refused(&self, word: &'static str) {
        self.refused.0.note(word);
    }

    /// One was not confirmed, and the one of before came back.
    pub fn note_reverted(&self) {
        self.reverted.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds what the process before an upgrade has counted.
    pub fn add(&self, done: u64, reverted: u64) {
        self.reverted.fetch_add(reverted, Ordering::Relaxed);
        self.done.fetch_add(done, Ordering::Relaxed);
    }

    /// Configurations that came into force after the first.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Configurations that went back, as nobody confirmed them.
    pub fn reverted(&self) -> u64 {
        self.reverted.load(Ordering::Relaxed)
    }

    /// Configurations that were refused.
    pub fn refused(&self) -> &ReasonCounts {
        &self.refused.0
    }
}
