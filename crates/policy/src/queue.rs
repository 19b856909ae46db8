//! The waiters of one upstream, in the order in which they are served.
//!
//! Plain data: [`Dispatcher`](crate::dispatch::Dispatcher) holds it under a lock, knows which
//! endpoints have room, and wakes waiters.
//!
//! First in, first out, by the arrival of the exchange: a retry keeps its place. The two other
//! disciplines begin when the queue has stood for longer than its target, as in B. Maurer, "Fail
//! at Scale", ACM Queue 13(8), 2015. Keys that share the queue have lines, which are served in
//! turn: see `turns`.

mod turns;

use std::collections::BTreeMap;
use std::task::Waker;
use std::time::Duration;

use crate::Instant;
use crate::endpoint::{EndpointId, Reservation, Tried};
use turns::{Position, Turns};

/// The order of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Discipline {
    /// Oldest first.
    #[default]
    Fifo,
    /// Newest first while the queue stands for longer than its target, else oldest first.
    AdaptiveLifo,
    /// Oldest first. While the queue stands for longer than its target, waiters that have waited
    /// for longer than that leave unserved.
    Codel,
}

/// How the places of a queue are shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharing {
    /// First come, first served.
    #[default]
    Anyone,
    /// All keys alike. Their lines are served in turn. In a full queue the newest waiter of the
    /// longest line gives way.
    ByKey,
}

/// Bounds and order of a queue.
#[derive(Debug, Clone, Copy)]
pub struct QueueSettings {
    /// Most waiters; 0 is no queue.
    pub max: usize,
    /// Whether to wait while no endpoint is up.
    pub hold: bool,
    /// Whether endpoints may come: an upstream without any then counts as one whose endpoints are
    /// down.
    pub grows: bool,
    /// The order of service.
    pub discipline: Discipline,
    /// How its places are shared. With [`Sharing::ByKey`] lines are served in turn, also where
    /// the discipline is [`Discipline::AdaptiveLifo`].
    pub sharing: Sharing,
    /// How long the queue may stand before the discipline changes.
    pub target: Duration,
    /// How long an exchange with a key waits for the endpoint of its key while
    /// others have room.
    pub key_wait: Duration,
}

impl Default for QueueSettings {
    fn default() -> Self {
        QueueSettings {
            max: 1000,
            hold: true,
            grows: false,
            discipline: Discipline::Fifo,
            sharing: Sharing::Anyone,
            target: Duration::from_millis(100),
            key_wait: Duration::from_secs(1),
        }
    }
}

/// A waiter's place: by priority, then by arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct QueuePlace {
    /// 255 less the priority, so that the highest comes first.
    rank: u8,
    /// Since the queue's epoch.
    arrived_ns: u64,
    /// Tells apart waiters that arrived at the same instant.
    number: u64,
}

/// The handle of a waiter.
#[derive(Debug)]
#[must_use = "a ticket that is dropped keeps its place for ever"]
pub struct Ticket {
    lane: usize,
    place: QueuePlace,
}

/// How a waiter left the queue by another's doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// It has this slot.
    Granted(Reservation),
    /// It has waited for too long.
    TimedOut,
    /// A newcomer like it would be refused, or another exchange has taken its place. That one has
    /// a higher priority, or a key with fewer waiters.
    Refused(Refusal),
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

/// An exchange in the queue.
#[derive(Debug)]
pub(crate) struct Waiter {
    /// Endpoints that it has tried.
    pub tried: Box<[Tried]>,
    /// The endpoint of its key or of its client's connection, and how long it waits
    /// for that one alone.
    pub kept_to: Option<Affinity>,
    /// When it joined.
    pub since: Instant,
    /// Hash of the key of its line, if keys share the queue; else 0.
    pub line: u64,
    pub waker: Waker,
}

/// Until when a waiter goes to no other endpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Affinity {
    pub endpoint: EndpointId,
    pub until: Instant,
}

impl Waiter {
    /// Whether it may be refused a slot that another waiter gets. An exchange that has tried no
    /// endpoint takes any.
    pub fn is_particular(&self) -> bool {
        !self.tried.is_empty() || self.kept_to.is_some()
    }

    /// Whether it takes any endpoint by now.
    pub fn takes_any(&self, now: Instant) -> bool {
        self.tried.is_empty() && self.kept_to.is_none_or(|it| now >= it.until)
    }
}

