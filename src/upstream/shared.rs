//! An upstream as all workers share it: its dispatcher, and the shared parts of its endpoints
//! beside their state.
//!
//! An upstream that stays takes over the settings of another configuration
//! ([`SharedUpstream::follow`]). It loses nothing: waiters keep their places, and endpoints keep
//! their load, health and connections.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_policy::Instant;
use evenkeel_policy::dispatch::{Dispatcher, LaneSettings};
use evenkeel_policy::endpoint::{EndpointId, EndpointSettings, EndpointState};
use evenkeel_policy::members::Members;
use evenkeel_policy::pool::SharedPool;

use super::change::log_change;
use super::pool::IdleStream;
use crate::certificates::{EndpointTls, UpstreamTls};
use crate::config;
use crate::net::clock;

/// Weights that are named one by one in a sentence.
const MOST_SHOWN: usize = 8;

/// The part of an upstream that workers share.
#[derive(Debug)]
pub struct SharedUpstream {
    dispatcher: Arc<Dispatcher>,
    /// Members, and endpoints that left and may still be in use, by id.
    by_id: Mutex<Vec<Option<Arc<SharedEndpoint>>>>,
    /// Changed by one thread.
    followed: Mutex<Followed>,
    name: String,
}

/// The settings that an upstream follows.
#[derive(Debug)]
struct Followed {
    /// How the configuration writes the source of its endpoints.
    listed: String,
    /// The members, with the weights and limits that they were given.
    given: Vec<config::Endpoint>,
    /// How idle connections are kept.
    pool: config::Pool,
    /// How connections are secured; `None` for plain text.
    tls: Option<Arc<UpstreamTls>>,
    is_probed: bool,
}

impl Followed {
    fn new(config: &config::Upstream) -> Self {
        Followed {
            listed: config.listed.clone(),
            given: config.endpoints.clone(),
            pool: config.pool.clone(),
            tls: UpstreamTls::following(config, None),
            is_probed: config.probe.is_some(),
        }
    }
}

/// The part of an endpoint that workers share.
///
/// Invariant: the owner of a connection to the endpoint, or of an attempt to open one, holds
/// this. So its id names no other endpoint meanwhile.
#[derive(Debug)]
pub struct SharedEndpoint {
    /// Its identity, load and health.
    pub state: Arc<EndpointState>,
    /// Its settings when it began. The name and the address stay. The present weight and limit
    /// are those of `state`.
    pub settings: config::Endpoint,
    /// Idle connections that belong to all workers; `None` where it has no limit.
    pub pool: Option<Arc<SharedPool<IdleStream>>>,
    /// How connections to it are secured; `None` for plain text.
    pub tls: Option<EndpointTls>,
    is_superseded: AtomicBool,
}

impl SharedEndpoint {
    /// Whether another one has the endpoint's state.
    ///
    /// That happens when connections of each worker become those of all workers, or the reverse.
    /// It also happens when their TLS changes.
    pub fn is_superseded(&self) -> bool {
        self.is_superseded.load(Ordering::Relaxed)
    }

    /// Whether its connections are secured like this, under the name of these settings.
    fn has_tls(&self, tls: Option<&Arc<UpstreamTls>>, settings: &config::Endpoint) -> bool {
        match (&self.tls, tls) {
            (None, None) => true,
            (Some(own), Some(tls)) => {
                own.is_of(tls) && self.settings.authority() == settings.authority()
            }
            (None, Some(_)) | (Some(_), None) => false,
        }
    }
}

impl SharedUpstream {
    /// An upstream with nothing in flight, and no connection.
    pub fn new(config: &config::Upstream) -> Self {
        let lanes = lane_settings(config);
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
            followed: Mutex::new(Followed::new(config)),
            name: config.name.clone(),
        };
        let tls = upstream.tls();
        upstream.add_members(
            &mut upstream.by_id(),
            &config.endpoints,
            &config.pool,
            tls.as_ref(),
        );
        upstream
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Slots, the queue, and the health of endpoints.
    pub fn dispatcher(&self) -> &Arc<Dispatcher> {
        &self.dispatcher
    }

    /// Whether its endpoints are probed.
    pub fn is_probed(&self) -> bool {
        self.followed().is_probed
    }

