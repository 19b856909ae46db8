//! Why there is no slot for an exchange, and the consequence.

use super::configure::MayWait;
use crate::Instant;
use crate::balance::{Balancer, View};
use crate::candidates::Candidates;
use crate::endpoint::{EndpointId, Tried};
use crate::members::Members;
use crate::queue::Refusal;

/// Why there was no slot at a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoSlot {
    /// No room, now.
    Room,
    /// The endpoint of its key, or of its client's connection, is full.
    Key {
        endpoint: EndpointId,
    },
    /// No endpoint is up, now.
    Up,
    /// No endpoint exists that it could wait for.
    Endpoint,
    /// No endpoint exists at all.
    Empty,
    Busy,
}

impl NoSlot {
    /// Why an exchange that has tried `tried` found no slot.
    pub fn of(members: &Members, refuses_when_busy: bool, tried: &[Tried], now: Instant) -> NoSlot {
        match members.candidates(tried, now) {
            Some(_) if refuses_when_busy => NoSlot::Busy,
            Some(_) => NoSlot::Room,
            None if members.endpoints().iter().any(|it| it.may_return()) => NoSlot::Up,
            None if members.is_empty() => NoSlot::Empty,
            None => NoSlot::Endpoint,
        }
    }

    /// The endpoints to pick from when `view` has none.
    ///
    /// # Errors
    /// The reason why there is no slot.
    pub fn candidates_after(
        members: &Members,
        view: &View<'_>,
        balancer: &Balancer,
    ) -> Result<Candidates, NoSlot> {
        match members.candidates(view.tried, view.now) {
            Some(others) if others != view.candidates && !view.only_with_room => Ok(others),
            _ => Err(NoSlot::of(
                members,
                balancer.refuses_when_busy(),
                view.tried,
                view.now,
            )),
        }
    }

    /// Whether the exchange may wait in a queue with these rules.
    pub fn may_wait(self, queue: MayWait) -> bool {
        match self {
            NoSlot::Room | NoSlot::Key { .. } => queue.max > 0,
            NoSlot::Up => queue.max > 0 && queue.hold,
            NoSlot::Empty => queue.max > 0 && queue.hold && queue.grows,
            NoSlot::Endpoint | NoSlot::Busy => false,
        }
    }

    /// The refusal of an exchange that may not wait.
    pub fn refusal(self) -> Refusal {
        match self {
            NoSlot::Room | NoSlot::Key { .. } => Refusal::Saturated,
            NoSlot::Up | NoSlot::Empty | NoSlot::Endpoint => Refusal::NoEndpoint,
            NoSlot::Busy => Refusal::Busy,
        }
    }
}
