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
    /// Shared state of every endpoint of the upstream.
    pub endpoints: &'a [EndpointState],
    /// Endpoints that this exchange has already tried.
    pub tried: &'a [u32],
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

    /// Exchanges in flight at the endpoint, over all workers.
    pub fn in_flight(&self, index: usize) -> u32 {
        self.endpoints[index].in_flight()
    }

    /// The endpoint's weight.
    pub fn weight(&self, index: usize) -> u32 {
        self.endpoints[index].weight()
    }
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
}
