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
use crate::endpoint::{Admin, EndpointState, Flag, WEIGHT_ONE};
use crate::sync::lock;

/// Errors in a row before an endpoint looks busier than it is.
const GHOST_AFTER: u16 = 3;
/// Errors in a row before it is out for a while.
const EJECT_AFTER: u16 = 5;
/// Failed connections in a row before it counts as unreachable.
const UNREACHABLE_AFTER: u16 = 3;
/// How far its rate of success may lie under that of the rest.
const RATE_MARGIN: f32 = 0.3;
/// Below this rate the rest is no standard to hold an endpoint against.
const REST_MIN: f32 = 0.5;
/// Weight of the latest exchange in a rate of success.
const RATE_ALPHA: f32 = 0.1;
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
}

impl Default for HealthSettings {
    fn default() -> Self {
        HealthSettings {
            guard: true,
            rise: 2,
            fall: 3,
            slow_start: None,
        }
    }
}

/// How an attempt went, as far as the endpoint's health goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observed {
    /// It was answered.
    Success,
    /// A 5xx, a timeout, a broken connection.
    Error,
    /// No connection could be opened.
    Unreachable,
}

/// A change of an endpoint's state, for the event log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Index in the upstream.
    pub endpoint: usize,
    /// What became of it.
    pub kind: ChangeKind,
    /// Endpoints that take exchanges now.
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
    ejected_until: Option<Instant>,
    ghost_until: Option<Instant>,
    /// When it returned, while its weight still rises.
    returned: Option<Instant>,
}

/// One worker's rates of success.
#[derive(Debug, Default)]
pub struct Guard {
    rates: Vec<f32>,
}

impl Guard {
    fn note(&mut self, endpoint: usize, count: usize, is_error: bool) {
        if self.rates.len() != count {
            self.rates = vec![1.0; count];
        }
        let rate = &mut self.rates[endpoint];
        let latest = if is_error { 0.0 } else { 1.0 };
        *rate += RATE_ALPHA * (latest - *rate);
    }

    /// The rate of success of all but one of the endpoints that take part;
    /// `None` where there is no other.
    fn rest(&self, endpoint: usize, states: &[EndpointState]) -> Option<f32> {
        let others = (0..states.len()).filter(|&it| it != endpoint && states[it].is_eligible());
        let (sum, count) = others.fold((0.0, 0_u32), |(sum, count), it| {
            (sum + self.rates[it], count + 1)
        });
        (count > 0).then(|| sum / count as f32)
    }
}

impl Dispatcher {
    /// Learns how an attempt went. A success costs a look at counts that are
    /// zero already.
    pub fn report(
        &self,
        guard: &mut Guard,
        endpoint: usize,
        observed: Observed,
        now: Instant,
    ) -> Option<Change> {
        let state = &self.states()[endpoint];
        if observed == Observed::Unreachable {
            return self.note_unreachable(endpoint);
        }
        if !self.health_settings.guard {
            state.count_reached();
            return None;
        }
        guard.note(endpoint, self.states().len(), observed == Observed::Error);
        match observed {
            Observed::Error => self.note_error(guard, endpoint, now),
            _ => {
                state.count_success();
                match state.has(Flag::Trial) {
                    true => self.readmit(endpoint, now),
                    false => None,
                }
            }
        }
    }

