//! The waiters of an upstream: serving them with free slots, and refusing them.
//!
//! Invariant: each change of an endpoint (health, operator, weight, limit, a
//! connection that opened) has every waiter judged again, as a newcomer would
//! be. The code that changes an endpoint calls [`Dispatcher::serve`].

use std::cell::Cell;
use std::task::Waker;

use super::tier::Tier;
use super::{Dispatcher, Refusal, lane_index, lock, wake};
use crate::Instant;
use crate::endpoint::{EndpointState, Reservation, Tried};
use crate::queue::{Fit, KeptTo, Queue, Waiter};
use crate::sync::Ordering;

impl Dispatcher {
    /// Serves those who wait with whatever is free, and refuses those whom a
    /// newcomer's refusal would meet: to be called when an endpoint changed.
    pub fn serve(&self, now: Instant) {
        let mut wakers = Vec::new();
        {
            let mut queue = lock(&self.queue.0);
            self.serve_locked(&mut queue, now, &mut wakers);
            self.judge(&mut queue, now, &mut wakers);
        }
        wake(wakers);
    }

    pub(super) fn serve_locked(&self, queue: &mut Queue, now: Instant, wakers: &mut Vec<Waker>) {
        if self.waiting() == 0 {
            return;
        }
        self.note_time(queue, now, wakers);
        self.serve_free(queue, now, wakers);
    }

    /// Gives a slot back while somebody waits.
    pub(super) fn release_to_waiter(
        &self,
        endpoint: usize,
        lane: Option<usize>,
        now: impl FnOnce() -> Instant,
    ) {
        let mut wakers = Vec::new();
        {
            let mut queue = lock(&self.queue.0);
            let now = now();
            self.leave_lane(lane_index(lane));
            self.note_time(&mut queue, now, &mut wakers);
            let granted = self.hand_over(&mut queue, endpoint, now);
            if granted.is_none() {
                self.states[endpoint].release();
            }
            // Only room in a lane may let somebody go elsewhere, and an
            // endpoint that is out hands nothing over.
            if granted.is_none() || lane.is_some() {
                self.serve_free(&mut queue, now, &mut wakers);
            }
            wakers.extend(granted);
        }
        wake(wakers);
    }

    /// Gives a slot that its holder leaves to the first waiter that can use it.
    fn hand_over(&self, queue: &mut Queue, endpoint: usize, now: Instant) -> Option<Waker> {
        if !self.states[endpoint].may_hand_over() {
            return None;
        }
        let granted = queue.grant(
            now,
            |lane| self.is_open(lane),
            |lane, waiter| match self.takes(waiter, endpoint, now) && self.enter(lane) {
                true => Fit::Slot(self.states[endpoint].reservation(endpoint)),
                false => Fit::NotThis,
            },
        );
        let waker = granted?;
        self.waiting.0.fetch_sub(1, Ordering::SeqCst);
        Some(waker)
    }

    /// Whether a waiter may go to an endpoint that is eligible.
    fn takes(&self, waiter: &Waiter, endpoint: usize, now: Instant) -> bool {
        if !waiter.is_particular() {
            return true;
        }
        match self.kept_to(waiter, now) {
            Some(only) => only == endpoint,
            None => {
                let (state, tried) = (&self.states[endpoint], &waiter.tried);
                let is_of = |tier: Tier| tier.has(endpoint, state, tried, now);
                is_of(Tier::Untried) || self.tier(tried, now).is_some_and(is_of)
            }
        }
    }

    /// The endpoint that a waiter is kept to for now: that of its key, or of its
    /// client's connection.
    fn kept_to(&self, waiter: &Waiter, now: Instant) -> Option<usize> {
        let KeptTo { endpoint, .. } = waiter.kept_to.filter(|it| now < it.until)?;
        let state = &self.states[endpoint];
        Tier::Untried
            .has(endpoint, state, &waiter.tried, now)
            .then_some(endpoint)
    }

    /// Serves with the slots that nobody holds.
    fn serve_free(&self, queue: &mut Queue, now: Instant, wakers: &mut Vec<Waker>) {
        // In an overload all are full: then no waiter is looked at.
        if !self.states.iter().any(EndpointState::has_room) {
            return;
        }
        // Whether those that take any endpoint were found to get nothing.
        let is_full = Cell::new(false);
        loop {
            let has_particular = queue.has_particular();
            let fits = |lane, waiter: &Waiter| {
                let takes_any = waiter.takes_any(now);
                if (takes_any && is_full.get()) || !self.enter(lane) {
                    return Fit::NotThis;
                }
                if let Some(reservation) = self.reserve_for(waiter, now) {
                    return Fit::Slot(reservation);
                }
                self.leave_lane(lane);
                if !takes_any {
                    return Fit::NotThis;
                }
                is_full.set(true);
                match has_particular {
                    true => Fit::NotThis,
                    false => Fit::Nobody,
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
    fn reserve_for(&self, waiter: &Waiter, now: Instant) -> Option<Reservation> {
        if let Some(only) = self.kept_to(waiter, now) {
            return self.reserve_at(only, u32::MAX, Tier::Untried, now);
        }
        if let Some(reservation) = self.reserve_trial(&waiter.tried, now) {
            return Some(reservation);
        }
        let tier = self.tier(&waiter.tried, now)?;
        self.reserve_least_loaded(tier, &waiter.tried, now)
    }

    fn reserve_least_loaded(
        &self,
        tier: Tier,
        tried: &[Tried],
        now: Instant,
    ) -> Option<Reservation> {
        loop {
            let mut best: Option<(usize, u64, u64)> = None;
            for (index, state) in self.states.iter().enumerate() {
                if !tier.has(index, state, tried, now) || !state.has_room() {
                    continue;
                }
                let load = u64::from(state.load()) + 1;
                let weight = u64::from(state.effective_weight()).max(1);
                if best.is_none_or(|(_, least, of)| load * of < least * weight) {
                    best = Some((index, load, weight));
                }
            }
            let (endpoint, ..) = best?;
            if let Some(reservation) = self.reserve_at(endpoint, u32::MAX, tier, now) {
                return Some(reservation);
            }
        }
    }

    /// Sends those away who would be refused if they came now.
    fn judge(&self, queue: &mut Queue, now: Instant, wakers: &mut Vec<Waker>) {
        let verdict = |tried: &[Tried]| {
            let none = self.no_slot(false, tried, now);
            (!self.may_wait(none)).then(|| Self::refusal(none))
        };
        // The same for all that were nowhere yet.
        let mut of_untried: Option<Option<Refusal>> = None;
        let before = wakers.len();
        queue.judge(
            |waiter| match waiter.tried.is_empty() {
                true => *of_untried.get_or_insert_with(|| verdict(&[])),
                false => verdict(&waiter.tried),
            },
            wakers,
        );
        self.waiting
            .0
            .fetch_sub(wakers.len() - before, Ordering::SeqCst);
    }

    /// Does what the discipline asks for at this time.
    fn note_time(&self, queue: &mut Queue, now: Instant, wakers: &mut Vec<Waker>) {
        queue.note_held(!self.is_up(), now);
        let before = wakers.len();
        queue.shed(now, wakers);
        self.waiting
            .0
            .fetch_sub(wakers.len() - before, Ordering::SeqCst);
    }
}
