//! One worker's side of an endpoint, and of all endpoints of an upstream.

use std::rc::Rc;
use std::sync::Arc;

use evenkeel_policy::endpoint::{EndpointId, EndpointState, Flag};

use super::http2::Http2Pool;
use super::pool::Pool;
use super::shared::{SharedEndpoint, SharedUpstream};
use crate::certificates::EndpointTls;
use crate::config;
use crate::net::descriptors::Taker;
use crate::observe::counters::{CountersByEndpoint, EndpointCounters};

/// One worker's side of an endpoint: the shared part, and the idle connections that this worker
/// may take.
#[derive(Debug)]
pub struct Endpoint {
    shared: Arc<SharedEndpoint>,
    /// The id of its state, copied: all workers write to the state's cache line.
    id: EndpointId,
    identity: u64,
    pub(super) pool: Pool,
    /// Connections of HTTP/2, of this worker.
    http2: Http2Pool,
    counters: Arc<EndpointCounters>,
}

impl Endpoint {
    fn new(
        shared: Arc<SharedEndpoint>,
        settings: &config::Pool,
        counters: &CountersByEndpoint,
    ) -> Self {
        Endpoint {
            pool: Pool::new(settings, shared.pool.as_ref()),
            http2: Http2Pool::new(settings),
            counters: counters.begin(&shared.state),
            id: shared.state.id(),
            identity: shared.state.identity(),
            shared,
        }
    }

    /// Its id within the upstream.
    pub fn id(&self) -> EndpointId {
        self.id
    }

    /// Tells it from another that has its id later.
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// Its load and health, of all workers.
    pub fn state(&self) -> &EndpointState {
        &self.shared.state
    }

    /// Its settings when it began. The name and the address stay. The present weight and limit
    /// are those of its [state](Self::state).
    pub fn config(&self) -> &config::Endpoint {
        &self.shared.settings
    }

    /// How connections to it are secured; `None` for plain text.
    pub fn tls(&self) -> Option<&EndpointTls> {
        self.shared.tls.as_ref()
    }

    /// This worker's counters of it.
    pub fn counters(&self) -> &EndpointCounters {
        &self.counters
    }

    /// Its connections of HTTP/2 that this worker has.
    pub fn http2(&self) -> &Http2Pool {
        &self.http2
    }

    /// Idle connections that this worker watches, without pinned ones.
    pub fn idle_count(&self) -> usize {
        self.pool.len() + self.http2.idle_count()
    }

    /// Idle connections that are pinned to clients of this worker.
    pub fn pinned_count(&self) -> usize {
        self.pool.pinned_len()
    }

    /// How many idle connections have a descriptor that a taker may have.
    pub fn idle_count_for(&self, taker: Taker) -> usize {
        self.pool.len_for(taker) + self.http2.idle_count()
    }

    /// Closes idle connections whose descriptors a taker may have, the oldest first
    /// and at most so many; how many.
    pub fn close_oldest_idle(&self, most: usize, taker: Taker) -> usize {
        let closed = self.pool.close_oldest(most, taker);
        closed + self.http2.close_idle(most - closed)
    }

    /// Closes idle connections that are too old or that the endpoint closed. Closes all of an
    /// endpoint that is no member any more.
    fn sweep(&self, now: u64) {
        if self.state().has(Flag::Removed) {
            self.close();
        } else {
            self.pool.sweep(self.state(), now);
            self.http2.sweep();
        }
    }

    /// Closes idle connections now, and the others once their exchanges have ended.
    fn close(&self) {
        self.pool.close();
        self.http2.close();
    }

    /// Whether workers have to begin with it again: see [`SharedEndpoint::is_superseded`].
    pub(super) fn is_superseded(&self) -> bool {
        self.shared.is_superseded()
    }

    /// Clears the gauges of a forgotten endpoint: nothing else sets them any more.
    fn forget(&self) {
        self.counters.idle.set(0);
        self.counters.pinned.set(0);
        self.counters.http2.set(0);
    }
}

/// Whether an endpoint has left, and no exchange or connection of this worker holds it.
fn is_over(endpoint: &Rc<Endpoint>) -> bool {
    Rc::strong_count(endpoint) == 1 && endpoint.state().has(Flag::Removed)
}

/// One worker's side of the endpoints of an upstream: each that it has used.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    by_id: Vec<Option<Rc<Endpoint>>>,
}

impl Endpoints {
    /// The side of this endpoint, if the worker has used it.
    pub fn get(&self, id: EndpointId) -> Option<&Rc<Endpoint>> {
        self.by_id.get(id.index())?.as_ref()
    }

    /// Begins to use an endpoint that a slot is held at.
    #[cold]
    pub fn begin(
        &mut self,
        id: EndpointId,
        upstream: &SharedUpstream,
        counters: &CountersByEndpoint,
    ) -> Rc<Endpoint> {
        let shared = upstream.endpoint(id);
        let shared = shared.expect("an endpoint with a slot in flight is kept");
        let endpoint = Rc::new(Endpoint::new(shared, &upstream.pool(), counters));
        if self.by_id.len() <= id.index() {
            self.by_id.resize(id.index() + 1, None);
        }
        self.by_id[id.index()] = Some(endpoint.clone());
        endpoint
    }

    /// All that this worker has used.
    pub fn iter(&self) -> impl Iterator<Item = &Rc<Endpoint>> {
        self.by_id.iter().flatten()
    }

    /// Keeps idle connections as these settings say from now on.
    pub fn follow(&mut self, config: &config::Pool) {
        self.forget_superseded();
        for endpoint in self.iter() {
            endpoint.pool.follow(config);
            endpoint.http2.follow(config);
        }
    }

    /// Closes the idle connections of endpoints that now have another kind of pool or another
    /// TLS. Exchanges in flight end as they began, and their connections are closed.
    fn forget_superseded(&mut self) {
        for endpoint in &mut self.by_id {
            if let Some(endpoint) = endpoint.take_if(|it| it.is_superseded()) {
                endpoint.close();
                endpoint.forget();
            }
        }
    }

    /// Sweeps every pool, and forgets endpoints that left and are not used any more;
    /// `now` is the worker's tick.
    pub fn sweep(&mut self, now: u64) {
        self.forget_superseded();
        self.iter().for_each(|it| it.sweep(now));
        for endpoint in &mut self.by_id {
            if let Some(endpoint) = endpoint.take_if(|it| is_over(it)) {
                endpoint.forget();
            }
        }
    }
}
