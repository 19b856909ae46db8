//! What is observed of endpoints, and what follows: ejection, phantoms, slow
//! start, and the operator's wishes.
//!
//! Three sources, kept apart: probes, which see an endpoint from outside;
//! exchanges, which the guard learns from; and the operator. Flags and ramps
//! are published in the endpoint's atomics; the records behind them are under
//! a lock that no exchange takes unless something went wrong.

use std::time::Duration;

use crate::Instant;

use crate::dispatch::Dispatcher;
use crate::endpoint::{Admin, Flag, Reservation, WEIGHT_ONE};
use crate::observation::{Answer, Observed};
use crate::sync::{Ordering, lock};

/// Errors in a row before an endpoint looks busier than it is.
const GHOST_AFTER: u16 = 3;
/// Errors in a row before it is out for a while.
const EJECT_AFTER: u16 = 5;
/// Failed connections in a row before it counts as unreachable.
const UNREACHABLE_AFTER: u16 = 3;
/// Errors in a row are no chance where the rest would make as many with at most
/// this probability.
const CHANCE: f64 = 1e-5;
/// The least rate of failure that the rest is taken to have: one answer in a
/// hundred may fail for reasons of its own.
const LEAST_FAILURE_RATE: f64 = 0.01;
/// How often a worker hands over what it has counted.
const HAND_OVER: Duration = Duration::from_millis(100);
/// Seconds over which failures are compared.
const WINDOW: usize = 10;
const FIRST_EJECTION: Duration = Duration::from_secs(1);
const LONGEST_EJECTION: Duration = Duration::from_secs(16);
const LONGEST_GHOST: Duration = Duration::from_secs(32);
/// The least share of its weight that a slow start begins with.
const RAMP_MIN: f64 = 0.02;

/// How an upstream watches its endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthSettings {
    /// Whether errors of exchanges count.
    pub guard: bool,
    /// Probes in a row that must pass before an endpoint is up again.
    pub rise: u32,
    /// Probes in a row that must fail before it is down.
    pub fall: u32,
    /// How long its weight rises after a return.
    pub slow_start: Option<Duration>,
    /// What an endpoint is before its first probe.
    pub initial: Initial,
}

/// What an endpoint is before its first probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Initial {
    /// It gets nothing. The first probe decides alone, in either direction.
    Down,
    /// It takes part. The first probe counts as any other.
    #[default]
    Up,
}

impl Default for HealthSettings {
    fn default() -> Self {
        HealthSettings {
            guard: true,
            rise: 2,
            fall: 3,
            slow_start: None,
            initial: Initial::Up,
        }
    }
}

/// A change of an endpoint's state, for the event log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Index in the upstream.
    pub endpoint: usize,
    /// What became of it.
    pub kind: ChangeKind,
    /// Endpoints that take exchanges now, or wait for their first probe: at the
    /// start one that is down is not the last.
    pub up: usize,
    /// Endpoints in all.
    pub count: usize,
    /// Exchanges that wait.
    pub waiting: usize,
}

/// What became of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// Enough probes passed.
    Up,
    /// Enough probes failed.
    Down,
    /// A connection was opened again.
    Reachable,
    /// Connections failed.
    Unreachable,
    /// Errors in a row: out for a while.
    Ejected {
        /// How many there were.
        errors: u16,
        /// How long it is out.
        duration: Duration,
    },
    /// An exchange showed that it is well again.
    Readmitted,
    /// The operator's wish.
    Admin(Admin),
}

/// What is known of an endpoint beyond its atomics.
#[derive(Debug, Clone, Default)]
pub(crate) struct Record {
    admin: Admin,
    probes_passed: u32,
    probes_failed: u32,
    /// Ejections without a success in between.
    ejections: u32,
    /// When it was put out last, and until when it is.
    ejected: Option<Ejection>,
    ghost_until: Option<Instant>,
    /// When it returned, while its weight still rises.
    returned: Option<Instant>,
    /// Its answers of late.
    answers: Window,
}

#[derive(Debug, Clone, Copy)]
struct Ejection {
    at: Instant,
    until: Instant,
}

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
struct Window {
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
#[derive(Debug, Default)]
pub struct Guard {
    counted: Vec<Answers>,
    /// When they were handed over last.
    handed_over: Option<Instant>,
}

impl Guard {
    /// Counts an answer. Whether it is time to hand over.
    fn note(&mut self, endpoint: usize, count: usize, is_error: bool, now: Instant) -> bool {
        if self.counted.len() != count {
            self.counted = vec![Answers::default(); count];
        }
        self.counted[endpoint].add(Answers {
            count: 1,
            errors: u32::from(is_error),
        });
        let last = *self.handed_over.get_or_insert(now);
        now.duration_since(last) >= HAND_OVER
    }

