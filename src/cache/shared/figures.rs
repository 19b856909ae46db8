//! Figures of the shared tier. Any thread counts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use evenkeel_metrics::{ReasonCounts, Reasons};

use super::outcome::Outcome;

/// What the tier counts.
#[derive(Debug)]
pub(super) struct Counters {
    pub lookups: ReasonCounts,
    pub stores: ReasonCounts,
    pub downs: ReasonCounts,
    pub ups: Count,
    pub probes: Count,
    pub removals: Count,
    pub purges_sent: Count,
    pub purges_received: Count,
    pub purged_unknown: Count,
    pub received_bytes: Count,
    pub sent_bytes: Count,
}

impl Default for Counters {
    fn default() -> Self {
        let reasons = || ReasonCounts::new(Outcome::WORDS);
        Counters {
            lookups: reasons(),
            stores: reasons(),
            downs: reasons(),
            ups: Count::default(),
            probes: Count::default(),
            removals: Count::default(),
            purges_sent: Count::default(),
            purges_received: Count::default(),
            purged_unknown: Count::default(),
            received_bytes: Count::default(),
            sent_bytes: Count::default(),
        }
    }
}

/// A count that any thread adds to.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Figures of the shared tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figures {
    /// The server, without its password.
    pub server: String,
    /// Whether the server is asked.
    pub is_up: bool,
    /// Why it is not.
    pub failure: Option<String>,
    /// Lookups, by what became of them.
    pub lookups: Reasons,
    /// Responses that were to be stored, by what became of them.
    pub stores: Reasons,
    /// How often the server came to be not asked, by why.
    pub downs: Reasons,
    /// How often it came to be asked.
    pub ups: u64,
    /// How often it was tried whether it answers again.
    pub probes: u64,
    /// Keys that were removed.
    pub removals: u64,
    /// Purges of this machine that the others were told.
    pub purges_sent: u64,
    /// Purges of other machines.
    pub purges_received: u64,
    /// How often everything stored here was purged, because purges were missed.
    pub purged_unknown: u64,
    /// Purges of this machine that the others were not told yet.
    pub purges_waiting: u64,
    /// Lookups that wait for an answer.
    pub waiting: u64,
    /// Bytes of responses that wait to be stored.
    pub store_queue_bytes: u64,
    /// Bytes of values that lookups found.
    pub received_bytes: u64,
    /// Bytes of values that were stored.
    pub sent_bytes: u64,
}
