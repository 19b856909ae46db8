//! What a balancer has learned, as one process leaves it to the next.
//!
//! It is as it was when it was taken: what had faded by then is less. Numbers that are
//! none, or that no balancer can come to, are as if they were not there.

/// What a balancer has learned.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BalancerKept {
    /// The mean of the upstream, in the balancer's own measure.
    pub mean: Option<f64>,
    /// By position: what was learned of the endpoint.
    pub endpoints: Vec<Option<Evidence>>,
}

/// What was learned of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evidence {
    /// The sum of what its answers said, in the balancer's own measure.
    pub sum: f64,
    /// How many answers that counts for.
    pub answers: f64,
}

impl BalancerKept {
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
