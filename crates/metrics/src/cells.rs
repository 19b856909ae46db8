//! Cells: one worker writes each, anybody reads it.
//!
//! A cell has one writer, so that an increment is a plain load and store
//! without a locked instruction.

use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_proto::grpc;

use crate::end::End;

/// A count that one worker writes and anybody reads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`; only the worker that owns the counter may.
    pub fn add(&self, count: u64) {
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(count);
        self.0.store(sum, Ordering::Relaxed);
    }

    /// The count so far.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down: one worker sets it and anybody reads it.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Sets it; only the worker that owns the gauge may.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The value that was set last.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Exchanges by how they ended, by [`End::index`].
#[derive(Debug)]
pub struct EndCounters([Counter; End::COUNT]);

/// Statuses of gRPC that have a name, and all others.
pub(crate) const GRPC_STATUSES: usize = grpc::STATUSES + 1;

/// Calls of gRPC by their status.
#[derive(Debug)]
pub struct GrpcCounters([Counter; GRPC_STATUSES]);

impl GrpcCounters {
    /// The counter of a status.
    pub fn of(&self, status: u32) -> &Counter {
        let index = usize::try_from(status).unwrap_or(usize::MAX);
        &self.0[index.min(GRPC_STATUSES - 1)]
    }
}

impl Default for GrpcCounters {
    fn default() -> Self {
        GrpcCounters(std::array::from_fn(|_| Counter::default()))
    }
}

impl Deref for GrpcCounters {
    type Target = [Counter];

    fn deref(&self) -> &[Counter] {
        &self.0
    }
}

impl Default for EndCounters {
    fn default() -> Self {
        EndCounters(std::array::from_fn(|_| Counter::default()))
    }
}

impl Deref for EndCounters {
    type Target = [Counter; End::COUNT];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// Cells that are allocated when their writer first uses them. Cells that were
/// never used take two words.
///
/// Readers need no lock: they see the cells once they are there.
#[derive(Debug, Default)]
pub struct Lazy<T>(OnceLock<Box<T>>);

impl<T: Default> Lazy<T> {
    /// The cells, for their writer.
    pub fn get_or_init(&self) -> &T {
        #[cold]
        fn allocate<T: Default>() -> Box<T> {
            Box::default()
        }
        self.0.get_or_init(allocate)
    }

    /// The cells, for readers; `None` for cells that were never used.
    pub fn get(&self) -> Option<&T> {
        self.0.get().map(|it| &**it)
    }
}
