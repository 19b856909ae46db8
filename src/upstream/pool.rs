//! Idle connections to one endpoint, last in first out.
//!
//! The most recently used connection is the least likely to have been closed
//! and the most likely to be in the processor's cache. Each worker has its own,
//! but those to an endpoint with a limit belong to all workers: see
//! [`evenkeel_policy::pool`]. A connection that was authenticated belongs to one
//! client: see [`super::pinned`].

use std::cell::{Cell, RefCell};
use std::num::NonZeroU16;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use evenkeel_policy::Instant;
use evenkeel_policy::endpoint::EndpointState;
use evenkeel_policy::pool::{Checkout, Owner, Room, SharedPool};
use evenkeel_proto::ResponseHead;

use crate::config;
use crate::net::clock;
use crate::net::descriptors::Taker;
use crate::net::stream::{DetachedStream, Stream};
use crate::net::timer::TICK;

/// How long an endpoint says that it keeps an idle connection, in seconds; `None`
/// where it does not say.
pub type KeepAlive = Option<NonZeroU16>;

/// The time that a response's head gives.
pub fn keep_alive(head: &ResponseHead, bytes: &[u8]) -> KeepAlive {
    let timeout_s = head.keep_alive_timeout_s(bytes)?;
    let timeout_s = u16::try_from(timeout_s).unwrap_or(u16::MAX);
    Some(NonZeroU16::new(timeout_s).unwrap_or(NonZeroU16::MIN))
}

/// An idle connection that any worker may take.
#[derive(Debug)]
pub struct IdleStream {
    stream: DetachedStream,
    /// When the endpoint is about to close it, as far as it said.
    expires: Option<Instant>,
}

impl IdleStream {
    /// `None` for one that is never idle.
    fn new(stream: Stream, idle_max_s: Option<u16>) -> Option<Self> {
        let expires = idle_max_s.map(|max| clock::now() + Duration::from_secs(max.into()));
        let stream = stream.detach()?;
        Some(IdleStream { stream, expires })
    }

    fn is_of_this_thread(&self) -> bool {
        self.stream.is_of_this_thread()
    }

    fn has_expired(&self, now: impl FnOnce() -> Instant) -> bool {
        self.expires.is_some_and(|at| now() >= at)
    }

    /// Moves it to this thread; `None` where it has expired or is stale.
    pub(super) fn attach(self) -> Option<Stream> {
        if self.has_expired(clock::now) {
            return None;
        }
        // A connection that can't be watched here counts as closed.
        let mut stream = self.stream.attach().ok()?;
        (!stream.is_stale()).then_some(stream)
    }
}

/// An idle connection, and the number of others that were dropped on the way to it.
#[derive(Debug, Default)]
pub struct Reused {
    /// The most recently used one that is still open.
    pub stream: Option<Stream>,
    /// Connections that the endpoint had closed, or was about to.
    pub stale: u64,
    /// Pinned connections that were closed for a new one.
    pub displaced: u64,
}

/// Idle connections to one endpoint that a worker may take.
#[derive(Debug)]
pub(super) enum Pool {
    /// The worker's own.
    Own {
        idle: RefCell<IdlePool>,
        /// Pinned connections that its clients hold.
        pinned: Rc<Cell<usize>>,
    },
    /// The connections of all workers.
    Shared {
        pool: Arc<SharedPool<IdleStream>>,
        timeout: Cell<Duration>,
    },
}

impl Pool {
    pub(super) fn new(config: &config::Pool, shared: Option<&Arc<SharedPool<IdleStream>>>) -> Self {
        match shared {
            None => Pool::Own {
                idle: RefCell::new(IdlePool::new(config)),
                pinned: Rc::default(),
            },
            Some(pool) => Pool::Shared {
                pool: pool.clone(),
                timeout: Cell::new(config.idle_timeout),
            },
        }
    }

    /// Keeps idle connections as these settings say from now on. Surplus connections are closed,
    /// those idle for longest first. A shorter time holds for this worker's own idle connections
    /// from their next use on.
    pub(super) fn follow(&self, config: &config::Pool) {
        match self {
            Pool::Own { idle, .. } => idle.borrow_mut().follow(config),
            Pool::Shared { pool, timeout } => {
                timeout.set(config.idle_timeout);
                // The first worker closes the surplus.
                drop(pool.set_max(config.max_idle));
            }
        }
    }

    /// Connections that this worker watches, without pinned ones.
    pub(super) fn len(&self) -> usize {
        match self {
            Pool::Own { idle, .. } => idle.borrow().idle.len(),
            Pool::Shared { pool, .. } => pool.count(IdleStream::is_of_this_thread),
        }
    }

    /// Idle connections of this worker's clients.
    pub(super) fn pinned_len(&self) -> usize {
        match self {
            Pool::Own { pinned, .. } => pinned.get(),
            Pool::Shared { pool, .. } => pool.count_pinned(IdleStream::is_of_this_thread),
        }
    }

