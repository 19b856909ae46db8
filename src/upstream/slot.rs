//! The right to one exchange at an endpoint.
//!
//! An exchange acquires a [`Slot`], at once or after [`Waiting`] in the queue. It opens,
//! takes and keeps connections by the slot, and gives the slot back at its end.

use std::cell::Cell;
use std::io;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use evenkeel_policy::Instant;
use evenkeel_policy::dispatch::{Acquired, Choice, Pin, SlotRequest};
use evenkeel_policy::endpoint::{EndpointId, Reservation, Tried};
use evenkeel_policy::health::Change;
use evenkeel_policy::observation::Observed;
use evenkeel_policy::queue::{Left, Refusal, Ticket};

use super::Upstream;
use super::change::log_change;
use super::endpoint::Endpoint;
use super::pinned::{PinReason, Pinned};
use super::pool::{KeepAlive, Reused};
use crate::certificates::EndpointTls;
use crate::config;
use crate::net::clock;
use crate::net::connect;
use crate::net::stream::Stream;
use crate::observe::counters::EndpointCounters;

/// The reason of an endpoint that is unreachable because its backlog is full.
pub(crate) const BACKLOG_FULL: &str = "its backlog is full";

/// The reason of an endpoint that is unreachable because its handshake takes too long.
pub(crate) const HANDSHAKE_TIMEOUT: &str = "the TLS handshake did not end in time";

/// The wishes of an exchange for an upstream.
#[derive(Debug, Clone, Copy)]
pub struct SlotCriteria {
    /// Hash of the key, for a balancer by key.
    pub key: u64,
    /// The endpoint that its client belongs to.
    pub pinned_to: Option<Pin>,
    /// Index, in the configuration, of the lane that its route is kept to.
    pub lane: Option<u32>,
    /// Higher ones leave the queue first.
    pub priority: u8,
    /// When the request arrived: its place in the queue.
    pub arrived: Instant,
}

/// Why there is no slot yet, or none at all.
#[derive(Debug)]
pub enum NoSlot<'a> {
    /// It waits in the queue.
    Waits(Waiting<'a>),
    /// It gets none.
    Refused(Refusal),
}

/// A place in the queue; given up when dropped.
#[derive(Debug)]
pub struct Waiting<'a> {
    upstream: &'a Upstream,
    ticket: Option<Ticket>,
    lane: Option<LaneIndex>,
}

/// The dispatcher's index of a lane; an `Option` of it is no larger.
#[derive(Debug, Clone, Copy)]
struct LaneIndex(NonZeroU32);

impl LaneIndex {
    fn new(index: u32) -> Self {
        LaneIndex(NonZeroU32::MIN.saturating_add(index))
    }

    fn get(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// Why a waiter gets no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFailure {
    /// It has waited for too long, by the discipline of the queue.
    TimedOut,
    /// It would be refused if it came now, or another has taken its place.
    Refused(Refusal),
}

/// The right to one exchange at one endpoint; given back when dropped, or by
/// [`release`](Slot::release).
#[derive(Debug)]
pub struct Slot<'a> {
    upstream: &'a Upstream,
    endpoint: Rc<Endpoint>,
    reservation: Reservation,
    lane: Option<LaneIndex>,
    chosen: Chosen,
    /// Whether it was given back.
    is_released: Cell<bool>,
}

/// How an endpoint was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chosen {
    /// The balancer ranked it first.
    First,
    /// The one ranked first was full.
    Next,
    /// It was the first with room for the longest waiter.
    Granted,
    /// Its ejection has ended: this exchange shows whether it is well.
    Trial,
    /// A connection is pinned there for its client.
    Pinned,
    /// Its client has a session there.
    Sticky,
}

