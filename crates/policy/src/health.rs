//! What is observed of endpoints, and what follows: ejection, phantoms, slow
//! start, and the operator's wishes.
//!
//! Three sources, kept apart: probes, which see an endpoint from outside;
//! exchanges, which the guard learns from; and the operator. Flags and ramps
//! are published in the endpoint's atomics; the records behind them are under
//! a lock that no exchange takes unless something went wrong.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::Instant;

use crate::dispatch::Dispatcher;
use crate::endpoint::{
    Admin, EndpointId, EndpointSettings, EndpointState, Flag, Reservation, WEIGHT_ONE,
};
use crate::members::{Chooser, Members};
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

/// What is known of the endpoints of an upstream beyond their atomics.
#[derive(Debug)]
pub(crate) struct Records {
    /// The endpoints as they are now.
    pub members: Arc<Members>,
    /// Endpoints that left, and may still be in use.
    pub removed: Vec<Arc<EndpointState>>,
    /// Ids that name no endpoint.
    free: Vec<EndpointId>,
    /// By id, of members and others.
    of: Vec<Record>,
}

impl Records {
    pub fn new() -> Self {
        Records {
            members: Arc::new(Members::new(0, Vec::new())),
            removed: Vec::new(),
            free: Vec::new(),
            of: Vec::new(),
        }
    }

