//! The learned state of a balancer, as one process leaves it to the next.
//!
//! A snapshot: evidence has faded up to the moment when it was taken. A number that is not
//! finite, or that no balancer can reach, is ignored.

/// The learned state of a balancer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BalancerSnapshot {
    /// The mean of the upstream, in the balancer's own measure.
    pub mean: Option<f64>,
    /// By position: the evidence on each endpoint.
    pub endpoints: Vec<Option<Evidence>>,
}

/// The evidence on an endpoint.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evidence {
    /// The sum of what its answers said, in the balancer's own measure.
    pub sum: f64,
    /// How many answers that counts for.
    pub answers: f64,
}

impl BalancerSnapshot {
    /// Whether nothing was learned.
    pub fn is_empty(&self) -> bool {
        self.mean.is_none() && self.endpoints.iter().all(Option::is_none)
    }

    /// The mean, if it is a number.
    pub(super) fn finite_mean(&self) -> Option<f64> {
        self.mean.filter(|it| it.is_finite())
    }

    /// Evidence that is a number, by position.
    pub(super) fn evidence(&self) -> impl Iterator<Item = (usize, Evidence)> {
        let endpoints = self.endpoints.iter().enumerate();
        let known = endpoints.filter_map(|(at, it)| Some((at, (*it)?)));
        known.filter(|(_, it)| it.sum.is_finite() && it.answers.is_finite() && it.answers >= 0.0)
    }
}
