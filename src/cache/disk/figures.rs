//! Figures of a store on a disk.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use evenkeel_metrics::family::Reading;
use evenkeel_metrics::{ReasonCounts, Reasons, figures};
use serde::Serialize;

use super::Shared;

/// State of a store, as operators see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Another process has the folder.
    #[default]
    Waiting,
    /// The store is read and written.
    Working,
    /// The store is read, and not written for a while: the disk fails, or is full.
    Paused,
    /// The writer writes the queue, and then gives up the folder.
    Stopping,
    /// The folder is given up.
    Closed,
}

impl Phase {
    /// The words for all of them.
    pub const WORDS: &'static [&'static str] =
        &["waiting", "working", "paused", "stopping", "closed"];

    /// The word for it in figures.
    pub fn word(self) -> &'static str {
        Phase::WORDS[self as usize]
    }
}

/// Why an object was not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotWritten {
    /// Too much waits to be written.
    QueueFull,
    /// The disk is full, read-only or failing.
    Paused,
    /// The store does not have its folder yet, or no longer.
    NoFolder,
    /// The record is longer than an eighth of the store.
    TooLong,
    /// The store has as many sets of names in `Vary` as it can tell apart.
    Vary,
    /// It was purged or removed while it waited.
    Purged,
}

impl NotWritten {
    /// The words for all of them.
    pub const WORDS: &'static [&'static str] = &[
        "queue_full",
        "paused",
        "no_folder",
        "too_long",
        "vary",
        "purged",
    ];

    /// The word for it, in figures and in the event log.
    pub fn word(self) -> &'static str {
        NotWritten::WORDS[self as usize]
    }
}

/// A count that all workers and the writer add to.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    pub fn set(&self, count: u64) {
        self.0.store(count, Relaxed);
    }

    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counters of a store.
#[derive(Debug)]
pub(super) struct Counters {
    pub hits: Counter,
    pub misses: Counter,
    pub written: Counter,
    pub evicted: Counter,
    pub kept: Counter,
    pub damaged: Counter,
    pub failed_reads: Counter,
    /// Bytes of all files; written by the writer.
    pub bytes: Counter,
    not_written: ReasonCounts,
}

impl Default for Counters {
    fn default() -> Self {
        Counters {
            hits: Counter::default(),
            misses: Counter::default(),
            written: Counter::default(),
            evicted: Counter::default(),
            kept: Counter::default(),
            damaged: Counter::default(),
            failed_reads: Counter::default(),
            bytes: Counter::default(),
            not_written: ReasonCounts::new(NotWritten::WORDS),
        }
    }
}

impl Counters {
    pub fn not_written(&self, reason: NotWritten) {
        self.not_written.note(reason.word());
    }
}

figures! {
    /// Figures of a store on a disk at one moment.
    figures DiskStoreFigures;

    /// 1 for the state that the disk of the cache is in, 0 for the others.
    given phase: Phase => gauge "state",
        |it| Reading::State { all: Phase::WORDS, is: it.phase.word() };
    /// 1 while the index of the disk is still being filled.
    given loading: bool => gauge "loading";
    /// Responses that may be found on the disk.
    given objects: u64 => gauge "responses";
    /// Bytes of the files of the cache.
    given bytes: u64 => gauge "bytes";
    /// Bytes that these files may take.
    given capacity_bytes: u64 => gauge "limit_bytes";
    /// Memory that the index of the disk takes.
    given index_bytes: u64 => gauge "index_bytes";
    /// Responses that wait to be written.
    given queue: u64 => gauge "queue_length";
    /// Bytes of responses that wait to be written.
    given queue_bytes: u64 => gauge "queue_bytes";
    /// Lookups on the disk that found a response.
    given hits: u64 => counter "hits_total";
    /// Lookups on the disk that found none.
    given misses: u64 => counter "misses_total";
    /// Responses that were written.
    given written: u64 => counter "written_total";
    /// Responses that made room for others.
    given evicted: u64 => counter "evicted_total";
    /// Responses written again because they were in use when their file was removed.
    given kept: u64 => counter "kept_total";
    /// Responses that were dropped because a byte of them had changed.
    given damaged: u64 => counter "damaged_total";
    /// Responses that were dropped because they could not be read.
    given failed_reads: u64 => counter "failed_reads_total";
    /// Responses that were not written, by reason.
    given not_written: Reasons => counter "not_written_total";
}

impl DiskStoreFigures {
    /// All that is counted, by name.
    pub fn counts(&mut self) -> impl Iterator<Item = (&'static str, &mut u64)> {
        let counts = [
            ("hits", &mut self.hits),
            ("misses", &mut self.misses),
            ("written", &mut self.written),
            ("evicted", &mut self.evicted),
            ("kept", &mut self.kept),
            ("damaged", &mut self.damaged),
            ("failed_reads", &mut self.failed_reads),
        ];
        counts.into_iter().chain(self.not_written.iter_mut())
    }
}

impl Shared {
    pub(super) fn figures(&self) -> DiskStoreFigures {
        let counters = &self.counters;
        let (queue, queue_bytes) = self.queue.load();
        DiskStoreFigures {
            phase: self.queue.phase(),
            loading: self.index.is_loading(),
            objects: self.index.records(),
            bytes: counters.bytes.value(),
            capacity_bytes: self.capacity_bytes,
            index_bytes: self.index.bytes() as u64,
            queue: queue as u64,
            queue_bytes: queue_bytes as u64,
            hits: counters.hits.value(),
            misses: counters.misses.value(),
            written: counters.written.value(),
            evicted: counters.evicted.value(),
            kept: counters.kept.value(),
            damaged: counters.damaged.value(),
            failed_reads: counters.failed_reads.value(),
            not_written: counters.not_written.read(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_where_their_values_do() {
        assert_eq!(Phase::WORDS[Phase::Closed as usize], "closed");
        assert_eq!(Phase::WORDS.len(), Phase::Closed as usize + 1);
        assert_eq!(NotWritten::Vary.word(), "vary");
        assert_eq!(NotWritten::WORDS.len(), NotWritten::Purged as usize + 1);
    }
}
