//! How probes and tries come to an endpoint with a limit: with one of its slots, as an
//! exchange does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_policy::endpoint::Reservation;
use tokio::time::sleep;

use super::Watch;
use crate::net::clock;
use crate::observe::counters::Counters;

/// Time between two looks whether a busy endpoint has a slot for a probe.
const SLOT_STEP: Duration = Duration::from_millis(10);

/// How a probe or a try comes to the endpoint.
pub(super) enum Admission<'a> {
    /// It has no limit there.
    Unlimited,
    /// With a slot, which is given back when this is dropped.
    Slot { _slot: Slot<'a> },
    /// All slots were busy for too long: on one connection beyond the limit.
    Beyond,
    /// All slots were busy for too long, but an exchange was answered meanwhile.
    Answered,
}

/// One of the endpoint's slots; given back when dropped.
pub(super) struct Slot<'a> {
    watch: &'a Watch,
    reservation: Reservation,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let dispatcher = self.watch.dispatcher();
        dispatcher.release(self.watch.state(), self.reservation, None, clock::now);
    }
}

/// A slot kept from exchanges until this is dropped: a busy endpoint would never
/// have one else.
struct SetAside<'a>(&'a Watch);

impl<'a> SetAside<'a> {
    fn new(watch: &'a Watch) -> Self {
        watch.state().set_aside();
        SetAside(watch)
    }
}

impl Drop for SetAside<'_> {
    fn drop(&mut self) {
        self.0.state().put_back();
        self.0.dispatcher().serve(clock::now());
    }
}

impl Watch {
    /// Exchanges that the endpoint answered well, of all workers.
    fn answered(&self) -> u64 {
        let current = self.upstream.current();
        let workers = current.watched.counters.iter();
        let of_worker = |counters: &Arc<Counters>| -> u64 {
            let of_endpoint = counters.endpoints[current.index].get(self.state());
            of_endpoint.map_or(0, |it| it.status[1..5].iter().map(|it| it.value()).sum())
        };
        workers.map(of_worker).sum()
    }

    /// Takes a slot where the endpoint has a limit.
    ///
    /// An idle connection is closed where it stands in the way of a new one. If all slots are
    /// busy, the next one that is given back is for the caller, who waits for `patience`.
    ///
    /// Invariant: connections to the endpoint, probes and tries included, are at most
    /// its limit. One more is allowed where no slot came free in that time.
    pub(super) async fn admit(&self, patience: Duration) -> Admission<'_> {
        if self.endpoint.pool.is_none() {
            return Admission::Unlimited;
        }
        if let Some(slot) = self.try_slot() {
            return Admission::Slot { _slot: slot };
        }
        let _set_aside = SetAside::new(self);
        let (answered, until) = (self.answered(), Instant::now() + patience);
        loop {
            sleep(SLOT_STEP).await;
            if let Some(slot) = self.try_slot() {
                return Admission::Slot { _slot: slot };
            }
            if Instant::now() >= until {
                return if self.answered() > answered {
                    Admission::Answered
                } else {
                    Admission::Beyond
                };
            }
        }
    }

    fn try_slot(&self) -> Option<Slot<'_>> {
        let reservation = self.state().try_reserve_for_probe()?;
        let slot = Slot {
            watch: self,
            reservation,
        };
        if let Some(pool) = &self.endpoint.pool {
            drop(pool.make_room(self.state()));
        }
        Some(slot)
    }
}
