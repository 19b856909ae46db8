//! Balancers: which endpoint gets the next exchange.
//!
//! A balancer ranks and never reads limits; [`crate::dispatch`] asks it, then
//! reserves. Its state is per worker. Adding one: a file here with its
//! `Ranking`, its line and its row in the table below, a section in the
//! documentation.
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
mod kept;
mod least;
mod least_connections;
mod peak_ewma;
mod random;
mod rendezvous;
mod round_robin;
mod shortest_queue;
mod turns;
mod two_choices;

pub use fair::{FairOptions, WeightMode};
pub use kept::{BalancerSnapshot, Evidence};

use std::sync::Arc;
use std::time::Duration;

use crate::Instant;
use crate::candidates::Candidates;
use crate::endpoint::{EndpointState, Tried};
use crate::members::{Members, Moved};
use crate::observation::Observation;

/// The table of balancers.
///
/// From each row come the variants of [`Balance`] and [`Balancer`], the word of
/// the configuration, its help, and a place in every list of balancers.
macro_rules! balancers {
    ($(
        $word:literal => $module:ident::$name:ident $(($options:ident: $type:ty))?,
        $help:literal;
    )*) => {
        /// The balancers by the name that the configuration uses.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Balance {
            $(
                #[doc = concat!("`", $word, "`: ", $help, ".")]
                $name $(($type))?,
            )*
        }

        impl Balance {
            /// Every balancer with its default options, in the order of the
            /// documentation.
            pub const ALL: &'static [Balance] = &[
                $( Balance::$name $(({
                    let [$options, ..] = <$type>::ALL;
                    $options
                }))? ),*
            ];

            /// Every balancer with every combination of its options.
            pub fn variants() -> impl Iterator<Item = Balance> {
                let none = std::iter::empty();
                none $( .chain(balancers!(@variants $name $($type)?)) )*
            }

            /// The name that the configuration uses.
            pub fn word(self) -> &'static str {
                match self {
                    $( Balance::$name { .. } => $word, )*
                }
            }

            /// How it ranks, in a few words of Markdown.
            pub fn help(self) -> &'static str {
                match self {
                    $( Balance::$name { .. } => $help, )*
                }
            }

            /// The basis of its choice.
            pub fn basis(self) -> Basis {
                match self {
                    $( Balance::$name { .. } => $module::$name::BASIS, )*
                }
            }
        }

        /// A balancer with its per-worker state. A copy picks what the balancer
        /// itself would pick next.
        #[derive(Debug, Clone)]
        pub struct Balancer(BalancerState);

        #[derive(Debug, Clone)]
        enum BalancerState {
            $( $name($module::$name), )*
        }

        impl Balancer {
            /// A balancer at its start; `seed` makes the workers differ.
            pub fn new(balance: Balance, seed: u64) -> Self {
                Balancer(match balance {
                    $(
                        Balance::$name $(($options))? => {
                            BalancerState::$name($module::$name::new(seed $(, $options)?))
                        }
                    )*
                })
            }

            /// The endpoint that should get the exchange, `None` if none is
            /// eligible.
            pub fn pick(&mut self, view: &View<'_>) -> Option<usize> {
                match &mut self.0 {
                    $( BalancerState::$name(it) => it.pick(view), )*
                }
            }

            /// Learns from an attempt.
            pub fn observe(&mut self, observation: &Observation) {
                match &mut self.0 {
                    $( BalancerState::$name(it) => it.observe(observation), )*
                }
            }

            /// Takes over other members. The state of an endpoint moves with
            /// it.
            pub(crate) fn follow(&mut self, moved: &Moved) {
                match &mut self.0 {
                    $( BalancerState::$name(it) => it.follow(moved), )*
                }
            }

            /// The learned value of the endpoint, as the last pick saw it.
            /// `None` where the balancer learns nothing, or has no observation
            /// of it.
            pub fn learned(&self, index: usize, now: Instant) -> Option<Learned> {
                match &self.0 {
                    $( BalancerState::$name(it) => it.learned(index, now), )*
                }
            }

            /// The learned state, for another process; `None` if there is none.
            pub(crate) fn keep(&self, now: Instant) -> Option<BalancerSnapshot> {
                match &self.0 {
                    $( BalancerState::$name(it) => it.keep(now), )*
                }
            }

            /// Goes on from the state of a balancer of the same kind in another
            /// process, whose endpoints are at these positions.
            pub(crate) fn restore(&mut self, kept: &BalancerSnapshot, now: Instant) {
                match &mut self.0 {
                    $( BalancerState::$name(it) => it.restore(kept, now), )*
                }
            }

            /// Most exchanges in flight that the balancer itself allows the
            /// endpoint.
            pub fn cap(&self, view: &View<'_>, index: usize) -> u32 {
                match &self.0 {
                    $( BalancerState::$name(it) => it.cap(view, index), )*
                }
            }

            /// Whether an exchange that finds no room is refused rather than
            /// queued.
            pub fn refuses_when_busy(&self) -> bool {
                match &self.0 {
                    $( BalancerState::$name(it) => it.refuses_when_busy(), )*
                }
            }

            /// The balancer's promise on the shares of endpoints.
            pub fn promises(&self) -> Promises {
                match &self.0 {
                    $( BalancerState::$name(it) => it.promises(), )*
                }
            }

            fn basis(&self) -> Basis {
                match &self.0 {
                    $( BalancerState::$name(_) => $module::$name::BASIS, )*
                }
            }

            fn learns_from(&self) -> LearnsFrom {
                match &self.0 {
                    $( BalancerState::$name(_) => $module::$name::LEARNS_FROM, )*
                }
            }
        }
    };
    (@variants $name:ident) => {
        [Balance::$name]
    };
    (@variants $name:ident $type:ty) => {
        <$type>::ALL.map(Balance::$name)
    };
}

