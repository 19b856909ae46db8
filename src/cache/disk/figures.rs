//! Figures of a store on a disk.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Shared;

/// State of a store, as operators see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
    /// The word for it in figures.
    pub fn word(self) -> &'static str {
        match self {
            Phase::Waiting => "waiting",
            Phase::Working => "working",
            Phase::Paused => "paused",
            Phase::Stopping => "stopping",
            Phase::Closed => "closed",
        }
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
    /// All of them.
    pub const ALL: [NotWritten; 6] = [
        NotWritten::QueueFull,
        NotWritten::Paused,
        NotWritten::NoFolder,
        NotWritten::TooLong,
        NotWritten::Vary,
        NotWritten::Purged,
    ];

    /// The word for it, in figures and in the event log.
    pub fn word(self) -> &'static str {
        match self {
            NotWritten::QueueFull => "queue_full",
            NotWritten::Paused => "paused",
            NotWritten::NoFolder => "no_folder",
            NotWritten::TooLong => "too_long",
            NotWritten::Vary => "vary",
            NotWritten::Purged => "purged",
        }
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
#[derive(Debug, Default)]
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
    not_written: [Counter; NotWritten::ALL.len()],
}

impl Counters {
    pub fn not_written(&self, reason: NotWritten) {
        self.not_written[reason as usize].add(1);
    }
}

/// Figures of a store at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskStoreFigures {
    /// Its state.
    pub phase: Phase,
    /// Whether the index is still being filled.
    pub is_loading: bool,
    /// Records that may be found.
    pub objects: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Bytes that its files may take.
    pub capacity_bytes: u64,
    /// Bytes of memory that the index takes.
    pub index_bytes: u64,
    /// Objects that wait to be written, and their bytes.
    pub queue: u64,
    /// Their bytes.
    pub queue_bytes: u64,
    /// Requests that were answered from it.
    pub hits: u64,
    /// Requests that it had nothing for.
    pub misses: u64,
    /// Objects that were written.
    pub written: u64,
    /// Objects that went to make room.
    pub evicted: u64,
    /// Objects that were written anew when their segment went.
    pub kept: u64,
    /// Records that were dropped because a byte of them had changed.
    pub damaged: u64,
    /// Records that were dropped because they could not be read.
    pub failed_reads: u64,
    /// Objects that were not written, by reason.
    pub not_written: [(NotWritten, u64); NotWritten::ALL.len()],
}

impl Shared {
    pub(super) fn figures(&self) -> DiskStoreFigures {
        let counters = &self.counters;
        let (queue, queue_bytes) = self.queue.load();
        DiskStoreFigures {
            phase: self.queue.phase(),
            is_loading: self.index.is_loading(),
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
            not_written: NotWritten::ALL.map(|reason| {
                let count = counters.not_written[reason as usize].value();
                (reason, count)
            }),
        }
    }
}
