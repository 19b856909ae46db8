//! The open connections of a worker, and the progress of each exchange.
//!
//! Per worker. The connection's task writes, and the worker reads on demand (`inquiry`). Every
//! connection has an entry of a few words. Only a connection that is being served has a
//! [`Track`]. Its exchange updates the track with plain stores when it goes from one phase to the
//! next.

mod closing;
mod list;

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_policy::endpoint::EndpointId;
use serde::Serialize;
use slab::Slab;

use crate::metrics::end::Failure;
use crate::net::clock;
use crate::net::tasks::TaskSlot;

use closing::Stamp;
pub use closing::{Age, Closable, Need};
pub use list::{OngoingExchange, Routed, RoutedNames, Session, SessionList};

/// Longest part of a request line that is kept, in bytes.
const LINE_LEN: usize = 96;
/// Most tracks that are kept for reuse.
const TRACKS_KEPT: usize = 512;
/// Entries to look at before other tasks have a turn.
const TURN: usize = 1024;
/// One part in this many of the connections is told to leave at a time; at least one connection.
/// Finding the first ones takes a look at all, so with many connections more have to leave each
/// time.
const TOLD_PART: usize = 64;
/// Most connections that are told to leave at once, as closing them takes time.
const MOST_TOLD: usize = 1024;
/// Stands for "none" among indices.
const NONE: u32 = u32::MAX;

/// The stage of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// None: the connection waits for a request.
    Idle,
    /// A part of a head has arrived.
    Head,
    /// The head is complete, and the request is being routed or answered.
    Answer,
    /// Waits in the upstream's queue.
    Queue,
    /// Opens a connection to the endpoint.
    Connect,
    /// Sends the rest of the body to the endpoint.
    Request,
    /// Waits for the endpoint's response.
    Wait,
    /// Sends the response to the client.
    Response,
    /// Carries a tunnel.
    Tunnel,
}

impl Stage {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Stage::Idle => "idle",
            Stage::Head => "head",
            Stage::Answer => "answer",
            Stage::Queue => "queue",
            Stage::Connect => "connect",
            Stage::Request => "request",
            Stage::Wait => "wait",
            Stage::Response => "response",
            Stage::Tunnel => "tunnel",
        }
    }
}

/// The progress of the exchange on a connection that is being served.
#[derive(Debug)]
pub struct Track {
    started: Cell<Instant>,
    phase: Cell<Stage>,
    /// The number of the generation that the route is of.
    generation: Cell<u32>,
    route: Cell<u32>,
    upstream: Cell<u32>,
    endpoint: Cell<u32>,
    attempts: Cell<u32>,
    requests: Cell<u32>,
    bytes_in: Cell<u64>,
    bytes_out: Cell<u64>,
    line_len: Cell<u8>,
    line: RefCell<[u8; LINE_LEN]>,
    /// On a connection with several exchanges at once: their tracks.
    streams: RefCell<Vec<Rc<Track>>>,
}

impl Track {
    /// A track for an exchange that is shown nowhere.
    pub fn unlisted() -> Rc<Self> {
        Rc::new(Track::new())
    }

    fn new() -> Self {
        Track {
            started: Cell::new(clock::now()),
            phase: Cell::new(Stage::Idle),
            generation: Cell::new(0),
            route: Cell::new(NONE),
            upstream: Cell::new(NONE),
            endpoint: Cell::new(NONE),
            attempts: Cell::new(0),
            requests: Cell::new(0),
            bytes_in: Cell::new(0),
            bytes_out: Cell::new(0),
            line_len: Cell::new(0),
            line: RefCell::new([0; LINE_LEN]),
            streams: RefCell::default(),
        }
    }

    /// A part of a head has arrived.
    pub fn begin_head(&self, started: Instant) {
        self.begin(started, Stage::Head, b"", 0);
    }

    /// The head is complete: `line` is method and target.
    pub fn begin_exchange(&self, started: Instant, line: &[u8], head_len: usize) {
        self.requests.set(self.requests.get().wrapping_add(1));
        self.begin(started, Stage::Answer, line, head_len);
    }

