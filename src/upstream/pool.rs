//! Idle connections to one endpoint, last in first out.
//!
//! The most recently used connection is the least likely to have been closed
//! and the most likely to be in the processor's cache. Each worker has its own,
//! but those to an endpoint with a limit belong to all workers: see
//! [`evenkeel_policy::pool`].

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::endpoint::EndpointState;
use evenkeel_policy::pool::SharedPool;

use super::Reused;
use crate::config;
use crate::net::clock;
use crate::net::stream::{DetachedStream, Stream};
use crate::net::timer::TICK;

/// Idle connections that belong to all workers: per endpoint, `None` where it has
/// no limit.
pub type SharedPools = Box<[Option<Arc<SharedPool<DetachedStream>>>]>;

/// The shared pools of an upstream, without a connection.
pub fn shared_pools(config: &config::Upstream) -> SharedPools {
    let pools = config.endpoints.iter().map(|endpoint| {
        endpoint.max_in_flight?;
        Some(Arc::new(SharedPool::new(config.pool.max_idle)))
    });
    pools.collect()
}

/// Idle connections to one endpoint that a worker may take.
#[derive(Debug)]
pub(super) enum Pool {
    /// The worker's own.
    Own(RefCell<IdlePool>),
    /// Those of all workers.
    Shared {
        pool: Arc<SharedPool<DetachedStream>>,
        timeout: Duration,
    },
}

impl Pool {
    pub(super) fn new(
        config: &config::Pool,
        shared: Option<&Arc<SharedPool<DetachedStream>>>,
    ) -> Self {
        match shared {
            None => Pool::Own(RefCell::new(IdlePool::new(config))),
            Some(pool) => Pool::Shared {
                pool: pool.clone(),
                timeout: config.idle_timeout,
            },
        }
    }

    /// Connections that this worker watches.
    pub(super) fn len(&self) -> usize {
        match self {
            Pool::Own(pool) => pool.borrow().idle.len(),
            Pool::Shared { pool, .. } => pool.count(DetachedStream::is_of_this_thread),
        }
    }

    pub(super) fn take(&self) -> Reused {
        match self {
            Pool::Own(pool) => pool.borrow_mut().take(),
            Pool::Shared { pool, .. } => take_shared(pool),
        }
    }

    /// Closes what stands in the way of a new connection; the caller has a slot,
    /// and no connection.
    pub(super) fn make_room(&self, state: &EndpointState) {
        if let Pool::Shared { pool, .. } = self {
            drop(pool.make_room(state));
        }
    }

    /// Keeps a connection; the caller gives its slot back after this. `now` is
    /// the worker's tick.
    pub(super) fn put(&self, stream: Stream, state: &EndpointState, now: u64) {
        match self {
            Pool::Own(pool) => pool.borrow_mut().put(stream, now),
            // One that is not kept is closed here.
            Pool::Shared { pool, .. } => drop(pool.put(stream.detach(), state, clock::now())),
        }
    }

    /// Closes what is too old or was closed by the endpoint; `now` is the
    /// worker's tick.
    pub(super) fn sweep(&self, state: &EndpointState, now: u64) {
        match self {
            Pool::Own(pool) => pool.borrow_mut().sweep(now),
            // Each worker finds those closed that it watches.
            Pool::Shared { pool, timeout } => {
                let now = clock::now();
                drop(pool.sweep(state, now, *timeout, DetachedStream::is_known_stale));
            }
        }
    }

    /// Closes the connections that have been idle for longest, at most so many;
    /// how many.
    pub(super) fn close_oldest(&self, most: usize) -> usize {
        match self {
            Pool::Own(pool) => pool.borrow_mut().close_oldest(most),
            Pool::Shared { pool, .. } => pool.take_oldest(most).len(),
        }
    }

    /// Closes all.
    pub(super) fn close(&self) {
        match self {
            Pool::Own(pool) => pool.borrow_mut().idle.clear(),
            Pool::Shared { pool, .. } => drop(pool.drain()),
        }
    }
}

fn take_shared(pool: &SharedPool<DetachedStream>) -> Reused {
    let mut stale = 0;
    while let Some(idle) = pool.take(DetachedStream::is_of_this_thread) {
        // One that can't be watched here is as good as closed.
        if let Ok(stream) = idle.attach()
            && !stream.is_stale()
        {
            let stream = Some(stream);
            return Reused { stream, stale };
        }
        stale += 1;
    }
    let stream = None;
    Reused { stream, stale }
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
    since: u64,
}

impl IdlePool {
    fn new(config: &config::Pool) -> Self {
        IdlePool {
            idle: Vec::new(),
            max: config.max_idle,
            timeout_ticks: (config.idle_timeout.as_millis() / TICK.as_millis()) as u64,
        }
    }

    fn take(&mut self) -> Reused {
        let mut stale = 0;
        while let Some(Idle { stream, .. }) = self.idle.pop() {
            if !stream.is_stale() {
                return Reused {
                    stream: Some(stream),
                    stale,
                };
            }
            stale += 1;
        }
        Reused {
            stream: None,
            stale,
        }
    }

    fn put(&mut self, stream: Stream, now: u64) {
        if self.idle.len() < self.max {
            self.idle.push(Idle { stream, since: now });
        }
    }

    /// Closes the connections that have been idle for longest, at most so many;
    /// how many.
    fn close_oldest(&mut self, most: usize) -> usize {
        let count = most.min(self.idle.len());
        self.idle.drain(..count);
        count
    }

    fn sweep(&mut self, now: u64) {
        let timeout_ticks = self.timeout_ticks;
        self.idle.retain(|idle| {
            !idle.stream.is_stale() && now.saturating_sub(idle.since) < timeout_ticks
        });
    }
}
