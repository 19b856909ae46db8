//! How long an origin takes over a request, and how many it serves at once.
//!
//! One per origin, on its thread. Waiting requests are granted a slot in the
//! order in which they asked (tokio's semaphore is fair).

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::options::OriginOptions;
use crate::service_time::ServiceTime;

/// The slots of an origin and the time a request spends in one.
#[derive(Debug)]
pub(super) struct Service {
    slots: Option<Semaphore>,
    time: Option<ServiceTime>,
    capacity: f64,
    cold_factor: f64,
    cold_for: Duration,
    warming_since: Cell<Instant>,
    pub(super) rng: RefCell<fastrand::Rng>,
    /// How much longer than asked the timer has slept; taken off the next
    /// service time, so that the mean is right despite a 1 ms timer.
    overslept: Cell<Duration>,
}

/// The most that one late timer takes off the next service time; above it,
/// the machine was busy, which is no error of the timer.
const OVERSLEPT_MAX: Duration = Duration::from_millis(2);
/// The most that is owed in all: the slots of an origin may be late together.
const OWED_MAX: Duration = Duration::from_millis(50);

impl Service {
    pub(super) fn new(options: &OriginOptions) -> Self {
        Service {
            slots: (options.threads > 0).then(|| Semaphore::new(options.threads)),
            time: options.service.clone(),
            capacity: options.capacity,
            cold_factor: options.cold_factor,
            cold_for: options.cold_for,
            warming_since: Cell::new(Instant::now()),
            rng: RefCell::new(fastrand::Rng::with_seed(options.seed)),
            overslept: Cell::new(Duration::ZERO),
        }
    }

    /// Begins to be cold again.
    pub(super) fn cool_down(&self) {
        self.warming_since.set(Instant::now());
    }

    /// Waits for a slot, first come first served; `None` without a limit.
    pub(super) async fn slot(&self) -> Option<SemaphorePermit<'_>> {
        match &self.slots {
            Some(slots) => slots.acquire().await.ok(),
            None => None,
        }
    }

    /// Whether [`Service::slot`] can make a request wait.
    pub(super) fn is_limited(&self) -> bool {
        self.slots.is_some()
    }

    /// How long the next request takes; `fixed` stands in for the
    /// distribution where the request itself says how long.
    pub(super) fn time(&self, fixed: Option<Duration>) -> Duration {
        let drawn = match (fixed, &self.time) {
            (Some(fixed), _) => fixed,
            (None, Some(time)) => time.draw(&mut self.rng.borrow_mut()),
            (None, None) => return Duration::ZERO,
        };
        drawn.mul_f64(self.coldness() / self.capacity)
    }

    fn coldness(&self) -> f64 {
        let warm_for = self.warming_since.get().elapsed();
        if warm_for >= self.cold_for {
            return 1.0;
        }
        let left = 1.0 - warm_for.as_secs_f64() / self.cold_for.as_secs_f64();
        1.0 + (self.cold_factor - 1.0) * left
    }

    /// Spends a service time.
    pub(super) async fn spend(&self, time: Duration) {
        let owed = self.overslept.get();
        if time <= owed {
            self.overslept.set(owed - time);
            return;
        }
        self.overslept.set(Duration::ZERO);
        let deadline = Instant::now() + (time - owed);
        tokio::time::sleep_until(deadline.into()).await;
        let late = deadline.elapsed().min(OVERSLEPT_MAX);
        self.overslept
            .set((self.overslept.get() + late).min(OWED_MAX));
    }

    /// Whether an event of this rate happens now.
    pub(super) fn happens(&self, rate: f64) -> bool {
        rate > 0.0 && self.rng.borrow_mut().f64() < rate
    }
}
