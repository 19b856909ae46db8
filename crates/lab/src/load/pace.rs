//! When requests may leave: the closed loop, and the two open ones.

use std::time::{Duration, Instant};

/// The event that makes a request fall due.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// The answer to the one before.
    Closed {
        /// Time between the first requests, of which each connection sends one.
        step: Duration,
        /// How many first ones there are.
        first: u64,
    },
    /// The clock, at even intervals.
    Even {
        /// From one to the next.
        interval: Duration,
    },
    /// The clock, as if of many independent clients: a Poisson process.
    Random {
        /// Mean of the exponential gaps.
        mean: Duration,
    },
}

/// Says whether a request may leave now, and when it fell due.
#[derive(Debug)]
pub struct Pace {
    arrivals: Arrivals,
    /// When the clock lets the next one leave.
    due: Instant,
    ends: Instant,
    issued: u64,
    count: u64,
    /// The same gaps for every proxy, and not the draws of the pages.
    random: fastrand::Rng,
}

impl Pace {
    /// A pace of at most `count` requests that has yet to begin.
    #[must_use]
    pub fn new(arrivals: Arrivals, count: u64) -> Self {
        let now = Instant::now();
        Self {
            arrivals,
            due: now,
            ends: now,
            issued: 0,
            count,
            random: fastrand::Rng::with_seed(11),
        }
    }

    /// Starts or restarts at `now`. It ends by itself after `length`.
    pub fn begin(&mut self, now: Instant, length: Duration) {
        self.issued = 0;
        self.due = now;
        self.ends = now + length;
    }

    fn is_open(&self) -> bool {
        !matches!(self.arrivals, Arrivals::Closed { .. })
    }

    /// When the clock lets the next request leave; `None` where only the
    /// answer to another does.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        match self.arrivals {
            Arrivals::Closed { first, .. } if self.issued >= first => None,
            _ => Some(self.due),
        }
    }

    /// When the next request fell due, if it has and is still wanted.
    #[must_use]
    pub fn next(&self, now: Instant) -> Option<Instant> {
        if self.issued >= self.count || self.due().is_some_and(|due| due > now) {
            return None;
        }
        let due = if self.is_open() { self.due } else { now };
        (due < self.ends).then_some(due)
    }

    /// Notes that the request that `next` allowed has left.
    pub fn issue(&mut self) {
        self.issued += 1;
        self.due += match self.arrivals {
            Arrivals::Closed { step, .. } => step,
            Arrivals::Even { interval } => interval,
            // 1 - u keeps the logarithm away from zero.
            Arrivals::Random { mean } => mean.mul_f64(-(1.0 - self.random.f64()).ln()),
        };
    }

    /// Whether no further request will leave.
    #[must_use]
    pub fn is_over(&self, now: Instant) -> bool {
        let until = if self.is_open() { self.due } else { now };
        self.issued >= self.count || until >= self.ends
    }

    /// Requests of an open loop that were to leave and never did.
    pub fn drain(&mut self) -> u64 {
        let issued = self.issued;
        while self.is_open() && self.issued < self.count && self.due < self.ends {
            self.issue();
        }
        self.issued - issued
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(100);
    const CLOSED: Arrivals = Arrivals::Closed {
        step: Duration::ZERO,
        first: 1,
    };

    fn began(arrivals: Arrivals, count: u64) -> (Pace, Instant) {
        let mut pace = Pace::new(arrivals, count);
        let now = Instant::now();
        pace.begin(now, LENGTH);
        (pace, now)
    }

    #[test]
    fn an_open_loop_counts_from_when_a_request_fell_due() {
        let interval = Duration::from_secs(1);
        let (mut pace, start) = began(Arrivals::Even { interval }, u64::MAX);
        pace.issue();
        assert_eq!(pace.next(start), None);
        let late = start + Duration::from_secs(7);
        assert_eq!(pace.next(late), Some(start + interval));
        assert_eq!(pace.drain(), 99, "100 in all, one of which has left");
        assert!(pace.is_over(start));
    }

    #[test]
    fn random_arrivals_keep_their_mean_and_vary() {
        let mean = Duration::from_millis(1);
        let (mut pace, start) = began(Arrivals::Random { mean }, u64::MAX);
        let mut gaps = Vec::new();
        for _ in 0..20_000 {
            let before = pace.due;
            pace.issue();
            gaps.push(pace.due.duration_since(before).as_secs_f64());
        }
        let average = pace.due.duration_since(start).as_secs_f64() / 20_000.0;
        assert!((average / 1e-3 - 1.0).abs() < 0.03, "{average}");
        // Of an exponential distribution, e^-2 is above twice the mean.
        let long = gaps.iter().filter(|gap| **gap > 2e-3).count() as f64 / 20_000.0;
        assert!((long - 0.135).abs() < 0.01, "{long}");
    }

    #[test]
    fn a_closed_loop_ends_with_the_clock_or_the_count() {
        let (mut pace, start) = began(CLOSED, 2);
        assert_eq!(pace.next(start + LENGTH), None);
        pace.issue();
        assert!(!pace.is_over(start));
        pace.issue();
        assert!(pace.is_over(start));
        assert_eq!(pace.next(start), None);
        assert_eq!(pace.drain(), 0);
    }

    #[test]
    fn it_begins_again() {
        let (mut pace, start) = began(CLOSED, 1);
        pace.issue();
        assert!(pace.is_over(start));
        let later = start + LENGTH;
        pace.begin(later, LENGTH);
        assert_eq!(pace.next(later), Some(later));
        assert!(!pace.is_over(later));
    }

    #[test]
    fn a_closed_loop_begins_in_steps() {
        let step = Duration::from_secs(1);
        let (mut pace, start) = began(Arrivals::Closed { step, first: 2 }, u64::MAX);
        assert_eq!(pace.next(start), Some(start));
        pace.issue();
        assert_eq!((pace.next(start), pace.due()), (None, Some(start + step)));
        let later = start + 3 * step / 2;
        assert_eq!(pace.next(later), Some(later), "counted from when it leaves");
        pace.issue();
        assert_eq!((pace.next(start), pace.due()), (Some(start), None));
    }
}
