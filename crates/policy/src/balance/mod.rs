//! Balancers: which endpoint gets the next exchange.
//!
//! A balancer ranks and never reads limits; [`crate::dispatch`] asks it, then
//! reserves. Its state is per worker. Adding one: a file here, a variant in
//! [`Balance`] and in [`Balancer`], a section in the documentation.
//!
//! A pick costs at most 0.1, 0.5 and 4 us among 10, 100 and 1,000 endpoints;
//! `cargo bench -p evenkeel-policy` shows it.

mod adaptive;
mod carp;
mod consistent_hash;
mod cursor;
mod draw;
mod fair;
mod first;
mod least;
mod least_connections;
mod peak_ewma;
mod random;
mod rendezvous;
mod round_robin;
mod shortest_queue;
mod turns;
mod two_choices;

pub use adaptive::Adaptive;
pub use carp::Carp;
pub use consistent_hash::ConsistentHash;
pub use fair::{Fair, FairOptions, WeightMode};
pub use first::First;
pub use least_connections::LeastConnections;
pub use peak_ewma::PeakEwma;
pub use random::Random;
pub use round_robin::RoundRobin;
pub use shortest_queue::ShortestQueue;
pub use two_choices::TwoChoices;

use std::time::Duration;

use crate::Instant;

use crate::dispatch::Tier;
use crate::endpoint::{EndpointState, Tried};

/// The balancers by the name that the configuration uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Balance {
    /// A live endpoint at random, by weight.
    Random,
    /// Smooth weighted round-robin.
    RoundRobin,
    /// Least exchanges in flight, idle endpoints in turn.
    ShortestQueue,
    /// Least exchanges in flight by weight, idle endpoints in turn.
    LeastConnections,
    /// upstream_fair.
    Fair(FairOptions),
    /// The same key to the same endpoint.
    Carp,
    /// The same key to the same endpoint, unless that has too much in flight.
    ConsistentHash,
    /// The first endpoint with room.
    First,
    /// The less loaded of two endpoints at random.
    TwoChoices,
    /// Of two endpoints at random the one that should answer first.
    PeakEwma,
    /// Least exchanges in flight by a weight that is learned.
    #[default]
    Adaptive,
}

impl Balance {
    /// The name that the configuration uses.
    pub fn word(self) -> &'static str {
        match self {
            Balance::Random => "random",
            Balance::RoundRobin => "round-robin",
            Balance::ShortestQueue => "shortest-queue",
            Balance::LeastConnections => "least-connections",
            Balance::Fair(_) => "fair",
            Balance::Carp => "carp",
            Balance::ConsistentHash => "consistent-hash",
            Balance::First => "first",
            Balance::TwoChoices => "two-choices",
            Balance::PeakEwma => "peak-ewma",
            Balance::Adaptive => "adaptive",
        }
    }

    /// Whether it goes by a part of the request.
    pub fn takes_key(self) -> bool {
        matches!(self, Balance::Carp | Balance::ConsistentHash)
    }
}

/// The endpoints as a balancer sees them during one pick.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    pub(crate) endpoints: &'a [EndpointState],
    pub(crate) identities: &'a [u64],
    pub(crate) tried: &'a [Tried],
    /// Which endpoints may be picked.
    pub(crate) tier: Tier,
    /// Hash of what a balancer by key goes by.
    pub key: u64,
    /// The present.
    pub now: Instant,
    /// Leave out endpoints at their limit: set by the order of work after a
    /// reservation failed, never read by a balancer.
    pub(crate) only_with_room: bool,
}

