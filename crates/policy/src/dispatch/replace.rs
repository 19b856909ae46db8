//! Replacing the members of an upstream as a whole.
//!
//! An endpoint is recognised by its name and fingerprint: one that stays keeps its load,
//! its health and its id, wherever it stands. One that leaves finishes what it has.
//!
//! Invariant: workers see the new members before they see that an endpoint left, so
//! that no exchange is refused because all that it knows of have left.

use std::sync::Arc;

use super::{Dispatcher, lock, wake};
use crate::Instant;
use crate::endpoint::{EndpointId, EndpointSettings, EndpointState, Flag};
use crate::members::Members;
use crate::sync::{Ordering, fence};

impl Dispatcher {
    /// Makes these endpoints the members, in this order. Waiters are judged again.
    pub fn replace_members<'a>(
        &self,
        endpoints: impl IntoIterator<Item = EndpointSettings<'a>>,
        now: Instant,
    ) {
        let mut records = lock(&self.records.0);
        let settings: Vec<_> = endpoints.into_iter().collect();
        let staying = records.endpoints_for(&settings);
        let version = records.members.version().wrapping_add(1);
        let members = Arc::new(Members::new(version, staying));
        let before = std::mem::replace(&mut records.members, members.clone());
        let leaving = before.endpoints().iter().filter(|it| !members.has(it));
        let leaving: Vec<_> = leaving.cloned().collect();
        drop(before);
        records.removed.extend_from_slice(&leaving);
        records.ramp_up(now);
        self.count_trials(&records);
        let mut wakers = Vec::new();
        {
            // Both locks, so that the last of two replacements is the last in both places.
            let mut waiters = lock(&self.waiters.0);
            waiters.queue.forget(|id| members.get(id).is_none());
            waiters.members = members;
            self.version.store(version, Ordering::Release);
            fence(Ordering::Release);
            leaving
                .iter()
                .for_each(|it| _ = it.set(Flag::Removed, true));
            self.serve_locked(&mut waiters, now, &mut wakers);
            self.judge(&mut waiters, now, &mut wakers);
        }
        drop(records);
        wake(wakers);
    }

    /// The endpoint with this id: a member, or one that left and is still in use.
    pub fn endpoint(&self, id: EndpointId) -> Option<Arc<EndpointState>> {
        let records = lock(&self.records.0);
        let removed = || records.removed.iter().find(|it| it.id() == id);
        records.members.get(id).or_else(removed).cloned()
    }
}
