//! Which endpoints an exchange may go to.
//!
//! Three tiers. A tier counts only where the tiers before it are empty, whether
//! or not their endpoints have room:
//!
//! 1. eligible endpoints that the exchange has not tried;
//! 2. endpoints that the guard has put out: an ejection is a guess, and void
//!    where nothing else is eligible;
//! 3. endpoints that the exchange has tried.
//!
//! An endpoint that refused the exchange a connection is in no tier until its
//! next attempt is due: see [`Tried::Refused`].
//!
//! Invariant: newcomers, retries and waiters are judged by these tiers alone,
//! as they are at that moment.

use super::{Asking, Dispatcher, NoSlot, Ordering};
use crate::Instant;
use crate::balance::{Balancer, View};
use crate::endpoint::{EndpointState, Flag, Reservation, Tried};

/// Endpoints among which one is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    /// Eligible and not tried.
    Untried,
    /// Out by a guess of the guard, and not tried.
    Ejected,
    /// Tried, and not known to be out.
    Tried,
}

impl Tier {
    const ALL: [Tier; 3] = [Tier::Untried, Tier::Ejected, Tier::Tried];

    /// Whether the endpoint is one of this tier, for an exchange that was at
    /// `tried`.
    pub(crate) fn has(
        self,
        index: usize,
        state: &EndpointState,
        tried: &[Tried],
        now: Instant,
    ) -> bool {
        let index = index as u32;
        let is_refusing = || tried.iter().any(|it| it.is_refusing(index, state, now));
        let was_sent = |it: &Tried| matches!(it, Tried::Sent { endpoint } if *endpoint == index);
        let is_untried = || !tried.iter().any(was_sent) && !is_refusing();
        match self {
            Tier::Untried => state.is_eligible() && is_untried(),
            Tier::Ejected => state.is_available() && state.is_guessed_out() && is_untried(),
            Tier::Tried => state.is_available() && !is_refusing(),
        }
    }
}

impl Dispatcher {
    /// The first tier that has an endpoint, if any has.
    pub(super) fn tier(&self, tried: &[Tried], now: Instant) -> Option<Tier> {
        let is_there = |tier: &Tier| {
            let mut states = self.states.iter().enumerate();
            states.any(|(index, state)| tier.has(index, state, tried, now))
        };
        Tier::ALL.into_iter().find(is_there)
    }

    /// Whether there is an endpoint that the exchange has not tried, or may try
    /// again as if it had not.
    pub fn has_untried(&self, tried: &[Tried], now: Instant) -> bool {
        matches!(self.tier(tried, now), Some(Tier::Untried | Tier::Ejected))
    }

    /// Whether an endpoint other than `endpoint` has room. One whose backlog was
    /// full when it was looked at last has none: two of them would send an
    /// exchange to and fro.
    pub fn has_room_elsewhere(&self, endpoint: usize, now: Instant) -> bool {
        let mut states = self.states.iter().enumerate();
        states.any(|(index, state)| {
            let is_other = index != endpoint && Tier::Untried.has(index, state, &[], now);
            is_other && state.has_room() && !state.is_backlog_full()
        })
    }

    /// Whether an endpoint takes exchanges, by a guess of the guard or not.
    pub(super) fn is_up(&self) -> bool {
        self.states.iter().any(EndpointState::is_available)
    }

    /// Whether an endpoint takes exchanges, and its last connection opened.
    pub fn is_reachable(&self) -> bool {
        let mut states = self.states.iter();
        states.any(|state| state.is_available() && !state.is_refusing())
    }

    /// The tier to pick from after nothing was found in that of `view`.
    ///
    /// # Errors
    /// There is no slot, and why.
    pub(super) fn tier_after(&self, view: &View<'_>, balancer: &Balancer) -> Result<Tier, NoSlot> {
        match self.tier(view.tried, view.now) {
            Some(tier) if tier != view.tier && !view.only_with_room => Ok(tier),
            _ => Err(self.no_slot(balancer.refuses_when_busy(), view.tried, view.now)),
        }
    }

    /// Why there is no slot for an exchange that was at `tried`, where it found
    /// none.
    pub(super) fn no_slot(&self, refuses_when_busy: bool, tried: &[Tried], now: Instant) -> NoSlot {
        match self.tier(tried, now) {
            Some(_) if refuses_when_busy => NoSlot::Busy,
            Some(_) => NoSlot::Room,
            None if self.states.iter().any(EndpointState::may_return) => NoSlot::Up,
            None => NoSlot::Endpoint,
        }
    }

    /// The slot of a trial that is due, if there is one for this exchange.
    pub(super) fn reserve_trial(&self, tried: &[Tried], now: Instant) -> Option<Reservation> {
        self.on_trial(tried, now).find_map(|(endpoint, state)| {
            let trial = state.begin_trial(now)?;
            let reservation = state.try_reserve(endpoint, u32::MAX);
            if reservation.is_none() {
                state.end_trial(trial);
            }
            reservation.map(|it| it.as_trial(Some(trial)))
        })
    }

    /// The endpoint that this exchange would be the trial of.
    pub(super) fn trial_due(&self, tried: &[Tried], now: Instant) -> Option<usize> {
        let may_begin = |state: &EndpointState| state.has_room() && !state.is_tried_now(now);
        let mut on_trial = self.on_trial(tried, now);
        on_trial.find_map(|(index, state)| may_begin(state).then_some(index))
    }

    /// Endpoints on trial that this exchange has not tried.
    fn on_trial(
        &self,
        tried: &[Tried],
        now: Instant,
    ) -> impl Iterator<Item = (usize, &EndpointState)> {
        let states = match self.trials.load(Ordering::Relaxed) {
            0 => &[][..],
            _ => &self.states,
        };
        let states = states.iter().enumerate();
        states.filter(move |&(index, state)| {
            state.has(Flag::Trial) && Tier::Ejected.has(index, state, tried, now)
        })
    }

    /// A slot at this endpoint of a tier, if there is one below its limit and
    /// below `cap`. The first exchange at an endpoint that is out is its trial.
    pub(super) fn reserve_at(
        &self,
        endpoint: usize,
        cap: u32,
        tier: Tier,
        now: Instant,
    ) -> Option<Reservation> {
        let state = &self.states[endpoint];
        let reservation = state.try_reserve(endpoint, cap)?;
        let is_out = tier != Tier::Untried && state.is_guessed_out();
        Some(match is_out {
            true => reservation.as_trial(state.begin_trial(now)),
            false => reservation,
        })
    }

    pub(super) fn view<'a>(&'a self, asking: &Asking<'a>) -> View<'a> {
        View {
            endpoints: &self.states,
            identities: &self.identities,
            tried: asking.tried,
            tier: Tier::Untried,
            key: asking.key,
            now: asking.now,
            only_with_room: false,
        }
    }
}