impl<'a> View<'a> {
    /// Endpoints and the hash of what each is known by; none was tried yet,
    /// and there is no key.
    ///
    /// # Panics
    /// There are not as many identities as endpoints.
    pub fn new(endpoints: &'a [EndpointState], identities: &'a [u64], now: Instant) -> Self {
        assert_eq!(endpoints.len(), identities.len(), "one identity each");
        View {
            endpoints,
            identities,
            tried: &[],
            tier: Tier::Untried,
            key: 0,
            now,
            only_with_room: false,
        }
    }

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
        self.admits(index, &self.endpoints[index])
    }

    /// Exchanges in flight at the endpoint over all workers, and phantoms that
    /// stand for its failures.
    pub fn load(&self, index: usize) -> u32 {
        self.endpoints[index].load()
    }

    /// The endpoint's weight as it is now, in 256ths; at least one of them, so
    /// that one that only just starts can be picked if it is the only one.
    pub fn weight(&self, index: usize) -> u32 {
        Self::weight_of(&self.endpoints[index])
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

    // A call at every endpoint would cost a third of a pick.
    #[inline(always)]
    fn admits(&self, index: usize, state: &EndpointState) -> bool {
        let is_first_try =
            self.tried.is_empty() && !self.only_with_room && self.tier == Tier::Untried;
        match is_first_try {
            true => state.is_eligible(),
            false => self.admits_again(index, state),
        }
    }

    /// Whether an exchange that was here before may come again.
    #[inline(never)]
    fn admits_again(&self, index: usize, state: &EndpointState) -> bool {
        (!self.only_with_room || state.has_room())
            && self.tier.has(index, state, self.tried, self.now)
    }

    fn weight_of(state: &EndpointState) -> u32 {
        state.effective_weight().max(1)
    }

    /// The eligible endpoints in their order, with what each is known by.
    fn eligible(&self) -> impl Iterator<Item = (usize, &'a EndpointState, u64)> {
        let endpoints = self.endpoints.iter().zip(self.identities).enumerate();
        endpoints
            .filter(|&(index, (state, _))| self.admits(index, state))
            .map(|(index, (state, &identity))| (index, state, identity))
    }

    /// All endpoints from `start` on, then those before it, each part with the
    /// index of its first. Two loops over them are a good deal faster than one
    /// over an iterator that chains them.
    fn parts_from(&self, start: usize) -> [(usize, &'a [EndpointState]); 2] {
        let (before, after) = self.endpoints.split_at(start);
        [(start, after), (0, before)]
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

/// What a balancer has learned of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Learned {
    /// How many times as long as the upstream's mean it takes to the first
    /// byte.
    Slowness(f64),
    /// How long it takes to the first byte.
    Time(Duration),
}

/// A balancer with its per-worker state. A copy picks what the balancer itself
/// would pick next.
#[derive(Debug, Clone)]
pub enum Balancer {
    /// See [`Random`].
    Random(Random),
    /// See [`RoundRobin`].
    RoundRobin(RoundRobin),
    /// See [`ShortestQueue`].
    ShortestQueue(ShortestQueue),
    /// See [`LeastConnections`].
    LeastConnections(LeastConnections),
    /// See [`Fair`].
    Fair(Fair),
    /// See [`Carp`].
    Carp(Carp),
    /// See [`ConsistentHash`].
    ConsistentHash(ConsistentHash),
    /// See [`First`].
    First(First),
    /// See [`TwoChoices`].
    TwoChoices(TwoChoices),
    /// See [`PeakEwma`].
    PeakEwma(PeakEwma),
    /// See [`Adaptive`].
    Adaptive(Adaptive),
}

impl Balancer {
    /// A balancer at its start; `seed` makes the workers differ.
    pub fn new(balance: Balance, seed: u64) -> Self {
        match balance {
            Balance::Random => Balancer::Random(Random::new(seed)),
            Balance::RoundRobin => Balancer::RoundRobin(RoundRobin::new(seed)),
            Balance::ShortestQueue => Balancer::ShortestQueue(ShortestQueue::new(seed)),
            Balance::LeastConnections => Balancer::LeastConnections(LeastConnections::new(seed)),
            Balance::Fair(options) => Balancer::Fair(Fair::new(options, seed)),
            Balance::Carp => Balancer::Carp(Carp),
            Balance::ConsistentHash => Balancer::ConsistentHash(ConsistentHash::new()),
            Balance::First => Balancer::First(First),
            Balance::TwoChoices => Balancer::TwoChoices(TwoChoices::new(seed)),
            Balance::PeakEwma => Balancer::PeakEwma(PeakEwma::new(seed)),
            Balance::Adaptive => Balancer::Adaptive(Adaptive::new(seed)),
        }
    }

    /// The endpoint that should get the exchange, `None` if none is eligible.
    pub fn pick(&mut self, view: &View<'_>) -> Option<usize> {
        match self {
            Balancer::Random(balancer) => balancer.pick(view),
            Balancer::RoundRobin(balancer) => balancer.pick(view),
            Balancer::ShortestQueue(balancer) => balancer.pick(view),
            Balancer::LeastConnections(balancer) => balancer.pick(view),
            Balancer::Fair(balancer) => balancer.pick(view),
            Balancer::Carp(balancer) => balancer.pick(view),
            Balancer::ConsistentHash(balancer) => balancer.pick(view),
            Balancer::First(balancer) => balancer.pick(view),
            Balancer::TwoChoices(balancer) => balancer.pick(view),
            Balancer::PeakEwma(balancer) => balancer.pick(view),
            Balancer::Adaptive(balancer) => balancer.pick(view),
        }
    }

    /// Learns from an attempt that is over.
    pub fn observe(&mut self, observation: &Observation) {
        match self {
            Balancer::PeakEwma(balancer) => balancer.observe(observation),
            Balancer::Adaptive(balancer) => balancer.observe(observation),
            _ => {}
        }
    }

    /// What it has learned of the endpoint, as its last pick saw it; `None`
    /// where it learns nothing or has heard nothing of it.
    pub fn learned(&self, index: usize, now: Instant) -> Option<Learned> {
        match self {
            Balancer::PeakEwma(balancer) => balancer.time(index, now).map(Learned::Time),
            Balancer::Adaptive(balancer) => balancer.slowness(index).map(Learned::Slowness),
            _ => None,
        }
    }

    /// Most exchanges in flight that the balancer itself allows the endpoint.
    pub fn cap(&self, view: &View<'_>, index: usize) -> u32 {
        match self {
            Balancer::Fair(balancer) => balancer.cap(view, index),
            _ => u32::MAX,
        }
    }

    /// Whether it goes by a part of the request.
    pub fn takes_key(&self) -> bool {
        matches!(self, Balancer::Carp(_) | Balancer::ConsistentHash(_))
    }

    /// Whether an exchange that finds no room is refused rather than queued.
    pub fn refuses_when_busy(&self) -> bool {
        match self {
            Balancer::Fair(balancer) => balancer.refuses_when_busy(),
            _ => false,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
