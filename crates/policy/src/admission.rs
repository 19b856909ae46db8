//! Whether one more piece of work is let into a queue: by how many wait, and by
//! how long it would.
//!
//! A queue that is bounded in number alone is too long for a slow server and
//! too short for a fast one. What is bounded here is the wait (Little's law:
//! those that wait, by the rate at which they leave), as learned from the work
//! that was done.

use std::time::Duration;

/// Weight of what was learned last.
const LEARNING_RATE: f64 = 1.0 / 16.0;

/// Bounds of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Pieces of work that are done at the same time; at least one.
    pub in_flight: usize,
    /// Pieces of work that may wait.
    pub waiting: usize,
    /// Longest wait that is expected of one that is let in.
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

    /// A piece of work was done, and took so long.
    pub fn learn(&mut self, took: Duration) {
        self.service_s += (took.as_secs_f64() - self.service_s) * LEARNING_RATE;
    }

    /// How long the next would wait behind `waiting` others. `oldest` is how
    /// long the one that was begun first has been going on, of those in flight;
    /// `None` where a place is free. Work that hangs takes at least as long
    /// again as it already has.
    pub fn expected_wait(&self, waiting: usize, oldest: Option<Duration>) -> Duration {
        let Some(oldest) = oldest else {
            return Duration::ZERO;
        };
        let service_s = self.service_s.max(oldest.as_secs_f64());
        Duration::from_secs_f64(service_s * (waiting + 1) as f64 / self.bounds.in_flight as f64)
    }

    /// Whether one more may wait behind `waiting` others; `oldest` as above.
    ///
    /// # Errors
    /// Why not.
    pub fn admit(&self, waiting: usize, oldest: Option<Duration>) -> Result<(), Refusal> {
        if oldest.is_some() && waiting >= self.bounds.waiting {
            Err(Refusal::Full)
        } else if self.expected_wait(waiting, oldest) > self.bounds.wait {
            Err(Refusal::TooSlow)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

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
        let busy = Some(MS);
        assert_eq!(admission.admit(0, busy), Ok(()));
        assert_eq!(admission.admit(198, busy), Ok(()));
        assert_eq!(admission.admit(200, busy), Err(Refusal::TooSlow));
    }

    #[test]
    fn no_more_wait_than_may_however_fast_they_leave() {
        let admission = admission(Duration::from_micros(10));
        let busy = Some(Duration::ZERO);
        assert_eq!(admission.admit(999, busy), Ok(()));
        assert_eq!(admission.admit(1000, busy), Err(Refusal::Full));
    }

    #[test]
    fn where_a_place_is_free_nothing_waits() {
        // However slow it was before: so it is found out that it no longer is.
        let admission = admission(Duration::from_secs(60));
        assert_eq!(admission.admit(0, None), Ok(()));
        assert_eq!(admission.admit(0, Some(MS)), Err(Refusal::TooSlow));
    }

    #[test]
    fn what_hangs_is_noticed_before_it_ends() {
        let admission = admission(MS);
        assert_eq!(admission.admit(10, Some(MS)), Ok(()));
        assert_eq!(admission.admit(10, Some(40 * MS)), Err(Refusal::TooSlow));
    }
}
