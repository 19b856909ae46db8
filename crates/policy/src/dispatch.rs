//! The order of work, the same for every balancer, and the hand-over of slots.
//!
//! 1. eligible: see `candidates`; and the exchange's lane has room;
//! 2. an endpoint on trial gets the next exchange that may go there; otherwise
//!    the balancer ranks, without reading limits;
//! 3. compare-and-swap below `max_in_flight`; if that fails, rank again among
//!    the endpoints with room;
//! 4. none has room: the exchange joins the queue, or is refused.
//!
//! A slot that is given back while an exchange waits is handed over under the queue's lock. The
//! slot is never free in between, so that no newcomer can take it. While nobody waits, the lock
//! is not touched: see [`Dispatcher::waiting`].
//!
//! The members of the upstream are a snapshot: see `replace`.

mod configure;
mod health;
mod lanes;
mod no_slot;
mod outlook;
mod replace;
mod trial;
mod waiters;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::task::Waker;

use crate::Instant;

use crate::balance::{Balancer, View};
use crate::budget::RetryBudget;
use crate::candidates::CandidateClass;
use crate::chooser::Chooser;
use crate::endpoint::{EndpointId, EndpointSettings, EndpointState, Reservation, Tried};
use crate::health::{HealthSettings, Records};
use crate::members::Members;
use crate::queue::{
    Affinity, Claim, Group, Joining, Left, LineCount, Queue, QueueSettings, Refusal, Ticket, Waiter,
};
use crate::sync::{AtomicU32, AtomicUsize, Mutex, Ordering, between_sequential, fence, lock};

pub use lanes::LaneSettings;
pub use outlook::Outlook;

use configure::Rules;
use lanes::{Lane, Lanes};
use no_slot::NoSlot;
use trial::reserve_at;

/// The endpoints of one upstream, their slots and waiters: shared between workers.
#[derive(Debug)]
pub struct Dispatcher {
    lanes: Lanes,
    rules: Rules,
    /// Waiters in the queue. A joiner increments this, then looks for a slot. A releaser frees
    /// its slot, then reads this.
    ///
    /// Invariant: no slot stays free while an exchange waits for it. All four accesses are
    /// sequentially consistent, so that one of the two sees the other.
    waiting: OwnLine<AtomicUsize>,
    waiters: OwnLine<Mutex<Waiters>>,
    /// The version of the newest members. A worker compares it with its own before a pick.
    version: AtomicU32,
    /// Endpoints on trial.
    trials: AtomicU32,
    /// Secret, so that nobody can choose a key that has the line of another.
    line_seed: RandomState,
    /// How many retries are allowed.
    pub retries: RetryBudget,
    /// Never locked while the queue is.
    records: OwnLine<Mutex<Records>>,
}

/// The queue, and the members that it waits for.
#[derive(Debug)]
struct Waiters {
    members: Arc<Members>,
    queue: Queue,
}

/// On a cache line of its own: a field that is written often, beside fields that every exchange
/// reads.
#[derive(Debug)]
#[repr(align(128))]
struct OwnLine<T>(T);

/// The request of an exchange for a slot.
#[derive(Debug, Clone, Copy)]
pub struct SlotRequest<'a> {
    /// Endpoints that it has tried.
    pub tried: &'a [Tried],
    /// Hash of the key, for a balancer by key.
    pub key: u64,
    /// The endpoint that its client belongs to.
    pub pinned_to: Option<Pin>,
    /// Index of its lane, if it is kept to one: see [`Dispatcher::lane_named`].
    pub lane: Option<usize>,
    /// Higher ones are served first.
    pub priority: u8,
    /// When it arrived: its place in the queue.
    pub arrived: Instant,
    /// The present.
    pub now: Instant,
}

/// Why a client belongs to an endpoint, which gets the exchange past the balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pin {
    /// A connection is pinned there for it.
    Connection(EndpointId),
    /// It has a session there, which a drain lets go on.
    Session(EndpointId),
}

impl Pin {
    /// The endpoint.
    pub fn endpoint(self) -> EndpointId {
        match self {
            Pin::Connection(endpoint) | Pin::Session(endpoint) => endpoint,
        }
    }
}

/// The outcome of asking for an endpoint.
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
    /// Its client has a session there.
    Sticky,
}

/// The next step of an exchange whose first choice is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnFull {
    /// It goes to the next one in rank.
    Next,
    /// It waits for that one.
    Wait,
}

