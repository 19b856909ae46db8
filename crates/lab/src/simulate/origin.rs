//! The model of an origin: threads, speed, and what goes wrong with it.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

/// How an origin divides its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheduling {
    /// A thread has one request; the others wait in the order of arrival.
    InOrder,
    /// All go on at once and share the threads evenly.
    Shared,
}

/// The properties of an origin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Requests that it can work on at full speed.
    pub threads: u32,
    /// Work done by a thread in a second, in seconds.
    pub speed: f64,
    /// How its time is divided.
    pub scheduling: Scheduling,
}

/// The state of an origin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Condition {
    /// Works, at this part of its speed.
    Up {
        /// 1 is warm.
        warmth: f64,
    },
    /// Answers with an error, without a thread.
    Failing {
        /// After so long.
        after: Duration,
    },
    /// Refuses connections; its requests are lost.
    Down,
}

/// One attempt, as the simulation knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttemptId {
    /// Of the request.
    pub slot: usize,
    /// Different for every attempt.
    pub serial: u64,
}

/// When to come back to an origin, and with what.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Due {
    /// When.
    pub at: Duration,
    /// The work that may be finished then.
    pub what: Finishing,
}

/// The work that may be finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finishing {
    /// This attempt.
    Attempt(AttemptId),
    /// The end of the first sharing request, if nothing has changed in the meantime.
    FirstShared {
        /// Number of the last change.
        change: u64,
    },
}

/// An origin at work.
#[derive(Debug)]
pub struct Origin {
    shape: Shape,
    condition: Condition,
    running: Vec<AttemptId>,
    waiting: VecDeque<(AttemptId, Duration)>,
    shared: BinaryHeap<Reverse<Share>>,
    /// Work done for each sharing request since the start, in seconds.
    done_each: f64,
    done_at: Duration,
    change: u64,
}

/// A sharing request. It is over when `done_each` reaches `until`.
#[derive(Debug, PartialEq)]
struct Share {
    until: f64,
    attempt: AttemptId,
}

impl Eq for Share {}

impl PartialOrd for Share {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Share {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_work = self.until.total_cmp(&other.until);
        by_work.then(self.attempt.serial.cmp(&other.attempt.serial))
    }
}

