//! The order of work, the same for every balancer, and the hand-over of slots.
//!
//! 1. eligible: up, ready, of some weight, not yet tried by this exchange, and
//!    its lane has room;
//! 2. the balancer ranks, without reading limits;
//! 3. compare-and-swap below `max_in_flight`; if that fails, rank again among
//!    the endpoints with room;
//! 4. none has room: the exchange joins the queue, or is refused.
//!
//! A slot that is given back while somebody waits is handed over under the
//! queue's lock and is never free in between, so that no newcomer can take it.
//! While nobody waits the lock is not touched: see [`Dispatcher::waiting`].

mod outlook;

use crate::Instant;
use std::task::Waker;

use crate::balance::Balancer;
use crate::endpoint::EndpointState;
use crate::health::{HealthSettings, Record};
use crate::queue::{Fit, Group, Joining, Left, Queue, QueueSettings, Ticket, Waiter};
use crate::sync::{AtomicU32, AtomicUsize, Mutex, Ordering, between_sequential, lock};

pub use outlook::Outlook;

/// The endpoints of one upstream, their slots and who waits for them: shared
/// between workers.
#[derive(Debug)]
pub struct Dispatcher {
    states: Box<[EndpointState]>,
    /// Well-mixed hash of each endpoint's identity, for balancers by key.
    identities: Box<[u64]>,
    lanes: Box<[Lane]>,
    settings: QueueSettings,
    /// Waiters in the queue. Whoever frees a slot looks at this afterwards;
    /// whoever joins counts itself here first and looks for a slot afterwards.
    /// All four accesses are sequentially consistent, so one of the two sees
    /// the other, and no slot stays free while somebody waits for it.
    waiting: OwnLine<AtomicUsize>,
    queue: OwnLine<Mutex<Queue>>,
    pub(crate) health_settings: HealthSettings,
    /// Never locked together with the queue.
    pub(crate) records: OwnLine<Mutex<Vec<Record>>>,
}

/// On a cache line of its own: what is written often beside what every
/// exchange reads.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct OwnLine<T>(pub T);

/// What one endpoint begins with.
#[derive(Debug, Clone)]
pub struct EndpointSettings<'a> {
    /// What it is known by: the same name has the same keys.
    pub name: &'a str,
    /// Share of the traffic relative to the other endpoints.
    pub weight: u32,
    /// Most exchanges in flight; `None` is no limit.
    pub max_in_flight: Option<u32>,
}

/// A part of the upstream's slots that some routes are kept to.
#[derive(Debug)]
#[repr(align(128))]
struct Lane {
    in_flight: AtomicU32,
    max_in_flight: u32,
}

/// What an exchange asks with.
#[derive(Debug, Clone, Copy)]
pub struct Asking<'a> {
    /// Endpoints that it will not go to again.
    pub tried: &'a [u32],
    /// Hash of what a balancer by key goes by.
    pub key: u64,
    /// Index of its lane, if it is kept to one.
    pub lane: Option<usize>,
    /// Higher ones are served first.
    pub priority: u8,
    /// When it was there: its place in the queue.
    pub arrived: Instant,
    /// The present.
    pub now: Instant,
}

/// What came of asking for an endpoint.
#[derive(Debug)]
pub enum Acquired {
    /// A slot at this endpoint is taken and must be released.
    Reserved {
        /// Index in the upstream.
        endpoint: usize,
        /// How it was found.
        choice: Choice,
    },
    /// It waits.
    Queued(Ticket),
    /// It gets nothing.
    Refused(Refusal),
}

/// How an endpoint with room was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The balancer ranked it first.
    First,
    /// The one ranked first was full.
    Next,
}

/// Why an exchange gets nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Every endpoint that could be tried is at its limit, and there is no
    /// queue.
    Saturated,
    /// The queue is full.
    QueueFull,
    /// No endpoint is up, ready and untried.
    NoEndpoint,
    /// The balancer refuses rather than overload.
    Busy,
}

/// Why there was no slot at a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NoSlot {
    /// No room, now.
    Room,
    /// No endpoint is up, now.
    Up,
    /// There is none that it could wait for.
    Endpoint,
    Busy,
}

