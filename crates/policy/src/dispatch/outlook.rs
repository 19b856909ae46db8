//! What would become of an exchange that asked now; takes no slot.

use super::no_slot::NoSlot;
use super::{Asking, Dispatcher, OnFull, lane_index, lock};
use crate::chooser::Chooser;
use crate::endpoint::EndpointId;
use crate::queue::Refusal;

/// Of a key of which nobody waits.
const NO_LINE: u64 = 0;

/// What would become of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// It would get a slot at once: at this endpoint, or one like it.
    Served {
        /// The endpoint.
        endpoint: EndpointId,
    },
    /// It would wait in the queue, behind so many others.
    Waits {
        /// Who waits already.
        behind: usize,
    },
    /// It would get nothing.
    Refused(Refusal),
}

impl Dispatcher {
    /// What [`acquire`](Dispatcher::acquire) would come to at this moment. `chooser` is to
    /// be a copy of the one meant: it picks, and so learns what time has changed.
    ///
    /// Where keys share the queue, the exchange is one of a key of which nobody waits.
    pub fn outlook(&self, chooser: &mut Chooser, asking: &Asking<'_>) -> Outlook {
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
            // A slot that is free while others wait is none that they may take.
            Ok(endpoint) => Outlook::Served { endpoint },
            Err(none) if !none.may_wait(self.rules.may_wait()) => Outlook::Refused(none.refusal()),
            Err(_) if !may_join => Outlook::Refused(Refusal::QueueFull),
            Err(_) => Outlook::Waits {
                behind: self.waiting(),
            },
        }
    }

    /// What the balancer would pick of the members, with room or without.
    pub fn pick(&self, chooser: &mut Chooser, asking: &Asking<'_>) -> Option<EndpointId> {
        self.update(chooser);
        let members = &chooser.members;
        let mut view = asking.view(members);
        view.candidates = members.candidates(asking.tried, asking.now)?;
        let position = chooser.balancer.pick(&view)?;
        Some(members.endpoints()[position].id())
    }

    /// Where a slot would be taken.
    fn find_room(
        &self,
        Chooser {
            members, balancer, ..
        }: &mut Chooser,
        asking: &Asking<'_>,
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