/// An exchange that asks for a place in a full queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    /// 0 is the lane of routes without a lane.
    pub lane: usize,
    /// Most waiters of the lane.
    pub lane_max: usize,
    pub priority: u8,
    /// Hash of its key, if keys share the queue.
    pub line: u64,
}

/// The lane, priority and arrival of a new waiter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Joining {
    /// 0 is the lane of routes without a lane.
    pub lane: usize,
    pub priority: u8,
    pub arrived: Instant,
}

/// The waiters of one lane with one priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// Index of the lane; `None` for routes without one.
    pub lane: Option<usize>,
    /// Higher ones are served first.
    pub priority: u8,
    /// How many there are.
    pub waiting: usize,
    /// How long the oldest waiter has waited.
    pub longest: Duration,
}

/// The lines of keys that share a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineCount {
    /// How many there are.
    pub lines: usize,
    /// How many wait in the longest one.
    pub longest: usize,
}

#[derive(Debug)]
pub(crate) struct Queue {
    settings: QueueSettings,
    epoch: Instant,
    lanes: Vec<BTreeMap<QueuePlace, Waiter>>,
    /// The order of service where keys share the queue.
    turns: Option<Box<Turns>>,
    /// Waiters that have left and have not heard of it.
    left: BTreeMap<QueuePlace, Left>,
    next_number: u64,
    /// How many waiters are particular: see [`Waiter::is_particular`].
    particular: usize,
    /// Since when there has always been a waiter while an endpoint was up.
    standing_since: Option<Instant>,
    /// Whether no endpoint was up when it was last looked at.
    is_held: bool,
}

impl Queue {
    /// An empty queue; nobody arrives before `epoch`.
    pub fn new(settings: QueueSettings, lane_count: usize, epoch: Instant) -> Self {
        Queue {
            settings,
            epoch,
            lanes: (0..=lane_count).map(|_| BTreeMap::new()).collect(),
            turns: turns_of(settings.sharing),
            left: BTreeMap::new(),
            next_number: 0,
            particular: 0,
            standing_since: None,
            is_held: false,
        }
    }

    /// Goes on with these settings and number of lanes, which never falls. Waiters keep their
    /// places. They stand in one line with all waiters that came without a key.
    pub fn configure(&mut self, settings: QueueSettings, lane_count: usize) {
        let is_shared = self.settings.sharing == settings.sharing;
        self.settings = settings;
        self.lanes.resize_with(lane_count + 1, BTreeMap::new);
        if is_shared {
            return;
        }
        self.turns = turns_of(settings.sharing);
        if let Some(turns) = &mut self.turns {
            for (lane, waiters) in self.lanes.iter().enumerate() {
                for (&place, waiter) in waiters {
                    turns.join(Position { lane, place }, waiter.line);
                }
            }
        }
    }

    pub fn len(&self) -> usize {
        self.lanes.iter().map(BTreeMap::len).sum()
    }

