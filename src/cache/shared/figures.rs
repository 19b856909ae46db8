//! Figures of the shared tier. Any thread counts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use evenkeel_metrics::family::Reading;
use evenkeel_metrics::{ReasonCounts, Reasons, figures};

use super::outcome::Outcome;

/// The counts of the tier.
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

figures! {
    /// Figures of the shared tier.
    figures SharedFigures;

    /// The server, without its password.
    given server: String;
    /// 1 while the shared server is in use.
    given up: bool => gauge "up";
    /// Why it is not.
    given failure: Option<String>;
    /// Lookups at the shared server, by result.
    given lookups: Reasons => counter "lookups_total", |it| by_outcome(&it.lookups);
    /// Responses for the shared server, by result.
    given stores: Reasons => counter "stores_total", |it| by_outcome(&it.stores);
    /// Times that the shared server went down, by reason.
    given downs: Reasons => counter "downs_total";
    /// Times that the shared server came up.
    given ups: u64 => counter "ups_total";
    /// Probes of the shared server while it was down.
    given probes: u64 => counter "probes_total";
    /// Keys that were removed at the shared server.
    given removals: u64 => counter "removals_total";
    /// Purges of this machine sent to the others.
    given purges_sent: u64 => counter "purges_sent_total";
    /// Purges of other machines.
    given purges_received: u64 => counter "purges_received_total";
    /// Times that everything stored here was purged, because purges of others were missed.
    given purged_unknown: u64 => counter "purged_unknown_total";
    /// Purges of this machine not yet sent to the others.
    given purges_waiting: u64 => gauge "purges_waiting";
    /// Lookups that wait for the shared server.
    given waiting: u64 => gauge "lookups_waiting";
    /// Bytes of responses that wait to be stored at the shared server.
    given store_queue_bytes: u64 => gauge "queue_bytes";
    /// Bytes of responses that came from the shared server.
    given received_bytes: u64 => counter "received_bytes_total";
    /// Bytes of responses sent to the shared server.
    given sent_bytes: u64 => counter "sent_bytes_total";
}

fn by_outcome(counts: &Reasons) -> Reading<'_> {
    let label = "outcome";
    Reading::Reasons { label, counts }
}

impl SharedFigures {
    /// All that is counted, by the name of its family; a word besides where it goes by
    /// outcome.
    pub fn counts(&mut self) -> impl Iterator<Item = ([&'static str; 2], &mut u64)> {
        let counts = [
            ("ups", &mut self.ups),
            ("probes", &mut self.probes),
            ("removals", &mut self.removals),
            ("purges_sent", &mut self.purges_sent),
            ("purges_received", &mut self.purges_received),
            ("purged_unknown", &mut self.purged_unknown),
            ("received_bytes", &mut self.received_bytes),
            ("sent_bytes", &mut self.sent_bytes),
        ];
        let counts = counts.into_iter().map(|(name, count)| ([name, ""], count));
        let by_word = [
            ("lookups", &mut self.lookups),
            ("stores", &mut self.stores),
            ("downs", &mut self.downs),
        ];
        let by_word = by_word.into_iter().flat_map(|(name, counts)| {
            let counts = counts.iter_mut();
            counts.map(move |(word, count)| ([name, word], count))
        });
        counts.chain(by_word)
    }
}