    fn begin(&self, started: Instant, phase: Stage, line: &[u8], head_len: usize) {
        let line = &line[..line.len().min(LINE_LEN)];
        self.line.borrow_mut()[..line.len()].copy_from_slice(line);
        self.line_len.set(line.len() as u8);
        self.started.set(started);
        self.phase.set(phase);
        self.route.set(NONE);
        self.upstream.set(NONE);
        self.endpoint.set(NONE);
        self.attempts.set(0);
        self.bytes_in.set(head_len as u64);
        self.bytes_out.set(0);
    }

    /// The exchange has ended.
    pub fn end_exchange(&self) {
        self.phase.set(Stage::Idle);
    }

    /// Enters another phase.
    pub fn enter(&self, phase: Stage) {
        self.phase.set(phase);
    }

    /// A route of the generation with this number has matched.
    pub fn set_route(&self, generation: u32, route: usize) {
        self.generation.set(generation);
        self.route.set(route as u32);
    }

    /// The exchange goes to the upstream with this index, in the same generation.
    pub fn set_upstream(&self, upstream: usize) {
        self.upstream.set(upstream as u32);
    }

    /// An attempt begins.
    pub fn set_attempt(&self, endpoint: EndpointId, attempts: u32) {
        self.endpoint.set(endpoint.number());
        self.attempts.set(attempts);
    }

    /// Bytes received from the client so far.
    pub fn set_bytes_in(&self, bytes: u64) {
        self.bytes_in.set(bytes);
    }

    /// Bytes sent to the client so far.
    pub fn set_bytes_out(&self, bytes: u64) {
        self.bytes_out.set(bytes);
    }
}

/// A connection's entry.
#[derive(Debug)]
struct SessionEntry {
    /// `None` over a Unix socket.
    address: Option<IpAddr>,
    /// Why it was told to leave, until it heeds that.
    told: Option<Failure>,
    port: u16,
    listener: ListenerId,
    /// Tick of the worker's wheel when it was accepted.
    accepted: u32,
    /// End of its last request, or when it was accepted.
    rested: Stamp,
    /// Number of requests before those of `track`.
    requests: u32,
    /// The waker of its task.
    task: TaskSlot,
    track: Option<Rc<Track>>,
}

/// The connections of a worker.
#[derive(Debug, Default)]
pub struct Sessions {
    entries: RefCell<Slab<SessionEntry>>,
    free: RefCell<Vec<Rc<Track>>>,
    /// Number of tracks, including those in `free`.
    tracks: Cell<usize>,
    /// Tracks of exchanges that share a connection with others.
    stream_tracks: Cell<usize>,
    /// Number of entries that were told to leave.
    told: Cell<usize>,
    /// The last stamp that was given.
    stamp: Cell<Stamp>,
}

impl SessionEntry {
    /// The connection's rank for closing, if it may be closed.
    ///
    /// Invariant: a connection with a whole request is never closable.
    fn closable(&self, need: Need, tick: u64) -> Option<Closable> {
        let is_meant = match need {
            Need::Descriptor(_) => true,
            Need::Connection { listener } => listener == self.listener,
        };
        let phase = self.track.as_ref().map(|track| track.phase.get());
        if !is_meant || self.told.is_some() || !matches!(phase, None | Some(Stage::Head)) {
            return None;
        }
        // The track counts the present request only once its head is complete.
        let earlier = self.track.as_ref().map_or(0, |it| it.requests.get());
        let age = Reverse(self.rested.age(tick));
        Some(match self.requests.wrapping_add(earlier) {
            0 => Closable::Silent(age),
            _ => Closable::Idle(age),
        })
    }
}

/// Identifies a listener of the process, over all configurations.
pub type ListenerId = u16;

/// Identifies a connection's entry on its worker.
pub type SessionKey = u32;

/// The key of an exchange without a client's connection.
pub const NO_SESSION: SessionKey = SessionKey::MAX;

/// The peer of an accepted connection.
#[derive(Debug, Clone, Copy)]
pub struct Accepted {
    /// `None` over a Unix socket.
    pub address: Option<IpAddr>,
    /// 0 over a Unix socket.
    pub port: u16,
    /// The listener.
    pub listener: ListenerId,
    /// Tick of the worker's wheel.
    pub tick: u64,
}

