//! The waiters of an upstream: serving them with free slots, and refusing them.
//!
//! Invariant: each change of an endpoint (health, operator, weight, limit, a
//! connection that opened) has every waiter judged again, as a newcomer would
//! be. The code that changes an endpoint calls [`Dispatcher::serve`].

use std::cell::Cell;
use std::task::Waker;

use super::no_slot::NoSlot;
use super::trial::reserve_at;
use super::{Dispatcher, Waiters, lane_index, lock, wake};
use crate::Instant;
use crate::candidates::{CandidateClass, Candidates};
use crate::endpoint::{EndpointState, Reservation, Tried};
use crate::members::Members;
use crate::queue::{Affinity, Fit, Refusal, Waiter};
use crate::sync::Ordering;

impl Dispatcher {
    /// Serves waiters with the slots that are free. Refuses waiters that would be refused as
    /// newcomers. To be called when an endpoint changed.
    pub fn serve(&self, now: Instant) {
        let mut wakers = Vec::new();
        {
            let mut waiters = lock(&self.waiters.0);
            self.serve_locked(&mut waiters, now, &mut wakers);
            self.judge(&mut waiters, now, &mut wakers);
        }
        wake(wakers);
    }

    pub(super) fn serve_locked(
        &self,
        waiters: &mut Waiters,
        now: Instant,
        wakers: &mut Vec<Waker>,
    ) {
        if self.waiting() == 0 {
            return;
        }
        self.note_time(waiters, now, wakers);
        self.serve_free(waiters, now, wakers);
    }

    /// Gives a slot back while an exchange waits.
    pub(super) fn release_to_waiter(
        &self,
        endpoint: &EndpointState,
        lane: Option<usize>,
        now: impl FnOnce() -> Instant,
    ) {
        let mut wakers = Vec::new();
        {
            let mut waiters = lock(&self.waiters.0);
            let now = now();
            self.leave_lane(lane_index(lane));
            self.note_time(&mut waiters, now, &mut wakers);
            let granted = self.hand_over(&mut waiters, endpoint, now);
            if granted.is_none() {
                endpoint.release();
            }
            // Only room in a lane may let somebody go elsewhere, and an
            // endpoint that is out hands nothing over.
            if granted.is_none() || lane.is_some() {
                self.serve_free(&mut waiters, now, &mut wakers);
            }
            wakers.extend(granted);
        }
        wake(wakers);
    }

    /// Gives a slot that its holder leaves to the first waiter that can use it.
    fn hand_over(
        &self,
        Waiters { members, queue }: &mut Waiters,
        endpoint: &EndpointState,
        now: Instant,
    ) -> Option<Waker> {
        // A backup whose turn is over serves only waiters that have tried the others.
        if !endpoint.may_hand_over() || !members.is_in_turn(endpoint, now) {
            return None;
        }
        let granted = queue.grant(
            now,
            |lane| self.is_open(lane),
            |lane, waiter| {
                if takes(members, waiter, endpoint, now) && self.enter(lane) {
                    Fit::Slot(endpoint.reservation())
                } else {
                    Fit::NotThis
                }
            },
        );
        let waker = granted?;
        self.waiting.0.fetch_sub(1, Ordering::SeqCst);
        Some(waker)
    }

    /// Serves with the slots that nobody holds.
    fn serve_free(
        &self,
        Waiters { members, queue }: &mut Waiters,
        now: Instant,
        wakers: &mut Vec<Waker>,
    ) {
        // In an overload all are full: then no waiter is looked at.
        if !members.endpoints().iter().any(|it| it.has_room()) {
            return;
        }
        // Whether waiters that take any endpoint were found to get nothing.
        let is_full = Cell::new(false);
        loop {
            let has_particular = queue.has_particular();
            let fits = |lane, waiter: &Waiter| {
                let takes_any = waiter.takes_any(now);
                if (takes_any && is_full.get()) || !self.enter(lane) {
                    return Fit::NotThis;
                }
                if let Some(reservation) = self.reserve_for(members, waiter, now) {
                    return Fit::Slot(reservation);
                }
                self.leave_lane(lane);
                if !takes_any {
                    return Fit::NotThis;
                }
                is_full.set(true);
                if has_particular {
                    Fit::NotThis
                } else {
                    Fit::Nobody
                }
            };
            let Some(waker) = queue.grant(now, |lane| self.is_open(lane), fits) else {
                return;
            };
            self.waiting.0.fetch_sub(1, Ordering::SeqCst);
            wakers.push(waker);
        }
    }

