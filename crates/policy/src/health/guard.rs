//! The guard: it learns from exchanges, and guesses which endpoints are not well.
//!
//! Errors in a row put an endpoint out where the others fail less. It comes back
//! when one exchange, its trial, shows that it is well.

use std::time::Duration;

use super::{ChangeKind, Ejection, Records};
use crate::Instant;
use crate::endpoint::{EndpointId, EndpointState, Flag, Trial};

/// Errors in a row before an endpoint looks busier than it is.
const PHANTOM_AFTER: u16 = 3;
/// Errors in a row before it is out for a while.
const EJECT_AFTER: u16 = 5;
/// Errors in a row are no chance where the rest would make as many with at most
/// this probability.
const CHANCE: f64 = 1e-5;
/// The least failure rate that the rest is taken to have. One answer in a
/// hundred may fail for reasons of its own.
const LEAST_FAILURE_RATE: f64 = 0.01;
/// How often a worker hands over its counts.
const HAND_OVER: Duration = Duration::from_millis(100);
/// Seconds over which failures are compared.
pub(super) const WINDOW: usize = 10;
const FIRST_EJECTION: Duration = Duration::from_secs(1);
const LONGEST_EJECTION: Duration = Duration::from_secs(16);
const LONGEST_PHANTOM: Duration = Duration::from_secs(32);

/// Answers, and how many of them were errors.
#[derive(Debug, Clone, Copy, Default)]
struct Answers {
    count: u32,
    errors: u32,
}

impl Answers {
    fn add(&mut self, other: Answers) {
        self.count += other.count;
        self.errors += other.errors;
    }
}

/// Answers of the last [`WINDOW`] seconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Window {
    seconds: [Answers; WINDOW],
    /// The second that was counted last.
    last: u64,
}

impl Window {
    fn add(&mut self, answers: Answers, now: Instant) {
        self.pass(now);
        self.seconds[(self.last % WINDOW as u64) as usize].add(answers);
    }

    fn sum(&mut self, now: Instant) -> Answers {
        self.pass(now);
        let mut sum = Answers::default();
        self.seconds.iter().for_each(|it| sum.add(*it));
        sum
    }

    /// The seconds as they are now, this one first: answers, and errors among them.
    pub fn keep(&mut self, now: Instant) -> [[u32; 2]; WINDOW] {
        self.pass(now);
        std::array::from_fn(|back| {
            // A window that has just begun has no second before its first.
            let second = self.last + (WINDOW - back) as u64;
            let Answers { count, errors } = self.seconds[(second % WINDOW as u64) as usize];
            [count, errors]
        })
    }

    /// A window with these seconds, this one first.
    pub fn restored(kept: &[[u32; 2]; WINDOW], now: Instant) -> Self {
        let mut window = Window::default();
        window.pass(now);
        for (back, [count, errors]) in kept.iter().enumerate() {
            let second = window.last + (WINDOW - back) as u64;
            window.seconds[(second % WINDOW as u64) as usize] = Answers {
                count: *count,
                errors: *errors.min(count),
            };
        }
        window
    }

    /// Forgets the seconds that are over.
    fn pass(&mut self, now: Instant) {
        let second = now.as_nanos() / 1_000_000_000;
        let passed = second.saturating_sub(self.last).min(WINDOW as u64);
        for back in 0..passed {
            self.seconds[((second - back) % WINDOW as u64) as usize] = Answers::default();
        }
        self.last = self.last.max(second);
    }
}

/// Answers that one worker has counted, and that all will know of soon.
#[derive(Debug, Clone, Default)]
pub(crate) struct Guard {
    /// By id.
    counted: Vec<Answers>,
    /// When they were handed over last.
    handed_over: Option<Instant>,
}

impl Guard {
    /// Counts an answer. Whether it is time to hand over.
    pub fn note(&mut self, endpoint: EndpointId, is_error: bool, now: Instant) -> bool {
        let index = endpoint.index();
        if self.counted.len() <= index {
            self.counted.resize(index + 1, Answers::default());
        }
        self.counted[index].add(Answers {
            count: 1,
            errors: u32::from(is_error),
        });
        let last = *self.handed_over.get_or_insert(now);
        now.duration_since(last) >= HAND_OVER
    }

    /// Forgets the counts of endpoints that have `left`.
    pub fn forget(&mut self, left: impl Fn(EndpointId) -> bool) {
        for (id, counted) in (0..).map(EndpointId::new).zip(&mut self.counted) {
            if left(id) {
                *counted = Answers::default();
            }
        }
    }

    pub fn hand_over(&mut self, records: &mut Records, now: Instant) {
        self.handed_over = Some(now);
        for (record, counted) in records.of.iter_mut().zip(&mut self.counted) {
            if counted.count > 0 {
                record.answers.add(std::mem::take(counted), now);
            }
        }
    }
}

