//! What each worker counts; readers add the workers up.
//!
//! The tables beside it say what each cell is.

use evenkeel_metrics::{Counter, Lazy};

pub use super::WorkerCounters;
pub use super::endpoint::EndpointCounters;
pub use super::exchanges::{ExchangeCounters, Phases};
pub use super::listener::ListenerCounters;
pub use super::route::{FileCounters, RouteCounters};
pub use super::upstream::UpstreamCounters;
use crate::config::Config;

/// Counters of one worker; the indices are those of the configuration.
#[derive(Debug)]
pub struct Counters {
    /// Those of the worker itself.
    pub own: WorkerCounters,
    /// Spans for which the exporter had no room.
    pub spans_dropped: Counter,
    /// Per listener.
    pub listeners: Vec<ListenerCounters>,
    /// Per route.
    pub routes: Vec<RouteCounters>,
    /// Per route: those of its files, where it serves any.
    pub files: Vec<FileCounters>,
    /// Per upstream.
    pub upstreams: Vec<UpstreamCounters>,
    /// Per upstream and endpoint.
    pub endpoints: Vec<Vec<Lazy<EndpointCounters>>>,
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
        let upstreams = config.upstreams.iter();
        Counters {
            own: WorkerCounters::default(),
            spans_dropped: Counter::default(),
            listeners: zero(config.listeners.len()),
            routes: zero(config.routes.len()),
            files: zero(config.routes.len()),
            upstreams: zero(config.upstreams.len()),
            endpoints: upstreams.map(|it| zero(it.endpoints.len())).collect(),
        }
    }
}

fn zero<T: Default>(count: usize) -> Vec<T> {
    (0..count).map(|_| T::default()).collect()
}
