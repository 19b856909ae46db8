//! Counters: each worker writes its own, readers add them up.
//!
//! A counter has one writer, so that an increment is a plain load and store
//! without a locked instruction.

use std::sync::atomic::{AtomicU64, Ordering};

use super::end::End;
use crate::config::Config;

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

/// Counters of one worker; the indices are those of the configuration.
#[derive(Debug)]
pub struct Counters {
    /// Per listener.
    pub listeners: Vec<ListenerCounters>,
    /// Per upstream.
    pub upstreams: Vec<UpstreamCounters>,
    /// Access log lines that found no room.
    pub log_lines_dropped: Counter,
}

/// Counters of a listener.
#[derive(Debug)]
pub struct ListenerCounters {
    /// Connections accepted.
    pub connections: Counter,
    /// Connections closed at once because of the limit on connections.
    pub connections_refused: Counter,
    /// Times that accepting paused for want of file descriptors.
    pub accept_pauses: Counter,
    /// Exchanges, refused ones included.
    pub requests: Counter,
    /// Bytes of request heads and bodies.
    pub bytes_in: Counter,
    /// Bytes of response heads and bodies.
    pub bytes_out: Counter,
    /// Responses by class: index 1 for 1xx to 5 for 5xx.
    pub status: [Counter; 6],
    /// Exchanges by how they ended, by [`End::index`].
    pub ends: Vec<Counter>,
}

/// Counters of an upstream.
#[derive(Debug)]
pub struct UpstreamCounters {
    /// Exchanges routed here.
    pub requests: Counter,
    /// Exchanges that waited in the queue.
    pub queued: Counter,
    /// Attempts after the first of an exchange.
    pub retries: Counter,
    /// Retries that the budget did not allow.
    pub retries_refused: Counter,
    /// Exchanges by how they ended, by [`End::index`].
    pub ends: Vec<Counter>,
    /// Per endpoint.
    pub endpoints: Vec<EndpointCounters>,
}

/// Counters of an endpoint.
#[derive(Debug, Default)]
pub struct EndpointCounters {
    /// Attempts made here.
    pub attempts: Counter,
    /// Connections opened.
    pub connects: Counter,
    /// Connections that could not be opened.
    pub connect_failures: Counter,
    /// Attempts on a connection from the idle pool.
    pub reuses: Counter,
    /// Idle connections found closed by the endpoint.
    pub stale: Counter,
    /// Attempts that brought no whole, valid response, by the endpoint's fault.
    pub failures: Counter,
    /// Responses by class: index 1 for 1xx to 5 for 5xx.
    pub status: [Counter; 6],
    /// Bytes sent to the endpoint.
    pub bytes_out: Counter,
    /// Bytes received from it.
    pub bytes_in: Counter,
}

fn ends() -> Vec<Counter> {
    (0..End::COUNT).map(|_| Counter::default()).collect()
}

/// Where a status is counted: its first digit, 0 for what is none.
pub fn status_class(status: u16) -> usize {
    match status {
        100..=599 => usize::from(status / 100),
        _ => 0,
    }
}

impl Counters {
    /// Counters at zero for everything in `config`.
    pub fn new(config: &Config) -> Self {
        let listener = |_| ListenerCounters {
            connections: Counter::default(),
            connections_refused: Counter::default(),
            accept_pauses: Counter::default(),
            requests: Counter::default(),
            bytes_in: Counter::default(),
            bytes_out: Counter::default(),
            status: Default::default(),
            ends: ends(),
        };
        let upstream = |upstream: &crate::config::Upstream| UpstreamCounters {
            requests: Counter::default(),
            queued: Counter::default(),
            retries: Counter::default(),
            retries_refused: Counter::default(),
            ends: ends(),
            endpoints: upstream
                .endpoints
                .iter()
                .map(|_| EndpointCounters::default())
                .collect(),
        };
        Counters {
            listeners: config.listeners.iter().map(listener).collect(),
            upstreams: config.upstreams.iter().map(upstream).collect(),
            log_lines_dropped: Counter::default(),
        }
    }
}
