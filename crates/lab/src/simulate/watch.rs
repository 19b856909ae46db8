//! What is made of results beyond the balancer: per balancer, like a worker's
//! guard, and what the health thread does.

use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_policy::balance::Balancer;
use evenkeel_policy::dispatch::Dispatcher;
use evenkeel_policy::endpoint::{Flag, Reservation};
use evenkeel_policy::health::Guard;
use evenkeel_policy::observation::{Answer, Observation, Observed};

/// Time between two ticks.
pub const TICK: Duration = Duration::from_millis(100);

/// Whether errors have consequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guarding {
    /// An endpoint that answers errors stays.
    Off,
    /// Phantoms, ejection, slow start.
    On,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// With a response that is no error.
    Answered,
    /// With a 5xx.
    Failed,
    /// Without a connection.
    Unreachable,
    /// With a connection that broke before the response.
    Broken,
}

/// An attempt that is over.
#[derive(Debug, Clone, Copy)]
pub struct AttemptOver {
    /// The slot that it had.
    pub reservation: Reservation,
    /// How it ended.
    pub outcome: Outcome,
    /// From its beginning to the response.
    pub took: Duration,
    /// The present.
    pub now: Instant,
}

/// One balancer's guard.
#[derive(Debug, Default)]
pub struct Watch {
    guard: Guard,
}

impl Watch {
    /// Takes note of an attempt, before its slot is given back.
    pub fn attempt_over(
        &mut self,
        dispatcher: &Dispatcher,
        balancer: &mut Balancer,
        attempt: &AttemptOver,
    ) {
        let endpoint = attempt.reservation.endpoint();
        let observed = match attempt.outcome {
            Outcome::Answered | Outcome::Failed => Observed::Head(Answer {
                first_byte: Some(attempt.took),
                is_error: attempt.outcome == Outcome::Failed,
            }),
            Outcome::Broken => Observed::Failed,
            Outcome::Unreachable => Observed::Unreachable,
        };
        balancer.observe(&Observation {
            endpoint,
            now: attempt.now,
            observed,
        });
        // The change would be a line of the event log.
        let _ = dispatcher.report(&mut self.guard, attempt.reservation, observed, attempt.now);
    }

    /// Lets time pass, and endpoints return that `is_reachable` finds well.
    pub fn tick(dispatcher: &Dispatcher, now: Instant, is_reachable: impl Fn(usize) -> bool) {
        dispatcher.tick(now);
        for (endpoint, state) in dispatcher.states().iter().enumerate() {
            if state.has(Flag::Unreachable) && is_reachable(endpoint) {
                let _ = dispatcher.reached(endpoint, now);
            }
        }
    }
}
