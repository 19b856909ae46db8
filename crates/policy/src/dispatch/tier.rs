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
use crate::endpoint::{EndpointId, EndpointState, Flag, Reservation, Tried};
use crate::members::Members;

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
    pub(crate) fn has(self, state: &EndpointState, tried: &[Tried], now: Instant) -> bool {
        let id = state.id();
        let is_refusing = || tried.iter().any(|it| it.is_refusing(state, now));
        let was_sent = |it: &Tried| matches!(it, Tried::Sent { endpoint } if *endpoint == id);
        let is_untried = || !tried.iter().any(was_sent) && !is_refusing();
        match self {
            Tier::Untried => state.is_eligible() && is_untried(),
            Tier::Ejected => state.is_available() && state.is_guessed_out() && is_untried(),
            Tier::Tried => state.is_available() && !is_refusing(),
        }
    }
}

impl Members {
    /// The first tier that has an endpoint, if any has.
    pub(super) fn tier(&self, tried: &[Tried], now: Instant) -> Option<Tier> {
        let is_there = |tier: &Tier| {
            let mut states = self.endpoints().iter();
            states.any(|state| tier.has(state, tried, now))
        };
        Tier::ALL.into_iter().find(is_there)
    }

    /// Whether there is an endpoint that the exchange has not tried, or may try
    /// again as if it had not.
    pub fn has_untried(&self, tried: &[Tried], now: Instant) -> bool {
        matches!(self.tier(tried, now), Some(Tier::Untried | Tier::Ejected))
    }

    /// Whether an endpoint other than this one has room. One whose backlog was
    /// full when it was looked at last has none: two of them would send an
    /// exchange to and fro.
    pub fn has_room_elsewhere(&self, endpoint: EndpointId, now: Instant) -> bool {
        self.endpoints().iter().any(|state| {
            let is_other = state.id() != endpoint && Tier::Untried.has(state, &[], now);
            is_other && state.has_room() && !state.is_backlog_full()
        })
    }

    /// Whether an endpoint takes exchanges, by a guess of the guard or not.
    pub(super) fn is_up(&self) -> bool {
        self.endpoints().iter().any(|it| it.is_available())
    }

    /// Whether an endpoint takes exchanges, and its last connection opened.
    pub fn is_reachable(&self) -> bool {
        let mut states = self.endpoints().iter();
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
            None if self.endpoints().iter().any(|it| it.may_return()) => NoSlot::Up,
            None => NoSlot::Endpoint,
        }
    }

    pub(super) fn view<'a>(&'a self, asking: &Asking<'a>) -> View<'a> {
        View {
            tried: asking.tried,
            key: asking.key,
            ..View::new(self, asking.now)
        }
    }
}

impl Dispatcher {
    /// The slot of a trial that is due, if there is one for this exchange.
    pub(super) fn reserve_trial(
        &self,
        members: &Members,
        tried: &[Tried],
        now: Instant,
    ) -> Option<Reservation> {
        self.on_trial(members, tried, now).find_map(|state| {
            let trial = state.begin_trial(now)?;
            let reservation = state.try_reserve(u32::MAX);
            if reservation.is_none() {
                state.end_trial(trial);
            }
            reservation.map(|it| it.as_trial(Some(trial)))
        })
    }

    /// The endpoint that this exchange would be the trial of.
    pub(super) fn trial_due(
        &self,
        members: &Members,
        tried: &[Tried],
        now: Instant,
    ) -> Option<EndpointId> {
        let mut on_trial = self.on_trial(members, tried, now);
        let due = on_trial.find(|it| it.has_room() && !it.is_tried_now(now))?;
        Some(due.id())
    }

    /// Endpoints on trial that this exchange has not tried.
    fn on_trial<'a>(
        &self,
        members: &'a Members,
        tried: &[Tried],
        now: Instant,
    ) -> impl Iterator<Item = &'a EndpointState> {
        let states = match self.trials.load(Ordering::Relaxed) {
            0 => &[][..],
            _ => members.endpoints(),
        };
        let states = states.iter().map(|it| &**it);
        states.filter(move |state| state.has(Flag::Trial) && Tier::Ejected.has(state, tried, now))
    }
}

/// A slot at this endpoint of a tier, if there is one below its limit and
/// below `cap`. The first exchange at an endpoint that is out is its trial.
pub(super) fn reserve_at(
    state: &EndpointState,
    cap: u32,
    tier: Tier,
    now: Instant,
) -> Option<Reservation> {
    let reservation = state.try_reserve(cap)?;
    let is_out = tier != Tier::Untried && state.is_guessed_out();
    Some(match is_out {
        true => reservation.as_trial(state.begin_trial(now)),
        false => reservation,
    })
}
