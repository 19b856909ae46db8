//! Idle connections to one endpoint with a limit, shared between workers.
//!
//! A slot covers the connection: what an endpoint can take at once is a number
//! of connections, and an idle one occupies it as a busy one does. A worker
//! that kept its idle connections to itself would make the other workers wait
//! until the endpoint closes them.
//!
//! Invariant: idle connections and those of slot holders are at most the limit.
//! A slot holder has at most one connection. It gets it in one of two ways, each
//! under the lock:
//! - it takes an idle one: the sum stays;
//! - none is idle, so it may open one: at most the other holders have one, and
//!   they are fewer than the limit.
//!
//! It gives it up before its slot: into the pool, where the sum stays, or it
//! closes it. A holder that wants a new connection whatever is idle makes room
//! first: [`SharedPool::make_room`].

use std::time::Duration;

use crate::Instant;
use crate::endpoint::EndpointState;
use crate::sync::{Mutex, lock};

/// Idle connections that are looked at for one that is near.
const LOOKED_AT: usize = 16;

/// Idle connections to one endpoint, last in first out.
#[derive(Debug)]
pub struct SharedPool<C> {
    max: usize,
    inner: Mutex<Inner<C>>,
}

#[derive(Debug)]
struct Inner<C> {
    /// The one used last comes last.
    idle: Vec<Idle<C>>,
    /// The limit that the invariant holds for: above the endpoint's own for a
    /// while once that was lowered.
    bound: u32,
}

#[derive(Debug)]
struct Idle<C> {
    connection: C,
    since: Instant,
}

impl<C> SharedPool<C> {
    /// A pool that keeps at most `max`, and never more than the limit.
    pub fn new(max: usize) -> Self {
        SharedPool {
            max,
            inner: Mutex::new(Inner {
                idle: Vec::new(),
                bound: 0,
            }),
        }
    }

    /// Takes an idle connection, the one used last first, but before others one
    /// that `is_near`. Where there is none, the slot holder may open one.
    pub fn take(&self, is_near: impl Fn(&C) -> bool) -> Option<C> {
        let idle = &mut lock(&self.inner).idle;
        let mut latest = idle.iter().rev().take(LOOKED_AT);
        let at = match latest.position(|it| is_near(&it.connection)) {
            Some(behind) => idle.len() - 1 - behind,
            None => idle.len().checked_sub(1)?,
        };
        Some(idle.remove(at).connection)
    }

    /// Makes room for a slot holder that opens a connection although some are
    /// idle. The caller closes the one that this gives before it opens its own:
    /// it was idle for longest. `None` where there is room for one more.
    pub fn make_room(&self, state: &EndpointState) -> Option<C> {
        let mut inner = lock(&self.inner);
        // Every holder that has a connection was here after it had its slot, so
        // that it is counted; one that comes later comes to the lock after us.
        let is_full = inner.idle.len() as u64 + u64::from(state.in_flight()) > limit(state);
        (is_full && !inner.idle.is_empty()).then(|| inner.idle.remove(0).connection)
    }

    /// Keeps a slot holder's connection, which gives its slot back after this.
    ///
    /// # Errors
    /// The pool has no room: the caller closes it before it gives its slot back.
    pub fn put(&self, connection: C, state: &EndpointState, now: Instant) -> Result<(), C> {
        let mut inner = lock(&self.inner);
        let has_room = inner.surplus(state) == 0
            && inner.idle.len() < self.max
            && (inner.idle.len() as u64) < limit(state);
        if !has_room {
            return Err(connection);
        }
        inner.idle.push(Idle {
            connection,
            since: now,
        });
        Ok(())
    }

    /// Takes out what is to be closed: idle for `timeout`, above a limit that was
    /// lowered, or `is_stale`.
    pub fn sweep(
        &self,
        state: &EndpointState,
        now: Instant,
        timeout: Duration,
        is_stale: impl Fn(&C) -> bool,
    ) -> Vec<C> {
        let mut inner = lock(&self.inner);
        if inner.idle.is_empty() {
            return Vec::new();
        }
        let mut surplus = inner.surplus(state);
        let swept = inner.idle.extract_if(.., |idle| {
            let is_old = now.duration_since(idle.since) >= timeout;
            if is_old || is_stale(&idle.connection) {
                return true;
            }
            let is_surplus = surplus > 0;
            surplus = surplus.saturating_sub(1);
            is_surplus
        });
        swept.map(|idle| idle.connection).collect()
    }

    /// Takes those out that have been idle for longest, at most so many.
    pub fn take_oldest(&self, most: usize) -> Vec<C> {
        let idle = &mut lock(&self.inner).idle;
        let oldest = idle.drain(..most.min(idle.len()));
        oldest.map(|idle| idle.connection).collect()
    }