impl Sessions {
    /// Adds an accepted connection.
    pub fn open(&self, accepted: Accepted) -> SessionKey {
        let entry = SessionEntry {
            address: accepted.address,
            port: accepted.port,
            told: None,
            listener: accepted.listener,
            accepted: accepted.tick as u32,
            rested: self.stamp(accepted.tick),
            requests: 0,
            task: TaskSlot::NONE,
            track: None,
        };
        self.entries.borrow_mut().insert(entry) as u32
    }

    fn stamp(&self, tick: u64) -> Stamp {
        let next = self.stamp.get().next(tick);
        self.stamp.set(next);
        next
    }

    /// Sets the client, if it is not the peer that opened the connection.
    pub fn set_client(&self, key: SessionKey, address: IpAddr, port: u16) {
        if let Some(entry) = self.entries.borrow_mut().get_mut(key as usize) {
            entry.address = Some(address);
            entry.port = port;
        }
    }

    /// Sets the slot of its task.
    pub fn has_task(&self, key: SessionKey, task: TaskSlot) {
        if let Some(entry) = self.entries.borrow_mut().get_mut(key as usize) {
            entry.task = task;
        }
    }

    /// Removes a closed connection.
    pub fn close(&self, key: SessionKey) {
        let entry = self.entries.borrow_mut().try_remove(key as usize);
        let Some(entry) = entry else { return };
        if entry.told.is_some() {
            self.told.set(self.told.get() - 1);
        }
        if let Some(track) = entry.track {
            self.keep(track);
        }
    }

    /// Makes a connection active: it has something to read.
    pub fn wake(&self, key: SessionKey) -> Rc<Track> {
        let track = self.track();
        if let Some(entry) = self.entries.borrow_mut().get_mut(key as usize) {
            entry.track = Some(track.clone());
            if entry.told.take().is_some() {
                self.told.set(self.told.get() - 1);
            }
        }
        track
    }

    fn track(&self) -> Rc<Track> {
        let reused = self.free.borrow_mut().pop();
        let track = reused.unwrap_or_else(|| {
            self.tracks.set(self.tracks.get() + 1);
            Rc::new(Track::new())
        });
        track.requests.set(0);
        track.phase.set(Stage::Idle);
        track
    }

    /// Adds the track of an exchange on a connection with several, whose own track is `of`.
    pub fn begin_stream(&self, of: &Track) -> Rc<Track> {
        let track = self.track();
        of.requests.set(of.requests.get().wrapping_add(1));
        of.streams.borrow_mut().push(track.clone());
        self.stream_tracks.update(|it| it + 1);
        track
    }

    /// Ends such an exchange.
    pub fn end_stream(&self, of: &Track, track: Rc<Track>) {
        let mut streams = of.streams.borrow_mut();
        if let Some(at) = streams.iter().position(|it| Rc::ptr_eq(it, &track)) {
            streams.swap_remove(at);
            self.stream_tracks.update(|it| it - 1);
        }
        drop(streams);
        self.keep(track);
    }

    /// Makes a connection idle again, from `tick` on.
    pub fn rest(&self, key: SessionKey, track: Rc<Track>, tick: u64) {
        if let Some(entry) = self.entries.borrow_mut().get_mut(key as usize) {
            entry.requests = entry.requests.wrapping_add(track.requests.get());
            entry.rested = self.stamp(tick);
            entry.track = None;
        }
        self.keep(track);
    }

    fn keep(&self, track: Rc<Track>) {
        let mut free = self.free.borrow_mut();
        if free.len() < TRACKS_KEPT {
            free.push(track);
        } else {
            self.tracks.set(self.tracks.get() - 1);
        }
    }

    /// Requests on this connection so far, including the present one.
    pub fn requests(&self, key: SessionKey) -> u32 {
        let entries = self.entries.borrow();
        let Some(entry) = entries.get(key as usize) else {
            return 0;
        };
        let of_track = entry.track.as_ref().map_or(0, |it| it.requests.get());
        entry.requests.wrapping_add(of_track)
    }

