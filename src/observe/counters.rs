//! What each worker counts; readers add the workers up.

use evenkeel_metrics::histogram::Histogram;
use evenkeel_metrics::{Counter, EndCounters, Gauge, Lazy};

use crate::config::Config;

/// Counters of one worker; the indices are those of the configuration.
#[derive(Debug)]
pub struct Counters {
    /// Per listener.
    pub listeners: Vec<ListenerCounters>,
    /// Per route.
    pub routes: Vec<Lazy<ExchangeCounters>>,
    /// Per route: those of its files, where it serves any.
    pub files: Vec<FileCounters>,
    /// Files kept open.
    pub open_files: Gauge,
    /// Per upstream.
    pub upstreams: Vec<UpstreamCounters>,
    /// Access log lines that found no room.
    pub log_lines_dropped: Counter,
    /// Spans for which the exporter had no room.
    pub spans_dropped: Counter,
    /// By how much the event loop's ticks came late, in microseconds.
    pub loop_lag_us: Histogram,
}

/// What exchanges took: times in microseconds, sizes in bytes.
///
/// A phase that an exchange did not reach is not counted.
#[derive(Debug, Default)]
pub struct Phases {
    /// In the upstream's queue.
    pub queue_us: Histogram,
    /// Opening a connection.
    pub connect_us: Histogram,
    /// From the request sent to the response's head received.
    pub first_byte_us: Histogram,
    /// From the head's first byte to the exchange's end.
    pub total_us: Histogram,
    /// The response, head and body.
    pub response_bytes: Histogram,
}

/// What is counted of exchanges, wherever they are counted.
#[derive(Debug, Default)]
pub struct ExchangeCounters {
    /// Exchanges, refused ones included.
    pub requests: Counter,
    /// Exchanges that failed: answered with 5xx (but for configured answers), or not
    /// whole by the endpoint's fault.
    pub errors: Counter,
    /// Bytes of request heads and bodies, as clients sent them.
    pub bytes_in: Counter,
    /// Bytes of response heads and bodies, as clients got them.
    pub bytes_out: Counter,
    /// Responses by class, as clients got them: index 1 for 1xx to 5 for 5xx.
    pub status: [Counter; 6],
    /// Exchanges by how they ended.
    pub ends: EndCounters,
    /// What they took. Of an upstream's, only of those that came to no
    /// endpoint: the others are with their last one.
    pub phases: Phases,
}

/// Counters of a listener.
#[derive(Debug, Default)]
pub struct ListenerCounters {
    /// Connections accepted.
    pub connections: Counter,
    /// Connections refused because of the limit on connections.
    pub connections_refused: Counter,
    /// Connections refused for want of file descriptors.
    pub connections_no_descriptor: Counter,
    /// Connections without a request that were closed to make room.
    pub connections_displaced: Counter,
    /// Times that accepting paused for want of file descriptors.
    pub accept_pauses: Counter,
    /// Bodies that were read on after the answer.
    pub drains: Counter,
    /// Of those the ones that went beyond the bounds.
    pub drains_cut: Counter,
    /// Connections open now.
    pub open: Gauge,
    /// Its exchanges.
    pub exchanges: ExchangeCounters,
}

/// Counters of a route's files.
#[derive(Debug, Default)]
pub struct FileCounters {
    /// Answers for which all that was needed was in memory.
    pub hot: Counter,
    /// Answers for which a disk was asked.
    pub cold: Counter,
}

/// Counters of an upstream.
#[derive(Debug, Default)]
pub struct UpstreamCounters {
    /// Exchanges that waited in the queue.
    pub queued: Counter,
    /// Attempts after the first of an exchange.
    pub retries: Counter,
    /// Retries that the budget did not allow.
    pub retries_refused: Counter,
    /// Bodies that streamed because the memory for buffers was used up.
    pub buffers_refused: Counter,
    /// The exchanges routed here.
    pub exchanges: Lazy<ExchangeCounters>,
    /// Per endpoint.
    pub endpoints: Vec<Lazy<EndpointCounters>>,
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
    /// Idle connections closed to make room.
    pub displaced: Counter,
    /// Attempts that brought no whole, valid response, by the endpoint's fault.
    pub failures: Counter,
    /// Responses by class: index 1 for 1xx to 5 for 5xx.
    pub status: [Counter; 6],
    /// Bytes sent to the endpoint.
    pub bytes_out: Counter,
    /// Bytes received from it.
    pub bytes_in: Counter,
    /// Connections in the idle pool, looked at once a second.
    pub idle: Gauge,
    /// Idle connections that belong to one client, looked at once a second.
    pub pinned: Gauge,
    /// What exchanges took whose last attempt was here.
    pub phases: Phases,
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
        let listeners = config.listeners.iter();
        let routes = config.routes.iter();
        let upstream = |upstream: &crate::config::Upstream| UpstreamCounters {
            endpoints: upstream.endpoints.iter().map(|_| Lazy::default()).collect(),
            ..UpstreamCounters::default()
        };
        Counters {
            listeners: listeners.map(|_| ListenerCounters::default()).collect(),
            files: routes.clone().map(|_| FileCounters::default()).collect(),
            open_files: Gauge::default(),
            routes: routes.map(|_| Lazy::default()).collect(),
            upstreams: config.upstreams.iter().map(upstream).collect(),
            log_lines_dropped: Counter::default(),
            spans_dropped: Counter::default(),
            loop_lag_us: Histogram::default(),
        }
    }
}