    /// The endpoints with these settings, of which the members are to consist. A
    /// member of the same name stays as it is. One that left and is still in use
    /// begins again: what it has in flight counts.
    pub fn endpoints_for(
        &mut self,
        settings: &[EndpointSettings<'_>],
        health: &HealthSettings,
    ) -> Vec<Arc<EndpointState>> {
        let before = self.members.clone();
        let members = before.endpoints().iter();
        let mut staying: HashMap<_, _> = members.map(|it| (it.name(), it)).collect();
        let found = settings.iter().map(|it| staying.remove(it.name).cloned());
        let mut found: Vec<_> = found.collect();
        self.take_returning(settings, &mut found, health);
        self.release_ids();
        let all = settings.iter().zip(found);
        all.map(|(settings, found)| {
            found.unwrap_or_else(|| {
                let endpoint = Arc::new(EndpointState::new(self.next_id(), settings));
                self.begin(&endpoint, health);
                endpoint
            })
        })
        .collect()
    }

    /// Fills in what was not found, as far as it left and is still in use.
    fn take_returning(
        &mut self,
        settings: &[EndpointSettings<'_>],
        found: &mut [Option<Arc<EndpointState>>],
        health: &HealthSettings,
    ) {
        let places = settings.iter().map(|it| it.name).zip(0..);
        let places = places.filter(|(_, at)| found[*at].is_none());
        let mut places: HashMap<&str, usize> = places.collect();
        for endpoint in std::mem::take(&mut self.removed) {
            if let Some(at) = places.remove(endpoint.name()) {
                endpoint.renew(&settings[at]);
                self.begin(&endpoint, health);
                found[at] = Some(endpoint);
            } else {
                self.removed.push(endpoint);
            }
        }
    }

    fn begin(&mut self, endpoint: &EndpointState, health: &HealthSettings) {
        self.of[endpoint.id().index()] = Record::default();
        endpoint.set(Flag::Unprobed, health.initial == Initial::Down);
    }

    /// Notes the ids under which nothing is in flight or pooled any more. Whoever has
    /// a connection to an endpoint, or chooses from members that it is one of, holds
    /// the endpoint.
    fn release_ids(&mut self) {
        let is_unused =
            |it: &mut Arc<EndpointState>| it.in_flight() == 0 && Arc::get_mut(it).is_some();
        let unused = self.removed.extract_if(.., is_unused);
        self.free.extend(unused.map(|it| it.id()));
    }

    fn next_id(&mut self) -> EndpointId {
        self.free.pop().unwrap_or_else(|| {
            self.of.push(Record::default());
            EndpointId::new(self.of.len() as u32 - 1)
        })
    }

    /// That of this endpoint; `None` where it is no member any more.
    fn of(&mut self, endpoint: &EndpointState) -> Option<&mut Record> {
        let is_member = self.members.has(endpoint);
        is_member.then(|| &mut self.of[endpoint.id().index()])
    }

    /// Every member with its record.
    fn each(&mut self) -> impl Iterator<Item = (&EndpointState, &mut Record)> {
        let ids = (0..).map(EndpointId::new);
        let members = &self.members;
        let all = ids.zip(&mut self.of);
        all.filter_map(move |(id, record)| Some((&**members.get(id)?, record)))
    }
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
#[derive(Debug, Clone, Default)]
pub(crate) struct Guard {
    /// By id.
    counted: Vec<Answers>,
    /// When they were handed over last.
    handed_over: Option<Instant>,
}

impl Guard {
    /// Counts an answer. Whether it is time to hand over.
    fn note(&mut self, endpoint: EndpointId, is_error: bool, now: Instant) -> bool {
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

    /// Forgets what was counted of endpoints that have `left`.
    pub fn forget(&mut self, left: impl Fn(EndpointId) -> bool) {
        for (id, counted) in (0..).map(EndpointId::new).zip(&mut self.counted) {
            if left(id) {
                *counted = Answers::default();
            }
        }
    }

    fn hand_over(&mut self, records: &mut Records, now: Instant) {
        self.handed_over = Some(now);
        for (record, counted) in records.of.iter_mut().zip(&mut self.counted) {
            if counted.count > 0 {
                record.answers.add(std::mem::take(counted), now);
            }
        }
    }
}

impl Dispatcher {
    /// Learns what was observed of an attempt at this endpoint. A success costs a
    /// look at counts that are zero already.
    pub fn report(
        &self,
        chooser: &mut Chooser,
        endpoint: &EndpointState,
        slot: Reservation,
        observed: Observed,
        now: Instant,
    ) -> Option<Change> {
        debug_assert_eq!(endpoint.id(), slot.endpoint(), "it is of another one");
        let guard = &mut chooser.guard;
        if observed == Observed::Unreachable {
            return self.note_unreachable(endpoint, now);
        }
        let answer = observed.answer()?;
        if !self.health_settings.guard {
            endpoint.count_answer();
            return None;
        }
        let is_due = guard.note(endpoint.id(), answer.is_error, now);
        if is_due {
            guard.hand_over(&mut lock(&self.records.0), now);
        }
        // Invariant: while an endpoint is out, its trial alone decides, and what
        // was sent there before it was put out decides nothing ever.
        if endpoint.is_guessed_out() {
            endpoint.count_answer();
            return self.decide(endpoint, slot, answer, now);
        }
        if slot.is_from_before_ejection(endpoint) {
            endpoint.count_answer();
            return None;
        }
        if answer.is_error {
            self.note_error(guard, endpoint, now)
        } else {
            endpoint.count_success();
            None
        }
    }

    /// The outcome of an exchange at an endpoint that is out.
    fn decide(
        &self,
        endpoint: &EndpointState,
        slot: Reservation,
        answer: Answer,
        now: Instant,
    ) -> Option<Change> {
        let trial = slot.trial?;
        let mut records = lock(&self.records.0);
        let ejection = records.of(endpoint)?.ejected?;
        // The trial of an earlier ejection says nothing of this one.
        if !trial.is_of_time_since(ejection.at) {
            return None;
        }
        let kind = if answer.is_error {
            self.eject(&mut records, endpoint, endpoint.count_error(), now)?
        } else {
            self.readmit(&mut records, endpoint, now)?;
            ChangeKind::Readmitted
        };
        drop(records);
        self.serve(now);
        Some(self.change(kind))
    }

    fn note_error(
        &self,
        guard: &mut Guard,
        endpoint: &EndpointState,
        now: Instant,
    ) -> Option<Change> {
        let errors = endpoint.count_error();
        // It was reached, or it would not have failed in this way.
        endpoint.count_answer();
        if errors < GHOST_AFTER {
            return None;
        }
        let mut records = lock(&self.records.0);
        guard.hand_over(&mut records, now);
        let rate = failure_rate_of_rest(&mut records, endpoint, now);
        if !is_no_chance(errors, rate) {
            return None;
        }
        let doublings = u32::from(errors - GHOST_AFTER).min(5);
        let lasts = Duration::from_secs(1 << doublings).min(LONGEST_GHOST);
        let until = now + lasts;
        let record = records.of(endpoint)?;
        record.ghost_until = Some(record.ghost_until.map_or(until, |it| it.max(until)));
        endpoint.set_ghosts(1);
        let is_out = record.ejected.is_some();
        let out = records
            .each()
            .filter(|(_, it)| it.ejected.is_some())
            .count();
        if errors < EJECT_AFTER || is_out || (out + 1) * 2 > records.members.len() {
            return None;
        }
        let kind = self.eject(&mut records, endpoint, errors, now)?;
        drop(records);
        self.serve(now);
        Some(self.change(kind))
    }

    /// Puts a member out for a while, longer each time.
    fn eject(
        &self,
        records: &mut Records,
        endpoint: &EndpointState,
        errors: u16,
        now: Instant,
    ) -> Option<ChangeKind> {
        let record = records.of(endpoint)?;
        let duration = (FIRST_EJECTION * (1 << record.ejections.min(4))).min(LONGEST_EJECTION);
        record.ejections += 1;
        record.ejected = Some(Ejection {
            at: now,
            until: now + duration,
        });
        endpoint.set(Flag::Ejected, true);
        endpoint.set(Flag::Trial, false);
        self.count_trials(&records.members);
        Some(ChangeKind::Ejected { errors, duration })
    }

    /// Lets a member take part again, as if nothing had been.
    fn readmit(&self, records: &mut Records, endpoint: &EndpointState, now: Instant) -> Option<()> {
        let record = records.of(endpoint)?;
        record.ejections = 0;
        record.ejected = None;
        record.ghost_until = None;
        record.returned = Some(now);
        endpoint.set_ghosts(0);
        endpoint.count_success();
        self.ramp_up(records, now);
        endpoint.set(Flag::Ejected, false);
        endpoint.set(Flag::Trial, false);
        self.count_trials(&records.members);
        Some(())
    }

    /// Tells workers whether any endpoint is on trial. Under the records' lock.
    pub(crate) fn count_trials(&self, members: &Members) {
        let states = members.endpoints().iter();
        let on_trial = states.filter(|it| it.has(Flag::Trial)).count();
        self.trials.store(on_trial as u32, Ordering::Relaxed);
    }

    /// A connection to the endpoint could not be opened.
    pub fn note_unreachable(&self, endpoint: &EndpointState, now: Instant) -> Option<Change> {
        let is_enough = endpoint.count_unreachable() >= UNREACHABLE_AFTER;
        let is_member = !endpoint.has(Flag::Removed);
        if !is_enough || !is_member || !endpoint.set(Flag::Unreachable, true) {
            return None;
        }
        self.serve(now);
        Some(self.change(ChangeKind::Unreachable))
    }

    /// Notes that the backlog of the endpoint, a Unix socket, is full. One that
    /// lets nobody in for `timeout` counts as a connection that failed.
    pub fn note_full_backlog(
        &self,
        endpoint: &EndpointState,
        timeout: Duration,
        now: Instant,
    ) -> Option<Change> {
        match endpoint.note_full_backlog(now, timeout) {
            true => self.note_unreachable(endpoint, now),
            false => None,
        }
    }

    /// Ends the wait of the exchange that [claimed](EndpointState::claim_backlog)
    /// the endpoint's backlog.
    pub fn give_up_backlog(&self, endpoint: &EndpointState, now: Instant) {
        endpoint.set(Flag::Backlog, false);
        self.serve(now);
    }

    /// A connection to the endpoint was opened.
    pub fn reached(&self, endpoint: &EndpointState, now: Instant) -> Option<Change> {
        let is_news = endpoint.count_opening();
        if !endpoint.has(Flag::Unreachable) {
            if is_news {
                // Exchanges that were refused there may go there again.
                self.serve(now);
            }
            return None;
        }
        let mut records = lock(&self.records.0);
        records.of(endpoint)?.returned = Some(now);
        let has_changed = endpoint.set(Flag::Unreachable, false);
        self.ramp_up(&mut records, now);
        drop(records);
        self.serve(now);
        has_changed.then(|| self.change(ChangeKind::Reachable))
    }

    /// A probe passed or failed. The first one decides alone where nothing was
    /// known before: that the endpoint is well is no change then.
    pub fn probed(&self, endpoint: &EndpointState, passed: bool, now: Instant) -> Option<Change> {
        let mut records = lock(&self.records.0);
        let record = records.of(endpoint)?;
        let is_first = endpoint.has(Flag::Unprobed);
        let kind = match passed {
            true => {
                record.probes_failed = 0;
                record.probes_passed = record.probes_passed.saturating_add(1);
                if is_first {
                    endpoint.set(Flag::Unprobed, false);
                    drop(records);
                    self.serve(now);
                    return None;
                }
                if !endpoint.has(Flag::Down) || record.probes_passed < self.health_settings.rise {
                    return None;
                }
                record.returned = Some(now);
                endpoint.count_opening();
                ChangeKind::Up
            }
            false => {
                record.probes_passed = 0;
                record.probes_failed = record.probes_failed.saturating_add(1);
                let is_enough = is_first || record.probes_failed >= self.health_settings.fall;
                if endpoint.has(Flag::Down) || !is_enough {
                    return None;
                }
                ChangeKind::Down
            }
        };
        endpoint.set(Flag::Down, !passed);
        endpoint.set(Flag::Unprobed, false);
        self.ramp_up(&mut records, now);
        drop(records);
        self.serve(now);
        Some(self.change(kind))
    }

    /// What the operator wants of the endpoint.
    pub fn admin(&self, endpoint: &EndpointState) -> Admin {
        let mut records = lock(&self.records.0);
        records.of(endpoint).map(|it| it.admin).unwrap_or_default()
    }

    /// Does what the operator wants.
    pub fn set_admin(
        &self,
        endpoint: &EndpointState,
        admin: Admin,
        now: Instant,
    ) -> Option<Change> {
        let mut records = lock(&self.records.0);
        let record = records.of(endpoint)?;
        if std::mem::replace(&mut record.admin, admin) == admin {
            return None;
        }
        if admin == Admin::Ready {
            // A deploy by drain, restart and ready is what slow start is for.
            record.returned = Some(now);
            self.ramp_up(&mut records, now);
        }
        endpoint.set(Flag::Drain, admin == Admin::Drain);
        endpoint.set(Flag::Stop, admin == Admin::Stop);
        drop(records);
        self.serve(now);
        Some(self.change(ChangeKind::Admin(admin)))
    }

    /// Gives an endpoint another share of the traffic. One that had none
    /// returns slowly.
    pub fn set_weight(&self, endpoint: &EndpointState, weight: u32, now: Instant) {
        let mut records = lock(&self.records.0);
        if weight > 0
            && endpoint.weight() == 0
            && let Some(record) = records.of(endpoint)
        {
            record.returned = Some(now);
            self.ramp_up(&mut records, now);
        }
        endpoint.set_weight(weight);
        drop(records);
        self.serve(now);
    }

    /// Whether somebody should see if a connection to the endpoint opens: it
    /// can't be reached, or has just refused one while an exchange waits.
    pub fn wants_connection(&self, endpoint: &EndpointState) -> bool {
        let is_suspect = endpoint.is_refusing() || endpoint.is_backlog_full();
        endpoint.has(Flag::Unreachable) || (is_suspect && self.waiting() > 0)
    }

    /// Lets time pass: ends phantoms and ejections, raises weights, and serves
    /// who waits. To be called about ten times a second.
    pub fn tick(&self, now: Instant) {
        let is_over = |until: Option<Instant>| until.is_some_and(|until| until <= now);
        let mut records = lock(&self.records.0);
        for (state, record) in records.each() {
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
        self.count_trials(&records.members);
        self.ramp_up(&mut records, now);
        drop(records);
        self.serve(now);
    }

    /// Publishes the weights of endpoints that returned not long ago: linear
    /// over the slow start, relative to the warmest endpoint, so that the
    /// return of all at once is not throttled.
    pub(crate) fn ramp_up(&self, records: &mut Records, now: Instant) {
        let Some(slow_start) = self.health_settings.slow_start else {
            return;
        };
        let warmth = |record: &Record| {
            let age = now.duration_since(record.returned?);
            (age < slow_start).then(|| (age.as_secs_f64() / slow_start.as_secs_f64()).max(RAMP_MIN))
        };
        let takes_part = records.each().filter(|(state, _)| state.is_eligible());
        let warmest = takes_part
            .map(|(_, record)| warmth(record).unwrap_or(1.0))
            .fold(RAMP_MIN, f64::max);
        for (state, record) in records.each() {
            let warmth = warmth(record);
            if warmth.is_none() {
                record.returned = None;
            }
            let share = (warmth.unwrap_or(1.0) / warmest).min(1.0);
            state.set_ramp((share * f64::from(WEIGHT_ONE)).max(1.0) as u16);
        }
    }

    fn change(&self, kind: ChangeKind) -> Change {
        let members = self.members();
        let is_up = |it: &&Arc<EndpointState>| it.is_eligible() || it.is_only_unprobed();
        Change {
            kind,
            up: members.endpoints().iter().filter(is_up).count(),
            count: members.len(),
            waiting: self.waiting(),
        }
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
    // A little more, for what is lost in the logarithms.
    f64::from(errors) * rate.ln() <= CHANCE.ln() + 1e-9
}

#[cfg(all(test, not(loom)))]
mod tests;