    fn hand_over(&mut self, records: &mut [Record], now: Instant) {
        self.handed_over = Some(now);
        for (record, counted) in records.iter_mut().zip(&mut self.counted) {
            if counted.count > 0 {
                record.answers.add(std::mem::take(counted), now);
            }
        }
    }
}

impl Dispatcher {
    /// Learns what was observed of an attempt. A success costs a look at counts
    /// that are zero already.
    pub fn report(
        &self,
        guard: &mut Guard,
        slot: Reservation,
        observed: Observed,
        now: Instant,
    ) -> Option<Change> {
        let endpoint = slot.endpoint();
        let state = &self.states()[endpoint];
        if observed == Observed::Unreachable {
            return self.note_unreachable(endpoint, now);
        }
        let answer = observed.answer()?;
        if !self.health_settings.guard {
            state.count_answer();
            return None;
        }
        let is_due = guard.note(endpoint, self.states().len(), answer.is_error, now);
        if is_due {
            guard.hand_over(&mut lock(&self.records.0), now);
        }
        // Invariant: while an endpoint is out, its trial alone decides, and what
        // was sent there before it was put out decides nothing ever.
        if state.is_guessed_out() {
            state.count_answer();
            return self.decide(slot, answer, now);
        }
        if slot.is_from_before_ejection(state) {
            state.count_answer();
            return None;
        }
        match answer.is_error {
            true => self.note_error(guard, endpoint, now),
            false => {
                state.count_success();
                None
            }
        }
    }

    /// The outcome of an exchange at an endpoint that is out.
    fn decide(&self, slot: Reservation, answer: Answer, now: Instant) -> Option<Change> {
        let (endpoint, trial) = (slot.endpoint(), slot.trial?);
        let mut records = lock(&self.records.0);
        let ejection = records[endpoint].ejected?;
        // The trial of an earlier ejection says nothing of this one.
        if !trial.is_of_time_since(ejection.at) {
            return None;
        }
        let kind = if answer.is_error {
            let errors = self.states()[endpoint].count_error();
            self.eject(&mut records, endpoint, errors, now)
        } else {
            self.readmit(&mut records, endpoint, now);
            ChangeKind::Readmitted
        };
        drop(records);
        self.serve(now);
        Some(self.change(endpoint, kind))
    }

    fn note_error(&self, guard: &mut Guard, endpoint: usize, now: Instant) -> Option<Change> {
        let state = &self.states()[endpoint];
        let errors = state.count_error();
        // It was reached, or it would not have failed in this way.
        state.count_answer();
        if errors < GHOST_AFTER {
            return None;
        }
        let mut records = lock(&self.records.0);
        guard.hand_over(&mut records, now);
        let rate = self.failure_rate_of_rest(&mut records, endpoint, now);
        if !is_no_chance(errors, rate) {
            return None;
        }
        let doublings = u32::from(errors - GHOST_AFTER).min(5);
        let lasts = Duration::from_secs(1 << doublings).min(LONGEST_GHOST);
        let until = now + lasts;
        let record = &mut records[endpoint];
        record.ghost_until = Some(record.ghost_until.map_or(until, |it| it.max(until)));
        state.set_ghosts(1);
        let out = records.iter().filter(|it| it.ejected.is_some()).count();
        if errors < EJECT_AFTER
            || records[endpoint].ejected.is_some()
            || (out + 1) * 2 > records.len()
        {
            return None;
        }
        let kind = self.eject(&mut records, endpoint, errors, now);
        drop(records);
        self.serve(now);
        Some(self.change(endpoint, kind))
    }

    /// How many of the answers of the other endpoints that take part were
    /// errors, over the last [`WINDOW`] seconds.
    fn failure_rate_of_rest(&self, records: &mut [Record], endpoint: usize, now: Instant) -> f64 {
        let mut rest = Answers::default();
        for (index, (state, record)) in self.states().iter().zip(records).enumerate() {
            if index != endpoint && state.is_eligible() {
                rest.add(record.answers.sum(now));
            }
        }
        let rate = f64::from(rest.errors) / f64::from(rest.count.max(1));
        rate.max(LEAST_FAILURE_RATE)
    }