    /// Takes an idle connection, or makes room for a new one; `now` is the worker's
    /// tick.
    pub(super) fn take(&self, state: &EndpointState, now: u64) -> Reused {
        match self {
            Pool::Own { idle, .. } => idle.borrow_mut().take(now),
            Pool::Shared { pool, .. } => take_shared(pool, state),
        }
    }

    /// Closes an idle connection that stands in the way of a new one. The caller has a slot, and
    /// no connection. Gives the number of pinned ones that were closed.
    pub(super) fn make_room(&self, state: &EndpointState) -> u64 {
        match self {
            Pool::Own { .. } => 0,
            // The connection is closed here.
            Pool::Shared { pool, .. } => match pool.make_room(state) {
                Room::Displaced(_) => 1,
                Room::Free | Room::Idle(_) => 0,
            },
        }
    }

    /// Keeps a connection, for a second less than its endpoint does. So no request meets it while
    /// it is being closed. The caller gives its slot back after this. `now` is the worker's tick.
    pub(super) fn put(
        &self,
        stream: Stream,
        state: &EndpointState,
        keep_alive: KeepAlive,
        now: u64,
    ) {
        let idle_max_s = keep_alive.map(|it| it.get() - 1);
        if idle_max_s == Some(0) || stream.is_carried() {
            return;
        }
        match self {
            Pool::Own { idle, .. } => idle.borrow_mut().put(stream, idle_max_s, now),
            Pool::Shared { pool, .. } => {
                let idle = IdleStream::new(stream, idle_max_s);
                // A connection that is not kept is closed here.
                drop(idle.map(|it| pool.put(it, state, clock::now())));
            }
        }
    }

    /// Keeps a connection for one client, as long as the endpoint does. The caller gives its slot
    /// back after this. `None` where the connection was closed: the pool has no room, or the
    /// connection is never idle. `now` is the worker's tick.
    pub(super) fn pin(
        &self,
        stream: Stream,
        state: &EndpointState,
        keep_alive: KeepAlive,
        now: u64,
    ) -> Option<HeldConnection> {
        let idle_max_s = keep_alive.map(NonZeroU16::get);
        if stream.is_carried() {
            return None;
        }
        match self {
            Pool::Own { pinned, .. } => {
                let until = now.saturating_add(idle_max_s.map_or(u64::MAX, ticks));
                Some(HeldConnection::own(stream, until, pinned))
            }
            Pool::Shared { pool, .. } => {
                let owner = Arc::default();
                let idle = IdleStream::new(stream, idle_max_s)?;
                pool.pin(idle, &owner, state).ok()?;
                Some(HeldConnection::shared(pool.clone(), owner))
            }
        }
    }

    /// Closes connections that are too old or that the endpoint has closed; `now` is the worker's
    /// tick.
    pub(super) fn sweep(&self, state: &EndpointState, now: u64) {
        match self {
            Pool::Own { idle, .. } => idle.borrow_mut().sweep(now),
            // Each worker finds the closed ones of the connections that it watches.
            Pool::Shared { pool, timeout } => {
                let now = clock::now();
                let is_stale =
                    |it: &IdleStream| it.has_expired(|| now) || it.stream.is_known_stale();
                drop(pool.sweep(state, now, timeout.get(), is_stale));
            }
        }
    }

    /// Connections that this worker watches and whose descriptors a taker may have, without
    /// pinned ones.
    pub(super) fn len_for(&self, taker: Taker) -> usize {
        match self {
            Pool::Own { idle, .. } => {
                let idle = &idle.borrow().idle;
                idle.iter()
                    .filter(|it| !it.stream.is_reserved(taker))
                    .count()
            }
            Pool::Shared { pool, .. } => {
                pool.count(|it| it.is_of_this_thread() && !it.stream.is_reserved(taker))
            }
        }
    }

    /// Closes connections whose descriptors a taker may have, those idle for longest first and at
    /// most `most`. Gives their number.
    pub(super) fn close_oldest(&self, most: usize, taker: Taker) -> usize {
        match self {
            Pool::Own { idle, .. } => {
                let idle = &mut idle.borrow_mut().idle;
                let such = idle.extract_if(.., |it| !it.stream.is_reserved(taker));
                such.take(most).count()
            }
            Pool::Shared { pool, .. } => {
                let closed = pool.take_oldest(most, |it| !it.stream.is_reserved(taker));
                closed.len()
            }
        }
    }

    /// Closes all but pinned ones, which go with their clients.
    pub(super) fn close(&self) {
        match self {
            Pool::Own { idle, .. } => idle.borrow_mut().idle.clear(),
            Pool::Shared { pool, .. } => drop(pool.drain()),
        }
    }
}

fn take_shared(pool: &SharedPool<IdleStream>, state: &EndpointState) -> Reused {
    let mut reused = Reused::default();
    loop {
        match pool.take(state, IdleStream::is_of_this_thread) {
            Checkout::Idle(idle) => reused.stream = idle.attach(),
            // The connection is closed here.
            Checkout::Displaced(_) => {
                reused.displaced += 1;
                return reused;
            }
            Checkout::Nothing => return reused,
        }
        if reused.stream.is_some() {
            return reused;
        }
        reused.stale += 1;
    }
}

