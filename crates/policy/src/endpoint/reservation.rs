//! An exchange's part of an endpoint: its slot there, its trial, and the endpoints that it has
//! tried.

use std::num::NonZeroU64;

use super::{EndpointId, EndpointState};
use crate::Instant;

/// The mark of an exchange that decides about an endpoint on trial: when it
/// began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trial(NonZeroU64);

impl Trial {
    /// A trial that begins at this moment.
    pub(super) fn begins(now: Instant) -> Self {
        Trial(NonZeroU64::new(now.as_nanos()).unwrap_or(NonZeroU64::MIN))
    }

    /// The time at which it began, in nanoseconds: never 0.
    pub(super) fn as_nanos(self) -> u64 {
        self.0.get()
    }

    /// Whether it began at `since` or later.
    pub(crate) fn is_of_time_since(self, since: Instant) -> bool {
        self.0.get() >= since.as_nanos()
    }
}

/// A slot: the right to one exchange at an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a slot that is dropped stays taken"]
pub struct Reservation {
    endpoint: EndpointId,
    /// Ejections of the endpoint before it was taken.
    era: u32,
    /// Set where the exchange is the endpoint's trial.
    pub(crate) trial: Option<Trial>,
}

impl Reservation {
    /// A slot that was just taken there.
    pub(super) fn at(state: &EndpointState) -> Self {
        Reservation {
            endpoint: state.id,
            era: state.era(),
            trial: None,
        }
    }

    /// The endpoint that it is at.
    pub fn endpoint(&self) -> EndpointId {
        self.endpoint
    }

    pub(crate) fn as_trial(self, trial: Option<Trial>) -> Self {
        Reservation { trial, ..self }
    }

    /// Whether the endpoint was put out since it was taken.
    pub(crate) fn is_from_before_ejection(&self, state: &EndpointState) -> bool {
        self.era != state.era()
    }
}

/// An endpoint that an exchange was at, and leaves out for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tried {
    /// Something of the exchange was sent there. The exchange goes there again
    /// only where no other endpoint is left.
    Sent {
        /// The endpoint.
        endpoint: EndpointId,
    },
    /// No connection opened, so that nothing was sent. The exchange goes there
    /// again after `until`, or once anybody's connection there has opened.
    Refused {
        /// The endpoint.
        endpoint: EndpointId,
        /// When the next attempt is due.
        until: Instant,
        /// [`EndpointState::openings`] at that time.
        openings: u32,
    },
}

impl Tried {
    /// The endpoint.
    pub fn endpoint(&self) -> EndpointId {
        match *self {
            Tried::Sent { endpoint } | Tried::Refused { endpoint, .. } => endpoint,
        }
    }

    /// Whether the endpoint refused a connection, and is not to be asked again
    /// yet.
    pub(crate) fn is_refusing(&self, state: &EndpointState, now: Instant) -> bool {
        match *self {
            Tried::Sent { .. } => false,
            Tried::Refused {
                endpoint,
                until,
                openings,
            } => endpoint == state.id && now < until && state.openings() == openings,
        }
    }
}
