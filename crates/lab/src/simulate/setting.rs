//! The setting of a policy: origins, their faults, the load.

use std::time::Duration;

use super::origin::{Condition, Shape};
use super::proxy::Balancers;
use super::workload::Workload;

/// A change of an origin's state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fault {
    /// Index of the origin.
    pub origin: usize,
    /// When.
    pub at: Duration,
    /// Its state from then on.
    pub condition: Condition,
}

/// Everything but the policy.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The origins, each an endpoint.
    pub origins: Vec<Shape>,
    /// The faults of origins.
    pub faults: Vec<Fault>,
    /// The load.
    pub workload: Workload,
    /// The proxies or workers.
    pub balancers: Balancers,
    /// Attempts after the first, at other endpoints.
    pub retries: u32,
    /// Longest time in the queue.
    pub queue_timeout: Duration,
}

/// An origin that is away for a while and cold for some time afterwards.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outage {
    /// Index of the origin.
    pub origin: usize,
    /// When it goes away.
    pub from: Duration,
    /// When it is back.
    pub until: Duration,
    /// How long it is cold then.
    pub cold: Duration,
    /// Part of its speed that it has while cold.
    pub warmth: f64,
}

impl Outage {
    /// The changes that it consists of.
    #[must_use]
    pub fn faults(&self) -> [Fault; 3] {
        let fault = |at, condition| Fault {
            origin: self.origin,
            at,
            condition,
        };
        let warmth = self.warmth;
        [
            fault(self.from, Condition::Down),
            fault(self.until, Condition::Up { warmth }),
            fault(self.until + self.cold, Condition::Up { warmth: 1.0 }),
        ]
    }
}