impl Upstream {
    /// Chooses an endpoint and takes a slot there, or joins the queue.
    ///
    /// `waker` is woken when the exchange leaves the queue. `tried` are endpoints that the
    /// exchange has tried. `line` gives the hash of its key. The call is made if keys share the
    /// queue and the exchange has to wait.
    ///
    /// # Errors
    /// The exchange has no slot yet, or gets none at all.
    pub fn acquire(
        &self,
        wanted: &SlotCriteria,
        tried: &[Tried],
        now: Instant,
        waker: &Waker,
        line: impl Fn() -> u64,
    ) -> Result<Slot<'_>, NoSlot<'_>> {
        let lane = wanted.lane.map(|lane| self.lanes[lane as usize]);
        let lane = lane.map(LaneIndex::new);
        let asking = SlotRequest {
            tried,
            key: wanted.key,
            pinned_to: wanted.pinned_to,
            lane: lane.map(LaneIndex::get),
            priority: wanted.priority,
            arrived: wanted.arrived,
            now,
        };
        let mut chooser = self.side.chooser.borrow_mut();
        let dispatcher = self.dispatcher();
        match dispatcher.acquire_in_line(&mut chooser, &asking, waker, &line) {
            Acquired::Reserved {
                reservation,
                choice,
            } => {
                let chosen = match choice {
                    Choice::First => Chosen::First,
                    Choice::Next => Chosen::Next,
                    Choice::Trial => Chosen::Trial,
                    Choice::Pinned => Chosen::Pinned,
                    Choice::Sticky => Chosen::Sticky,
                };
                Ok(Slot::new(self, reservation, lane, chosen))
            }
            Acquired::Queued(ticket) => Err(NoSlot::Waits(Waiting {
                upstream: self,
                ticket: Some(ticket),
                lane,
            })),
            // A pinned connection is no reason to refuse a slot that another exchange would get.
            Acquired::Refused(_) if wanted.pinned_to.is_some() => {
                drop(chooser);
                let anywhere = SlotCriteria {
                    pinned_to: None,
                    ..*wanted
                };
                self.acquire(&anywhere, tried, now, waker, &line as &dyn Fn() -> u64)
            }
            Acquired::Refused(refusal) => Err(NoSlot::Refused(refusal)),
        }
    }
}

impl<'a> Waiting<'a> {
    /// The upstream that it waits for.
    pub fn upstream(&self) -> &'a Upstream {
        self.upstream
    }

    /// The slot once there is one.
    ///
    /// # Errors
    /// The queue has sent it away.
    pub fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<Slot<'a>, WaitFailure>> {
        let Some(ticket) = &self.ticket else {
            return Poll::Ready(Err(WaitFailure::TimedOut));
        };
        let Some(left) = self.upstream.dispatcher().poll(ticket, cx.waker()) else {
            return Poll::Pending;
        };
        self.ticket = None;
        Poll::Ready(match left {
            Left::Granted(reservation) => Ok(Slot::new(
                self.upstream,
                reservation,
                self.lane,
                Chosen::Granted,
            )),
            Left::TimedOut => Err(WaitFailure::TimedOut),
            Left::Refused(refusal) => Err(WaitFailure::Refused(refusal)),
        })
    }

    /// Gives its place up. Gives the slot that it was granted in this very moment, if any.
    pub fn leave(mut self) -> Option<Slot<'a>> {
        self.give_up()
    }

    fn give_up(&mut self) -> Option<Slot<'a>> {
        let reservation = self.upstream.dispatcher().leave(self.ticket.take()?)?;
        Some(Slot::new(
            self.upstream,
            reservation,
            self.lane,
            Chosen::Granted,
        ))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // A slot that it was granted is given back here.
        drop(self.give_up());
    }
}

impl<'a> Slot<'a> {
    fn new(
        upstream: &'a Upstream,
        reservation: Reservation,
        lane: Option<LaneIndex>,
        chosen: Chosen,
    ) -> Self {
        let (id, side) = (reservation.endpoint(), &upstream.side);
        Slot {
            upstream,
            endpoint: side.used(id).unwrap_or_else(|| side.begin(id)),
            reservation,
            lane,
            chosen,
            is_released: Cell::new(false),
        }
    }

    /// Learns from an observation of the attempt at this endpoint.
    pub fn observe(&self, observed: Observed, now: Instant) {
        self.learn(observed, now, None);
    }

    /// Learns that no connection to this endpoint could be opened.
    pub fn observe_unreachable(&self, why: &str, now: Instant) {
        self.learn(Observed::Unreachable, now, Some(why));
    }

    /// Learns that the response came to its end, `bytes` after its beginning. The clock is read
    /// only for a balancer that learns from it.
    pub fn observe_end(&self, bytes: u64, sent_at: Instant) {
        let mut chooser = self.upstream.side.chooser.borrow_mut();
        if chooser.learns_from_end() {
            let now = clock::now();
            let took = now.duration_since(sent_at);
            chooser.observe(self.id(), now, Observed::End { bytes, took });
        }
    }

    fn learn(&self, observed: Observed, now: Instant, detail: Option<&str>) {
        let (upstream, state) = (self.upstream, self.endpoint.state());
        let mut chooser = upstream.side.chooser.borrow_mut();
        chooser.observe(state.id(), now, observed);
        let dispatcher = upstream.dispatcher();
        let change = dispatcher.report(&mut chooser, state, self.reservation, observed, now);
        self.log(change, detail);
    }

    fn log(&self, change: Option<Change>, detail: Option<&str>) {
        if let Some(change) = change {
            let (upstream, endpoint) = (&self.upstream.config().name, self.endpoint.state());
            log_change(upstream, endpoint.name(), &change, detail);
        }
    }

