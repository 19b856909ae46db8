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

use crate::Instant;
use crate::endpoint::{EndpointId, EndpointState, Tried};
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
    pub(crate) fn tier(&self, tried: &[Tried], now: Instant) -> Option<Tier> {
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
    pub(crate) fn is_up(&self) -> bool {
        self.endpoints().iter().any(|it| it.is_available())
    }

    /// Whether an endpoint takes exchanges, and its last connection opened.
    pub fn is_reachable(&self) -> bool {
        let mut states = self.endpoints().iter();
        states.any(|state| state.is_available() && !state.is_refusing())
    }
}
