//! Whether one more piece of work is let into a queue: by the number that
//! waits, and by the wait.
//!
//! A queue that is bounded in number alone is too long for a slow server and
//! too short for a fast one. So the wait is bounded (Little's law: the number
//! that waits, by the rate at which work leaves). The rate is learned from
//! finished work.

use std::time::Duration;

/// Weight of the last measurement.
const LEARNING_RATE: f64 = 1.0 / 16.0;

/// The least time of a piece of work, in seconds.
const SHORTEST_S: f64 = 1e-6;

/// Bounds of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Pieces of work that are done at the same time; at least one.
    pub in_flight: usize,
    /// Pieces of work that may wait.
    pub waiting: usize,
    /// Longest expected wait of work that is let in.
    pub wait: Duration,
}

/// Lets work into a queue, or not.
#[derive(Debug)]
pub struct Admission {
    bounds: Bounds,
    /// Mean time that a piece of work takes, in seconds.
    service_s: f64,
}

/// Why work is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// As many wait as may.
    Full,
    /// It would wait for too long.
    TooSlow,
}

impl Admission {
    /// Nothing is known yet of how long work takes.
    pub fn new(bounds: Bounds) -> Self {
        Admission {
            bounds,
            service_s: 0.0,
        }
    }

    /// Its bounds.
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Keeps within these bounds from now on. The learned time stays.
    pub fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
    }

    /// A piece of work was done, and took so long.
    pub fn learn(&mut self, took: Duration) {
        self.service_s += (took.as_secs_f64() - self.service_s) * LEARNING_RATE;
    }

    /// How long the next would wait behind `waiting` others.
    ///
    /// `ages` are the times for which work in progress has been going on. Work
    /// that hangs takes at least as long again as it already has. If all of it
    /// hangs, the wait is long before any of it has ended. If one piece hangs,
    /// the others leave as fast as before.
    pub fn expected_wait(&self, waiting: usize, ages: impl Iterator<Item = Duration>) -> Duration {
        let mut begun = 0;
        let mut leave_per_s = 0.0;
        for age in ages {
            begun += 1;
            leave_per_s += self
                .service_s
                .max(age.as_secs_f64())
                .max(SHORTEST_S)
                .recip();
        }
        if begun < self.bounds.in_flight {
            return Duration::ZERO;
        }
        Duration::from_secs_f64((waiting + 1) as f64 / leave_per_s)
    }

    /// Whether one more may wait behind `waiting` others; `ages` as above.
    ///
    /// # Errors
    /// Why not.
    pub fn admit(
        &self,
        waiting: usize,
        ages: impl Iterator<Item = Duration>,
    ) -> Result<(), Refusal> {
        match self.expected_wait(waiting, ages) {
            Duration::ZERO => Ok(()),
            _ if waiting >= self.bounds.waiting => Err(Refusal::Full),
            wait if wait > self.bounds.wait => Err(Refusal::TooSlow),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// All places are taken, each for so long.
    fn all(age: Duration) -> impl Iterator<Item = Duration> {
        std::iter::repeat_n(age, 4)
    }

    fn admission(took: Duration) -> Admission {
        let mut admission = Admission::new(Bounds {
            in_flight: 4,
            waiting: 1000,
            wait: 100 * MS,
        });
        for _ in 0..1000 {
            admission.learn(took);
        }
        admission
    }

    #[test]
    fn as_many_wait_as_leave_in_time() {
        // Four at a time, of 2 ms each: one leaves every half millisecond.
        let admission = admission(2 * MS);
        assert_eq!(admission.admit(0, all(MS)), Ok(()));
        assert_eq!(admission.admit(198, all(MS)), Ok(()));
        assert_eq!(admission.admit(200, all(MS)), Err(Refusal::TooSlow));
    }

    #[test]
    fn no_more_wait_than_may_however_fast_they_leave() {
        let admission = admission(Duration::from_micros(10));
        assert_eq!(admission.admit(999, all(Duration::ZERO)), Ok(()));
        assert_eq!(
            admission.admit(1000, all(Duration::ZERO)),
            Err(Refusal::Full)
        );
    }

    #[test]
    fn where_a_place_is_free_nothing_waits() {
        // However slow it was before: so it is found out that it no longer is.
        let admission = admission(Duration::from_secs(60));
        assert_eq!(admission.admit(0, all(MS).take(3)), Ok(()));
        assert_eq!(admission.admit(0, all(MS)), Err(Refusal::TooSlow));
    }

    #[test]
    fn what_hangs_is_noticed_before_it_ends() {
        let admission = admission(MS);
        assert_eq!(admission.admit(10, all(MS)), Ok(()));
        assert_eq!(admission.admit(10, all(40 * MS)), Err(Refusal::TooSlow));
    }

    #[test]
    fn one_that_hangs_is_no_reason_to_refuse_what_others_do_in_time() {
        let admission = admission(MS);
        let one_hangs = || [600_000 * MS, MS, MS, MS].into_iter();
        assert_eq!(admission.admit(290, one_hangs()), Ok(()));
        assert_eq!(admission.admit(310, one_hangs()), Err(Refusal::TooSlow));
    }
}