    /// Notes that a connection to the endpoint was opened.
    pub fn reached(&self, now: Instant) {
        let state = self.endpoint.state();
        let change = self.upstream.dispatcher().reached(state, now);
        self.log(change, None);
    }

    /// Gives the slot back before it is dropped: the endpoint has nothing more to do for the
    /// exchange. Reports on the endpoint stay.
    pub fn release(&self) {
        if !self.is_released.replace(true) {
            let lane = self.lane.map(LaneIndex::get);
            let (dispatcher, state) = (self.upstream.dispatcher(), self.endpoint.state());
            dispatcher.release(state, self.reservation, lane, clock::now);
        }
    }

    /// The upstream that it belongs to.
    pub fn upstream(&self) -> &'a Upstream {
        self.upstream
    }

    /// The endpoint.
    pub fn endpoint(&self) -> &Rc<Endpoint> {
        &self.endpoint
    }

    /// This worker's counters of the endpoint.
    pub fn counters(&self) -> &EndpointCounters {
        self.endpoint.counters()
    }

    /// The endpoint's identity within the upstream.
    pub fn id(&self) -> EndpointId {
        self.reservation.endpoint()
    }

    /// The endpoint as one that refused a connection: not to be tried again until then, unless a
    /// connection to it opens.
    pub fn refused_until(&self, until: Instant) -> Tried {
        Tried::Refused {
            endpoint: self.id(),
            until,
            openings: self.endpoint.state().openings(),
        }
    }

    /// Notes that the backlog of the endpoint is full. After the connect timeout, a full backlog
    /// counts as a failed connection.
    fn note_full_backlog(&self, now: Instant) {
        let timeout = self.upstream.config().timeouts.connect;
        let (dispatcher, state) = (self.upstream.dispatcher(), self.endpoint.state());
        let change = dispatcher.note_full_backlog(state, timeout, now);
        self.log(change, Some(BACKLOG_FULL));
    }

    /// Makes this exchange the one that waits for room in the endpoint's backlog, unless another
    /// exchange is.
    fn wait_for_backlog(&self) -> Option<BacklogWait<'a>> {
        let is_first = self.endpoint.state().claim_backlog();
        is_first.then(|| BacklogWait {
            upstream: self.upstream,
            endpoint: self.endpoint.clone(),
        })
    }

    /// Whether another endpoint has room at this moment.
    pub fn has_room_elsewhere(&self, now: Instant) -> bool {
        let chooser = self.upstream.side.chooser.borrow();
        chooser.members().has_room_elsewhere(self.id(), now)
    }

    /// How it was found.
    pub fn chosen(&self) -> Chosen {
        self.chosen
    }

    /// The endpoint's settings.
    pub fn config(&self) -> &config::Endpoint {
        self.endpoint.config()
    }

    /// How connections to the endpoint are secured; `None` for plain text.
    pub fn tls(&self) -> Option<&EndpointTls> {
        self.endpoint.tls()
    }

    /// Takes an idle connection, the most recently used first; `now` is the
    /// worker's tick.
    pub fn take_idle(&self, now: u64) -> Reused {
        self.endpoint.pool.take(self.endpoint.state(), now)
    }

    /// Takes the client's own connection, if it is to this endpoint and still open;
    /// `now` is the worker's tick. If it is not, it is closed.
    pub fn take_pinned(&self, pinned: Pinned, now: u64) -> Reused {
        pinned.take_for(&self.endpoint, now)
    }

    /// Makes room for a new connection although some may be idle: idle connections count towards
    /// an endpoint's limit. Gives the number of pinned connections that were closed.
    pub fn make_room(&self) -> u64 {
        self.endpoint.pool.make_room(self.endpoint.state())
    }

    /// Keeps a connection for the next exchange; `now` is the worker's tick.
    ///
    /// Invariant: a slot is given back after its connection was kept or closed,
    /// so that connections to an endpoint are never more than its slots.
    pub fn keep_idle(&self, stream: Stream, keep_alive: KeepAlive, now: u64) {
        let state = self.endpoint.state();
        self.endpoint.pool.put(stream, state, keep_alive, now);
    }

    /// Keeps a connection for the next exchange of its client alone, as
    /// [`keep_idle`](Self::keep_idle) does for anybody's. `None` where there is no
    /// room for it.
    pub fn pin(
        &self,
        stream: Stream,
        bond: PinReason,
        keep_alive: KeepAlive,
        now: u64,
    ) -> Option<Pinned> {
        let (pool, state) = (&self.endpoint.pool, self.endpoint.state());
        let held = pool.pin(stream, state, keep_alive, now)?;
        Some(Pinned::new(
            self.upstream,
            self.endpoint.clone(),
            bond,
            held,
        ))
    }

    /// Opens a connection, in plain text.
    ///
    /// If the endpoint's backlog is full and no other endpoint has room, one exchange at a time
    /// asks again until there is room. This has no timeout.
    ///
    /// # Errors
    /// As the kernel says; "would block" where another exchange asks already, or another endpoint
    /// has room.
    pub async fn connect(&self) -> io::Result<Stream> {
        let mut asking = None;
        let may_ask_again = || {
            let now = clock::now();
            self.note_full_backlog(now);
            if self.has_room_elsewhere(now) {
                return false;
            }
            asking = asking.take().or_else(|| self.wait_for_backlog());
            asking.is_some()
        };
        connect::connect_when_there_is_room(&self.config().address, may_ask_again).await
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.release();
    }
}

