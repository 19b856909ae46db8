//! What is made of results beyond the balancer: per balancer, like a worker's.
//!
//! The one place for a guard: every attempt that is over is reported to
//! [`Watch::attempt_over`], and [`Watch::tick`] is called every [`TICK`] of
//! virtual time. Until there is a guard, this takes an endpoint that refuses
//! connections out until a tick finds it reachable: by a limit of zero, for
//! which requests wait, or without a hold by a weight of zero.

use std::time::{Duration, Instant};

use evenkeel_policy::balance::{Balancer, Observation};
use evenkeel_policy::dispatch::Dispatcher;

use super::proxy::{Policy, WEIGHT};

/// Time between two ticks.
pub const TICK: Duration = Duration::from_millis(100);

/// Whether [`Guarding::On`] does more against errors than [`Guarding::Off`]:
/// scenarios leave guarded policies out until it does.
pub const HAS_GUARD: bool = false;

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
    /// Index of the endpoint.
    pub endpoint: usize,
    /// How it ended.
    pub outcome: Outcome,
    /// From its beginning to the response.
    pub took: Duration,
    /// The present.
    pub now: Instant,
}

/// The endpoints of one balancer that are out.
#[derive(Debug)]
pub struct Watch {
    guarding: Guarding,
    hold: bool,
    max_in_flight: Option<u32>,
    out: Vec<usize>,
}

impl Watch {
    /// All endpoints are in.
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        Watch {
            guarding: policy.guarding,
            hold: policy.queue.hold,
            max_in_flight: policy.max_in_flight,
            out: Vec::new(),
        }
    }

    /// Takes note of an attempt, before its slot is given back.
    pub fn attempt_over(
        &mut self,
        dispatcher: &Dispatcher,
        balancer: &mut Balancer,
        attempt: &AttemptOver,
    ) {
        let endpoint = attempt.endpoint;
        let is_answer = matches!(attempt.outcome, Outcome::Answered | Outcome::Failed);
        balancer.observe(&Observation {
            endpoint,
            now: attempt.now,
            first_byte: is_answer.then_some(attempt.took),
            is_error: attempt.outcome != Outcome::Answered,
        });
        // A guard would hear of the attempt here.
        let _ = self.guarding;
        if attempt.outcome == Outcome::Unreachable && !self.out.contains(&endpoint) {
            match self.hold {
                true => dispatcher.states()[endpoint].set_max_in_flight(Some(0)),
                false => dispatcher.states()[endpoint].set_weight(0),
            }
            self.out.push(endpoint);
        }
    }

    /// Lets endpoints return that `is_reachable` finds well.
    pub fn tick(
        &mut self,
        dispatcher: &Dispatcher,
        now: Instant,
        is_reachable: impl Fn(usize) -> bool,
    ) {
        // A guard's tick would be called here.
        let before = self.out.len();
        self.out.retain(|&endpoint| {
            let is_back = is_reachable(endpoint);
            if is_back {
                dispatcher.states()[endpoint].set_max_in_flight(self.max_in_flight);
                dispatcher.states()[endpoint].set_weight(WEIGHT);
            }
            !is_back
        });
        if self.out.len() < before {
            dispatcher.serve(now);
        }
    }
}
