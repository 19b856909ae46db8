//! The policies that are compared: every balancer, with and without limits.

use evenkeel_policy::balance::Balance;
use evenkeel_policy::queue::QueueSettings;

use super::proxy::Policy;
use super::watch::Guarding;

/// A balancer's colour in plots; black for balancers without one.
#[must_use]
pub fn colour(word: &str) -> &'static str {
    match word {
        "random" => "#9aa5b1",
        "round-robin" => "#d9730d",
        "shortest-queue" => "#0b6bcb",
        "least-connections" => "#5a9bd8",
        "fair" => "#8a6d3b",
        "carp" => "#b0413e",
        "consistent-hash" => "#e08a86",
        "first" => "#55606e",
        "two-choices" => "#7b4fa3",
        "peak-ewma" => "#b48ad0",
        "adaptive" => "#1a7f4b",
        _ => "#1f2933",
    }
}

/// The settings besides the balancer.
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
    pub fn of(&self, balance: Balance) -> Policy {
        Policy {
            balance,
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