    /// Puts an endpoint out for a while, longer each time.
    fn eject(
        &self,
        records: &mut [Record],
        endpoint: usize,
        errors: u16,
        now: Instant,
    ) -> ChangeKind {
        let record = &mut records[endpoint];
        let duration = (FIRST_EJECTION * (1 << record.ejections.min(4))).min(LONGEST_EJECTION);
        record.ejections += 1;
        record.ejected = Some(Ejection {
            at: now,
            until: now + duration,
        });
        let state = &self.states()[endpoint];
        state.set(Flag::Ejected, true);
        state.set(Flag::Trial, false);
        self.count_trials();
        ChangeKind::Ejected { errors, duration }
    }

    /// Lets an endpoint take part again, as if nothing had been.
    fn readmit(&self, records: &mut [Record], endpoint: usize, now: Instant) {
        let record = &mut records[endpoint];
        record.ejections = 0;
        record.ejected = None;
        record.ghost_until = None;
        record.returned = Some(now);
        let state = &self.states()[endpoint];
        state.set_ghosts(0);
        state.count_success();
        self.ramp_up(records, now);
        state.set(Flag::Ejected, false);
        state.set(Flag::Trial, false);
        self.count_trials();
    }

    /// Tells workers whether any endpoint is on trial. Under the records' lock.
    fn count_trials(&self) {
        let states = self.states().iter();
        let on_trial = states.filter(|it| it.has(Flag::Trial)).count();
        self.trials.store(on_trial as u32, Ordering::Relaxed);
    }

    /// A connection to the endpoint could not be opened.
    pub fn note_unreachable(&self, endpoint: usize, now: Instant) -> Option<Change> {
        let state = &self.states()[endpoint];
        if state.count_unreachable() < UNREACHABLE_AFTER || !state.set(Flag::Unreachable, true) {
            return None;
        }
        self.serve(now);
        Some(self.change(endpoint, ChangeKind::Unreachable))
    }

    /// Notes that the backlog of the endpoint, a Unix socket, is full. One that
    /// lets nobody in for `timeout` counts as a connection that failed.
    pub fn note_full_backlog(
        &self,
        endpoint: usize,
        timeout: Duration,
        now: Instant,
    ) -> Option<Change> {
        match self.states()[endpoint].note_full_backlog(now, timeout) {
            true => self.note_unreachable(endpoint, now),
            false => None,
        }
    }

    /// Whether this exchange is the one that waits for room in the endpoint's
    /// backlog. The others wait in the queue meanwhile.
    pub fn claim_backlog(&self, endpoint: usize) -> bool {
        self.states()[endpoint].set(Flag::Backlog, true)
    }

    /// Ends the wait of the exchange that [claimed](Self::claim_backlog) it.
    pub fn give_up_backlog(&self, endpoint: usize, now: Instant) {
        self.states()[endpoint].set(Flag::Backlog, false);
        self.serve(now);
    }

    /// A connection to the endpoint was opened.
    pub fn reached(&self, endpoint: usize, now: Instant) -> Option<Change> {
        let state = &self.states()[endpoint];
        let is_news = state.count_opening();
        if !state.has(Flag::Unreachable) {
            if is_news {
                // Exchanges that were refused there may go there again.
                self.serve(now);
            }
            return None;
        }
        let mut records = lock(&self.records.0);
        records[endpoint].returned = Some(now);
        let has_changed = state.set(Flag::Unreachable, false);
        self.ramp_up(&mut records, now);
        drop(records);
        self.serve(now);
        has_changed.then(|| self.change(endpoint, ChangeKind::Reachable))
    }

    /// A probe passed or failed. The first one decides alone where nothing was
    /// known before: that the endpoint is well is no change then.
    pub fn probed(&self, endpoint: usize, passed: bool, now: Instant) -> Option<Change> {
        let state = &self.states()[endpoint];
        let mut records = lock(&self.records.0);
        let record = &mut records[endpoint];
        let is_first = state.has(Flag::Unprobed);
        let kind = match passed {
            true => {
                record.probes_failed = 0;
                record.probes_passed = record.probes_passed.saturating_add(1);
                if is_first {
                    state.set(Flag::Unprobed, false);
                    drop(records);
                    self.serve(now);
                    return None;
                }
                if !state.has(Flag::Down) || record.probes_passed < self.health_settings.rise {
                    return None;
                }
                record.returned = Some(now);
                state.count_opening();
                ChangeKind::Up
            }
            false => {
                record.probes_passed = 0;
                record.probes_failed = record.probes_failed.saturating_add(1);
                let is_enough = is_first || record.probes_failed >= self.health_settings.fall;
                if state.has(Flag::Down) || !is_enough {
                    return None;
                }
                ChangeKind::Down
            }
        };
        state.set(Flag::Down, !passed);
        state.set(Flag::Unprobed, false);
        self.ramp_up(&mut records, now);
        drop(records);
        self.serve(now);
        Some(self.change(endpoint, kind))
    }