impl<'a> SlotRequest<'a> {
    /// These members, as a balancer sees them for it.
    fn view(&self, members: &'a Members) -> View<'a> {
        View {
            tried: self.tried,
            key: self.key,
            ..View::new(members, self.now)
        }
    }
}

impl Dispatcher {
    /// Endpoints in the order of the configuration, with nothing in flight. Lanes have their
    /// slots, and their indexes by this order. Nobody arrives before `epoch`.
    pub fn new<'a>(
        endpoints: impl IntoIterator<Item = EndpointSettings<'a>>,
        lanes: &[LaneSettings<'_>],
        settings: QueueSettings,
        health_settings: HealthSettings,
        epoch: Instant,
    ) -> Self {
        let mut records = Records::new(health_settings);
        let endpoints: Vec<_> = endpoints.into_iter().collect();
        let endpoints = records.endpoints_for(&endpoints);
        let members = Arc::new(Members::new(0, endpoints));
        records.members = members.clone();
        let queue = Queue::new(settings, lanes.len(), epoch);
        Dispatcher {
            version: AtomicU32::new(members.version()),
            records: OwnLine(Mutex::new(records)),
            lanes: Lanes::new(lanes),
            rules: Rules::new(&settings, &health_settings),
            waiting: OwnLine(AtomicUsize::new(0)),
            trials: AtomicU32::new(0),
            line_seed: RandomState::new(),
            retries: RetryBudget::default(),
            waiters: OwnLine(Mutex::new(Waiters { members, queue })),
        }
    }

    /// The endpoints as they are now. Takes a lock: code that chooses among them has a
    /// [`Chooser`].
    pub fn members(&self) -> Arc<Members> {
        lock(&self.records.0).members.clone()
    }

    /// Number of waiters.
    pub fn waiting(&self) -> usize {
        self.waiting.0.load(Ordering::SeqCst)
    }

    /// The waiters by lane and priority. Goes through all of them with the queue locked: for an
    /// operator who asks, not for every second.
    pub fn waiting_groups(&self, now: Instant) -> Vec<Group> {
        match self.waiting() {
            0 => Vec::new(),
            _ => lock(&self.waiters.0).queue.groups(now),
        }
    }

    /// The lines of keys that share the queue.
    pub fn waiting_lines(&self) -> Option<LineCount> {
        lock(&self.waiters.0).queue.lines()
    }

    /// The line of a key that shares the queue with others.
    pub fn line_of(&self, key: &[u8]) -> u64 {
        self.line_seed.hash_one(key)
    }

    /// Exchanges in flight in a lane.
    pub fn lane_in_flight(&self, lane: usize) -> u32 {
        self.lanes.get(lane).in_flight.load(Ordering::Relaxed)
    }

    /// Picks an endpoint and takes a slot there, or joins the queue. `waker` is woken when the
    /// waiter leaves it.
    pub fn acquire(
        &self,
        chooser: &mut Chooser,
        asking: &SlotRequest<'_>,
        waker: &Waker,
    ) -> Acquired {
        self.acquire_in_line(chooser, asking, waker, || 0)
    }

    /// The same for an exchange of a key that may share the queue. `line` gives the
    /// [line](Self::line_of) of its key. The call is made only if keys share the queue and the
    /// exchange has to wait.
    pub fn acquire_in_line(
        &self,
        chooser: &mut Chooser,
        asking: &SlotRequest<'_>,
        waker: &Waker,
        line: impl FnOnce() -> u64,
    ) -> Acquired {
        self.update(chooser);
        while self.waiting() == 0 {
            match self.reserve(chooser, asking, self.on_full(&chooser.balancer)) {
                Ok((reservation, choice)) => {
                    return Acquired::Reserved {
                        reservation,
                        choice,
                    };
                }
                Err(none) if !none.may_wait(self.rules.may_wait()) => {
                    // For a moment it held a slot of its lane.
                    if asking.lane.is_some() && self.waiting() > 0 {
                        self.serve(asking.now);
                    }
                    // A worker that saw an endpoint leave sees the newer members.
                    fence(Ordering::Acquire);
                    if !self.update(chooser) {
                        return Acquired::Refused(none.refusal());
                    }
                }
                Err(_) => break,
            }
        }
        let line = if self.rules.shares_by_key() {
            line()
        } else {
            0
        };
        let mut wakers = Vec::new();
        let acquired = self.acquire_behind(chooser, asking, line, waker, &mut wakers);
        wake(wakers);
        acquired
    }

    /// Has `chooser` take over the newest members. Whether they are others.
    #[inline]
    pub fn update(&self, chooser: &mut Chooser) -> bool {
        let is_old = self.version.load(Ordering::Acquire) != chooser.members.version();
        if is_old {
            self.take_over(chooser);
        }
        is_old
    }

