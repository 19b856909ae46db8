//! Health of endpoints: ejection, phantoms, slow start, and the operator's wishes.
//!
//! Three sources, kept apart: probes, which see an endpoint from outside; exchanges, which the
//! guard learns from; and the operator.
//!
//! Plain data. The dispatcher holds `Records` under a lock that no exchange takes unless
//! something went wrong, and publishes changes. Flags and ramps are in the endpoint's atomics.

mod guard;
mod kept;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::Instant;
use crate::endpoint::{Admin, EndpointId, EndpointSettings, EndpointState, Flag, WEIGHT_ONE};
use crate::members::Members;
use guard::Window;

pub(crate) use guard::Guard;
pub use kept::EndpointSnapshot;

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
    /// The state of an endpoint before its first probe.
    pub initial: Initial,
}

/// The state of an endpoint before its first probe.
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
    /// The kind of change.
    pub kind: ChangeKind,
    /// Endpoints that take exchanges now, or wait for their first probe. At the start, the first
    /// endpoint that is down is not the last one.
    pub up: usize,
    /// Endpoints in all.
    pub count: usize,
    /// Exchanges that wait.
    pub waiting: usize,
}

/// The kind of an endpoint's change.
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

/// The record of an endpoint beyond its atomics.
#[derive(Debug, Clone, Default)]
pub(crate) struct Record {
    admin: Admin,
    probes_passed: u32,
    probes_failed: u32,
    /// Ejections without a success in between.
    ejections: u32,
    /// When it was put out last, and until when it is.
    ejected: Option<Ejection>,
    phantom_until: Option<Instant>,
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

/// The records of an upstream's endpoints, beyond their atomics.
#[derive(Debug)]
pub(crate) struct Records {
    settings: HealthSettings,
    /// The endpoints as they are now.
    pub members: Arc<Members>,
    /// Endpoints that left, and may still be in use.
    pub removed: Vec<Arc<EndpointState>>,
    /// Ids that name no endpoint.
    free: Vec<EndpointId>,
    /// By id, of members and others.
    of: Vec<Record>,
}

impl Record {
    /// Forgets the guard's suspicion of the endpoint. Its flags are the caller's.
    fn end_suspicion(&mut self, endpoint: &EndpointState) {
        self.ejections = 0;
        self.ejected = None;
        self.phantom_until = None;
        endpoint.set_phantoms(0);
        endpoint.count_success();
    }
}

impl Records {
    pub fn new(settings: HealthSettings) -> Self {
        Records {
            settings,
            members: Arc::new(Members::new(0, Vec::new())),
            removed: Vec::new(),
            free: Vec::new(),
            of: Vec::new(),
        }
    }

