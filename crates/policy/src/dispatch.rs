//! The order of work, the same for every balancer, and the hand-over of slots.
//!
//! 1. eligible: see `Tier`; and the exchange's lane has room;
//! 2. an endpoint on trial gets the next exchange that may go there; otherwise
//!    the balancer ranks, without reading limits;
//! 3. compare-and-swap below `max_in_flight`; if that fails, rank again among
//!    the endpoints with room;
//! 4. none has room: the exchange joins the queue, or is refused.
//!
//! A slot that is given back while somebody waits is handed over under the
//! queue's lock and is never free in between, so that no newcomer can take it.
//! While nobody waits the lock is not touched: see [`Dispatcher::waiting`].

mod outlook;
mod tier;
mod waiters;

use crate::Instant;
use std::task::Waker;

use crate::balance::Balancer;
use crate::budget::RetryBudget;
use crate::endpoint::{EndpointState, Flag, Reservation, Tried};
use crate::health::{HealthSettings, Initial, Record};
use crate::queue::{Group, Joining, KeptTo, Left, Queue, QueueSettings, Ticket, Waiter};
use crate::sync::{AtomicU32, AtomicUsize, Mutex, Ordering, between_sequential, lock};

pub use outlook::Outlook;
pub(crate) use tier::Tier;

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
    /// Endpoints on trial.
    pub(crate) trials: AtomicU32,
    /// How many retries are allowed.
    pub retries: RetryBudget,
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
    /// Endpoints that it was at.
    pub tried: &'a [Tried],
    /// Hash of what a balancer by key goes by.
    pub key: u64,
    /// The endpoint that a connection is pinned to for its client.
    pub pinned_to: Option<u32>,
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
    /// A slot is taken and must be released.
    Reserved {
        /// The slot.
        reservation: Reservation,
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
    /// Its ejection has ended: this exchange shows whether it is well.
    Trial,
    /// A connection is pinned there for its client.
    Pinned,
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
    /// The endpoint of its key, or of its client's connection, is full.
    Key {
        endpoint: usize,
    },
    /// No endpoint is up, now.
    Up,
    /// There is none that it could wait for.
    Endpoint,
    Busy,
}

