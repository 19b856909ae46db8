//! How many retries are allowed: a share of the requests, so that retries
//! never double an outage.

use std::time::Duration;

use crate::Instant;

/// Retries allowed for each request.
const PER_REQUEST: f64 = 0.2;
/// Retries allowed in any case, a second, over all workers.
const PER_SECOND: f64 = 10.0;
/// What is not used is kept for so long.
const KEPT: Duration = Duration::from_secs(10);

/// One worker's allowance of retries to an upstream: 20 % of its requests, and
/// its part of ten a second.
#[derive(Debug)]
pub struct RetryBudget {
    allowance: f64,
    per_second: f64,
    last: Option<Instant>,
}

impl RetryBudget {
    /// The budget of one of `workers`.
    pub fn new(workers: usize) -> Self {
        let per_second = PER_SECOND / workers.max(1) as f64;
        let mut budget = RetryBudget {
            allowance: 0.0,
            per_second,
            last: None,
        };
        budget.allowance = budget.most();
        budget
    }

    /// Counts a request.
    pub fn request(&mut self) {
        self.allowance = (self.allowance + PER_REQUEST).min(self.most());
    }

    /// Takes a retry out of the budget, if there is one in it.
    pub fn try_retry(&mut self, now: Instant) -> bool {
        let passed = now.duration_since(*self.last.get_or_insert(now));
        self.last = Some(now);
        let earned = passed.as_secs_f64() * self.per_second;
        self.allowance = (self.allowance + earned).min(self.most());
        let is_allowed = self.allowance >= 1.0;
        if is_allowed {
            self.allowance -= 1.0;
        }
        is_allowed
    }

    fn most(&self) -> f64 {
        (self.per_second * KEPT.as_secs_f64()).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Retries allowed to requests that come at this rate for a while and all
    /// want one.
    fn allowed(workers: usize, per_second: u32, seconds: u32) -> u32 {
        let mut budget = RetryBudget::new(workers);
        let start = Instant::from_nanos(1_000_000_000);
        let count = per_second * seconds;
        (0..count)
            .filter(|&index| {
                budget.request();
                budget.try_retry(start + Duration::from_secs(1) * index / per_second)
            })
            .count() as u32
    }

    #[test]
    fn a_fifth_of_the_requests_and_ten_a_second() {
        // And what is kept of ten seconds, to begin with.
        let due = 60 * (1000 / 5 + 10) + 100;
        assert!(allowed(1, 1000, 60).abs_diff(due) <= 20);
        assert_eq!(
            allowed(1, 5, 60),
            300,
            "few requests may all be tried again"
        );
        let due = 60 * (1000 / 5 + 5) + 50;
        assert!(allowed(2, 1000, 60).abs_diff(due) <= 20);
    }

    #[test]
    fn what_is_not_used_is_kept_for_a_while_only() {
        let mut budget = RetryBudget::new(1);
        for _ in 0..100_000 {
            budget.request();
        }
        let now = Instant::from_nanos(1_000_000_000);
        let burst = (0..1000).filter(|_| budget.try_retry(now)).count();
        assert_eq!(burst, 100);
    }
}
