//! The open connections of a worker, and how far the exchange of each is.
//!
//! Per worker: the connection's task writes, and the worker reads when somebody
//! asks (`inquiry`). Every connection has an entry of a few words; only one that
//! is being served has a [`Track`], which an exchange writes with plain stores
//! where it goes from one phase to the next.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use evenkeel_policy::Instant;
use serde::Serialize;
use slab::Slab;

use crate::net::clock;

/// Longest part of a request line that is kept, in bytes.
const LINE_LEN: usize = 96;
/// What is kept for reuse.
const TRACKS_KEPT: usize = 512;
/// Entries that are looked at before other tasks have a turn.
const TURN: usize = 1024;
/// Stands for none among indices.
const NONE: u32 = u32::MAX;

/// How far an exchange is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// There is none: the connection waits for a request.
    Idle,
    /// A head has begun to arrive.
    Head,
    /// It has a head, and is being routed or answered.
    Answer,
    /// It waits in the upstream's queue.
    Queue,
    /// A connection to the endpoint is being opened.
    Connect,
    /// The rest of its body goes to the endpoint.
    Request,
    /// It waits for the endpoint's response.
    Wait,
    /// The response goes to the client.
    Response,
    /// It is a tunnel.
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

/// A connection that is being served: what its exchange has come to.
#[derive(Debug)]
pub struct Track {
    started: Cell<Instant>,
    phase: Cell<Stage>,
    route: Cell<u32>,
    endpoint: Cell<u32>,
    attempts: Cell<u32>,
    requests: Cell<u32>,
    bytes_in: Cell<u64>,
    bytes_out: Cell<u64>,
    line_len: Cell<u8>,
    line: RefCell<[u8; LINE_LEN]>,
}

impl Track {
    fn new() -> Self {
        Track {
            started: Cell::new(clock::now()),
            phase: Cell::new(Stage::Idle),
            route: Cell::new(NONE),
            endpoint: Cell::new(NONE),
            attempts: Cell::new(0),
            requests: Cell::new(0),
            bytes_in: Cell::new(0),
            bytes_out: Cell::new(0),
            line_len: Cell::new(0),
            line: RefCell::new([0; LINE_LEN]),
        }
    }

    /// A head has begun, which is not there as a whole.
    pub fn begin_head(&self, started: Instant) {
        self.begin(started, Stage::Head, b"", 0);
    }

    /// The head is there: `line` is method and target.
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
        self.endpoint.set(NONE);
        self.attempts.set(0);
        self.bytes_in.set(head_len as u64);
        self.bytes_out.set(0);
    }

    /// The exchange is over.
    pub fn end_exchange(&self) {
        self.phase.set(Stage::Idle);
    }

    /// It goes on to another phase.
    pub fn enter(&self, phase: Stage) {
        self.phase.set(phase);
    }

    /// A route matched.
    pub fn set_route(&self, route: usize) {
        self.route.set(route as u32);
    }

    /// An attempt begins.
    pub fn set_attempt(&self, endpoint: usize, attempts: u32) {
        self.endpoint.set(endpoint as u32);
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
struct Entry {
    /// `None` over a Unix socket.
    address: Option<IpAddr>,
    port: u16,
    listener: u16,
    /// Tick of the worker's wheel at which it was accepted.
    accepted: u64,
    /// Requests before those of `track`.
    requests: u32,
    track: Option<Rc<Track>>,
}

/// The connections of a worker.
#[derive(Debug, Default)]
pub struct Sessions {
    entries: RefCell<Slab<Entry>>,
    free: RefCell<Vec<Rc<Track>>>,
}

/// What a connection's entry is known by, on its worker.
pub type SessionKey = u32;

/// Who is at the other end of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Accepted {
    /// `None` over a Unix socket.
    pub address: Option<IpAddr>,
    /// 0 over a Unix socket.
    pub port: u16,
    /// Index of the listener.
    pub listener: usize,
    /// Tick of the worker's wheel.
    pub tick: u64,
}

impl Sessions {
    /// A connection was accepted.
    pub fn open(&self, accepted: Accepted) -> SessionKey {
        let entry = Entry {
            address: accepted.address,
            port: accepted.port,
            listener: accepted.listener as u16,
            accepted: accepted.tick,
            requests: 0,
            track: None,
        };
        self.entries.borrow_mut().insert(entry) as u32
    }

    /// It is closed.
    pub fn close(&self, key: SessionKey) {
        let entry = self.entries.borrow_mut().try_remove(key as usize);
        if let Some(track) = entry.and_then(|it| it.track) {
            self.keep(track);
        }
    }