    /// The waiters by lane and priority: in the order of lanes, the highest priority first.
    pub fn groups(&self, now: Instant) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for (lane, waiters) in self.lanes.iter().enumerate() {
            let lane = lane.checked_sub(1);
            for (place, waiter) in waiters {
                let priority = u8::MAX - place.rank;
                let waited = now.duration_since(waiter.since);
                match groups.last_mut() {
                    Some(last) if (last.lane, last.priority) == (lane, priority) => {
                        last.waiting += 1;
                        last.longest = last.longest.max(waited);
                    }
                    _ => groups.push(Group {
                        lane,
                        priority,
                        waiting: 1,
                        longest: waited,
                    }),
                }
            }
        }
        groups
    }

    /// The number of keys that wait, and the most waiters of one key; `None` unless keys share
    /// the queue. Lanes and priorities count apart.
    pub fn lines(&self) -> Option<LineCount> {
        let turns = self.turns.as_ref()?;
        Some(LineCount {
            lines: turns.line_count(),
            longest: turns.longest_len(),
        })
    }

    /// Whether one more may wait. A waiter that [gives way](Self::displace) leaves room for it.
    pub fn has_room(&self, claim: &Claim) -> bool {
        match self.fullness(claim) {
            None => true,
            Some(full) => self.gives_way(full, claim).is_some(),
        }
    }

    /// Makes room for one more waiter in a full queue or lane, by sending another one away.
    ///
    /// The newest waiter of the lowest priority leaves, if its priority is below the newcomer's.
    /// Keys that share the queue have another rule for the same priority: the newest waiter of
    /// the longest line leaves for a newcomer of a shorter line. Gives the waker of the one that
    /// leaves.
    pub fn displace(&mut self, claim: &Claim) -> Option<Waker> {
        let full = self.fullness(claim)?;
        let Position { lane, place } = self.gives_way(full, claim)?;
        self.dismiss(lane, place, Left::Refused(Refusal::QueueFull))
    }

    /// The part of the queue that is full for one more waiter of this lane.
    fn fullness(&self, claim: &Claim) -> Option<Full> {
        if self.lanes[claim.lane].len() >= claim.lane_max {
            Some(Full::Lane(claim.lane))
        } else if self.len() >= self.settings.max {
            Some(Full::Queue)
        } else {
            None
        }
    }

    /// The waiter within the full part that gives its place to a newcomer.
    fn gives_way(&self, full: Full, claim: &Claim) -> Option<Position> {
        let rank = u8::MAX - claim.priority;
        let Some(turns) = &self.turns else {
            return self.last(full).filter(|it| it.place.rank > rank);
        };
        let longest = turns.longest(match full {
            Full::Lane(lane) => lane..lane + 1,
            Full::Queue => 0..self.lanes.len(),
        })?;
        // The newcomer's own line, with the newcomer, must not be the longest.
        let len = turns.line_len(claim.lane, rank, claim.line) + 1;
        let gives_way = longest.rank > rank || (longest.rank == rank && longest.len > len);
        gives_way.then_some(longest.newest)
    }

    /// The last waiter in the order of arrival within the full part.
    fn last(&self, full: Full) -> Option<Position> {
        let last_of = |lane: usize| {
            let (&place, _) = self.lanes[lane].last_key_value()?;
            Some(Position { lane, place })
        };
        match full {
            Full::Lane(lane) => last_of(lane),
            Full::Queue => {
                let lanes = (0..self.lanes.len()).filter_map(last_of);
                lanes.max_by_key(|it| it.place)
            }
        }
    }

    /// Sends a waiter away, and gives its waker.
    fn dismiss(&mut self, lane: usize, place: QueuePlace, left: Left) -> Option<Waker> {
        let waiter = self.remove(lane, place)?;
        self.left.insert(place, left);
        Some(waiter.waker)
    }

    /// Sends away every waiter for whom `verdict` gives a reason.
    pub fn judge(
        &mut self,
        mut verdict: impl FnMut(&Waiter) -> Option<Refusal>,
        wakers: &mut Vec<Waker>,
    ) {
        let mut refused = Vec::new();
        for (lane, waiters) in self.lanes.iter().enumerate() {
            for (&place, waiter) in waiters {
                if let Some(refusal) = verdict(waiter) {
                    refused.push((lane, place, refusal));
                }
            }
        }
        for (lane, place, refusal) in refused {
            wakers.extend(self.dismiss(lane, place, Left::Refused(refusal)));
        }
    }

    /// Has waiters forget endpoints that have `left`: that they tried them, and that they wait
    /// for one of them alone.
    pub fn forget(&mut self, left: impl Fn(EndpointId) -> bool) {
        self.particular = 0;
        for waiter in self.lanes.iter_mut().flat_map(BTreeMap::values_mut) {
            waiter.kept_to = waiter.kept_to.filter(|it| !left(it.endpoint));
            if waiter.tried.iter().any(|it| left(it.endpoint())) {
                let tried = waiter.tried.iter().filter(|it| !left(it.endpoint()));
                waiter.tried = tried.copied().collect();
            }
            self.particular += usize::from(waiter.is_particular());
        }
    }

    /// Whether some waiters may be refused what others get.
    pub fn has_particular(&self) -> bool {
        self.particular > 0
    }

    fn remove(&mut self, lane: usize, place: QueuePlace) -> Option<Waiter> {
        let waiter = self.lanes[lane].remove(&place)?;
        if let Some(turns) = &mut self.turns {
            turns.leave(Position { lane, place }, waiter.line);
        }
        self.particular -= usize::from(waiter.is_particular());
        self.note_len();
        Some(waiter)
    }

    pub fn join(&mut self, joining: Joining, waiter: Waiter) -> Ticket {
        let arrived = joining.arrived.duration_since(self.epoch);
        let place = QueuePlace {
            rank: u8::MAX - joining.priority,
            arrived_ns: arrived.as_nanos() as u64,
            number: self.next_number,
        };
        self.next_number += 1;
        self.standing_since.get_or_insert(waiter.since);
        self.particular += usize::from(waiter.is_particular());
        if let Some(turns) = &mut self.turns {
            let lane = joining.lane;
            turns.join(Position { lane, place }, waiter.line);
        }
        self.lanes[joining.lane].insert(place, waiter);
        Ticket {
            lane: joining.lane,
            place,
        }
    }

    /// The waiter's end, if it has left; else `waker` is woken when it leaves.
    pub fn poll(&mut self, ticket: &Ticket, waker: &Waker) -> Option<Left> {
        if let Some(left) = self.left.remove(&ticket.place) {
            return Some(left);
        }
        let waiter = self.lanes[ticket.lane].get_mut(&ticket.place)?;
        if !waiter.waker.will_wake(waker) {
            waiter.waker = waker.clone();
        }
        None
    }

    /// Takes a waiter out: `Ok` if it was waiting still.
    pub fn leave(&mut self, ticket: &Ticket) -> Result<(), Left> {
        if let Some(left) = self.left.remove(&ticket.place) {
            return Err(left);
        }
        self.remove(ticket.lane, ticket.place);
        Ok(())
    }

    /// Notes whether an endpoint is up: time during which none is does not
    /// count as standing.
    pub fn note_held(&mut self, is_held: bool, now: Instant) {
        if self.is_held && !is_held && self.standing_since.is_some() {
            self.standing_since = Some(now);
        }
        self.is_held = is_held;
    }

    /// Grants the next waiter, in order, for whom `fits` finds an endpoint;
    /// lanes that are not `open` are left out. `fits` is asked with the lane
    /// and the waiter.
    pub fn grant(
        &mut self,
        now: Instant,
        open: impl Fn(usize) -> bool,
        mut fits: impl FnMut(usize, &Waiter) -> Fit,
    ) -> Option<Waker> {
        if self.turns.is_some() {
            return self.grant_in_turn(open, fits);
        }
        let newest_first =
            self.settings.discipline == Discipline::AdaptiveLifo && self.stands_for_longer(now);
        let mut lanes: Vec<_> = (0..self.lanes.len())
            .filter(|&lane| open(lane) && !self.lanes[lane].is_empty())
            .map(|lane| {
                (
                    lane,
                    InOrder::new(&self.lanes[lane], newest_first).peekable(),
                )
            })
            .collect();
        loop {
            // The lane whose next waiter comes first.
            let next = lanes
                .iter_mut()
                .filter_map(|(lane, waiters)| {
                    let (&place, _) = *waiters.peek()?;
                    Some((place, *lane))
                })
                .reduce(|best, other| {
                    if comes_first(other.0, best.0, newest_first) {
                        other
                    } else {
                        best
                    }
                });
            let (place, lane) = next?;
            let waiters = lanes.iter_mut().find(|(other, _)| *other == lane)?;
            let (_, waiter) = waiters.1.next()?;
            match fits(lane, waiter) {
                Fit::Slot(reservation) => {
                    drop(lanes);
                    return self.dismiss(lane, place, Left::Granted(reservation));
                }
                Fit::NotThis => {}
                Fit::Nobody => return None,
            }
        }
    }

    /// The same where keys share the queue.
    fn grant_in_turn(
        &mut self,
        open: impl Fn(usize) -> bool,
        mut fits: impl FnMut(usize, &Waiter) -> Fit,
    ) -> Option<Waker> {
        let turns = self.turns.as_mut()?;
        let mut granted = None;
        for position in turns.in_order(open) {
            let waiter = self.lanes[position.lane].get(&position.place)?;
            match fits(position.lane, waiter) {
                Fit::Slot(reservation) => {
                    granted = Some((position, waiter.line, reservation));
                    break;
                }
                Fit::NotThis => {}
                Fit::Nobody => return None,
            }
        }
        let (position, line, reservation) = granted?;
        turns.serve(position, line);
        let Position { lane, place } = position;
        self.dismiss(lane, place, Left::Granted(reservation))
    }

    /// Sends away waiters that have waited for too long by the discipline.
    pub fn shed(&mut self, now: Instant, wakers: &mut Vec<Waker>) {
        if self.settings.discipline != Discipline::Codel
            || self.is_held
            || !self.stands_for_longer(now)
        {
            return;
        }
        let target = self.settings.target;
        let is_late = |waiter: &Waiter| now.duration_since(waiter.since) > target;
        for lane in 0..self.lanes.len() {
            // Within a rank the first waiter has waited for longest.
            let mut from = 0;
            while let Some((&first, waiter)) = self.lanes[lane].range(first_of(from)..).next() {
                if is_late(waiter) {
                    wakers.extend(self.dismiss(lane, first, Left::TimedOut));
                } else if first.rank == u8::MAX {
                    break;
                } else {
                    from = first.rank + 1;
                }
            }
        }
    }

    fn stands_for_longer(&self, now: Instant) -> bool {
        self.standing_since
            .is_some_and(|since| now.duration_since(since) > self.settings.target)
    }

    fn note_len(&mut self) {
        if self.lanes.iter().all(BTreeMap::is_empty) {
            self.standing_since = None;
        }
    }
}

