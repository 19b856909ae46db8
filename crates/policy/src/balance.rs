//! Balancers: which endpoint gets the next exchange.

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
