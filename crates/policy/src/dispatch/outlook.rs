//! What would become of an exchange that asked now; takes no slot.

use super::{Asking, Dispatcher, NoSlot, OnFull, Refusal, lane_index, lock};
use crate::balance::Balancer;

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
        let lane = lane_index(asking.lane);
        let may_join = lock(&self.queue.0).has_room(lane, self.lane_max(lane), asking.priority);
        let on_full = match may_join {
            true => self.on_full(balancer),
            false => OnFull::Next,
        };
        match self.find_room(balancer, asking, on_full) {
            // A slot that is free while others wait is none that they may take.
            Ok(endpoint) => Outlook::Served { endpoint },
            Err(none) if !self.may_wait(none) => Outlook::Refused(Self::refusal(none)),
            Err(_) if !may_join => Outlook::Refused(Refusal::QueueFull),
            Err(_) => Outlook::Waits {
                behind: self.waiting(),
            },
        }
    }

    /// What the balancer would pick of these endpoints, with room or without.
    pub fn pick(&self, balancer: &mut Balancer, asking: &Asking<'_>) -> Option<usize> {
        let mut view = self.view(asking);
        view.tier = self.tier(asking.tried, asking.now)?;
        balancer.pick(&view)
    }

    /// Where a slot would be taken.
    fn find_room(
        &self,
        balancer: &mut Balancer,
        asking: &Asking<'_>,
        on_full: OnFull,
    ) -> Result<usize, NoSlot> {
        if !self.is_open(lane_index(asking.lane)) {
            return Err(NoSlot::Room);
        }
        if let Some(endpoint) = self.trial_due(asking.tried, asking.now) {
            return Ok(endpoint);
        }
        let mut view = self.view(asking);
        loop {
            let Some(endpoint) = balancer.pick(&view) else {
                view.tier = self.tier_after(&view, balancer)?;
                continue;
            };
            let state = &self.states[endpoint];
            if state.has_room() && state.in_flight() < balancer.cap(&view, endpoint) {
                return Ok(endpoint);
            }
            if on_full == OnFull::Wait {
                return Err(NoSlot::Key { endpoint });
            }
            if view.only_with_room {
                return Err(self.no_slot(balancer.refuses_when_busy(), asking.tried, asking.now));
            }
            view.only_with_room = true;
        }
    }
}