balancers! {
    "adaptive" => adaptive::Adaptive,
    "least exchanges in flight, with weights learned from the time to the first byte";
    "least-connections" => least_connections::LeastConnections,
    "least exchanges in flight by weight, idle endpoints in turn by weight";
    "shortest-queue" => shortest_queue::ShortestQueue,
    "the same as `least-connections`";
    "round-robin" => round_robin::RoundRobin,
    "smooth weighted round-robin";
    "random" => random::Random,
    "a live endpoint at random, by weight";
    "two-choices" => two_choices::TwoChoices,
    "the less loaded of two at random";
    "peak-ewma" => peak_ewma::PeakEwma,
    "of two at random, the one expected to answer first";
    "fair" => fair::Fair(options: FairOptions),
    "like nginx's upstream_fair module; see `fair`";
    "first" => first::First,
    "the first endpoint with room, in order";
    "carp" => carp::Carp,
    "the same `key` to the same endpoint";
    "consistent-hash" => consistent_hash::ConsistentHash,
    "the same `key` to the same endpoint, unless that is overloaded: a quarter, and at least one \
     exchange, above its share";
}

impl Balance {
    /// The balancer of this name.
    pub fn from_word(word: &str) -> Option<Balance> {
        Self::ALL.iter().copied().find(|it| it.word() == word)
    }

    /// Whether it needs a key: a part of the request.
    pub fn takes_key(self) -> bool {
        self.basis() == Basis::Key
    }

    /// Whether every worker picks the same endpoint for an exchange.
    pub fn is_fixed(self) -> bool {
        match self.basis() {
            Basis::Key | Basis::Order => true,
            Basis::State => false,
        }
    }
}

impl Balancer {
    /// Whether it needs a key: a part of the request.
    pub fn takes_key(&self) -> bool {
        self.basis() == Basis::Key
    }

    /// Whether it needs an observation of the end of responses.
    pub fn learns_from_end(&self) -> bool {
        self.learns_from() == LearnsFrom::End
    }
}

/// How a balancer ranks: implemented for the per-worker state of each.
trait Ranking {
    /// The basis of its choice.
    const BASIS: Basis = Basis::State;

    /// Which observations it learns from.
    const LEARNS_FROM: LearnsFrom = LearnsFrom::Nothing;

