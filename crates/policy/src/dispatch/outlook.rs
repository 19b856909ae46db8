//! What would become of an exchange that asked now; takes no slot.

use super::{Asking, Dispatcher, NoSlot, Refusal, lane_index, lock};
use crate::balance::{Balancer, View};

/// What would become of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// It would get a slot at once: at this endpoint, or one like it.
    Served {
        /// Index in the upstream.
        endpoint: usize,
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
    /// What [`acquire`](Dispatcher::acquire) would come to at this moment.
    pub fn outlook(&self, balancer: &mut Balancer, asking: &Asking<'_>) -> Outlook {
        match self.find_room(balancer, asking) {
            // A slot that is free while others wait is none that they may take.
            Ok(endpoint) => Outlook::Served { endpoint },
            Err(none) if !self.may_wait(none) => Outlook::Refused(Self::refusal(none)),
            Err(_) if lock(&self.queue.0).is_full() => Outlook::Refused(Refusal::QueueFull),
            Err(_) => Outlook::Waits {
                behind: self.waiting(),
            },
        }
    }

    /// What the balancer would pick of these endpoints, with room or without.
    pub fn pick(&self, balancer: &mut Balancer, asking: &Asking<'_>) -> Option<usize> {
        balancer.pick(&self.view(asking))
    }

    /// Where a slot would be taken.
    fn find_room(&self, balancer: &mut Balancer, asking: &Asking<'_>) -> Result<usize, NoSlot> {
        if !self.is_open(lane_index(asking.lane)) {
            return Err(NoSlot::Room);
        }
        let mut view = self.view(asking);
        loop {
            let Some(endpoint) = balancer.pick(&view) else {
                return Err(self.no_slot(balancer, asking, view.only_with_room));
            };
            let state = &self.states[endpoint];
            if state.has_room() && state.in_flight() < balancer.cap(&view, endpoint) {
                return Ok(endpoint);
            }
            if view.only_with_room {
                return Err(self.no_slot(balancer, asking, true));
            }
            view.only_with_room = true;
        }
    }

    pub(super) fn view<'a>(&'a self, asking: &Asking<'a>) -> View<'a> {
        View {
            endpoints: &self.states,
            identities: &self.identities,
            tried: asking.tried,
            key: asking.key,
            now: asking.now,
            only_with_room: false,
        }
    }
}