fn turns_of(sharing: Sharing) -> Option<Box<Turns>> {
    match sharing {
        Sharing::Anyone => None,
        Sharing::ByKey => Some(Box::default()),
    }
}

/// A part of the queue without room for another waiter.
#[derive(Debug, Clone, Copy)]
enum Full {
    /// The part of the queue that belongs to this lane.
    Lane(usize),
    /// All of it.
    Queue,
}

/// The outcome of a search for a slot.
pub(crate) enum Fit {
    /// This slot.
    Slot(Reservation),
    /// Nothing; another one may.
    NotThis,
    /// Nothing, and neither could any other.
    Nobody,
}

/// Whether the first of two is served before the second: by rank, then by
/// arrival, one way or the other.
fn comes_first(first: QueuePlace, second: QueuePlace, newest_first: bool) -> bool {
    if newest_first && first.rank == second.rank {
        first > second
    } else {
        first < second
    }
}

/// The waiters of a lane in the order of service.
struct InOrder<'a> {
    waiters: &'a BTreeMap<QueuePlace, Waiter>,
    newest_first: bool,
    last: Option<QueuePlace>,
}

impl<'a> InOrder<'a> {
    fn new(waiters: &'a BTreeMap<QueuePlace, Waiter>, newest_first: bool) -> Self {
        InOrder {
            waiters,
            newest_first,
            last: None,
        }
    }

