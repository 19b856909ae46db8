//! What each worker counts; readers add the workers up.
//!
//! The tables beside it say what each cell is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_metrics::Counter;
use evenkeel_policy::endpoint::EndpointState;

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
    /// Per upstream: those of its endpoints.
    pub endpoints: Vec<CountersByEndpoint>,
}

/// One worker's counters of the endpoints of an upstream that it has used.
#[derive(Debug, Default)]
pub struct CountersByEndpoint(Mutex<Vec<Option<CountedEndpoint>>>);

/// An endpoint, as far as its counters go.
#[derive(Debug)]
struct CountedEndpoint {
    /// Tells it from another that has its id later.
    name: Box<str>,
    counters: Arc<EndpointCounters>,
}

impl CountersByEndpoint {
    /// Those of this endpoint, for their writer; at zero where it was never used.
    pub fn begin(&self, endpoint: &EndpointState) -> Arc<EndpointCounters> {
        let index = endpoint.id().index();
        let mut by_id = self.by_id();
        if by_id.len() <= index {
            by_id.resize_with(index + 1, || None);
        }
        let counted = by_id[index].take_if(|it| *it.name == *endpoint.name());
        let counted = counted.unwrap_or_else(|| CountedEndpoint {
            name: endpoint.name().into(),
            counters: Arc::default(),
        });
        by_id[index].insert(counted).counters.clone()
    }

    /// Those of this endpoint, for readers; `None` where it was never used.
    pub fn get(&self, endpoint: &EndpointState) -> Option<Arc<EndpointCounters>> {
        let by_id = self.by_id();
        let counted = by_id.get(endpoint.id().index())?.as_ref()?;
        (*counted.name == *endpoint.name()).then(|| counted.counters.clone())
    }

    /// Those of all endpoints that were used.
    pub fn all(&self) -> Vec<Arc<EndpointCounters>> {
        let by_id = self.by_id();
        by_id
            .iter()
            .flatten()
            .map(|it| it.counters.clone())
            .collect()
    }

    fn by_id(&self) -> MutexGuard<'_, Vec<Option<CountedEndpoint>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
        Counters {
            own: WorkerCounters::default(),
            spans_dropped: Counter::default(),
            listeners: zero(config.listeners.len()),
            routes: zero(config.routes.len()),
            files: zero(config.routes.len()),
            upstreams: zero(config.upstreams.len()),
            endpoints: zero(config.upstreams.len()),
        }
    }
}

fn zero<T: Default>(count: usize) -> Vec<T> {
    (0..count).map(|_| T::default()).collect()
}