    /// Connections that are not being served.
    pub fn idle_count(&self) -> usize {
        let of_streams = self.stream_tracks.get();
        let served = self.tracks.get() - self.free.borrow().len() - of_streams;
        self.entries.borrow().len().saturating_sub(served)
    }

    /// The first connection to close for this need. Looks at all connections.
    pub fn first_closable(&self, need: Need, tick: u64) -> Option<Closable> {
        let entries = self.entries.borrow();
        let all = entries.iter();
        all.filter_map(|(_, it)| it.closable(need, tick)).min()
    }

    /// Tells the first connections in order to leave for this need: a 64th of all, at least one.
    /// Returns their number.
    pub fn tell_first(&self, need: Need, tick: u64) -> usize {
        let mut entries = self.entries.borrow_mut();
        let most = (entries.len() / TOLD_PART).clamp(1, MOST_TOLD);
        // The first ones so far, with the last of them on top.
        let mut first = BinaryHeap::with_capacity(most + 1);
        for (key, entry) in entries.iter() {
            let Some(closable) = entry.closable(need, tick) else {
                continue;
            };
            if first.len() < most {
                first.push((closable, key));
            } else if let Some(mut last) = first.peek_mut()
                && (closable, key) < *last
            {
                *last = (closable, key);
            }
        }
        for (_, key) in &first {
            let entry = &mut entries[*key];
            entry.told = Some(need.failure());
            entry.task.wake();
        }
        self.told.set(self.told.get() + first.len());
        first.len()
    }

    /// Connections that were told to leave and have not yet heeded it.
    pub fn told_count(&self) -> usize {
        self.told.get()
    }

    /// Why a connection was told to leave, if it was. To be called by its task, which either
    /// leaves or has a request to serve. Returns the reason only once.
    pub fn take_told(&self, key: SessionKey) -> Option<Failure> {
        if self.told.get() == 0 {
            return None;
        }
        let mut entries = self.entries.borrow_mut();
        let told = entries.get_mut(key as usize)?.told.take()?;
        self.told.set(self.told.get() - 1);
        Some(told)
    }