impl Records {
    /// The outcome of an exchange at an endpoint that is out: its trial decides.
    pub fn decide(
        &mut self,
        endpoint: &EndpointState,
        trial: Trial,
        is_error: bool,
        now: Instant,
    ) -> Option<ChangeKind> {
        let ejection = self.of(endpoint)?.ejected?;
        // The trial of an earlier ejection says nothing of this one.
        if !trial.is_of_time_since(ejection.at) {
            return None;
        }
        if is_error {
            self.eject(endpoint, endpoint.count_error(), now)
        } else {
            self.readmit(endpoint, now)
        }
    }

    /// Whether so many errors in a row are worth a look at the records.
    pub fn are_suspect(errors: u16) -> bool {
        errors >= PHANTOM_AFTER
    }

    /// The consequence of so many errors in a row: nothing, phantoms, or an
    /// ejection.
    pub fn note_errors(
        &mut self,
        endpoint: &EndpointState,
        errors: u16,
        now: Instant,
    ) -> Option<ChangeKind> {
        // Another configuration may have switched it off in this moment.
        if !self.settings.guard {
            return None;
        }
        let rate = failure_rate_of_rest(self, endpoint, now);
        if !is_no_chance(errors, rate) {
            return None;
        }
        let doublings = u32::from(errors - PHANTOM_AFTER).min(5);
        let lasts = Duration::from_secs(1 << doublings).min(LONGEST_PHANTOM);
        let until = now + lasts;
        let record = self.of(endpoint)?;
        record.phantom_until = Some(record.phantom_until.map_or(until, |it| it.max(until)));
        endpoint.set_phantoms(1);
        let is_out = record.ejected.is_some();
        let out = self.each().filter(|(_, it)| it.ejected.is_some()).count();
        if errors < EJECT_AFTER || is_out || (out + 1) * 2 > self.members.len() {
            return None;
        }
        self.eject(endpoint, errors, now)
    }

    /// Puts a member out for a while, longer each time.
    fn eject(&mut self, endpoint: &EndpointState, errors: u16, now: Instant) -> Option<ChangeKind> {
        let record = self.of(endpoint)?;
        let duration = (FIRST_EJECTION * (1 << record.ejections.min(4))).min(LONGEST_EJECTION);
        record.ejections += 1;
        record.ejected = Some(Ejection {
            at: now,
            until: now + duration,
        });
        endpoint.set(Flag::Ejected, true);
        endpoint.set(Flag::Trial, false);
        Some(ChangeKind::Ejected { errors, duration })
    }

    /// Lets a member take part again, as if nothing had been.
    fn readmit(&mut self, endpoint: &EndpointState, now: Instant) -> Option<ChangeKind> {
        let record = self.of(endpoint)?;
        record.returned = Some(now);
        record.end_suspicion(endpoint);
        self.ramp_up(now);
        endpoint.set(Flag::Ejected, false);
        endpoint.set(Flag::Trial, false);
        Some(ChangeKind::Readmitted)
    }
}

/// How many of the answers of the other endpoints that take part were
/// errors, over the last [`WINDOW`] seconds.
fn failure_rate_of_rest(records: &mut Records, endpoint: &EndpointState, now: Instant) -> f64 {
    let mut rest = Answers::default();
    for (state, record) in records.each() {
        if state.id() != endpoint.id() && state.is_eligible() {
            rest.add(record.answers.sum(now));
        }
    }
    let rate = f64::from(rest.errors) / f64::from(rest.count.max(1));
    rate.max(LEAST_FAILURE_RATE)
}

/// Whether so many errors in a row are no chance, where the rest fails at this
/// rate: `rate`^`errors` <= [`CHANCE`].
fn is_no_chance(errors: u16, rate: f64) -> bool {
    // A little more, for the rounding of the logarithms.
    f64::from(errors) * rate.ln() <= CHANCE.ln() + 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_errors_are_no_chance() {
        for (errors, rate, expected) in [
            (3, 0.01, true),
            (2, 0.01, false),
            (5, 0.1, true),
            (4, 0.1, false),
            (16, 0.5, false),
            (17, 0.5, true),
            (u16::MAX, 1.0, false),
        ] {
            assert_eq!(is_no_chance(errors, rate), expected, "{errors} at {rate}");
        }
    }

    #[test]
    fn failures_of_the_rest_are_forgotten_after_ten_seconds() {
        let mut window = Window::default();
        let start = Instant::from_nanos(5_000_000_000);
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let one = Answers {
            count: 1,
            errors: 1,
        };
        window.add(one, at(0));
        window.add(one, at(3));
        assert_eq!(window.sum(at(9)).errors, 2);
        assert_eq!(window.sum(at(10)).errors, 1);
        // A worker that is late does not bring old seconds back.
        window.add(one, at(2));
        assert_eq!(window.sum(at(12)).errors, 2);
        assert_eq!(window.sum(at(13)).errors, 1);
        // Another process goes on with the same seconds.
        let mut other = Window::restored(&window.keep(at(13)), at(13));
        assert_eq!(other.sum(at(13)).errors, 1);
        assert_eq!(other.keep(at(13)), window.keep(at(13)));
        assert_eq!(other.sum(at(22)).errors, window.sum(at(22)).errors);
        assert_eq!(other.sum(at(500)).errors, 0);
        assert_eq!(window.sum(at(500)).errors, 0);
    }
}
