//! Uses of results outside the balancer: a guard per balancer, as each worker has, and the work
//! of the health thread.

use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_policy::chooser::Chooser;
use evenkeel_policy::dispatch::Dispatcher;
use evenkeel_policy::endpoint::{Flag, Reservation};
use evenkeel_policy::observation::{Answer, Observed};

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

/// Takes note of an attempt, before its slot is given back.
pub fn attempt_over(dispatcher: &Dispatcher, chooser: &mut Chooser, attempt: &AttemptOver) {
    let id = attempt.reservation.endpoint();
    let Some(endpoint) = chooser.members().get(id).cloned() else {
        return;
    };
    let observed = match attempt.outcome {
        Outcome::Answered | Outcome::Failed => Observed::Head(Answer {
            first_byte: Some(attempt.took),
            is_error: attempt.outcome == Outcome::Failed,
        }),
        Outcome::Broken => Observed::Failed,
        Outcome::Unreachable => Observed::Unreachable,
    };
    chooser.observe(id, attempt.now, observed);
    // The change would be a line of the event log.
    let (slot, now) = (attempt.reservation, attempt.now);
    let _ = dispatcher.report(chooser, &endpoint, slot, observed, now);
}

/// Lets time pass, and endpoints return that `is_reachable` finds well.
pub fn tick(dispatcher: &Dispatcher, now: Instant, is_reachable: impl Fn(usize) -> bool) {
    dispatcher.tick(now);
    for (index, state) in dispatcher.members().endpoints().iter().enumerate() {
        if state.has(Flag::Unreachable) && is_reachable(index) {
            let _ = dispatcher.reached(state, now);
        }
    }
}