impl Dispatcher {
    /// Endpoints in the order of the configuration with nothing in flight, and
    /// lanes with the number of slots that each may hold. Nobody arrives
    /// before `epoch`.
    pub fn new<'a>(
        endpoints: impl IntoIterator<Item = EndpointSettings<'a>>,
        lanes: &[u32],
        settings: QueueSettings,
        health_settings: HealthSettings,
        epoch: Instant,
    ) -> Self {
        let mut states = Vec::new();
        let mut identities = Vec::new();
        for endpoint in endpoints {
            states.push(EndpointState::new(endpoint.weight, endpoint.max_in_flight));
            identities.push(crate::hash::hash(endpoint.name.as_bytes()));
        }
        Dispatcher {
            records: OwnLine(Mutex::new(vec![Record::default(); states.len()])),
            health_settings,
            states: states.into(),
            identities: identities.into(),
            lanes: lanes
                .iter()
                .map(|&max_in_flight| Lane {
                    in_flight: AtomicU32::new(0),
                    max_in_flight,
                })
                .collect(),
            settings,
            waiting: OwnLine(AtomicUsize::new(0)),
            queue: OwnLine(Mutex::new(Queue::new(settings, lanes.len(), epoch))),
        }
    }

    /// Shared state of every endpoint.
    pub fn states(&self) -> &[EndpointState] {
        &self.states
    }

    /// Number of waiters.
    pub fn waiting(&self) -> usize {
        self.waiting.0.load(Ordering::SeqCst)
    }

    /// Who waits, by lane and priority. Goes through all of them with the queue
    /// locked: for a person who asks, not for every second.
    pub fn waiting_groups(&self, now: Instant) -> Vec<Group> {
        match self.waiting() {
            0 => Vec::new(),
            _ => lock(&self.queue.0).groups(now),
        }
    }

    /// Exchanges in flight in a lane.
    pub fn lane_in_flight(&self, lane: usize) -> u32 {
        self.lanes[lane].in_flight.load(Ordering::Relaxed)
    }

    /// Picks an endpoint and takes a slot there; or joins the queue, whose
    /// waiters `waker` belongs to.
    pub fn acquire(&self, balancer: &mut Balancer, asking: &Asking<'_>, waker: &Waker) -> Acquired {
        if self.waiting() == 0 {
            match self.reserve(balancer, asking) {
                Ok((endpoint, choice)) => return Acquired::Reserved { endpoint, choice },
                Err(none) if !self.may_wait(none) => {
                    // For a moment it held a slot of its lane.
                    if asking.lane.is_some() && self.waiting() > 0 {
                        self.serve(asking.now);
                    }
                    return self.refused(none);
                }
                Err(_) => {}
            }
        }
        let mut wakers = Vec::new();
        let acquired = self.acquire_behind(balancer, asking, waker, &mut wakers);
        wake(wakers);
        acquired
    }

    /// Acquires with the queue locked: behind everybody who waits.
    fn acquire_behind(
        &self,
        balancer: &mut Balancer,
        asking: &Asking<'_>,
        waker: &Waker,
        wakers: &mut Vec<Waker>,
    ) -> Acquired {
        let mut queue = lock(&self.queue.0);
        // Whatever is free by now is for those who wait already.
        self.serve_locked(&mut queue, asking.now, wakers);
        self.waiting.0.fetch_add(1, Ordering::SeqCst);
        between_sequential();
        let acquired = match self.reserve(balancer, asking) {
            Ok((endpoint, choice)) => Acquired::Reserved { endpoint, choice },
            Err(none) if !self.may_wait(none) => self.refused(none),
            Err(_) if queue.is_full() => Acquired::Refused(Refusal::QueueFull),
            Err(none) => {
                queue.note_held(none == NoSlot::Up, asking.now);
                let joining = Joining {
                    lane: lane_index(asking.lane),
                    priority: asking.priority,
                    arrived: asking.arrived,
                };
                let waiter = Waiter {
                    tried: asking.tried.into(),
                    since: asking.now,
                    waker: waker.clone(),
                };
                return Acquired::Queued(queue.join(joining, waiter));
            }
        };
        self.waiting.0.fetch_sub(1, Ordering::SeqCst);
        acquired
    }

    fn may_wait(&self, none: NoSlot) -> bool {
        match none {
            NoSlot::Room => self.settings.max > 0,
            NoSlot::Up => self.settings.max > 0 && self.settings.hold,
            NoSlot::Endpoint | NoSlot::Busy => false,
        }
    }

    fn refused(&self, none: NoSlot) -> Acquired {
        Acquired::Refused(Self::refusal(none))
    }

    fn refusal(none: NoSlot) -> Refusal {
        match none {
            NoSlot::Room => Refusal::Saturated,
            NoSlot::Up | NoSlot::Endpoint => Refusal::NoEndpoint,
            NoSlot::Busy => Refusal::Busy,
        }
    }

    /// Takes a slot in the lane and at the endpoint that the balancer ranks
    /// first among those with room.
    fn reserve(
        &self,
        balancer: &mut Balancer,
        asking: &Asking<'_>,
    ) -> Result<(usize, Choice), NoSlot> {
        let lane = lane_index(asking.lane);
        if !self.enter(lane) {
            return Err(NoSlot::Room);
        }
        let reserved = self.reserve_endpoint(balancer, asking);
        if reserved.is_err() {
            self.leave_lane(lane);
        }
        reserved
    }

    fn reserve_endpoint(
        &self,
        balancer: &mut Balancer,
        asking: &Asking<'_>,
    ) -> Result<(usize, Choice), NoSlot> {
        let mut view = self.view(asking);
        loop {
            let Some(endpoint) = balancer.pick(&view) else {
                return Err(self.no_slot(balancer, asking, view.only_with_room));
            };
            let cap = balancer.cap(&view, endpoint);
            if self.states[endpoint].try_reserve(cap) {
                let choice = match view.only_with_room {
                    true => Choice::Next,
                    false => Choice::First,
                };
                return Ok((endpoint, choice));
            }
            // Others may fill what has room while we rank: each turn of this
            // loop means that some other exchange got a place.
            view.only_with_room = true;
        }
    }

    fn no_slot(&self, balancer: &Balancer, asking: &Asking<'_>, full: bool) -> NoSlot {
        let may_return = || self.untried(asking.tried).any(EndpointState::may_return);
        match self.has_untried(asking.tried) {
            true if balancer.refuses_when_busy() => NoSlot::Busy,
            true => NoSlot::Room,
            // Down in this very moment.
            false if full => NoSlot::Up,
            // It waits for none that it has not tried while one that it has
            // tried is up.
            false if !self.is_up() && may_return() => NoSlot::Up,
            false => NoSlot::Endpoint,
        }
    }

    /// Gives a slot back: to who waits for it, if somebody does. `now` is
    /// asked for the present in that case only.
    pub fn release(&self, endpoint: usize, lane: Option<usize>, now: impl FnOnce() -> Instant) {
        if self.waiting() == 0 {
            self.leave_lane(lane_index(lane));
            self.states[endpoint].release();
            between_sequential();
            if self.waiting() > 0 {
                self.serve(now());
            }
            return;
        }
        let mut wakers = Vec::new();
        {
            let mut queue = lock(&self.queue.0);
            let now = now();
            self.leave_lane(lane_index(lane));
            self.note_time(&mut queue, now, &mut wakers);
            let granted = self.hand_over(&mut queue, endpoint, now);
            if granted.is_none() {
                self.states[endpoint].release();
            }
            // Only room in a lane may let somebody go elsewhere, and an
            // endpoint on trial hands nothing over.
            if granted.is_none() || lane.is_some() {
                self.serve_free(&mut queue, now, &mut wakers);
            }
            wakers.extend(granted);
        }
        wake(wakers);
    }

    /// Gives a slot that its holder leaves to the first waiter that can use it.
    fn hand_over(&self, queue: &mut Queue, endpoint: usize, now: Instant) -> Option<Waker> {
        if !self.states[endpoint].may_hand_over() {
            return None;
        }
        let index = endpoint as u32;
        let granted = queue.grant(
            now,
            |lane| self.is_open(lane),
            |lane, waiter| match !waiter.tried.contains(&index) && self.enter(lane) {
                true => Fit::Endpoint(endpoint),
                false => Fit::NotThis,
            },
        );
        let waker = granted?;
        self.waiting.0.fetch_sub(1, Ordering::SeqCst);
        Some(waker)
    }

    /// Serves those who wait with whatever is free: to be called when an
    /// endpoint came up, or its limit or weight was raised.
    pub fn serve(&self, now: Instant) {
        let mut wakers = Vec::new();
        self.serve_locked(&mut lock(&self.queue.0), now, &mut wakers);
        wake(wakers);
    }

    fn serve_locked(&self, queue: &mut Queue, now: Instant, wakers: &mut Vec<Waker>) {
        if self.waiting() == 0 {
            return;
        }
        self.note_time(queue, now, wakers);
        self.serve_free(queue, now, wakers);
    }

    /// Serves with the slots that nobody holds.
    fn serve_free(&self, queue: &mut Queue, now: Instant, wakers: &mut Vec<Waker>) {
        let fits = |lane, waiter: &Waiter| {
            if !self.enter(lane) {
                return Fit::NotThis;
            }
            if let Some(endpoint) = self.reserve_least_loaded(&waiter.tried) {
                return Fit::Endpoint(endpoint);
            }
            self.leave_lane(lane);
            match waiter.tried.is_empty() {
                true => Fit::Nobody,
                false => Fit::NotThis,
            }
        };
        while let Some(waker) = queue.grant(now, |lane| self.is_open(lane), fits) {
            self.waiting.0.fetch_sub(1, Ordering::SeqCst);
            wakers.push(waker);
        }
    }

    /// Does what the discipline asks for at this time.
    fn note_time(&self, queue: &mut Queue, now: Instant, wakers: &mut Vec<Waker>) {
        queue.note_held(!self.is_up(), now);
        let before = wakers.len();
        queue.shed(now, wakers);
        self.waiting
            .0
            .fetch_sub(wakers.len() - before, Ordering::SeqCst);
    }

    /// Takes a slot of a lane of the queue.
    fn enter(&self, lane: usize) -> bool {
        lane.checked_sub(1)
            .is_none_or(|lane| self.lanes[lane].try_reserve())
    }

    fn leave_lane(&self, lane: usize) {
        if let Some(lane) = lane.checked_sub(1) {
            self.lanes[lane].release();
        }
    }

    fn is_open(&self, lane: usize) -> bool {
        match lane.checked_sub(1) {
            Some(lane) => self.lanes[lane].has_room(),
            None => true,
        }
    }

    /// Whether an endpoint that is not among `tried` takes exchanges.
    pub fn has_untried(&self, tried: &[u32]) -> bool {
        self.untried(tried).any(EndpointState::is_eligible)
    }

    fn untried(&self, tried: &[u32]) -> impl Iterator<Item = &EndpointState> {
        let states = (0..).zip(&self.states);
        let untried = states.filter(|(index, _)| !tried.contains(index));
        untried.map(|(_, state)| state)
    }

    fn is_up(&self) -> bool {
        self.states.iter().any(EndpointState::is_eligible)
    }

    fn reserve_least_loaded(&self, tried: &[u32]) -> Option<usize> {
        loop {
            let mut best: Option<(usize, u64, u64)> = None;
            for (index, state) in self.states.iter().enumerate() {
                if !state.is_eligible() || !state.has_room() || tried.contains(&(index as u32)) {
                    continue;
                }
                let load = u64::from(state.load()) + 1;
                let weight = u64::from(state.effective_weight()).max(1);
                if best.is_none_or(|(_, least, of)| load * of < least * weight) {
                    best = Some((index, load, weight));
                }
            }
            let (endpoint, ..) = best?;
            if self.states[endpoint].try_reserve(u32::MAX) {
                return Some(endpoint);
            }
        }
    }

    /// How the waiter left the queue, if it has; else `waker` is who hears of
    /// it.
    pub fn poll(&self, ticket: &Ticket, waker: &Waker) -> Option<Left> {
        lock(&self.queue.0).poll(ticket, waker)
    }

    /// Takes a waiter out of the queue, because its time is over or its client
    /// has left: the endpoint whose slot it was granted in this very moment,
    /// if it was. That slot must be used or released.
    pub fn leave(&self, ticket: Ticket) -> Option<usize> {
        let mut queue = lock(&self.queue.0);
        match queue.leave(&ticket) {
            Ok(()) => {
                self.waiting.0.fetch_sub(1, Ordering::SeqCst);
                None
            }
            Err(Left::Granted { endpoint }) => Some(endpoint),
            Err(Left::TimedOut) => None,
        }
    }
}

impl Lane {
    fn has_room(&self) -> bool {
        self.in_flight.load(Ordering::SeqCst) < self.max_in_flight
    }

    fn try_reserve(&self) -> bool {
        self.in_flight
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| {
                (count < self.max_in_flight).then_some(count + 1)
            })
            .is_ok()
    }

    fn release(&self) {
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Lane 0 of the queue is that of routes without one.
fn lane_index(lane: Option<usize>) -> usize {
    lane.map_or(0, |lane| lane + 1)
}

fn wake(wakers: Vec<Waker>) {
    for waker in wakers {
        waker.wake();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
