//! An origin's counters, readable from any thread while it runs.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Figures of an origin at one moment. `/origin/stats` shows them as JSON and
/// is not itself counted as a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OriginStats {
    /// The origin's name.
    pub name: String,
    /// Requests whose head has arrived.
    pub requests: u64,
    /// Requests whose head has arrived, whose answer is not complete and whose
    /// sender is still there.
    pub in_flight: u64,
    /// The most requests in flight at any moment.
    pub max_in_flight: u64,
    /// Connections accepted.
    pub connections: u64,
    /// Connections open now.
    pub open_connections: u64,
    /// Requests whose sender closed its side, or broke the connection, before
    /// its answer was complete.
    pub aborted: u64,
    /// Requests that got one of the faults asked for.
    pub faults: u64,
    /// Bytes read from connections.
    pub bytes_received: u64,
    /// Bytes written to connections.
    pub bytes_sent: u64,
}

/// The counters behind [`OriginStats`]; written by the origin's thread alone.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) requests: AtomicU64,
    pub(super) in_flight: AtomicU64,
    pub(super) max_in_flight: AtomicU64,
    pub(super) connections: AtomicU64,
    pub(super) open_connections: AtomicU64,
    pub(super) aborted: AtomicU64,
    pub(super) faults: AtomicU64,
    pub(super) bytes_received: AtomicU64,
    pub(super) bytes_sent: AtomicU64,
}

impl Counters {
    /// Counts a request in flight until it ends.
    pub(super) fn request_begins(&self) {
        let now = self.in_flight.fetch_add(1, Relaxed) + 1;
        self.max_in_flight.fetch_max(now, Relaxed);
    }

    pub(super) fn request_ends(&self) {
        self.in_flight.fetch_sub(1, Relaxed);
    }

    /// Counts a connection, open for as long as the result lives.
    pub(super) fn connection_opens(&self) -> Raised<'_> {
        self.connections.fetch_add(1, Relaxed);
        self.open_connections.fetch_add(1, Relaxed);
        Raised {
            gauge: &self.open_connections,
        }
    }

    pub(super) fn snapshot(&self, name: &str) -> OriginStats {
        OriginStats {
            name: name.to_owned(),
            requests: self.requests.load(Relaxed),
            in_flight: self.in_flight.load(Relaxed),
            max_in_flight: self.max_in_flight.load(Relaxed),
            connections: self.connections.load(Relaxed),
            open_connections: self.open_connections.load(Relaxed),
            aborted: self.aborted.load(Relaxed),
            faults: self.faults.load(Relaxed),
            bytes_received: self.bytes_received.load(Relaxed),
            bytes_sent: self.bytes_sent.load(Relaxed),
        }
    }
}

/// A gauge raised by one, lowered again on drop.
pub(super) struct Raised<'a> {
    gauge: &'a AtomicU64,
}

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.gauge.fetch_sub(1, Relaxed);
    }
}