impl Origin {
    /// Warm and without work.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Origin {
            shape,
            condition: Condition::Up { warmth: 1.0 },
            running: Vec::new(),
            waiting: VecDeque::new(),
            shared: BinaryHeap::new(),
            done_each: 0.0,
            done_at: Duration::ZERO,
            change: 0,
        }
    }

    /// Its state.
    #[must_use]
    pub fn condition(&self) -> Condition {
        self.condition
    }

    /// Takes a request that needs `work` at speed one.
    pub fn begin(&mut self, attempt: AttemptId, work: Duration, now: Duration) -> Option<Due> {
        match self.shape.scheduling {
            Scheduling::InOrder if self.running.len() < self.shape.threads as usize => {
                Some(self.start(attempt, work, now))
            }
            Scheduling::InOrder => {
                self.waiting.push_back((attempt, work));
                None
            }
            Scheduling::Shared => {
                self.advance(now);
                let until = self.done_each + work.as_secs_f64();
                self.shared.push(Reverse(Share { until, attempt }));
                self.first_shared()
            }
        }
    }

    /// The attempt that is over, if one is, and when to come back.
    pub fn finish(&mut self, what: Finishing, now: Duration) -> (Option<AttemptId>, Option<Due>) {
        match what {
            Finishing::Attempt(attempt) => {
                let Some(at) = self.running.iter().position(|it| *it == attempt) else {
                    return (None, None);
                };
                self.running.swap_remove(at);
                let next = self.waiting.pop_front();
                let due = next.map(|(attempt, work)| self.start(attempt, work, now));
                (Some(attempt), due)
            }
            Finishing::FirstShared { change } if change == self.change => {
                self.advance(now);
                let first = self.shared.pop().map(|Reverse(share)| share.attempt);
                (first, self.first_shared())
            }
            Finishing::FirstShared { .. } => (None, None),
        }
    }

    /// Changes the state. Returns the requests lost by that, and the next event. A request that
    /// a thread works on keeps its speed.
    pub fn change(&mut self, condition: Condition, now: Duration) -> (Vec<AttemptId>, Option<Due>) {
        self.advance(now);
        self.condition = condition;
        if condition != Condition::Down {
            return (Vec::new(), self.first_shared());
        }
        let mut lost: Vec<AttemptId> = self.running.drain(..).collect();
        lost.extend(self.waiting.drain(..).map(|(attempt, _)| attempt));
        lost.extend(self.shared.drain().map(|Reverse(share)| share.attempt));
        lost.sort_unstable_by_key(|attempt| attempt.serial);
        self.change += 1;
        (lost, None)
    }

    fn start(&mut self, attempt: AttemptId, work: Duration, now: Duration) -> Due {
        self.running.push(attempt);
        Due {
            at: now + work.div_f64(self.speed()),
            what: Finishing::Attempt(attempt),
        }
    }

    fn speed(&self) -> f64 {
        match self.condition {
            Condition::Up { warmth } => self.shape.speed * warmth,
            Condition::Failing { .. } | Condition::Down => self.shape.speed,
        }
    }

    /// Work done for each sharing request in a second.
    fn speed_each(&self) -> f64 {
        let each = f64::from(self.shape.threads) / self.shared.len().max(1) as f64;
        self.speed() * each.min(1.0)
    }

    fn advance(&mut self, now: Duration) {
        if self.shape.scheduling == Scheduling::Shared {
            let passed = now.saturating_sub(self.done_at).as_secs_f64();
            self.done_each += passed * self.speed_each();
            self.done_at = now;
        }
    }

    fn first_shared(&mut self) -> Option<Due> {
        self.change += 1;
        let Reverse(first) = self.shared.peek()?;
        let left = (first.until - self.done_each).max(0.0);
        Some(Due {
            at: self.done_at + Duration::from_secs_f64(left / self.speed_each()),
            what: Finishing::FirstShared {
                change: self.change,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn attempt(serial: u64) -> AttemptId {
        AttemptId { slot: 0, serial }
    }

    fn origin(threads: u32, speed: f64, scheduling: Scheduling) -> Origin {
        Origin::new(Shape {
            threads,
            speed,
            scheduling,
        })
    }

    #[test]
    fn threads_take_requests_in_order() {
        let mut origin = origin(1, 2.0, Scheduling::InOrder);
        let due = origin.begin(attempt(1), 20 * MS, MS).expect("it begins");
        assert_eq!(due.at, 11 * MS);
        assert_eq!(origin.begin(attempt(2), 20 * MS, 2 * MS), None);
        let (over, next) = origin.finish(due.what, due.at);
        assert_eq!(over, Some(attempt(1)));
        assert_eq!(next.map(|due| due.at), Some(21 * MS));
    }

    #[test]
    fn those_that_share_slow_each_other_down() {
        let mut origin = origin(1, 1.0, Scheduling::Shared);
        let alone = origin.begin(attempt(1), 10 * MS, Duration::ZERO);
        let both = origin.begin(attempt(2), 10 * MS, 5 * MS);
        let (alone, both) = (alone.expect("it begins"), both.expect("it begins"));
        assert_eq!((alone.at, both.at), (10 * MS, 15 * MS));
        assert_eq!(origin.finish(alone.what, alone.at), (None, None));
        let (over, next) = origin.finish(both.what, both.at);
        assert_eq!(over, Some(attempt(1)));
        assert_eq!(next.map(|due| due.at), Some(20 * MS));
    }

    #[test]
    fn what_it_had_is_lost_when_it_goes_down() {
        for scheduling in [Scheduling::InOrder, Scheduling::Shared] {
            let mut origin = origin(1, 1.0, scheduling);
            let first = origin.begin(attempt(1), 10 * MS, Duration::ZERO);
            let second = origin.begin(attempt(2), 10 * MS, Duration::ZERO);
            let (lost, _) = origin.change(Condition::Down, 5 * MS);
            assert_eq!(lost, [attempt(1), attempt(2)]);
            for due in [first, second].into_iter().flatten() {
                assert_eq!(origin.finish(due.what, due.at), (None, None));
            }
        }
    }
}