/// The next step of an exchange whose first choice is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnFull {
    /// It goes to the next one in rank.
    Next,
    /// It waits for that one.
    Wait,
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
            let state = EndpointState::new(endpoint.weight, endpoint.max_in_flight);
            state.set(Flag::Unprobed, health_settings.initial == Initial::Down);
            states.push(state);
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
            trials: AtomicU32::new(0),
            retries: RetryBudget::default(),
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
            match self.reserve(balancer, asking, self.on_full(balancer)) {
                Ok((reservation, choice)) => {
                    return Acquired::Reserved {
                        reservation,
                        choice,
                    };
                }
                Err(none) if !self.may_wait(none) => {
                    // For a moment it held a slot of its lane.
                    if asking.lane.is_some() && self.waiting() > 0 {
                        self.serve(asking.now);
                    }
                    return Acquired::Refused(Self::refusal(none));
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
        let lane = lane_index(asking.lane);
        let lane_max = self.lane_max(lane);
        let may_join = queue.has_room(lane, lane_max, asking.priority);
        let on_full = match may_join {
            true => self.on_full(balancer),
            false => OnFull::Next,
        };
        let acquired = match self.reserve(balancer, asking, on_full) {
            Ok((reservation, choice)) => Acquired::Reserved {
                reservation,
                choice,
            },
            Err(none) if !self.may_wait(none) => Acquired::Refused(Self::refusal(none)),
            Err(_) if !may_join => Acquired::Refused(Refusal::QueueFull),
            Err(none) => {
                if let Some(displaced) = queue.displace(lane, lane_max, asking.priority) {
                    self.waiting.0.fetch_sub(1, Ordering::SeqCst);
                    wakers.push(displaced);
                }
                queue.note_held(none == NoSlot::Up, asking.now);
                let joining = Joining {
                    lane,
                    priority: asking.priority,
                    arrived: asking.arrived,
                };
                let kept_to = match none {
                    NoSlot::Key { endpoint } => Some(KeptTo {
                        endpoint,
                        until: asking.now + self.settings.key_wait,
                    }),
                    _ => None,
                };
                let waiter = Waiter {
                    tried: asking.tried.into(),
                    kept_to,
                    since: asking.now,
                    waker: waker.clone(),
                };
                return Acquired::Queued(queue.join(joining, waiter));
            }
        };
        self.waiting.0.fetch_sub(1, Ordering::SeqCst);
        acquired
    }

    /// A key is worth a wait: its endpoint has what belongs to it.
    fn on_full(&self, balancer: &Balancer) -> OnFull {
        let waits =
            balancer.takes_key() && self.settings.max > 0 && !self.settings.key_wait.is_zero();
        match waits {
            true => OnFull::Wait,
            false => OnFull::Next,
        }
    }

    fn may_wait(&self, none: NoSlot) -> bool {
        match none {
            NoSlot::Room | NoSlot::Key { .. } => self.settings.max > 0,
            NoSlot::Up => self.settings.max > 0 && self.settings.hold,
            NoSlot::Endpoint | NoSlot::Busy => false,
        }
    }

    fn refusal(none: NoSlot) -> Refusal {
        match none {
            NoSlot::Room | NoSlot::Key { .. } => Refusal::Saturated,
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
        on_full: OnFull,
    ) -> Result<(Reservation, Choice), NoSlot> {
        let lane = lane_index(asking.lane);
        if !self.enter(lane) {
            return Err(NoSlot::Room);
        }
        let reserved = self.reserve_endpoint(balancer, asking, on_full);
        if reserved.is_err() {
            self.leave_lane(lane);
        }
        reserved
    }

    fn reserve_endpoint(
        &self,
        balancer: &mut Balancer,
        asking: &Asking<'_>,
        on_full: OnFull,
    ) -> Result<(Reservation, Choice), NoSlot> {
        if let Some(endpoint) = asking.pinned_to
            && let Some(reserved) = self.reserve_pinned(endpoint as usize, asking)
        {
            return reserved;
        }
        if self.trials.load(Ordering::Relaxed) > 0
            && let Some(reservation) = self.reserve_trial(asking.tried, asking.now)
        {
            return Ok((reservation, Choice::Trial));
        }
        let mut view = self.view(asking);
        loop {
            let Some(endpoint) = balancer.pick(&view) else {
                view.tier = self.tier_after(&view, balancer)?;
                continue;
            };
            let cap = balancer.cap(&view, endpoint);
            if let Some(reservation) = self.reserve_at(endpoint, cap, view.tier, asking.now) {
                let choice = match view.only_with_room {
                    true => Choice::Next,
                    false => Choice::First,
                };
                return Ok((reservation, choice));
            }
            if on_full == OnFull::Wait && !view.only_with_room {
                return Err(NoSlot::Key { endpoint });
            }
            // Others may fill what has room while we rank: each turn of this
            // loop means that some other exchange got a place.
            view.only_with_room = true;
        }
    }

    /// Takes a slot at the endpoint that a connection is pinned to, past the
    /// balancer, or waits for one as with a key. `None` where the endpoint is not
    /// eligible: the exchange goes where any other would.
    #[cold]
    fn reserve_pinned(
        &self,
        endpoint: usize,
        asking: &Asking<'_>,
    ) -> Option<Result<(Reservation, Choice), NoSlot>> {
        let (tried, now) = (asking.tried, asking.now);
        let state = &self.states[endpoint];
        if !Tier::Untried.has(endpoint, state, tried, now) {
            return None;
        }
        match self.reserve_at(endpoint, u32::MAX, Tier::Untried, now) {
            Some(reservation) => Some(Ok((reservation, Choice::Pinned))),
            None if self.settings.max > 0 && !self.settings.key_wait.is_zero() => {
                Some(Err(NoSlot::Key { endpoint }))
            }
            None => None,
        }
    }

    /// Takes a slot at this endpoint, whatever its state, for a probe. Nobody who
    /// waits could use a slot that is free.
    pub fn try_reserve_at(&self, endpoint: usize) -> Option<Reservation> {
        self.states[endpoint].try_reserve_for_probe(endpoint)
    }

    /// Gives a slot back: to who waits for it, if somebody does. `now` is
    /// asked for the present in that case only.
    pub fn release(
        &self,
        reservation: Reservation,
        lane: Option<usize>,
        now: impl FnOnce() -> Instant,
    ) {
        let endpoint = reservation.endpoint();
        if let Some(trial) = reservation.trial {
            self.states[endpoint].end_trial(trial);
        }
        if self.waiting() == 0 {
            self.leave_lane(lane_index(lane));
            self.states[endpoint].release();
            between_sequential();
            if self.waiting() > 0 {
                self.serve(now());
            }
            return;
        }
        self.release_to_waiter(endpoint, lane, now);
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

    /// Most waiters of a lane of the queue: its share of `queue.max` by its
    /// part of the slots. Requests without a lane may use all that lanes have
    /// not taken.
    fn lane_max(&self, lane: usize) -> usize {
        let Some(lane) = lane.checked_sub(1) else {
            return usize::MAX;
        };
        let width = |lane: &Lane| u64::from(lane.max_in_flight);
        let limits = self.states.iter().map(EndpointState::max_in_flight);
        // Without limits lanes are all that anybody waits for.
        let slots = limits.map(|it| it.map(u64::from)).sum::<Option<u64>>();
        let slots = slots.unwrap_or_else(|| self.lanes.iter().map(width).sum());
        let share = self.settings.max as u64 * width(&self.lanes[lane]);
        let share = share.div_ceil(slots.max(1)) as usize;
        share.clamp(1, self.settings.max.max(1))
    }

    /// How the waiter left the queue, if it has; else `waker` is who hears of
    /// it.
    pub fn poll(&self, ticket: &Ticket, waker: &Waker) -> Option<Left> {
        lock(&self.queue.0).poll(ticket, waker)
    }

    /// Takes a waiter out of the queue, because its time is over or its client
    /// has left: the slot that it was granted in this very moment, if it was.
    /// That slot must be used or released.
    pub fn leave(&self, ticket: Ticket) -> Option<Reservation> {
        let mut queue = lock(&self.queue.0);
        match queue.leave(&ticket) {
            Ok(()) => {
                self.waiting.0.fetch_sub(1, Ordering::SeqCst);
                None
            }
            Err(Left::Granted(reservation)) => Some(reservation),
            Err(Left::TimedOut | Left::Refused(_)) => None,
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