    /// At most `max` of all connections, as of `tick`: first those with an exchange, the longest
    /// first. Other tasks run meanwhile.
    pub async fn list(&self, max: usize, tick: u64, tick_len: Duration) -> SessionList {
        let mut list = SessionList::default();
        let mut next = 0;
        loop {
            {
                let entries = self.entries.borrow();
                let end = entries.capacity().min(next + TURN);
                let now = clock::now();
                for entry in (next..end).filter_map(|index| entries.get(index)) {
                    list.open += 1;
                    let age = tick_len * (tick as u32).saturating_sub(entry.accepted);
                    Session::push_all(&mut list.rows, entry, age, now);
                }
                next = end;
                if next == entries.capacity() {
                    break;
                }
            }
            list.keep_foremost(max);
            tokio::task::yield_now().await;
        }
        list.keep_foremost(max);
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::descriptors::Taker;

    fn accepted(port: u16) -> Accepted {
        Accepted {
            address: None,
            port,
            listener: 0,
            tick: 0,
        }
    }

    fn list(sessions: &Sessions, max: usize) -> SessionList {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.expect("a runtime");
        runtime.block_on(sessions.list(max, 20, Duration::from_millis(100)))
    }

    #[test]
    fn shows_who_is_served_first_and_counts_the_rest() {
        let sessions = Sessions::default();
        let keys: Vec<_> = (0..3000)
            .map(|port| sessions.open(accepted(port)))
            .collect();
        let track = sessions.wake(keys[2500]);
        track.begin_exchange(clock::now(), b"GET /a", 40);
        track.enter(Stage::Wait);
        let shown = list(&sessions, 2);
        assert_eq!((shown.open, shown.rows.len()), (3000, 2));
        assert_eq!((shown.rows[0].port, shown.rows[0].requests), (2500, 1));
        let exchange = shown.rows[0].exchange.clone().expect("it has one");
        assert_eq!(
            (exchange.phase, exchange.line),
            (Stage::Wait, b"GET /a".to_vec())
        );
        assert_eq!(shown.rows[1].age, Duration::from_secs(2));
        track.end_exchange();
        sessions.rest(keys[2500], track, 20);
        sessions.close(keys[0]);
        let shown = list(&sessions, 5000);
        assert_eq!(shown.open, 2999);
        assert!(shown.rows.iter().all(|it| it.exchange.is_none()));
        assert_eq!(shown.rows.iter().map(|it| it.requests).sum::<u32>(), 1);
    }

    fn ports(told: &Sessions, keys: &[SessionKey]) -> Vec<SessionKey> {
        let told = keys.iter().filter(|key| told.take_told(**key).is_some());
        told.copied().collect()
    }

    #[test]
    fn the_oldest_silent_one_is_told_to_leave_and_then_the_one_idle_for_longest() {
        const NEED: Need = Need::Descriptor(Taker::Client);
        let sessions = Sessions::default();
        let keys: Vec<_> = (0..5).map(|port| sessions.open(accepted(port))).collect();
        let served = |key, tick| {
            let track = sessions.wake(key);
            track.begin_exchange(clock::now(), b"GET /a", 40);
            assert_eq!(
                sessions.tell_first(Need::Connection { listener: 1 }, tick),
                0
            );
            track.end_exchange();
            sessions.rest(key, track, tick);
        };
        // The fourth has been idle for longer than the first, within the same tick.
        served(keys[3], 7);
        served(keys[0], 7);
        let track = sessions.wake(keys[1]);
        track.begin_exchange(clock::now(), b"GET /a", 40);
        // The third reuses a free place, and is the newest.
        sessions.close(keys[2]);
        let newest = Accepted {
            tick: 7,
            ..accepted(9)
        };
        assert_eq!(sessions.open(newest), keys[2]);
        assert_eq!(sessions.idle_count(), 4);
        let mut order = Vec::<SessionKey>::new();
        while sessions.tell_first(NEED, 8) > 0 {
            let told = ports(&sessions, &keys);
            order.extend(&told);
            told.into_iter().for_each(|key| sessions.close(key));
            assert_eq!(sessions.told_count(), 0);
        }
        assert_eq!(order, [keys[4], keys[2], keys[3], keys[0]]);
        assert_eq!(sessions.first_closable(NEED, 8), None, "one is served");
    }

    #[test]
    fn one_that_has_begun_its_first_head_is_silent_and_one_that_is_served_is_not_told() {
        let sessions = Sessions::default();
        let key = sessions.open(accepted(1));
        let track = sessions.wake(key);
        track.begin_head(clock::now());
        let need = Need::Connection { listener: 0 };
        let closable = sessions.first_closable(need, 3);
        assert_eq!(closable.map(|it| it.age().ticks()), Some(3));
        assert!(matches!(closable, Some(Closable::Silent(_))));
        assert_eq!(sessions.tell_first(need, 3), 1);
        assert_eq!(sessions.tell_first(need, 3), 0, "once is enough");
        assert_eq!(sessions.take_told(key), Some(Failure::Connections));
        assert_eq!(sessions.take_told(key), None);
    }

    #[test]
    fn stamps_are_in_order_within_a_tick_and_over_the_turn() {
        let last_tick = u64::from(u32::MAX >> Stamp::NUMBER_BITS);
        let mut stamp = Stamp::default();
        for tick in [0, 0, 1, 5, 5, last_tick, last_tick + 1] {
            let next = stamp.next(tick);
            assert!(next.age(tick) < stamp.age(tick), "{tick}");
            assert_eq!(next.age(tick).ticks(), 0);
            stamp = next;
        }
        (0..3000).for_each(|_| stamp = stamp.next(9));
        assert_eq!(stamp, Stamp::last_of(9));
    }

    #[test]
    fn a_long_request_line_is_cut() {
        let track = Track::new();
        track.begin_exchange(clock::now(), &[b'a'; 500], 600);
        assert_eq!(
            OngoingExchange::new(&track, clock::now()).line.len(),
            LINE_LEN
        );
    }

    #[test]
    fn an_idle_connection_takes_a_few_words() {
        assert!(
            size_of::<SessionEntry>() <= 48,
            "{}",
            size_of::<SessionEntry>()
        );
    }
}
