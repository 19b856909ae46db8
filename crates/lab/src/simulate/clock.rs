//! Virtual time, and what happens when.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

use evenkeel_policy::Instant;

/// Events in the order of their time; of one time in the order in which they
/// were planned, so that a run can be repeated.
#[derive(Debug)]
pub struct Agenda<E> {
    entries: BinaryHeap<Reverse<AgendaEntry<E>>>,
    next_number: u64,
    now: Duration,
    epoch: Instant,
}

#[derive(Debug)]
struct AgendaEntry<E> {
    at: Duration,
    number: u64,
    event: E,
}

impl<E> Agenda<E> {
    /// Nothing is planned and no time has passed since `epoch`.
    #[must_use]
    pub fn new(epoch: Instant) -> Self {
        Agenda {
            entries: BinaryHeap::new(),
            next_number: 0,
            now: Duration::ZERO,
            epoch,
        }
    }

    /// Time since the start.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.now
    }

    /// The present as the policy takes it.
    #[must_use]
    pub fn instant(&self) -> Instant {
        self.epoch + self.now
    }

    /// Plans an event; what should have happened already happens now.
    pub fn plan(&mut self, at: Duration, event: E) {
        self.entries.push(Reverse(AgendaEntry {
            at: at.max(self.now),
            number: self.next_number,
            event,
        }));
        self.next_number += 1;
    }

    /// The next event; its time is the present then.
    pub fn next_event(&mut self) -> Option<E> {
        let Reverse(entry) = self.entries.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }
}

impl<E> AgendaEntry<E> {
    fn key(&self) -> (Duration, u64) {
        (self.at, self.number)
    }
}

impl<E> PartialEq for AgendaEntry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for AgendaEntry<E> {}

impl<E> PartialOrd for AgendaEntry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for AgendaEntry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_as_planned() {
        let mut agenda = Agenda::new(Instant::from_nanos(0));
        for (ms, event) in [(5, 'd'), (2, 'b'), (2, 'c'), (1, 'a')] {
            agenda.plan(Duration::from_millis(ms), event);
        }
        let order: String = std::iter::from_fn(|| agenda.next_event()).collect();
        assert_eq!(order, "abcd");
        assert_eq!(agenda.now(), Duration::from_millis(5));
        agenda.plan(Duration::ZERO, 'e');
        assert_eq!(agenda.next_event(), Some('e'));
        assert_eq!(
            agenda.now(),
            Duration::from_millis(5),
            "time does not go back"
        );
    }
}