    /// The endpoints of these settings, which become the members. A member of the same name and
    /// fingerprint stays as it is. An endpoint that left and is still in use begins again: its
    /// exchanges in flight count.
    pub fn endpoints_for(&mut self, settings: &[EndpointSettings<'_>]) -> Vec<Arc<EndpointState>> {
        let before = self.members.clone();
        let members = before.endpoints().iter();
        let mut staying: HashMap<_, _> = members.map(|it| (it.name(), it)).collect();
        let mut found = Vec::with_capacity(settings.len());
        found.extend(settings.iter().map(|settings| {
            let member = staying.remove(settings.name)?;
            member.is_meant_by(settings).then(|| {
                member.set_tier(settings.tier);
                Arc::clone(member)
            })
        }));
        self.take_returning(settings, &mut found);
        self.release_ids();
        let all = settings.iter().zip(found);
        all.map(|(settings, found)| {
            found.unwrap_or_else(|| {
                let endpoint = Arc::new(EndpointState::new(self.next_id(), settings));
                self.begin(&endpoint);
                endpoint
            })
        })
        .collect()
    }

    /// Fills the gaps with endpoints that left and are still in use.
    fn take_returning(
        &mut self,
        settings: &[EndpointSettings<'_>],
        found: &mut [Option<Arc<EndpointState>>],
    ) {
        let places = settings.iter().map(|it| it.name).zip(0..);
        let places = places.filter(|(_, at)| found[*at].is_none());
        let places: HashMap<&str, usize> = places.collect();
        for endpoint in std::mem::take(&mut self.removed) {
            match places.get(endpoint.name()) {
                Some(&at) if endpoint.is_meant_by(&settings[at]) => {
                    endpoint.renew(&settings[at]);
                    self.begin(&endpoint);
                    found[at] = Some(endpoint);
                }
                _ => self.removed.push(endpoint),
            }
        }
    }

    /// Goes on with these settings.
    pub fn configure(&mut self, settings: HealthSettings, now: Instant) {
        let before = std::mem::replace(&mut self.settings, settings);
        if !settings.guard {
            for (state, record) in self.each() {
                record.end_suspicion(state);
                state.set(Flag::Ejected, false);
                state.set(Flag::Trial, false);
            }
        }
        match (before.slow_start, settings.slow_start) {
            // An endpoint that returned at once is not slowed down afterwards.
            (None, _) => self.of.iter_mut().for_each(|it| it.returned = None),
            (Some(_), None) => {
                for (state, record) in self.each() {
                    record.returned = None;
                    state.set_ramp(WEIGHT_ONE as u16);
                }
            }
            (Some(_), Some(_)) => {}
        }
        self.ramp_up(now);
    }

    /// Forgets the results of probes. Gives the endpoints that probes had put out.
    pub fn forget_probes(&mut self, now: Instant) -> Vec<Arc<EndpointState>> {
        let members = self.members.clone();
        let mut returned = Vec::new();
        for state in members.endpoints() {
            let record = &mut self.of[state.id().index()];
            (record.probes_passed, record.probes_failed) = (0, 0);
            state.set(Flag::Unprobed, false);
            if state.set(Flag::Down, false) {
                record.returned = Some(now);
                returned.push(state.clone());
            }
        }
        self.ramp_up(now);
        returned
    }

    fn begin(&mut self, endpoint: &EndpointState) {
        self.of[endpoint.id().index()] = Record::default();
        endpoint.set(Flag::Unprobed, self.settings.initial == Initial::Down);
    }

    /// Frees the ids of endpoints that left, once nothing is in flight or pooled there. A
    /// connection to an endpoint, and each snapshot of members, holds an `Arc` of it.
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

    /// The record of this endpoint; `None` where it is no member any more.
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

    /// How many members are on trial.
    pub fn on_trial(&self) -> usize {
        let states = self.members.endpoints().iter();
        states.filter(|it| it.has(Flag::Trial)).count()
    }

    /// A connection to an unreachable endpoint was opened. Whether it was one until now;
    /// `None` where it is no member.
    pub fn reached(&mut self, endpoint: &EndpointState, now: Instant) -> Option<bool> {
        self.of(endpoint)?.returned = Some(now);
        let has_changed = endpoint.set(Flag::Unreachable, false);
        self.ramp_up(now);
        Some(has_changed)
    }

    /// A probe passed or failed.
    pub fn probed(&mut self, endpoint: &EndpointState, passed: bool, now: Instant) -> Probed {
        let HealthSettings { rise, fall, .. } = self.settings;
        let Some(record) = self.of(endpoint) else {
            return Probed::NothingNew;
        };
        let is_first = endpoint.has(Flag::Unprobed);
        let kind = if passed {
            record.probes_failed = 0;
            record.probes_passed = record.probes_passed.saturating_add(1);
            if is_first {
                endpoint.set(Flag::Unprobed, false);
                return Probed::Admitted;
            }
            if !endpoint.has(Flag::Down) || record.probes_passed < rise {
                return Probed::NothingNew;
            }
            record.returned = Some(now);
            endpoint.count_opening();
            ChangeKind::Up
        } else {
            record.probes_passed = 0;
            record.probes_failed = record.probes_failed.saturating_add(1);
            let is_enough = is_first || record.probes_failed >= fall;
            if endpoint.has(Flag::Down) || !is_enough {
                return Probed::NothingNew;
            }
            ChangeKind::Down
        };
        endpoint.set(Flag::Down, !passed);
        endpoint.set(Flag::Unprobed, false);
        self.ramp_up(now);
        Probed::Changed(kind)
    }

    /// The operator's wish for the endpoint.
    pub fn admin(&mut self, endpoint: &EndpointState) -> Admin {
        self.of(endpoint).map(|it| it.admin).unwrap_or_default()
    }

    /// Sets the operator's wish; `None` where it is set already.
    pub fn set_admin(
        &mut self,
        endpoint: &EndpointState,
        admin: Admin,
        now: Instant,
    ) -> Option<ChangeKind> {
        let record = self.of(endpoint)?;
        if std::mem::replace(&mut record.admin, admin) == admin {
            return None;
        }
        if admin == Admin::Ready {
            // A deploy by drain, restart and ready is what slow start is for.
            record.returned = Some(now);
            self.ramp_up(now);
        }
        endpoint.set(Flag::Drain, admin == Admin::Drain);
        endpoint.set(Flag::Stop, admin == Admin::Stop);
        Some(ChangeKind::Admin(admin))
    }

    /// Gives an endpoint another share of the traffic.
    pub fn set_weight(&mut self, endpoint: &EndpointState, weight: u32, now: Instant) {
        if weight > 0
            && endpoint.weight() == 0
            && let Some(record) = self.of(endpoint)
        {
            record.returned = Some(now);
            self.ramp_up(now);
        }
        endpoint.set_weight(weight);
    }

    /// Lets time pass: ends phantoms and ejections, and raises weights.
    pub fn tick(&mut self, now: Instant) {
        let is_over = |until: Option<Instant>| until.is_some_and(|until| until <= now);
        for (state, record) in self.each() {
            if is_over(record.phantom_until) {
                record.phantom_until = None;
                state.set_phantoms(0);
            }
            if is_over(record.ejected.map(|it| it.until)) && state.has(Flag::Ejected) {
                // The next exchange that may go there is the trial, whatever
                // phantom is left.
                state.set(Flag::Trial, true);
                state.set(Flag::Ejected, false);
            }
        }
        self.ramp_up(now);
    }

    /// Publishes the weights of endpoints that returned not long ago.
    ///
    /// A weight rises linearly over the slow start, relative to the warmest endpoint: a return of
    /// all endpoints at once is not throttled.
    pub fn ramp_up(&mut self, now: Instant) {
        let Some(slow_start) = self.settings.slow_start else {
            return;
        };
        let warmth = |record: &Record| {
            let age = now.duration_since(record.returned?);
            (age < slow_start).then(|| (age.as_secs_f64() / slow_start.as_secs_f64()).max(RAMP_MIN))
        };
        let takes_part = self.each().filter(|(state, _)| state.is_eligible());
        let warmest = takes_part
            .map(|(_, record)| warmth(record).unwrap_or(1.0))
            .fold(RAMP_MIN, f64::max);
        for (state, record) in self.each() {
            let warmth = warmth(record);
            if warmth.is_none() {
                record.returned = None;
            }
            let share = (warmth.unwrap_or(1.0) / warmest).min(1.0);
            state.set_ramp((share * f64::from(WEIGHT_ONE)).max(1.0) as u16);
        }
    }
}

/// The outcome of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probed {
    /// Nothing that was not known.
    NothingNew,
    /// The first one passed: the endpoint takes part, which is no change.
    Admitted,
    Changed(ChangeKind),
}