    /// The newest of the first rank behind `after`.
    fn newest(&self, after: Option<u8>) -> Option<(&'a QueuePlace, &'a Waiter)> {
        use std::ops::Bound::{Included, Unbounded};
        let first = match after {
            None => self.waiters.first_key_value()?.0.rank,
            Some(rank) => {
                let behind = self.waiters.keys().find(|place| place.rank > rank)?;
                behind.rank
            }
        };
        let mut up_to = self.waiters.range((Unbounded, Included(last_of(first))));
        up_to.next_back()
    }
}

/// No place of this rank comes earlier.
fn first_of(rank: u8) -> QueuePlace {
    QueuePlace {
        rank,
        arrived_ns: 0,
        number: 0,
    }
}

/// No place of this rank comes later.
fn last_of(rank: u8) -> QueuePlace {
    QueuePlace {
        rank,
        arrived_ns: u64::MAX,
        number: u64::MAX,
    }
}

impl<'a> Iterator for InOrder<'a> {
    type Item = (&'a QueuePlace, &'a Waiter);

    fn next(&mut self) -> Option<Self::Item> {
        use std::ops::Bound::{Excluded, Unbounded};
        let next = match (self.last, self.newest_first) {
            (None, false) => self.waiters.first_key_value(),
            (Some(last), false) => self.waiters.range((Excluded(last), Unbounded)).next(),
            (None, true) => self.newest(None),
            (Some(last), true) => self
                .waiters
                .range((Unbounded, Excluded(last)))
                .next_back()
                .filter(|(place, _)| place.rank == last.rank)
                .or_else(|| self.newest(Some(last.rank))),
        }?;
        self.last = Some(*next.0);
        Some(next)
    }
}