/// Idle connections of one worker to one endpoint.
#[derive(Debug)]
pub(super) struct IdlePool {
    idle: Vec<Idle>,
    max: usize,
    timeout_ticks: u64,
}

#[derive(Debug)]
struct Idle {
    stream: Stream,
    /// The tick from which on it is not used again.
    until: u64,
}

impl IdlePool {
    fn new(config: &config::Pool) -> Self {
        IdlePool {
            idle: Vec::new(),
            max: config.max_idle,
            timeout_ticks: (config.idle_timeout.as_millis() / TICK.as_millis()) as u64,
        }
    }

    fn follow(&mut self, config: &config::Pool) {
        let IdlePool {
            max, timeout_ticks, ..
        } = IdlePool::new(config);
        (self.max, self.timeout_ticks) = (max, timeout_ticks);
        let surplus = self.idle.len().saturating_sub(max);
        drop(self.idle.drain(..surplus));
    }

    fn take(&mut self, now: u64) -> Reused {
        let mut reused = Reused::default();
        while let Some(Idle { mut stream, until }) = self.idle.pop() {
            if now < until && !stream.is_stale() {
                reused.stream = Some(stream);
                return reused;
            }
            reused.stale += 1;
        }
        reused
    }

    fn put(&mut self, stream: Stream, idle_max_s: Option<u16>, now: u64) {
        if self.idle.len() < self.max {
            // Another task takes it next.
            stream.forget_waiters();
            let ticks = idle_max_s.map_or(u64::MAX, ticks).min(self.timeout_ticks);
            let until = now.saturating_add(ticks);
            self.idle.push(Idle { stream, until });
        }
    }

    fn sweep(&mut self, now: u64) {
        self.idle
            .retain_mut(|idle| now < idle.until && !idle.stream.is_stale());
    }
}

/// An idle connection that is held for one client.
#[derive(Debug)]
pub(super) enum HeldConnection {
    /// Here: the endpoint has no limit.
    Own(OwnHeld),
    /// Among the connections of all workers, where it counts towards the endpoint's limit.
    Shared(SharedHeld),
}

#[derive(Debug)]
pub(super) struct OwnHeld {
    stream: Option<Stream>,
    /// The tick from which on it is not used again.
    until: u64,
    /// How many such connections there are.
    count: Rc<Cell<usize>>,
}

#[derive(Debug)]
pub(super) struct SharedHeld {
    pool: Arc<SharedPool<IdleStream>>,
    owner: Arc<Owner>,
}

impl HeldConnection {
    fn own(stream: Stream, until: u64, count: &Rc<Cell<usize>>) -> Self {
        count.set(count.get() + 1);
        HeldConnection::Own(OwnHeld {
            stream: Some(stream),
            until,
            count: count.clone(),
        })
    }

    fn shared(pool: Arc<SharedPool<IdleStream>>, owner: Arc<Owner>) -> Self {
        HeldConnection::Shared(SharedHeld { pool, owner })
    }

    /// Takes it out, if it is still open; `now` is the worker's tick.
    pub(super) fn take(mut self, now: u64) -> Reused {
        let stream = match &mut self {
            HeldConnection::Own(own) => {
                let is_fresh = now < own.until;
                own.stream.take_if(|it| is_fresh && !it.is_stale())
            }
            HeldConnection::Shared(shared) => match shared.pool.take_pinned(&shared.owner) {
                Some(idle) => idle.attach(),
                // It gave way to another, which has counted it.
                None => return Reused::default(),
            },
        };
        Reused {
            stale: u64::from(stream.is_none()),
            stream,
            displaced: 0,
        }
    }

    /// Whether the endpoint has closed it, or is about to. One that counts towards a
    /// limit is swept with its pool.
    pub(super) fn is_stale(&mut self, now: u64) -> bool {
        match self {
            HeldConnection::Own(own) => {
                now >= own.until || own.stream.as_mut().is_none_or(Stream::is_stale)
            }
            HeldConnection::Shared(_) => false,
        }
    }

    /// Ready once it was closed to make room for another.
    pub(super) fn poll_displaced(&self, cx: &Context<'_>) -> Poll<()> {
        match self {
            HeldConnection::Own(_) => Poll::Pending,
            HeldConnection::Shared(shared) => shared.owner.poll_displaced(cx),
        }
    }
}

impl Drop for OwnHeld {
    fn drop(&mut self) {
        self.count.set(self.count.get() - 1);
    }
}

impl Drop for SharedHeld {
    /// The client has left, or goes elsewhere: the connection is closed.
    fn drop(&mut self) {
        drop(self.pool.take_pinned(&self.owner));
    }
}

fn ticks(max_s: u16) -> u64 {
    u64::from(max_s) * (1_000 / TICK.as_millis() as u64)
}