    /// How connections to its endpoints are secured; `None` for plain text.
    pub fn tls(&self) -> Option<Arc<UpstreamTls>> {
        self.followed().tls.clone()
    }

    /// How idle connections are kept.
    pub(super) fn pool(&self) -> config::Pool {
        self.followed().pool.clone()
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

    /// Members whose weight was changed at run time.
    pub fn reweighted(&self) -> Vec<Arc<EndpointState>> {
        let followed = self.followed();
        let given = followed.given.iter().map(|it| (&*it.name, it.weight));
        let given: HashMap<&str, u32> = given.collect();
        let members = self.dispatcher.members();
        let is_changed = |it: &&Arc<EndpointState>| {
            let given = given.get(it.name());
            given.is_some_and(|given| *given != it.weight())
        };
        members
            .endpoints()
            .iter()
            .filter(is_changed)
            .cloned()
            .collect()
    }

    /// The same in a few words; `None` where there are none.
    pub fn reweighted_summary(&self) -> Option<String> {
        let all = self.reweighted();
        let shown = all.iter().take(MOST_SHOWN);
        let shown = shown.map(|it| format!("weight {} of {}", it.weight(), it.name()));
        let mut shown: Vec<_> = shown.collect();
        if all.len() > MOST_SHOWN {
            shown.push(format!("{} further weights", all.len() - MOST_SHOWN));
        }
        (!shown.is_empty()).then(|| shown.join(", "))
    }

    /// Goes on with another configuration of this upstream. To be called by one thread.
    ///
    /// If the list of endpoints is as before, members, weights and limits stay as they are, even
    /// if they were changed at run time. Another list holds as a whole. [`Dispatcher::configure`]
    /// says what becomes of waiters. Without probes, endpoints that they had put out come back.
    /// With another TLS, idle connections are closed.
    pub fn follow(&self, config: &config::Upstream, now: Instant) {
        let queue = config.queue.settings;
        self.dispatcher
            .configure(&lane_settings(config), queue, config.health, now);
        let tls = UpstreamTls::following(config, self.tls().as_ref());
        let (is_listed, was_probed) = {
            let mut followed = self.followed();
            followed.tls = tls;
            followed.pool = config.pool.clone();
            let is_listed = followed.listed == config.listed;
            followed.listed.clone_from(&config.listed);
            let is_probed = config.probe.is_some();
            (
                is_listed,
                std::mem::replace(&mut followed.is_probed, is_probed),
            )
        };
        if was_probed && config.probe.is_none() {
            for (endpoint, change) in self.dispatcher.forget_probes(now) {
                log_change(&self.name, endpoint.name(), &change, None);
            }
        }
        if is_listed {
            let Followed {
                given, pool, tls, ..
            } = &*self.followed();
            self.add_members(&mut self.by_id(), given, pool, tls.as_ref());
        } else {
            if let Some(lost) = self.reweighted_summary() {
                let upstream = &self.name;
                tracing::warn!(
                    upstream,
                    "upstream {upstream}: the configuration lists other endpoints than the ones \
                     the operator changed; the changes are lost: {lost}"
                );
            }
            self.replace_members(&config.endpoints, now);
            let members = self.dispatcher.members();
            for (state, settings) in members.endpoints().iter().zip(&config.endpoints) {
                if state.weight() != settings.weight {
                    self.dispatcher.set_weight(state, settings.weight, now);
                }
            }
        }
    }

    /// Makes these endpoints the members, in this order: see [`Dispatcher::replace_members`]. To
    /// be called by one thread.
    ///
    /// An endpoint that stays keeps its connections. It takes over a weight or a limit that
    /// differs from the last given one. So a weight that was set at run time stays.
    ///
    /// Idle connections are closed if a limit appears or disappears: connections to an endpoint
    /// with a limit belong to all workers, others to one worker each.
    pub fn replace_members(&self, endpoints: &[config::Endpoint], now: Instant) {
        let mut followed = self.followed();
        let given = std::mem::replace(&mut followed.given, endpoints.to_vec());
        let (pool, tls) = (followed.pool.clone(), followed.tls.clone());
        drop(followed);
        self.put_members(endpoints, &pool, tls.as_ref(), now);
        let given: HashMap<&str, _> = given.iter().map(|it| (&*it.name, it)).collect();
        let members = self.dispatcher.members();
        for (state, settings) in members.endpoints().iter().zip(endpoints) {
            let Some(given) = given.get(&*settings.name) else {
                continue;
            };
            if given.weight != settings.weight {
                self.dispatcher.set_weight(state, settings.weight, now);
            }
            if given.max_in_flight != settings.max_in_flight {
                let limit = settings.max_in_flight;
                self.dispatcher.set_max_in_flight(state, limit, now);
            }
        }
    }

    fn put_members(
        &self,
        endpoints: &[config::Endpoint],
        pool: &config::Pool,
        tls: Option<&Arc<UpstreamTls>>,
        now: Instant,
    ) {
        // Held until all of them are here: a worker may have a slot before that.
        let mut by_id = self.by_id();
        let members = self.dispatcher.members();
        for endpoint in by_id.iter_mut() {
            endpoint.take_if(|it| is_unused(it, &members));
        }
        self.dispatcher
            .replace_members(endpoints.iter().map(policy_settings), now);
        self.add_members(&mut by_id, endpoints, pool, tls);
    }

    /// Adds the members that are not there yet, which have these settings.
    fn add_members(
        &self,
        by_id: &mut Vec<Option<Arc<SharedEndpoint>>>,
        settings: &[config::Endpoint],
        pool: &config::Pool,
        tls: Option<&Arc<UpstreamTls>>,
    ) {
        let members = self.dispatcher.members();
        for (state, settings) in members.endpoints().iter().zip(settings) {
            let index = state.id().index();
            if by_id.len() <= index {
                by_id.resize(index + 1, None);
            }
            let has_limit = settings.max_in_flight.is_some();
            let is_same = |it: &Arc<SharedEndpoint>| {
                Arc::ptr_eq(&it.state, state)
                    && it.pool.is_some() == has_limit
                    && it.has_tls(tls, settings)
            };
            if by_id[index].as_ref().is_some_and(is_same) {
                continue;
            }
            let pool = has_limit.then(|| Arc::new(SharedPool::new(pool.max_idle)));
            let new = Arc::new(SharedEndpoint {
                state: state.clone(),
                settings: settings.clone(),
                pool,
                tls: tls.map(|it| EndpointTls::new(it, settings)),
                is_superseded: AtomicBool::new(false),
            });
            if let Some(old) = by_id[index].replace(new) {
                old.is_superseded.store(true, Ordering::Relaxed);
            }
        }
    }

    fn followed(&self) -> MutexGuard<'_, Followed> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn by_id(&self) -> MutexGuard<'_, Vec<Option<Arc<SharedEndpoint>>>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an endpoint has left and is unused: no slot, no connection, and no older members with
/// it.
fn is_unused(endpoint: &Arc<SharedEndpoint>, members: &Members) -> bool {
    // The other one is the dispatcher's, which keeps it until its id is free.
    let is_held = Arc::strong_count(endpoint) > 1 || Arc::strong_count(&endpoint.state) > 2;
    let is_member = members.get(endpoint.state.id()).is_some();
    !is_member && !is_held && endpoint.state.in_flight() == 0
}

/// The upstreams of a configuration, in its order.
///
/// An upstream that was there `before` stays by its name, and its endpoints by their names and
/// addresses. It follows the configuration at once: see [`SharedUpstream::follow`].
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
        staying.follow(upstream, now);
        Arc::clone(staying)
    });
    upstreams.collect()
}

fn lane_settings(config: &config::Upstream) -> Vec<LaneSettings<'_>> {
    let lanes = config.lanes.iter().map(|lane| LaneSettings {
        name: &lane.name,
        max_in_flight: lane.max_in_flight,
    });
    lanes.collect()
}

fn policy_settings(endpoint: &config::Endpoint) -> EndpointSettings<'_> {
    let mut fingerprint = DefaultHasher::new();
    endpoint.address.hash(&mut fingerprint);
    EndpointSettings {
        name: &endpoint.name,
        fingerprint: fingerprint.finish(),
        weight: endpoint.weight,
        max_in_flight: endpoint.max_in_flight,
        tier: endpoint.tier,
    }
}