    #[cold]
    fn take_over(&self, chooser: &mut Chooser) {
        // The queue's are never older than the version.
        let members = lock(&self.waiters.0).members.clone();
        chooser.follow(&members);
    }

    /// Acquires with the queue locked: behind all waiters.
    fn acquire_behind(
        &self,
        chooser: &mut Chooser,
        asking: &SlotRequest<'_>,
        line: u64,
        waker: &Waker,
        wakers: &mut Vec<Waker>,
    ) -> Acquired {
        let mut waiters = lock(&self.waiters.0);
        // Free slots belong to earlier waiters first.
        self.serve_locked(&mut waiters, asking.now, wakers);
        chooser.follow(&waiters.members);
        self.waiting.0.fetch_add(1, Ordering::SeqCst);
        between_sequential();
        let claim = self.claim(&waiters.members, asking, line);
        let queue = &mut waiters.queue;
        let may_join = queue.has_room(&claim);
        let on_full = if may_join {
            self.on_full(&chooser.balancer)
        } else {
            OnFull::Next
        };
        let acquired = match self.reserve(chooser, asking, on_full) {
            Ok((reservation, choice)) => Acquired::Reserved {
                reservation,
                choice,
            },
            Err(none) if !none.may_wait(self.rules.may_wait()) => Acquired::Refused(none.refusal()),
            Err(_) if !may_join => Acquired::Refused(Refusal::QueueFull),
            Err(none) => {
                if let Some(displaced) = queue.displace(&claim) {
                    self.waiting.0.fetch_sub(1, Ordering::SeqCst);
                    wakers.push(displaced);
                }
                queue.note_held(matches!(none, NoSlot::Up | NoSlot::Empty), asking.now);
                return Acquired::Queued(self.join(queue, asking, none, line, waker));
            }
        };
        self.waiting.0.fetch_sub(1, Ordering::SeqCst);
        acquired
    }

    /// Has an exchange wait that found `none`.
    fn join(
        &self,
        queue: &mut Queue,
        asking: &SlotRequest<'_>,
        none: NoSlot,
        line: u64,
        waker: &Waker,
    ) -> Ticket {
        let joining = Joining {
            lane: lane_index(asking.lane),
            priority: asking.priority,
            arrived: asking.arrived,
        };
        let kept_to = match none {
            NoSlot::Key { endpoint } => Some(Affinity {
                endpoint,
                until: asking.now + self.rules.key_wait(),
            }),
            _ => None,
        };
        let waiter = Waiter {
            tried: asking.tried.into(),
            kept_to,
            since: asking.now,
            line,
            waker: waker.clone(),
        };
        queue.join(joining, waiter)
    }

    /// A key is worth a wait: its endpoint holds the key's data.
    fn on_full(&self, balancer: &Balancer) -> OnFull {
        let waits = balancer.takes_key() && self.rules.waits_for_key();
        if waits { OnFull::Wait } else { OnFull::Next }
    }

    /// Takes a slot in the lane and at the endpoint that the balancer ranks
    /// first among those with room.
    fn reserve(
        &self,
        chooser: &mut Chooser,
        asking: &SlotRequest<'_>,
        on_full: OnFull,
    ) -> Result<(Reservation, Choice), NoSlot> {
        let lane = lane_index(asking.lane);
        if !self.enter(lane) {
            return Err(NoSlot::Room);
        }
        let reserved = self.reserve_endpoint(chooser, asking, on_full);
        if reserved.is_err() {
            self.leave_lane(lane);
        }
        reserved
    }

    fn reserve_endpoint(
        &self,
        Chooser {
            members, balancer, ..
        }: &mut Chooser,
        asking: &SlotRequest<'_>,
        on_full: OnFull,
    ) -> Result<(Reservation, Choice), NoSlot> {
        let members = &**members;
        if let Some(pin) = asking.pinned_to
            && let Some(reserved) = self.reserve_pinned(members, pin, asking)
        {
            return reserved;
        }
        if self.trials.load(Ordering::Relaxed) > 0
            && let Some(reservation) = self.reserve_trial(members, asking.tried, asking.now)
        {
            return Ok((reservation, Choice::Trial));
        }
        let mut view = asking.view(members);
        loop {
            let Some(position) = balancer.pick(&view) else {
                view.candidates = NoSlot::candidates_after(members, &view, balancer)?;
                continue;
            };
            let endpoint = &members.endpoints()[position];
            let cap = balancer.cap(&view, position);
            if let Some(reservation) =
                reserve_at(endpoint, cap, view.candidates.standing, asking.now)
            {
                let choice = if view.only_with_room {
                    Choice::Next
                } else {
                    Choice::First
                };
                return Ok((reservation, choice));
            }
            if on_full == OnFull::Wait && !view.only_with_room {
                let endpoint = endpoint.id();
                return Err(NoSlot::Key { endpoint });
            }
            // Others may take the room while we rank: each turn of this loop means that another
            // exchange got a place.
            view.only_with_room = true;
        }
    }