    fn note_error(&self, guard: &Guard, endpoint: usize, now: Instant) -> Option<Change> {
        let state = &self.states()[endpoint];
        let errors = state.count_error();
        // It was reached, or it would not have failed in this way.
        state.count_reached();
        let rest = guard.rest(endpoint, self.states())?;
        let lags = guard.rates[endpoint] < rest - RATE_MARGIN;
        let is_suspect = (errors >= GHOST_AFTER || lags) && rest > REST_MIN;
        let failed_trial = state.has(Flag::Trial);
        if !is_suspect && !failed_trial && errors < EJECT_AFTER {
            return None;
        }
        let mut records = lock(&self.records.0);
        if is_suspect {
            let doublings = u32::from(errors.max(GHOST_AFTER) - GHOST_AFTER).min(5);
            let lasts = Duration::from_secs(1 << doublings).min(LONGEST_GHOST);
            let until = now + lasts;
            let record = &mut records[endpoint];
            record.ghost_until = Some(record.ghost_until.map_or(until, |it| it.max(until)));
            state.set_ghosts(1);
        }
        if !failed_trial && errors < EJECT_AFTER {
            return None;
        }
        let out = records.iter().enumerate();
        let out = out.filter(|&(index, it)| index != endpoint && it.ejected_until.is_some());
        if records[endpoint].ejected_until.is_some() && !failed_trial
            || (out.count() + 1) * 2 > records.len()
        {
            return None;
        }
        let record = &mut records[endpoint];
        let duration = (FIRST_EJECTION * (1 << record.ejections.min(4))).min(LONGEST_EJECTION);
        record.ejections += 1;
        record.ejected_until = Some(now + duration);
        state.set(Flag::Ejected, true);
        state.set(Flag::Trial, false);
        drop(records);
        Some(self.change(endpoint, ChangeKind::Ejected { errors, duration }))
    }

    fn readmit(&self, endpoint: usize, now: Instant) -> Option<Change> {
        let mut records = lock(&self.records.0);
        // Another exchange may have been faster.
        if !self.states()[endpoint].set(Flag::Trial, false) {
            return None;
        }
        let record = &mut records[endpoint];
        record.ejections = 0;
        record.ejected_until = None;
        record.returned = Some(now);
        self.ramp_up(&mut records, now);
        drop(records);
        self.serve(now);
        Some(self.change(endpoint, ChangeKind::Readmitted))
    }

    fn note_unreachable(&self, endpoint: usize) -> Option<Change> {
        let state = &self.states()[endpoint];
        if state.count_unreachable() < UNREACHABLE_AFTER || !state.set(Flag::Unreachable, true) {
            return None;
        }
        Some(self.change(endpoint, ChangeKind::Unreachable))
    }

    /// A connection to the endpoint was opened.
    pub fn reached(&self, endpoint: usize, now: Instant) -> Option<Change> {
        let state = &self.states()[endpoint];
        state.count_reached();
        if !state.has(Flag::Unreachable) {
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

    /// A probe passed or failed.
    pub fn probed(&self, endpoint: usize, passed: bool, now: Instant) -> Option<Change> {
        let state = &self.states()[endpoint];
        let mut records = lock(&self.records.0);
        let record = &mut records[endpoint];
        let kind = match passed {
            true => {
                record.probes_failed = 0;
                record.probes_passed = record.probes_passed.saturating_add(1);
                if !state.has(Flag::Down) || record.probes_passed < self.health_settings.rise {
                    return None;
                }
                record.returned = Some(now);
                state.count_reached();
                ChangeKind::Up
            }
            false => {
                record.probes_passed = 0;
                record.probes_failed = record.probes_failed.saturating_add(1);
                if state.has(Flag::Down) || record.probes_failed < self.health_settings.fall {
                    return None;
                }
                ChangeKind::Down
            }
        };
        state.set(Flag::Down, !passed);
        self.ramp_up(&mut records, now);
        drop(records);
        if passed {
            self.serve(now);
        }
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
        state.set(Flag::Drain, admin == Admin::Drain);
        state.set(Flag::Stop, admin == Admin::Stop);
        drop(records);
        self.serve(now);
        Some(self.change(endpoint, ChangeKind::Admin(admin)))
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
            if is_over(record.ejected_until) && state.has(Flag::Ejected) {
                state.set(Flag::Tried, false);
                state.set(Flag::Trial, true);
                state.set(Flag::Ejected, false);
            }
        }
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
            up: states.iter().filter(|state| state.is_eligible()).count(),
            count: states.len(),
            waiting: self.waiting(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
