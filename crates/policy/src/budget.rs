//! How many retries are allowed: a share of the requests, so that retries
//! never double an outage.
//!
//! One budget for each upstream, shared by all workers: the number of workers
//! says nothing about the retries that an endpoint can take. Workers count
//! requests themselves and hand the count over now and then ([`Tally`]). So a
//! request costs nothing shared.

use std::time::Duration;

use crate::Instant;
use crate::sync::{Mutex, lock};

/// Retries allowed for each request.
const PER_REQUEST: f64 = 0.2;
/// Retries allowed in any case, a second.
const PER_SECOND: f64 = 10.0;
/// Unused retries are kept for so long.
const KEPT: Duration = Duration::from_secs(10);
/// Requests that a worker counts before it hands them over.
const HANDED_OVER: u32 = 64;

/// The retries allowed to an upstream: 20 % of its requests, and ten a second.
#[derive(Debug)]
pub struct RetryBudget(Mutex<Allowance>);

#[derive(Debug)]
struct Allowance {
    retries: f64,
    last: Option<Instant>,
}

/// Requests of one worker that the budget does not know of yet.
#[derive(Debug, Default)]
pub struct Tally(u32);

impl Default for RetryBudget {
    /// The allowance of ten seconds is there from the start.
    fn default() -> Self {
        RetryBudget(Mutex::new(Allowance {
            retries: most(),
            last: None,
        }))
    }
}

impl RetryBudget {
    /// Counts a request.
    pub fn request(&self, tally: &mut Tally) {
        tally.0 += 1;
        if tally.0 >= HANDED_OVER {
            lock(&self.0).earn(tally);
        }
    }

    /// Retries that are left now.
    pub fn left(&self, now: Instant) -> f64 {
        let mut allowance = lock(&self.0);
        allowance.let_pass(now);
        allowance.retries
    }

    /// Goes on from what another process has left.
    pub fn restore(&self, left: f64, now: Instant) {
        let mut allowance = lock(&self.0);
        allowance.last = Some(now);
        // A value that is not a number allows nothing.
        allowance.retries = left.max(0.0).min(most());
    }

    /// Takes a retry out of the budget, if there is one in it.
    pub fn try_retry(&self, tally: &mut Tally, now: Instant) -> bool {
        let mut allowance = lock(&self.0);
        allowance.earn(tally);
        allowance.let_pass(now);
        let is_allowed = allowance.retries >= 1.0;
        if is_allowed {
            allowance.retries -= 1.0;
        }
        is_allowed
    }
}

impl Allowance {
    fn earn(&mut self, tally: &mut Tally) {
        self.add(f64::from(std::mem::take(&mut tally.0)) * PER_REQUEST);
    }

    fn let_pass(&mut self, now: Instant) {
        let passed = now.duration_since(*self.last.get_or_insert(now));
        self.last = self.last.max(Some(now));
        self.add(passed.as_secs_f64() * PER_SECOND);
    }

    fn add(&mut self, retries: f64) {
        self.retries = (self.retries + retries).min(most());
    }
}

fn most() -> f64 {
    PER_SECOND * KEPT.as_secs_f64()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const START: Instant = Instant::from_nanos(1_000_000_000);

    /// Retries allowed to requests that come at this rate for a while, go to
    /// `workers` in turn, and all want one.
    fn allowed(workers: usize, per_second: u32, seconds: u32) -> u32 {
        let budget = RetryBudget::default();
        let mut tallies: Vec<_> = (0..workers).map(|_| Tally::default()).collect();
        let count = per_second * seconds;
        (0..count)
            .filter(|&index| {
                let tally = &mut tallies[index as usize % workers];
                budget.request(tally);
                budget.try_retry(tally, START + Duration::from_secs(1) * index / per_second)
            })
            .count() as u32
    }

    #[test]
    fn a_fifth_of_the_requests_and_ten_a_second_whatever_the_number_of_workers() {
        for workers in [1, 2, 64] {
            // And the allowance of ten seconds, to begin with.
            let due = 60 * (1000 / 5 + 10) + 100;
            let seen = allowed(workers, 1000, 60);
            assert!(seen.abs_diff(due) <= 20, "{seen} with {workers} workers");
            let seen = allowed(workers, 5, 60);
            assert_eq!(seen, 300, "few requests may all be tried again");
        }
    }

    #[test]
    fn one_worker_may_use_what_all_have_left() {
        let budget = RetryBudget::default();
        let mut tally = Tally::default();
        let burst = (0..1000).filter(|_| budget.try_retry(&mut tally, START));
        assert_eq!(burst.count(), 100);
    }

    #[test]
    fn what_is_not_used_is_kept_for_a_while_only() {
        let budget = RetryBudget::default();
        let mut tally = Tally::default();
        for _ in 0..100_000 {
            budget.request(&mut tally);
        }
        let burst = (0..1000).filter(|_| budget.try_retry(&mut tally, START));
        assert_eq!(burst.count(), 100);
    }

    #[test]
    fn another_process_has_what_is_left() {
        let [before, after] = [(); 2].map(|()| RetryBudget::default());
        let mut tally = Tally::default();
        (0..70).for_each(|_| _ = before.try_retry(&mut tally, START));
        after.restore(before.left(START), START);
        let burst = (0..1000).filter(|_| after.try_retry(&mut tally, START));
        assert_eq!(burst.count(), 30);
        after.restore(f64::NAN, START);
        assert!(!after.try_retry(&mut tally, START));
        after.restore(f64::INFINITY, START);
        assert_eq!(after.left(START), 100.0);
    }
}
