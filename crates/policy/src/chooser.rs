//! One worker's side of a dispatcher.

use std::sync::Arc;

use crate::Instant;
use crate::balance::{Balance, Balancer, Learned};
use crate::endpoint::EndpointId;
use crate::health::Guard;
use crate::members::{Members, Moved};
use crate::observation::{Observation, Observed};

/// One worker's side of a dispatcher: the members that it chooses from, its
/// balancer, and the answers that the others do not know of yet.
#[derive(Debug, Clone)]
pub struct Chooser {
    pub(crate) members: Arc<Members>,
    pub(crate) balancer: Balancer,
    pub(crate) guard: Guard,
}

impl Chooser {
    /// One that has learned nothing; `seed` makes the workers differ.
    pub fn new(members: Arc<Members>, balance: Balance, seed: u64) -> Self {
        Chooser {
            members,
            balancer: Balancer::new(balance, seed),
            guard: Guard::default(),
        }
    }

    /// The members that it chooses from.
    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// Chooses from these members from now on. What is known of an endpoint stays
    /// known of it, wherever it stands.
    pub(crate) fn follow(&mut self, members: &Arc<Members>) {
        if self.members.version() == members.version() {
            return;
        }
        let moved = Moved::between(&self.members, members);
        self.balancer.follow(&moved);
        self.guard.forget(|id| members.get(id).is_none());
        self.members = members.clone();
    }

    /// Whether it is to be told where responses end.
    pub fn learns_from_end(&self) -> bool {
        self.balancer.learns_from_end()
    }

    /// Learns what was observed of an attempt.
    pub fn observe(&mut self, endpoint: EndpointId, now: Instant, observed: Observed) {
        // One that left is chosen no more.
        if let Some(position) = self.members.position(endpoint) {
            self.balancer.observe(&Observation {
                endpoint: position,
                now,
                observed,
            });
        }
    }

    /// What its balancer has learned of a member: see [`Balancer::learned`].
    pub fn learned(&self, endpoint: EndpointId, now: Instant) -> Option<Learned> {
        let position = self.members.position(endpoint)?;
        self.balancer.learned(position, now)
    }
}
