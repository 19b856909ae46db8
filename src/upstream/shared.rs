//! An upstream as all workers share it: its dispatcher, and what each endpoint
//! has beyond its state.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_policy::Instant;
use evenkeel_policy::dispatch::Dispatcher;
use evenkeel_policy::endpoint::{EndpointId, EndpointSettings, EndpointState};
use evenkeel_policy::members::Members;
use evenkeel_policy::pool::SharedPool;

use super::pool::IdleStream;
use crate::config;
use crate::net::clock;

/// What the workers share of an upstream.
#[derive(Debug)]
pub struct SharedUpstream {
    dispatcher: Arc<Dispatcher>,
    /// Members, and endpoints that left and may still be in use, by id.
    by_id: Mutex<Vec<Option<Arc<SharedEndpoint>>>>,
    /// How idle connections are kept.
    pool: config::Pool,
    name: String,
}

/// What the workers share of an endpoint.
///
/// Invariant: whoever has a connection to the endpoint, or opens one, holds this. So
/// its id names no other endpoint meanwhile.
#[derive(Debug)]
pub struct SharedEndpoint {
    /// Its identity, load and health.
    pub state: Arc<EndpointState>,
    /// What the configuration says of it.
    pub settings: config::Endpoint,
    /// Idle connections that belong to all workers; `None` where it has no limit.
    pub pool: Option<Arc<SharedPool<IdleStream>>>,
}

impl SharedUpstream {
    /// An upstream with nothing in flight, and no connection.
    pub fn new(config: &config::Upstream) -> Self {
        let lanes: Vec<_> = config.lanes.iter().map(|lane| lane.max_in_flight).collect();
        let queue = config.queue.settings;
        let endpoints = config.endpoints.iter().map(policy_settings);
        let now = clock::now();
        let upstream = SharedUpstream {
            dispatcher: Arc::new(Dispatcher::new(
                endpoints,
                &lanes,
                queue,
                config.health,
                now,
            )),
            by_id: Mutex::default(),
            pool: config.pool.clone(),
            name: config.name.clone(),
        };
        upstream.add_members(&mut upstream.by_id(), &config.endpoints);
        upstream
    }

    /// Slots, the queue, and the health of endpoints.
    pub fn dispatcher(&self) -> &Arc<Dispatcher> {
        &self.dispatcher
    }

    /// How idle connections are kept.
    pub(super) fn pool(&self) -> &config::Pool {
        &self.pool
    }

    /// The endpoint with this id: a member, or one that left and is still in use.
    pub fn endpoint(&self, id: EndpointId) -> Option<Arc<SharedEndpoint>> {
        self.by_id().get(id.index())?.clone()
    }

    /// The members, in their order.
    pub fn members(&self) -> Vec<Arc<SharedEndpoint>> {
        let members = self.dispatcher.members();
        let ids = members.endpoints().iter().map(|it| it.id());
        ids.filter_map(|id| self.endpoint(id)).collect()
    }

    /// Makes these endpoints the members, in this order: see
    /// [`Dispatcher::replace_members`]. An endpoint that stays keeps its connections
    /// and its settings. To be called by one thread.
    pub fn replace_members(&self, endpoints: &[config::Endpoint], now: Instant) {
        // Held until all of them are here: a worker may have a slot before that.
        let mut by_id = self.by_id();
        let members = self.dispatcher.members();
        for endpoint in by_id.iter_mut() {
            endpoint.take_if(|it| is_unused(it, &members));
        }
        self.dispatcher
            .replace_members(endpoints.iter().map(policy_settings), now);
        self.add_members(&mut by_id, endpoints);
    }

    /// Adds what is not there yet of the members, which have these settings.
    fn add_members(
        &self,
        by_id: &mut Vec<Option<Arc<SharedEndpoint>>>,
        settings: &[config::Endpoint],
    ) {
        let members = self.dispatcher.members();
        for (state, settings) in members.endpoints().iter().zip(settings) {
            let index = state.id().index();
            if by_id.len() <= index {
                by_id.resize(index + 1, None);
            }
            let is_same = |it: &Arc<SharedEndpoint>| Arc::ptr_eq(&it.state, state);
            if !by_id[index].as_ref().is_some_and(is_same) {
                let pool = settings
                    .max_in_flight
                    .map(|_| SharedPool::new(self.pool.max_idle));
                by_id[index] = Some(Arc::new(SharedEndpoint {
                    state: state.clone(),
                    settings: settings.clone(),
                    pool: pool.map(Arc::new),
                }));
            }
        }
    }

    fn by_id(&self) -> MutexGuard<'_, Vec<Option<Arc<SharedEndpoint>>>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an endpoint left, and nobody has a slot or a connection there, or chooses
/// from older members that it is one of.
fn is_unused(endpoint: &Arc<SharedEndpoint>, members: &Members) -> bool {
    // The other one is the dispatcher's, which keeps it until its id is free.
    let is_held = Arc::strong_count(endpoint) > 1 || Arc::strong_count(&endpoint.state) > 2;
    let is_member = members.get(endpoint.state.id()).is_some();
    !is_member && !is_held && endpoint.state.in_flight() == 0
}

/// The upstreams of a configuration, in its order. An upstream that was there `before`
/// stays by its name, and its endpoints by theirs and their addresses.
pub fn shared_upstreams(
    config: &config::Config,
    before: &[Arc<SharedUpstream>],
    now: Instant,
) -> Vec<Arc<SharedUpstream>> {
    let before = before.iter().map(|it| (&*it.name, it));
    let before: HashMap<_, _> = before.collect();
    let upstreams = config.upstreams.iter().map(|upstream| {
        let Some(staying) = before.get(&*upstream.name) else {
            return Arc::new(SharedUpstream::new(upstream));
        };
        staying.replace_members(&upstream.endpoints, now);
        Arc::clone(staying)
    });
    upstreams.collect()
}

fn policy_settings(endpoint: &config::Endpoint) -> EndpointSettings<'_> {
    let mut fingerprint = DefaultHasher::new();
    endpoint.address.hash(&mut fingerprint);
    // Its connections are those of all workers, or of each.
    endpoint.max_in_flight.is_some().hash(&mut fingerprint);
    EndpointSettings {
        name: &endpoint.name,
        fingerprint: fingerprint.finish(),
        weight: endpoint.weight,
        max_in_flight: endpoint.max_in_flight,
        tier: endpoint.tier,
    }
}
