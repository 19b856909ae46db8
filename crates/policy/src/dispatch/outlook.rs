//! The outcome that an exchange would have now; takes no slot.

use super::no_slot::NoSlot;
use super::{Dispatcher, OnFull, SlotRequest, lane_index, lock};
use crate::chooser::Chooser;
use crate::endpoint::EndpointId;
use crate::queue::Refusal;

/// The line of a key without waiters.
const NO_LINE: u64 = 0;

/// The outcome that an exchange would have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// It would get a slot at once: at this endpoint, or one like it.
    Served {
        /// The endpoint.
        endpoint: EndpointId,
    },
    /// It would wait in the queue, behind so many others.
    Waits {
        /// Exchanges that wait already.
        behind: usize,
    },
    /// It would get nothing.
    Refused(Refusal),
}

impl Dispatcher {
    /// The outcome that [`acquire`](Dispatcher::acquire) would have at this moment. `chooser` is
    /// a copy of the real one: a pick changes it.
    ///
    /// If keys share the queue, the exchange has a key without waiters.
    pub fn outlook(&self, chooser: &mut Chooser, asking: &SlotRequest<'_>) -> Outlook {
        let may_join = {
            let waiters = lock(&self.waiters.0);
            chooser.follow(&waiters.members);
            let claim = self.claim(&waiters.members, asking, NO_LINE);
            waiters.queue.has_room(&claim)
        };
        let on_full = if may_join {
            self.on_full(&chooser.balancer)
        } else {
            OnFull::Next
        };
        match self.find_room(chooser, asking, on_full) {
            // A free slot that earlier waiters may not take.
            Ok(endpoint) => Outlook::Served { endpoint },
            Err(none) if !none.may_wait(self.rules.may_wait()) => Outlook::Refused(none.refusal()),
            Err(_) if !may_join => Outlook::Refused(Refusal::QueueFull),
            Err(_) => Outlook::Waits {
                behind: self.waiting(),
            },
        }
    }

    /// The endpoint that the balancer would pick, with room or without.
    pub fn pick(&self, chooser: &mut Chooser, asking: &SlotRequest<'_>) -> Option<EndpointId> {
        self.update(chooser);
        let members = &chooser.members;
        let mut view = asking.view(members);
        view.candidates = members.candidates(asking.tried, asking.now)?;
        let position = chooser.balancer.pick(&view)?;
        Some(members.endpoints()[position].id())
    }

    /// The endpoint of the slot that would be taken.
    fn find_room(
        &self,
        Chooser {
            members, balancer, ..
        }: &mut Chooser,
        asking: &SlotRequest<'_>,
        on_full: OnFull,
    ) -> Result<EndpointId, NoSlot> {
        if !self.is_open(lane_index(asking.lane)) {
            return Err(NoSlot::Room);
        }
        if let Some(endpoint) = self.trial_due(members, asking.tried, asking.now) {
            return Ok(endpoint);
        }
        let mut view = asking.view(members);
        loop {
            let Some(position) = balancer.pick(&view) else {
                view.candidates = NoSlot::candidates_after(members, &view, balancer)?;
                continue;
            };
            let state = &members.endpoints()[position];
            let endpoint = state.id();
            if state.has_room() && state.in_flight() < balancer.cap(&view, position) {
                return Ok(endpoint);
            }
            if on_full == OnFull::Wait {
                return Err(NoSlot::Key { endpoint });
            }
            if view.only_with_room {
                return Err(NoSlot::of(
                    members,
                    balancer.refuses_when_busy(),
                    asking.tried,
                    asking.now,
                ));
            }
            view.only_with_room = true;
        }
    }
}