    /// It has something to read.
    pub fn wake(&self, key: SessionKey) -> Rc<Track> {
        let reused = self.free.borrow_mut().pop();
        let track = reused.unwrap_or_else(|| Rc::new(Track::new()));
        track.requests.set(0);
        track.phase.set(Stage::Idle);
        if let Some(entry) = self.entries.borrow_mut().get_mut(key as usize) {
            entry.track = Some(track.clone());
        }
        track
    }

    /// It is idle again.
    pub fn rest(&self, key: SessionKey, track: Rc<Track>) {
        if let Some(entry) = self.entries.borrow_mut().get_mut(key as usize) {
            entry.requests = entry.requests.wrapping_add(track.requests.get());
            entry.track = None;
        }
        self.keep(track);
    }

    fn keep(&self, track: Rc<Track>) {
        let mut free = self.free.borrow_mut();
        if free.len() < TRACKS_KEPT {
            free.push(track);
        }
    }

    /// At most `max` connections of all, as they are at `tick`: those with an
    /// exchange first, the longest first. Other tasks have their turn
    /// meanwhile.
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
                    let ticks = tick.saturating_sub(entry.accepted);
                    let age = tick_len * u32::try_from(ticks).unwrap_or(u32::MAX);
                    list.rows.push(Session::new(entry, age, now));
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

/// Some of the open connections.
#[derive(Debug, Clone, Default)]
pub struct SessionList {
    /// How many are open in all.
    pub open: usize,
    /// Those that are shown.
    pub rows: Vec<Session>,
}

impl SessionList {
    /// Leaves at most `max`: those with an exchange first, the longest first.
    pub fn keep_foremost(&mut self, max: usize) {
        self.rows.sort_by_key(|it| match &it.exchange {
            Some(exchange) => (0, std::cmp::Reverse(exchange.elapsed)),
            None => (1, std::cmp::Reverse(it.age)),
        });
        self.rows.truncate(max);
    }

    /// Adds the connections of another worker.
    pub fn merge(&mut self, other: SessionList) {
        self.open += other.open;
        self.rows.extend(other.rows);
    }
}

/// An open connection.
#[derive(Debug, Clone)]
pub struct Session {
    /// Index of the listener.
    pub listener: usize,
    /// `None` over a Unix socket.
    pub address: Option<IpAddr>,
    /// The client's port.
    pub port: u16,
    /// For how long it has been open, to a tenth of a second.
    pub age: Duration,
    /// Requests so far.
    pub requests: u32,
    /// The exchange in progress.
    pub exchange: Option<OngoingExchange>,
}

/// An exchange in progress.
#[derive(Debug, Clone)]
pub struct OngoingExchange {
    /// How far it is.
    pub phase: Stage,
    /// Since its head's first byte.
    pub elapsed: Duration,
    /// Index of the route.
    pub route: Option<usize>,
    /// Index of the endpoint, in the upstream that the route goes to.
    pub endpoint: Option<usize>,
    /// Attempts made.
    pub attempts: u32,
    /// Bytes received from the client.
    pub bytes_in: u64,
    /// Bytes sent to the client.
    pub bytes_out: u64,
    /// Method and target, or their beginning, as the client sent them.
    pub line: Vec<u8>,
}

impl Session {
    fn new(entry: &Entry, age: Duration, now: Instant) -> Self {
        let track = entry.track.as_deref();
        Session {
            listener: usize::from(entry.listener),
            address: entry.address,
            port: entry.port,
            age,
            requests: entry
                .requests
                .wrapping_add(track.map_or(0, |it| it.requests.get())),
            exchange: track
                .filter(|it| it.phase.get() != Stage::Idle)
                .map(|it| OngoingExchange::new(it, now)),
        }
    }
}

impl OngoingExchange {
    fn new(track: &Track, now: Instant) -> Self {
        let index = |cell: &Cell<u32>| match cell.get() {
            NONE => None,
            index => Some(index as usize),
        };
        OngoingExchange {
            phase: track.phase.get(),
            elapsed: now.duration_since(track.started.get()),
            route: index(&track.route),
            endpoint: index(&track.endpoint),
            attempts: track.attempts.get(),
            bytes_in: track.bytes_in.get(),
            bytes_out: track.bytes_out.get(),
            line: track.line.borrow()[..usize::from(track.line_len.get())].to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        sessions.rest(keys[2500], track);
        sessions.close(keys[0]);
        let shown = list(&sessions, 5000);
        assert_eq!(shown.open, 2999);
        assert!(shown.rows.iter().all(|it| it.exchange.is_none()));
        assert_eq!(shown.rows.iter().map(|it| it.requests).sum::<u32>(), 1);
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
        assert!(size_of::<Entry>() <= 48, "{}", size_of::<Entry>());
    }
}
