//! The policies that are compared: every balancer, with and without limits.

use evenkeel_policy::balance::{Balance, FairOptions, WeightMode};
use evenkeel_policy::queue::QueueSettings;

use super::proxy::Policy;
use super::watch::Guarding;

/// A balancer by its name in the configuration, and its colour in plots.
#[derive(Debug, Clone, Copy)]
pub struct Named {
    /// Its name.
    pub name: &'static str,
    /// Itself.
    pub balance: Balance,
    /// In plots.
    pub colour: &'static str,
}

/// Every balancer: one line for each.
pub const BALANCERS: &[Named] = &[
    named("random", Balance::Random, "#9aa5b1"),
    named("round-robin", Balance::RoundRobin, "#d9730d"),
    named("shortest-queue", Balance::ShortestQueue, "#0b6bcb"),
    named("least-connections", Balance::LeastConnections, "#5a9bd8"),
    named("fair", FAIR, "#8a6d3b"),
    named("carp", Balance::Carp, "#b0413e"),
    named("consistent-hash", Balance::ConsistentHash, "#e08a86"),
    named("first", Balance::First, "#55606e"),
    named("two-choices", Balance::TwoChoices, "#7b4fa3"),
    named("peak-ewma", Balance::PeakEwma, "#b48ad0"),
    named("adaptive", Balance::Adaptive, "#1a7f4b"),
];

const FAIR: Balance = Balance::Fair(FairOptions {
    no_rr: false,
    weight_mode: WeightMode::Default,
});

const fn named(name: &'static str, balance: Balance, colour: &'static str) -> Named {
    Named {
        name,
        balance,
        colour,
    }
}

/// A balancer's colour in plots.
#[must_use]
pub fn colour(name: &str) -> &'static str {
    let named = BALANCERS.iter().find(|it| it.name == name);
    named.map_or("#1f2933", |it| it.colour)
}

/// What is configured besides the balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    /// As tables and plots show it.
    pub label: &'static str,
    /// Of every endpoint.
    pub max_in_flight: Option<u32>,
    /// Slots that slow pages are kept to, if they are.
    pub slow_lane: Option<u32>,
    /// Whether to wait while nothing is up.
    pub hold: bool,
    /// Whether errors have consequences.
    pub guarding: Guarding,
}

/// Without limits, unguarded, holding.
pub const PLAIN: Variant = Variant {
    label: "no limit",
    max_in_flight: None,
    slow_lane: None,
    hold: true,
    guarding: Guarding::Off,
};

/// With `max_in_flight`, and else as [`PLAIN`].
#[must_use]
pub const fn limited(label: &'static str, max_in_flight: u32) -> Variant {
    Variant {
        label,
        max_in_flight: Some(max_in_flight),
        ..PLAIN
    }
}

/// Places in the queue: enough for five seconds of outage in any scenario.
const QUEUE_MAX: usize = 100_000;

impl Variant {
    /// The policy of a balancer in this variant.
    #[must_use]
    pub fn of(&self, named: &Named) -> Policy {
        Policy {
            name: named.name,
            balance: named.balance,
            max_in_flight: self.max_in_flight,
            slow_lane: self.slow_lane,
            guarding: self.guarding,
            queue: QueueSettings {
                max: QUEUE_MAX,
                hold: self.hold,
                ..QueueSettings::default()
            },
        }
    }
}