    /// A slot for this waiter, if one is free.
    fn reserve_for(&self, members: &Members, waiter: &Waiter, now: Instant) -> Option<Reservation> {
        if let Some(only) = kept_to(members, waiter, now) {
            return reserve_at(only, u32::MAX, CandidateClass::Untried, now);
        }
        if let Some(reservation) = self.reserve_trial(members, &waiter.tried, now) {
            return Some(reservation);
        }
        let candidates = members.candidates(&waiter.tried, now)?;
        reserve_least_loaded(members, candidates, &waiter.tried, now)
    }

    /// Sends waiters away that would be refused if they came now. Want of room in the queue sends
    /// no waiter away.
    pub(super) fn judge(
        &self,
        Waiters { members, queue }: &mut Waiters,
        now: Instant,
        wakers: &mut Vec<Waker>,
    ) {
        let verdict = |tried: &[Tried]| {
            let none = NoSlot::of(members, false, tried, now);
            (!none.may_wait(self.rules.may_stay())).then(|| none.refusal())
        };
        // The same for all that were nowhere yet.
        let mut of_untried: Option<Option<Refusal>> = None;
        let before = wakers.len();
        queue.judge(
            |waiter| {
                if waiter.tried.is_empty() {
                    *of_untried.get_or_insert_with(|| verdict(&[]))
                } else {
                    verdict(&waiter.tried)
                }
            },
            wakers,
        );
        self.waiting
            .0
            .fetch_sub(wakers.len() - before, Ordering::SeqCst);
    }

    /// Does what the discipline asks for at this time.
    fn note_time(
        &self,
        Waiters { members, queue }: &mut Waiters,
        now: Instant,
        wakers: &mut Vec<Waker>,
    ) {
        queue.note_held(!members.is_up(), now);
        let before = wakers.len();
        queue.shed(now, wakers);
        self.waiting
            .0
            .fetch_sub(wakers.len() - before, Ordering::SeqCst);
    }
}

/// Whether a waiter may go to an endpoint that is eligible.
fn takes(members: &Members, waiter: &Waiter, endpoint: &EndpointState, now: Instant) -> bool {
    if !waiter.is_particular() {
        return true;
    }
    match kept_to(members, waiter, now) {
        Some(only) => std::ptr::eq(only, endpoint),
        None => {
            let tried = &waiter.tried;
            let is_one = |it: Candidates| it.has(endpoint, tried, now);
            let is_untried = CandidateClass::Untried.has(endpoint, tried, now);
            is_untried || members.candidates(tried, now).is_some_and(is_one)
        }
    }
}

/// The endpoint that a waiter is kept to for now: that of its key, or of its
/// client's connection.
fn kept_to<'a>(members: &'a Members, waiter: &Waiter, now: Instant) -> Option<&'a EndpointState> {
    let Affinity { endpoint, .. } = waiter.kept_to.filter(|it| now < it.until)?;
    let state = members.get(endpoint)?;
    CandidateClass::Untried
        .has(state, &waiter.tried, now)
        .then_some(&**state)
}

fn reserve_least_loaded(
    members: &Members,
    candidates: Candidates,
    tried: &[Tried],
    now: Instant,
) -> Option<Reservation> {
    loop {
        let mut best: Option<(&EndpointState, u64, u64)> = None;
        for state in members.endpoints() {
            if !candidates.has(state, tried, now) || !state.has_room() {
                continue;
            }
            let load = u64::from(state.load()) + 1;
            let weight = u64::from(state.effective_weight()).max(1);
            if best.is_none_or(|(_, least, of)| load * of < least * weight) {
                best = Some((state, load, weight));
            }
        }
        let (endpoint, ..) = best?;
        if let Some(reservation) = reserve_at(endpoint, u32::MAX, candidates.standing, now) {
            return Some(reservation);
        }
    }
}