    /// What the operator wants of the endpoint.
    pub fn admin(&self, endpoint: usize) -> Admin {
        lock(&self.records.0)[endpoint].admin
    }

    /// Does what the operator wants.
    pub fn set_admin(&self, endpoint: usize, admin: Admin, now: Instant) -> Option<Change> {
        let state = &self.states()[endpoint];
        let mut records = lock(&self.records.0);
        if std::mem::replace(&mut records[endpoint].admin, admin) == admin {
            return None;
        }
        if admin == Admin::Ready {
            // A deploy by drain, restart and ready is what slow start is for.
            records[endpoint].returned = Some(now);
            self.ramp_up(&mut records, now);
        }
        state.set(Flag::Drain, admin == Admin::Drain);
        state.set(Flag::Stop, admin == Admin::Stop);
        drop(records);
        self.serve(now);
        Some(self.change(endpoint, ChangeKind::Admin(admin)))
    }

    /// Gives an endpoint another share of the traffic. One that had none
    /// returns slowly.
    pub fn set_weight(&self, endpoint: usize, weight: u32, now: Instant) {
        let mut records = lock(&self.records.0);
        let state = &self.states()[endpoint];
        if weight > 0 && state.weight() == 0 {
            records[endpoint].returned = Some(now);
            self.ramp_up(&mut records, now);
        }
        state.set_weight(weight);
        drop(records);
        self.serve(now);
    }

    /// Whether somebody should see if a connection to the endpoint opens: it
    /// can't be reached, or has just refused one while an exchange waits.
    pub fn wants_connection(&self, endpoint: usize) -> bool {
        let state = &self.states()[endpoint];
        let is_suspect = state.is_refusing() || state.is_backlog_full();
        state.has(Flag::Unreachable) || (is_suspect && self.waiting() > 0)
    }

    /// Lets time pass: ends phantoms and ejections, raises weights, and serves
    /// who waits. To be called about ten times a second.
    pub fn tick(&self, now: Instant) {
        let is_over = |until: Option<Instant>| until.is_some_and(|until| until <= now);
        let mut records = lock(&self.records.0);
        for (state, record) in self.states().iter().zip(records.iter_mut()) {
            if is_over(record.ghost_until) {
                record.ghost_until = None;
                state.set_ghosts(0);
            }
            if is_over(record.ejected.map(|it| it.until)) && state.has(Flag::Ejected) {
                // The next exchange that may go there is the trial, whatever
                // phantom is left.
                state.set(Flag::Trial, true);
                state.set(Flag::Ejected, false);
            }
        }
        self.count_trials();
        self.ramp_up(&mut records, now);
        drop(records);
        self.serve(now);
    }

    /// Publishes the weights of endpoints that returned not long ago: linear
    /// over the slow start, relative to the warmest endpoint, so that the
    /// return of all at once is not throttled.
    fn ramp_up(&self, records: &mut [Record], now: Instant) {
        let Some(slow_start) = self.health_settings.slow_start else {
            return;
        };
        let warmth = |record: &Record| {
            let age = now.duration_since(record.returned?);
            (age < slow_start).then(|| (age.as_secs_f64() / slow_start.as_secs_f64()).max(RAMP_MIN))
        };
        let takes_part = self.states().iter().zip(records.iter());
        let warmest = takes_part
            .filter(|(state, _)| state.is_eligible())
            .map(|(_, record)| warmth(record).unwrap_or(1.0))
            .fold(RAMP_MIN, f64::max);
        for (state, record) in self.states().iter().zip(records.iter_mut()) {
            let warmth = warmth(record);
            if warmth.is_none() {
                record.returned = None;
            }
            let share = (warmth.unwrap_or(1.0) / warmest).min(1.0);
            state.set_ramp((share * f64::from(WEIGHT_ONE)).max(1.0) as u16);
        }
    }

    fn change(&self, endpoint: usize, kind: ChangeKind) -> Change {
        let states = self.states();
        Change {
            endpoint,
            kind,
            up: states
                .iter()
                .filter(|state| state.is_eligible() || state.is_only_unprobed())
                .count(),
            count: states.len(),
            waiting: self.waiting(),
        }
    }
}

/// Whether so many errors in a row are no chance, where the rest fails at this
/// rate: `rate`^`errors` <= [`CHANCE`].
fn is_no_chance(errors: u16, rate: f64) -> bool {
    // A little more, for what is lost in the logarithms.
    f64::from(errors) * rate.ln() <= CHANCE.ln() + 1e-9
}

#[cfg(all(test, not(loom)))]
mod tests;
