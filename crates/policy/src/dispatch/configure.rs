//! Another configuration of an upstream that goes on: queue, lanes, and how failures
//! count. Endpoints change in `replace`.
//!
//! A shorter or abolished queue sends no waiter away, and a narrower lane ends nothing in flight.
//! Both take in nobody until they are within the new bounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::Duration;

use super::{Dispatcher, LaneSettings, lock};
use crate::Instant;
use crate::endpoint::EndpointState;
use crate::health::{Change, ChangeKind, HealthSettings};
use crate::queue::{QueueSettings, Sharing};
use crate::sync::Ordering;

/// The settings that exchanges read without a lock.
///
/// No decision hangs on when a worker sees another value, so the model checker does not
/// look at these. They are on a line that is hardly ever written to.
#[derive(Debug)]
pub(super) struct Rules {
    queue_max: AtomicUsize,
    holds: AtomicBool,
    grows: AtomicBool,
    key_wait_ns: AtomicU64,
    shares_by_key: AtomicBool,
    has_guard: AtomicBool,
}

/// The rules on waiting in the queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct MayWait {
    /// Most waiters; 0 is no queue.
    pub max: usize,
    /// Whether to wait while no endpoint is up.
    pub hold: bool,
    /// Whether an upstream without endpoints may get some.
    pub grows: bool,
}

impl Rules {
    pub fn new(queue: &QueueSettings, health: &HealthSettings) -> Self {
        Rules {
            queue_max: AtomicUsize::new(queue.max),
            holds: AtomicBool::new(queue.hold),
            grows: AtomicBool::new(queue.grows),
            key_wait_ns: AtomicU64::new(queue.key_wait.as_nanos() as u64),
            shares_by_key: AtomicBool::new(queue.sharing == Sharing::ByKey),
            has_guard: AtomicBool::new(health.guard),
        }
    }

    fn set(&self, queue: &QueueSettings, health: &HealthSettings) {
        self.queue_max.store(queue.max, Ordering::Relaxed);
        self.holds.store(queue.hold, Ordering::Relaxed);
        self.grows.store(queue.grows, Ordering::Relaxed);
        let key_wait_ns = queue.key_wait.as_nanos() as u64;
        self.key_wait_ns.store(key_wait_ns, Ordering::Relaxed);
        let shares_by_key = queue.sharing == Sharing::ByKey;
        self.shares_by_key.store(shares_by_key, Ordering::Relaxed);
        self.has_guard.store(health.guard, Ordering::Relaxed);
    }

    /// Most waiters.
    pub fn queue_max(&self) -> usize {
        self.queue_max.load(Ordering::Relaxed)
    }

    /// The rules for exchanges that join the queue.
    pub fn may_wait(&self) -> MayWait {
        MayWait {
            max: self.queue_max(),
            hold: self.holds.load(Ordering::Relaxed),
            grows: self.grows.load(Ordering::Relaxed),
        }
    }

    /// The rules for waiters in the queue: a shorter one sends nobody away.
    pub fn may_stay(&self) -> MayWait {
        MayWait {
            max: usize::MAX,
            ..self.may_wait()
        }
    }

    /// How long an exchange waits for the endpoint of its key.
    pub fn key_wait(&self) -> Duration {
        Duration::from_nanos(self.key_wait_ns.load(Ordering::Relaxed))
    }

    /// Whether an exchange waits for one endpoint while others have room.
    pub fn waits_for_key(&self) -> bool {
        self.queue_max() > 0 && self.key_wait_ns.load(Ordering::Relaxed) > 0
    }

    /// Whether keys share the queue.
    pub fn shares_by_key(&self) -> bool {
        self.shares_by_key.load(Ordering::Relaxed)
    }

    /// Whether errors of exchanges count.
    pub fn has_guard(&self) -> bool {
        self.has_guard.load(Ordering::Relaxed)
    }
}

impl Dispatcher {
    /// Goes on with these settings. To be called by one thread.
    ///
    /// A waiter keeps the place and the time to wait that it joined with. The order of service is
    /// the new one at once. A lane goes on by its name. A lane that is not among `lanes` keeps
    /// its width, for exchanges of the configuration before.
    ///
    /// Health goes on: probes in a row are compared with the new thresholds, and a slow start
    /// takes the new time. Without a guard, every ejected endpoint comes back. `initial` holds
    /// for endpoints that join.
    pub fn configure(
        &self,
        lanes: &[LaneSettings<'_>],
        queue: QueueSettings,
        health: HealthSettings,
        now: Instant,
    ) {
        let mut records = lock(&self.records.0);
        self.rules.set(&queue, &health);
        records.configure(health, now);
        self.count_trials(&records);
        {
            let lanes = self.lanes.configure(lanes);
            lock(&self.waiters.0).queue.configure(queue, lanes);
        }
        drop(records);
        self.serve(now);
    }

    /// Forgets the results of probes: there are no probes any more. Endpoints that they have put
    /// out come back; with each the change.
    pub fn forget_probes(&self, now: Instant) -> Vec<(Arc<EndpointState>, Change)> {
        let mut records = lock(&self.records.0);
        let returned = records.forget_probes(now);
        self.settle(records, now);
        let changes = returned.into_iter();
        changes
            .map(|it| (it, self.change(ChangeKind::Up)))
            .collect()
    }

    /// Changes the limit of an endpoint. Exchanges in flight above a lower limit go on. Waiters
    /// get the slots that a higher one gives.
    pub fn set_max_in_flight(
        &self,
        endpoint: &EndpointState,
        max_in_flight: Option<u32>,
        now: Instant,
    ) {
        endpoint.set_max_in_flight(max_in_flight);
        self.serve(now);
    }

    /// The index of the lane of this name.
    pub fn lane_named(&self, name: &str) -> Option<usize> {
        self.lanes.named(name)
    }

    /// The name of a lane.
    pub fn lane_name(&self, lane: usize) -> &str {
        self.lanes.get(lane).name()
    }
}