    /// Takes a slot at the endpoint that the client belongs to, past the balancer, or waits for
    /// one as with a key. `None` where the endpoint takes no such exchange. Then the exchange
    /// goes to any other.
    #[cold]
    fn reserve_pinned(
        &self,
        members: &Members,
        pin: Pin,
        asking: &SlotRequest<'_>,
    ) -> Option<Result<(Reservation, Choice), NoSlot>> {
        let (tried, now) = (asking.tried, asking.now);
        let endpoint = pin.endpoint();
        let state = members.get(endpoint)?;
        let (choice, is_open) = match pin {
            Pin::Connection(_) => (
                Choice::Pinned,
                CandidateClass::Untried.has(state, tried, now),
            ),
            Pin::Session(_) => {
                let is_untried = tried.iter().all(|it| it.endpoint() != endpoint);
                (Choice::Sticky, is_untried && state.keeps_sessions())
            }
        };
        if !is_open {
            return None;
        }
        match reserve_at(state, u32::MAX, CandidateClass::Untried, now) {
            Some(reservation) => Some(Ok((reservation, choice))),
            None if self.rules.waits_for_key() => Some(Err(NoSlot::Key { endpoint })),
            None => None,
        }
    }

    /// Gives a slot of `endpoint` back: to a waiter, if there is one. `now` is called in that
    /// case only.
    pub fn release(
        &self,
        endpoint: &EndpointState,
        reservation: Reservation,
        lane: Option<usize>,
        now: impl FnOnce() -> Instant,
    ) {
        debug_assert_eq!(
            endpoint.id(),
            reservation.endpoint(),
            "it is of another one"
        );
        if let Some(trial) = reservation.trial {
            endpoint.end_trial(trial);
        }
        if self.waiting() == 0 {
            self.leave_lane(lane_index(lane));
            endpoint.release();
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
            .is_none_or(|lane| self.lanes.get(lane).try_reserve())
    }

    fn leave_lane(&self, lane: usize) {
        if let Some(lane) = lane.checked_sub(1) {
            self.lanes.get(lane).release();
        }
    }

    fn is_open(&self, lane: usize) -> bool {
        match lane.checked_sub(1) {
            Some(lane) => self.lanes.get(lane).has_room(),
            None => true,
        }
    }

    /// The claim of an exchange on a place in the queue.
    fn claim(&self, members: &Members, asking: &SlotRequest<'_>, line: u64) -> Claim {
        let lane = lane_index(asking.lane);
        Claim {
            lane,
            lane_max: self.lane_max(members, lane),
            priority: asking.priority,
            line,
        }
    }

    /// Most waiters of a lane of the queue: its share of `queue.max` by its
    /// part of the slots. Requests without a lane may use all that lanes have
    /// not taken.
    fn lane_max(&self, members: &Members, lane: usize) -> usize {
        let Some(lane) = lane.checked_sub(1) else {
            return usize::MAX;
        };
        let width = |lane: &Lane| u64::from(lane.max_in_flight());
        let limits = members.endpoints().iter().map(|it| it.max_in_flight());
        // Without limits, exchanges wait for lanes alone.
        let slots = limits.map(|it| it.map(u64::from)).sum::<Option<u64>>();
        let slots = slots.unwrap_or_else(|| self.lanes.iter().map(width).sum());
        let max = self.rules.queue_max();
        let share = max as u64 * width(self.lanes.get(lane));
        let share = share.div_ceil(slots.max(1)) as usize;
        share.clamp(1, max.max(1))
    }

    /// How the waiter left the queue, if it has; else `waker` is woken when it leaves.
    pub fn poll(&self, ticket: &Ticket, waker: &Waker) -> Option<Left> {
        lock(&self.waiters.0).queue.poll(ticket, waker)
    }

    /// Takes a waiter out of the queue: its time is over, or its client has left.
    ///
    /// Gives the slot that it was granted in this very moment, if any. The caller must use or
    /// release that slot.
    pub fn leave(&self, ticket: Ticket) -> Option<Reservation> {
        let queue = &mut lock(&self.waiters.0).queue;
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

/// Lane 0 of the queue is for routes without a lane.
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
