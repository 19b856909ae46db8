//! Reports on endpoints go to their records. The consequences are published: trials, and slots
//! for waiters.

use std::sync::Arc;
use std::time::Duration;

use super::{Dispatcher, lock};
use crate::Instant;
use crate::chooser::Chooser;
use crate::endpoint::{Admin, EndpointState, Flag, Reservation};
use crate::health::{Change, ChangeKind, EndpointSnapshot, Guard, Probed, Records};
use crate::observation::{Answer, Observed};
use crate::sync::{MutexGuard, Ordering};

/// Failed connections in a row before an endpoint counts as unreachable.
const UNREACHABLE_AFTER: u16 = 3;

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
        if !self.rules.has_guard() {
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
        let kind = records.decide(endpoint, trial, answer.is_error, now)?;
        Some(self.changed(records, kind, now))
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
        if !Records::are_suspect(errors) {
            return None;
        }
        let mut records = lock(&self.records.0);
        guard.hand_over(&mut records, now);
        let kind = records.note_errors(endpoint, errors, now)?;
        Some(self.changed(records, kind, now))
    }

    /// Tells workers whether any endpoint is on trial.
    pub(super) fn count_trials(&self, records: &Records) {
        let on_trial = records.on_trial() as u32;
        self.trials.store(on_trial, Ordering::Relaxed);
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
        if endpoint.note_full_backlog(now, timeout) {
            self.note_unreachable(endpoint, now)
        } else {
            None
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
        let has_changed = records.reached(endpoint, now)?;
        self.settle(records, now);
        has_changed.then(|| self.change(ChangeKind::Reachable))
    }

    /// A probe passed or failed. The first one decides alone where nothing was
    /// known before: that the endpoint is well is no change then.
    pub fn probed(&self, endpoint: &EndpointState, passed: bool, now: Instant) -> Option<Change> {
        let mut records = lock(&self.records.0);
        match records.probed(endpoint, passed, now) {
            Probed::NothingNew => None,
            Probed::Admitted => {
                self.settle(records, now);
                None
            }
            Probed::Changed(kind) => Some(self.changed(records, kind, now)),
        }
    }

    /// The operator's wish for the endpoint.
    pub fn admin(&self, endpoint: &EndpointState) -> Admin {
        lock(&self.records.0).admin(endpoint)
    }

    /// Sets the operator's wish.
    pub fn set_admin(
        &self,
        endpoint: &EndpointState,
        admin: Admin,
        now: Instant,
    ) -> Option<Change> {
        let mut records = lock(&self.records.0);
        let kind = records.set_admin(endpoint, admin, now)?;
        Some(self.changed(records, kind, now))
    }

    /// Gives an endpoint another share of the traffic. One that had none
    /// returns slowly.
    pub fn set_weight(&self, endpoint: &EndpointState, weight: u32, now: Instant) {
        let mut records = lock(&self.records.0);
        records.set_weight(endpoint, weight, now);
        self.settle(records, now);
    }

    /// The state of the endpoint for another process.
    pub fn keep(&self, endpoint: &EndpointState, now: Instant) -> EndpointSnapshot {
        lock(&self.records.0).keep(endpoint, now)
    }

    /// Has new endpoints go on from their state in another process.
    pub fn restore<'a>(
        &self,
        kept: impl IntoIterator<Item = (&'a EndpointState, EndpointSnapshot)>,
        now: Instant,
    ) {
        let mut records = lock(&self.records.0);
        for (endpoint, kept) in kept {
            records.restore(endpoint, &kept, now);
        }
        records.ramp_up(now);
        self.settle(records, now);
    }

    /// Whether a try of a connection to the endpoint is wanted.
    ///
    /// The endpoint can't be reached, or has just refused a connection while an exchange waits.
    pub fn wants_connection(&self, endpoint: &EndpointState) -> bool {
        let is_suspect = endpoint.is_refusing() || endpoint.is_backlog_full();
        endpoint.has(Flag::Unreachable) || (is_suspect && self.waiting() > 0)
    }

    /// Lets time pass: ends phantoms and ejections, raises weights, and serves waiters. To be
    /// called about ten times a second.
    pub fn tick(&self, now: Instant) {
        let mut records = lock(&self.records.0);
        records.tick(now);
        self.settle(records, now);
    }

    /// Publishes the changes of the records, and serves waiters.
    pub(super) fn settle(&self, records: MutexGuard<'_, Records>, now: Instant) {
        self.count_trials(&records);
        drop(records);
        self.serve(now);
    }

    fn changed(&self, records: MutexGuard<'_, Records>, kind: ChangeKind, now: Instant) -> Change {
        self.settle(records, now);
        self.change(kind)
    }

    pub(super) fn change(&self, kind: ChangeKind) -> Change {
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

#[cfg(all(test, not(loom)))]
mod tests;