/// The one exchange that tries again and again to get into an endpoint's backlog, while others
/// wait in the queue. They go on when it is dropped.
#[derive(Debug)]
struct BacklogWait<'a> {
    upstream: &'a Upstream,
    endpoint: Rc<Endpoint>,
}

impl Drop for BacklogWait<'_> {
    fn drop(&mut self) {
        let dispatcher = self.upstream.dispatcher();
        dispatcher.give_up_backlog(self.endpoint.state(), clock::now());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{SharedUpstream, UpstreamSides};
    use super::*;
    use crate::config::{Config, NameLookup, load_text};
    use crate::observe::counters::Counters;

    /// A configuration of an upstream with endpoints of one slot at these ports.
    fn config(ports: &[u16]) -> Arc<Config> {
        let endpoints = ports
            .iter()
            .map(|port| format!("{{ address = '127.0.0.1:{port}', max_in_flight = 1 }}"));
        let endpoints = endpoints.collect::<Vec<_>>().join(",");
        let text = format!(
            "[[listener]]\nbind = ':0'\n[[route]]\nupstream = 'app'\n\
             [upstream.app]\nbalance = 'first'\nendpoints = [{endpoints}]"
        );
        let loaded = load_text("test.toml", &text, NameLookup::Skip).unwrap();
        Arc::new(loaded.config)
    }

    fn acquire(upstream: &Upstream) -> Result<Slot<'_>, NoSlot<'_>> {
        let now = clock::now();
        let wanted = SlotCriteria {
            key: 0,
            pinned_to: None,
            lane: None,
            priority: 0,
            arrived: now,
        };
        upstream.acquire(&wanted, &[], now, Waker::noop(), || 0)
    }

    #[test]
    fn a_slot_keeps_an_endpoint_that_left() {
        let before = config(&[1, 2]);
        let shared = Arc::new(SharedUpstream::new(&before.upstreams[0]));
        let counters = Arc::new(Counters::new(&before));
        let settings = &before.upstreams[0];
        let side = UpstreamSides::default().of(&shared, settings, &counters.endpoints[0], 1);
        let upstream = Upstream::new(before, 0, side.clone());
        let replace = |ports: &[u16]| {
            let after = config(ports);
            shared.replace_members(&after.upstreams[0].endpoints, clock::now());
        };
        let name = |slot: &Slot<'_>| slot.config().name.clone();
        let held = acquire(&upstream).unwrap();
        assert_eq!(name(&held), "127.0.0.1:1");
        replace(&[3, 2]);
        let [third, second] = [acquire(&upstream), acquire(&upstream)].map(Result::unwrap);
        assert_eq!(
            (name(&third), name(&second)),
            ("127.0.0.1:3".into(), "127.0.0.1:2".into())
        );
        // Its settings and its counters go with the slot.
        assert_eq!(name(&held), "127.0.0.1:1");
        held.counters().attempts.add(1);
        held.counters().idle.set(1);
        let id = held.id();
        let of_first = counters.endpoints[0].get(held.endpoint().state()).unwrap();
        side.sweep(1);
        assert!(side.used(id).is_some());
        let noted = held.endpoint().clone();
        drop(held);
        assert!(
            matches!(acquire(&upstream), Err(NoSlot::Waits(_))),
            "its slot is gone"
        );
        side.sweep(2);
        assert!(
            side.used(id).is_some(),
            "an exchange that was there holds it"
        );
        drop(noted);
        side.sweep(3);
        assert!(side.used(id).is_none());
        assert_eq!(of_first.idle.value(), 0, "nobody sets its gauge any more");
        // Another has its id then, and nothing else of it.
        replace(&[3, 2, 4]);
        let fourth = acquire(&upstream).unwrap();
        assert_eq!((fourth.id(), name(&fourth)), (id, "127.0.0.1:4".into()));
        assert_eq!(fourth.counters().attempts.value(), 0);
    }
}