    /// The endpoint that should get the exchange, `None` if none is eligible.
    fn pick(&mut self, view: &View<'_>) -> Option<usize>;

    /// Learns from an attempt.
    fn observe(&mut self, _observation: &Observation) {}

    /// Takes over other members. State by position moves to the new positions.
    fn follow(&mut self, _moved: &Moved) {}

    /// The learned value of the endpoint, if any.
    fn learned(&self, _index: usize, _now: Instant) -> Option<Learned> {
        None
    }

    /// The learned state, for another process.
    fn keep(&self, _now: Instant) -> Option<BalancerSnapshot> {
        None
    }

    /// Goes on from the learned state of another process.
    fn restore(&mut self, _kept: &BalancerSnapshot, _now: Instant) {}

    /// Most exchanges in flight that it allows the endpoint.
    fn cap(&self, _view: &View<'_>, _index: usize) -> u32 {
        u32::MAX
    }

    /// Whether an exchange that finds no room is refused rather than queued.
    fn refuses_when_busy(&self) -> bool {
        false
    }

    /// Its promise on the shares of endpoints. The tests of all balancers hold
    /// it to that.
    fn promises(&self) -> Promises;
}

/// The basis of a balancer's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// Its own state and the endpoints' state: workers differ.
    State,
    /// A part of the request.
    Key,
    /// The order of the endpoints.
    Order,
}

/// Which observations a balancer learns from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LearnsFrom {
    Nothing,
    /// The first byte of a response, or a failed attempt.
    Head,
    /// Both, and the end of a response.
    End,
}

/// A balancer's promise on the shares of endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promises {
    /// Of exchanges in flight.
    pub in_flight: Split,
    /// Of exchanges one after the other, with nothing in flight.
    pub idle: Split,
}

/// How exchanges are split between endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// By weight.
    ByWeight,
    /// By weight, a twentieth more or less.
    NearlyByWeight,
    /// By another rule.
    Otherwise,
}

/// The endpoints as a balancer sees them during one pick.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    pub(crate) endpoints: &'a [Arc<EndpointState>],
    pub(crate) identities: &'a [u64],
    pub(crate) tried: &'a [Tried],
    /// Which endpoints may be picked.
    pub(crate) candidates: Candidates,
    /// Hash of the key, for a balancer by key.
    pub key: u64,
    /// The present.
    pub now: Instant,
    /// Leave out endpoints at their limit: set by the order of work after a
    /// reservation failed, never read by a balancer.
    pub(crate) only_with_room: bool,
}

impl<'a> View<'a> {
    /// Members that were not tried yet, without a key.
    pub fn new(members: &'a Members, now: Instant) -> Self {
        View {
            endpoints: members.endpoints(),
            identities: members.identities(),
            tried: &[],
            candidates: members.first_candidates(),
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
        self.admits(&self.endpoints[index])
    }

    /// Exchanges in flight at the endpoint over all workers, and phantoms that
    /// stand for its failures.
    pub fn load(&self, index: usize) -> u32 {
        self.endpoints[index].load()
    }

    /// The endpoint's weight as it is now, in 256ths, and at least one of them.
    /// So an endpoint that only just starts can be picked if it is the only
    /// one.
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
    fn admits(&self, state: &EndpointState) -> bool {
        let is_first_try =
            self.tried.is_empty() && !self.only_with_room && self.candidates == Candidates::UNTRIED;
        if is_first_try {
            state.is_eligible()
        } else {
            self.admits_again(state)
        }
    }

    /// Whether an exchange that was here before may come again.
    #[inline(never)]
    fn admits_again(&self, state: &EndpointState) -> bool {
        let has_room = !self.only_with_room || state.has_room();
        has_room && self.candidates.has(state, self.tried, self.now)
    }

    fn weight_of(state: &EndpointState) -> u32 {
        state.effective_weight().max(1)
    }

    /// The eligible endpoints in their order, with what each is known by.
    fn eligible(&self) -> impl Iterator<Item = (usize, &'a EndpointState, u64)> {
        let endpoints = self.endpoints.iter().zip(self.identities).enumerate();
        endpoints
            .filter(|(_, (state, _))| self.admits(state))
            .map(|(index, (state, &identity))| (index, &**state, identity))
    }

    /// All endpoints from `start` on, then those before it, each part with the
    /// index of its first. Two loops over them are much faster than one over an
    /// iterator that chains them.
    fn parts_from(&self, start: usize) -> [(usize, &'a [Arc<EndpointState>]); 2] {
        let (before, after) = self.endpoints.split_at(start);
        [(start, after), (0, before)]
    }
}

/// The value that a balancer has learned of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Learned {
    /// How many times as long as the upstream's mean it takes to the first
    /// byte.
    Slowness(f64),
    /// How long it takes to the first byte.
    Time(Duration),
}

#[cfg(all(test, not(loom)))]
mod tests;
