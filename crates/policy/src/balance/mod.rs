//! Balancers: which endpoint gets the next exchange.
//!
//! A balancer ranks and never reads limits; [`crate::dispatch`] asks it, then
//! reserves. Its state is per worker. Adding one: a file here, a variant in
//! [`Balance`] and in [`Balancer`], a section in the documentation.

mod random;
mod round_robin;
mod shortest_queue;

pub use random::Random;
pub use round_robin::RoundRobin;
pub use shortest_queue::ShortestQueue;

use std::time::{Duration, Instant};

use crate::endpoint::EndpointState;

/// The balancers by the name that the configuration uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Balance {
    /// A live endpoint at random, by weight.
    Random,
    /// Smooth weighted round-robin.
    #[default]
    RoundRobin,
    /// Least exchanges in flight; ties by round-robin.
    ShortestQueue,
}

/// The endpoints as a balancer sees them during one pick.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub(crate) endpoints: &'a [EndpointState],
    pub(crate) identities: &'a [u64],
    pub(crate) tried: &'a [u32],
    /// Hash of what a balancer by key goes by.
    pub key: u64,
    /// The present.
    pub now: Instant,
    /// Leave out endpoints at their limit: set by the order of work after a
    /// reservation failed, never read by a balancer.
    pub(crate) only_with_room: bool,
}

impl View<'_> {
    /// Number of endpoints, eligible or not.
    pub fn len(&self) -> usize {
        self.endpoints.len()
    }

    /// Whether the upstream has no endpoint.
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }

    /// Whether the endpoint may be picked.
    pub fn is_eligible(&self, index: usize) -> bool {
        let endpoint = &self.endpoints[index];
        endpoint.is_eligible()
            && (!self.only_with_room || endpoint.has_room())
            && !self.tried.contains(&(index as u32))
    }

    /// Exchanges in flight at the endpoint over all workers, and phantoms that
    /// stand for its failures.
    pub fn load(&self, index: usize) -> u32 {
        self.endpoints[index].load()
    }

    /// The endpoint's weight as it is now, in 256ths.
    pub fn weight(&self, index: usize) -> u32 {
        self.endpoints[index].effective_weight()
    }

    /// The endpoint's weight as configured.
    pub fn configured_weight(&self, index: usize) -> u32 {
        self.endpoints[index].weight()
    }

    /// Errors of the endpoint since its last success.
    pub fn errors_in_row(&self, index: usize) -> u16 {
        self.endpoints[index].errors_in_row()
    }

    /// Well-mixed hash of what the endpoint is known by.
    pub fn identity(&self, index: usize) -> u64 {
        self.identities[index]
    }
}

/// What a balancer learns from an attempt that is over.
#[derive(Debug, Clone, Copy)]
pub struct Observation {
    /// Index of the endpoint.
    pub endpoint: usize,
    /// The present.
    pub now: Instant,
    /// From the request's last byte to the response's first; `None` where it
    /// says nothing, as with tunnels and event streams.
    pub first_byte: Option<Duration>,
    /// Whether it failed: a 5xx, a timeout, a broken connection.
    pub is_error: bool,
}

/// A balancer with its per-worker state.
#[derive(Debug)]
pub enum Balancer {
    /// See [`Random`].
    Random(Random),
    /// See [`RoundRobin`].
    RoundRobin(RoundRobin),
    /// See [`ShortestQueue`].
    ShortestQueue(ShortestQueue),
}

impl Balancer {
    /// A balancer at its start; `seed` makes the workers differ.
    pub fn new(balance: Balance, seed: u64) -> Self {
        match balance {
            Balance::Random => Balancer::Random(Random::new(seed)),
            Balance::RoundRobin => Balancer::RoundRobin(RoundRobin::new(seed)),
            Balance::ShortestQueue => Balancer::ShortestQueue(ShortestQueue::new(seed)),
        }
    }

    /// The endpoint that should get the exchange, `None` if none is eligible.
    pub fn pick(&mut self, view: &View<'_>) -> Option<usize> {
        match self {
            Balancer::Random(balancer) => balancer.pick(view),
            Balancer::RoundRobin(balancer) => balancer.pick(view),
            Balancer::ShortestQueue(balancer) => balancer.pick(view),
        }
    }

    /// Learns from an attempt that is over.
    pub fn observe(&mut self, observation: &Observation) {
        let _ = observation;
        match self {
            Balancer::Random(_) | Balancer::RoundRobin(_) | Balancer::ShortestQueue(_) => {}
        }
    }

    /// Most exchanges in flight that the balancer itself allows the endpoint.
    pub fn cap(&self, view: &View<'_>, index: usize) -> u32 {
        let _ = (view, index);
        u32::MAX
    }

    /// Whether an exchange that finds no room is refused rather than queued.
    pub fn refuses_when_busy(&self) -> bool {
        false
    }
}
