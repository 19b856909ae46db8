//! Which endpoints an exchange may go to.
//!
//! Three standings. A standing counts only where the ones before it are empty,
//! whether or not their endpoints have room:
//!
//! 1. eligible endpoints that the exchange has not tried;
//! 2. endpoints that the guard has put out: an ejection is a guess, and void
//!    where nothing else is eligible;
//! 3. endpoints that the exchange has tried.
//!
//! Within a standing only the endpoints of the lowest tier count. So a backup gets exchanges
//! while no endpoint of an earlier tier is eligible. It also gets the retries of an exchange that
//! has tried all of the earlier ones.
//!
//! An endpoint that refused the exchange a connection has no standing until its
//! next attempt is due: see [`Tried::Refused`].
//!
//! Invariant: newcomers, retries and waiters are judged by these rules alone,
//! as they are at that moment.

use crate::Instant;
use crate::endpoint::{EndpointId, EndpointState, Tried};
use crate::members::Members;

/// How an exchange stands to an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CandidateClass {
    /// Eligible and not tried.
    Untried,
    /// Out by a guess of the guard, and not tried.
    Ejected,
    /// Tried, and not known to be out.
    Tried,
}

impl CandidateClass {
    const ALL: [CandidateClass; 3] = [
        CandidateClass::Untried,
        CandidateClass::Ejected,
        CandidateClass::Tried,
    ];

    /// Whether an exchange that was at `tried` stands so to the endpoint.
    pub(crate) fn has(self, state: &EndpointState, tried: &[Tried], now: Instant) -> bool {
        let id = state.id();
        let is_refusing = || tried.iter().any(|it| it.is_refusing(state, now));
        let was_sent = |it: &Tried| matches!(it, Tried::Sent { endpoint } if *endpoint == id);
        let is_untried = || !tried.iter().any(was_sent) && !is_refusing();
        match self {
            CandidateClass::Untried => state.is_eligible() && is_untried(),
            CandidateClass::Ejected => {
                state.is_available() && state.is_guessed_out() && is_untried()
            }
            CandidateClass::Tried => state.is_available() && !is_refusing(),
        }
    }
}

/// Endpoints among which one is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidates {
    /// How the exchange stands to each of them.
    pub standing: CandidateClass,
    /// Their tier; `None` where all members are of one, and nobody need look.
    tier: Option<u16>,
}

impl Candidates {
    /// Eligible endpoints that the exchange has not tried, where there is one tier.
    pub(crate) const UNTRIED: Candidates = Candidates {
        standing: CandidateClass::Untried,
        tier: None,
    };

    /// Whether the endpoint is one, for an exchange that was at `tried`.
    pub(crate) fn has(self, state: &EndpointState, tried: &[Tried], now: Instant) -> bool {
        let is_of_tier = self.tier.is_none_or(|tier| state.tier() == tier);
        is_of_tier && self.standing.has(state, tried, now)
    }
}

impl Members {
    /// The first candidates to look at: the eligible endpoints of the lowest tier.
    pub(crate) fn first_candidates(&self) -> Candidates {
        Candidates {
            tier: self.lowest_of_several_tiers(),
            ..Candidates::UNTRIED
        }
    }

    /// The endpoints that an exchange may go to that was at `tried`, if there are any.
    pub(crate) fn candidates(&self, tried: &[Tried], now: Instant) -> Option<Candidates> {
        let has_tiers = self.lowest_of_several_tiers().is_some();
        CandidateClass::ALL.into_iter().find_map(|standing| {
            let states = self.endpoints().iter();
            let mut tiers = states
                .filter(|state| standing.has(state, tried, now))
                .map(|state| state.tier());
            let tier = if has_tiers {
                Some(tiers.min()?)
            } else {
                tiers.next()?;
                None
            };
            Some(Candidates { standing, tier })
        })
    }

    /// Whether no earlier tier than the endpoint's has one that takes exchanges.
    pub(crate) fn is_in_turn(&self, endpoint: &EndpointState, now: Instant) -> bool {
        if self.lowest_of_several_tiers().is_none() {
            return true;
        }
        let candidates = self.candidates(&[], now).and_then(|it| it.tier);
        candidates.is_none_or(|tier| endpoint.tier() <= tier)
    }

    /// Whether there is an endpoint that the exchange has not tried, or may try
    /// again as if it had not.
    pub fn has_untried(&self, tried: &[Tried], now: Instant) -> bool {
        let standing = self.candidates(tried, now).map(|it| it.standing);
        matches!(
            standing,
            Some(CandidateClass::Untried | CandidateClass::Ejected)
        )
    }

    /// Whether an endpoint other than this one has room. One whose backlog was
    /// full when it was looked at last has none: two of them would send an
    /// exchange to and fro.
    pub fn has_room_elsewhere(&self, endpoint: EndpointId, now: Instant) -> bool {
        self.endpoints().iter().any(|state| {
            let is_other = state.id() != endpoint && CandidateClass::Untried.has(state, &[], now);
            let has_room = is_other && state.has_room() && !state.is_backlog_full();
            has_room && self.is_in_turn(state, now)
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