    /// Takes all out, to be closed.
    pub fn drain(&self) -> Vec<C> {
        let idle = std::mem::take(&mut lock(&self.inner).idle);
        idle.into_iter().map(|idle| idle.connection).collect()
    }

    /// How many of the idle connections are such ones.
    pub fn count(&self, is_such: impl Fn(&C) -> bool) -> usize {
        let inner = lock(&self.inner);
        let such = inner.idle.iter().filter(|it| is_such(&it.connection));
        such.count()
    }
}

impl<C> Inner<C> {
    /// By how many connections there may be too many, because the limit was
    /// lowered: until there are none, nothing is kept.
    fn surplus(&mut self, state: &EndpointState) -> u64 {
        let limit = state.max_in_flight().unwrap_or(u32::MAX);
        if limit < self.bound {
            let open = self.idle.len() as u64 + u64::from(state.in_flight());
            if open > u64::from(limit) {
                return open - u64::from(limit);
            }
        }
        self.bound = limit;
        0
    }
}

fn limit(state: &EndpointState) -> u64 {
    state.max_in_flight().map_or(u64::MAX, u64::from)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const LATER: Instant = Instant::from_nanos(2_000_000_000);
    const NOW: Instant = Instant::from_nanos(1_000_000_000);

    fn endpoint(limit: u32, in_flight: u32) -> EndpointState {
        let state = EndpointState::new(1, Some(limit));
        (0..in_flight).for_each(|_| assert!(state.try_reserve_for_probe(0).is_some()));
        state
    }

    fn none(_: &u32) -> bool {
        false
    }

    #[test]
    fn the_latest_goes_first_and_the_near_before_it() {
        let (state, pool) = (endpoint(3, 1), SharedPool::new(8));
        for connection in [1, 2, 3] {
            assert_eq!(pool.put(connection, &state, NOW), Ok(()));
        }
        assert_eq!(pool.take(|&it| it == 2), Some(2));
        assert_eq!(pool.take(none), Some(3));
        assert_eq!(pool.take(none), Some(1));
        assert_eq!(pool.take(none), None);
    }

    #[test]
    fn keeps_no_more_than_the_maximum_and_the_limit() {
        for (max, limit, kept) in [(0, 3, 0), (2, 3, 2), (8, 3, 3)] {
            let (state, pool) = (endpoint(limit, 1), SharedPool::new(max));
            let put = (0..5).filter(|&it| pool.put(it, &state, NOW).is_ok());
            assert_eq!(put.count(), kept, "{max} {limit}");
        }
    }

    #[test]
    fn room_is_made_only_where_there_is_none() {
        for (limit, in_flight, idle, closed) in [
            (1, 1, &[][..], None),
            (1, 1, &[1], Some(1)),
            (3, 1, &[1, 2], None),
            (3, 2, &[1, 2], Some(1)),
        ] {
            let (state, pool) = (endpoint(limit, in_flight), SharedPool::new(8));
            for &connection in idle {
                assert_eq!(pool.put(connection, &state, NOW), Ok(()));
            }
            let case = format!("{limit} {in_flight} {idle:?}");
            assert_eq!(pool.make_room(&state), closed, "{case}");
        }
    }

    #[test]
    fn sweeps_what_is_old_or_stale() {
        let (state, pool) = (endpoint(4, 0), SharedPool::new(8));
        for (connection, since) in [(1, NOW), (2, LATER), (3, LATER)] {
            assert_eq!(pool.put(connection, &state, since), Ok(()));
        }
        let timeout = Duration::from_secs(1);
        assert_eq!(pool.sweep(&state, LATER, timeout, |&it| it == 3), [1, 3]);
        assert_eq!(pool.count(|_| true), 1);
        assert_eq!(pool.drain(), [2]);
    }

    #[test]
    fn a_limit_that_was_lowered_is_reached_before_anything_is_kept() {
        let timeout = Duration::from_secs(60);
        let (state, pool) = (endpoint(4, 3), SharedPool::new(8));
        assert_eq!(pool.put(1, &state, NOW), Ok(()));
        state.set_max_in_flight(Some(2));
        assert_eq!(pool.put(2, &state, NOW), Err(2));
        state.release();
        // One is idle, and two holders may have one each.
        assert_eq!(pool.put(3, &state, NOW), Err(3));
        assert_eq!(pool.sweep(&state, NOW, timeout, none), [1]);
        assert_eq!(pool.put(4, &state, NOW), Ok(()));
        // Raised again, and there is room at once.
        state.set_max_in_flight(Some(4));
        assert_eq!(pool.put(5, &state, NOW), Ok(()));
    }
}
