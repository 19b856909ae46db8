//! Idle connections to one endpoint with a limit, shared between workers.
//!
//! A slot covers the connection: what an endpoint can take at once is a number
//! of connections, and an idle one occupies it as a busy one does. A worker
//! that kept its idle connections to itself would make the other workers wait
//! until the endpoint closes them.
//!
//! Invariant: idle connections plus the connections of slot holders are at most
//! the limit. Pinned connections count as idle. A slot holder has at most one
//! connection, which it gets in one of three ways, each under the lock:
//! - it takes an idle one: the sum stays;
//! - none is idle, so it may open one: at most the other holders have one, and
//!   they are fewer than the limit;
//! - all idle ones are pinned: where the sum is at the limit, it closes the one
//!   that has been idle for longest, then opens its own.
//!
//! A holder gives its connection up before its slot: into the pool, where the
//! sum stays, or it closes it. A holder that wants a new connection, whatever
//! is idle, makes room first: [`SharedPool::make_room`].
//!
//! Invariant: a pinned connection is taken by its [`Owner`] alone.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::Instant;
use crate::endpoint::EndpointState;
use crate::sync::{Arc, Mutex, MutexGuard, lock};

/// Idle connections that are looked at for one that is near.
const LOOKED_AT: usize = 16;

/// Idle connections to one endpoint, last in first out.
#[derive(Debug)]
pub struct SharedPool<C> {
    inner: Mutex<Inner<C>>,
}

#[derive(Debug)]
struct Inner<C> {
    /// Most idle connections, without pinned ones.
    max: usize,
    /// The one used last comes last.
    idle: Vec<Idle<C>>,
    /// Connections that have an owner; the one used last comes last.
    pinned: Vec<(Arc<Owner>, C)>,
    /// The limit that the invariant holds for: above the endpoint's own for a
    /// while once that was lowered.
    bound: u32,
}

#[derive(Debug)]
struct Idle<C> {
    connection: C,
    since: Instant,
}

/// Whom a pinned connection belongs to: a client's connection.
#[derive(Debug, Default)]
pub struct Owner(Mutex<Owned>);

#[derive(Debug, Default)]
struct Owned {
    /// Its connection was closed to make room.
    is_displaced: bool,
    waker: Option<Waker>,
}

impl Owner {
    /// Ready once its connection was closed to make room for another.
    pub fn poll_displaced(&self, cx: &Context<'_>) -> Poll<()> {
        let mut owned = lock(&self.0);
        if owned.is_displaced {
            return Poll::Ready(());
        }
        owned.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn displace(&self) {
        let waker = {
            let mut owned = lock(&self.0);
            owned.is_displaced = true;
            owned.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

/// The connection, or the right to open one, that a slot holder gets.
#[derive(Debug, PartialEq, Eq)]
pub enum Checkout<C> {
    /// An idle connection.
    Idle(C),
    /// It may open a connection.
    Nothing,
    /// It may open a connection once it has closed this one, which was pinned.
    Displaced(C),
}

/// The connection that a slot holder closes before it opens one.
#[derive(Debug, PartialEq, Eq)]
pub enum Room<C> {
    /// Nothing: there is room.
    Free,
    /// A connection that was idle for longest.
    Idle(C),
    /// A pinned one that was idle for longest; its owner has been told.
    Displaced(C),
}

impl<C> SharedPool<C> {
    /// A pool that keeps at most `max`, and never more than the limit.
    pub fn new(max: usize) -> Self {
        SharedPool {
            inner: Mutex::new(Inner {
                max,
                idle: Vec::new(),
                pinned: Vec::new(),
                bound: 0,
            }),
        }
    }

    /// Keeps at most `max` from now on. Gives the surplus connections, to be
    /// closed: those idle for longest.
    pub fn set_max(&self, max: usize) -> Vec<C> {
        let mut inner = lock(&self.inner);
        inner.max = max;
        let surplus = inner.idle.len().saturating_sub(max);
        let surplus: Vec<_> = inner.idle.drain(..surplus).collect();
        drop(inner);
        surplus.into_iter().map(|it| it.connection).collect()
    }

    /// Takes an idle connection, the one used last first, but before others one
    /// that `is_near`. If none is idle, the slot holder may open one.
    pub fn take(&self, state: &EndpointState, is_near: impl Fn(&C) -> bool) -> Checkout<C> {
        let mut inner = lock(&self.inner);
        let idle = &mut inner.idle;
        let mut latest = idle.iter().rev().take(LOOKED_AT);
        let near = latest.position(|it| is_near(&it.connection));
        let at = match near {
            Some(behind) => Some(idle.len() - 1 - behind),
            None => idle.len().checked_sub(1),
        };
        if let Some(at) = at {
            return Checkout::Idle(idle.remove(at).connection);
        }
        if inner.is_full(state) {
            displace_first(inner).map_or(Checkout::Nothing, Checkout::Displaced)
        } else {
            Checkout::Nothing
        }
    }

    /// Makes room for a slot holder that opens a connection although some are
    /// idle.
    pub fn make_room(&self, state: &EndpointState) -> Room<C> {
        let mut inner = lock(&self.inner);
        if !inner.is_full(state) {
            return Room::Free;
        }
        if !inner.idle.is_empty() {
            return Room::Idle(inner.idle.remove(0).connection);
        }
        displace_first(inner).map_or(Room::Free, Room::Displaced)
    }

    /// Keeps a slot holder's connection, which gives its slot back after this.
    ///
    /// # Errors
    /// The pool has no room: the caller closes it before it gives its slot back.
    pub fn put(&self, connection: C, state: &EndpointState, now: Instant) -> Result<(), C> {
        let mut inner = lock(&self.inner);
        if !inner.may_keep(state) || inner.idle.len() >= inner.max {
            return Err(connection);
        }
        inner.idle.push(Idle {
            connection,
            since: now,
        });
        Ok(())
    }

    /// Keeps a slot holder's connection for its owner alone.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn pin(&self, connection: C, owner: &Arc<Owner>, state: &EndpointState) -> Result<(), C> {
        let mut inner = lock(&self.inner);
        if !inner.may_keep(state) {
            return Err(connection);
        }
        inner.pinned.push((owner.clone(), connection));
        Ok(())
    }

    /// Takes an owner's connection: for a slot holder, or to be closed. `None`
    /// where it was closed meanwhile.
    pub fn take_pinned(&self, owner: &Arc<Owner>) -> Option<C> {
        let pinned = &mut lock(&self.inner).pinned;
        let at = pinned.iter().position(|(it, _)| Arc::ptr_eq(it, owner))?;
        Some(pinned.remove(at).1)
    }

    /// Takes out the connections to be closed: idle for `timeout`, above a
    /// lowered limit, or `is_stale`. Pinned connections stay as long as their
    /// owners keep them.
    pub fn sweep(
        &self,
        state: &EndpointState,
        now: Instant,
        timeout: Duration,
        is_stale: impl Fn(&C) -> bool,
    ) -> Vec<C> {
        let mut inner = lock(&self.inner);
        if inner.idle.is_empty() && inner.pinned.is_empty() {
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
        let mut swept: Vec<C> = swept.map(|idle| idle.connection).collect();
        let stale = inner.pinned.extract_if(.., |(_, it)| is_stale(it));
        let before = swept.len();
        swept.extend(stale.map(|(_, connection)| connection));
        let surplus = surplus.saturating_sub((swept.len() - before) as u64);
        let displaced = (surplus as usize).min(inner.pinned.len());
        let displaced: Vec<_> = inner.pinned.drain(..displaced).collect();
        drop(inner);
        for (owner, connection) in displaced {
            owner.displace();
            swept.push(connection);
        }
        swept
    }

    /// Takes out such connections, those idle for longest first, at most
    /// `most`. Pinned ones stay.
    pub fn take_oldest(&self, most: usize, is_such: impl Fn(&C) -> bool) -> Vec<C> {
        let idle = &mut lock(&self.inner).idle;
        let such = idle.extract_if(.., |it| is_such(&it.connection));
        such.take(most).map(|it| it.connection).collect()
    }

    /// Takes all out, to be closed. Pinned ones go with their owners.
    pub fn drain(&self) -> Vec<C> {
        let idle = std::mem::take(&mut lock(&self.inner).idle);
        idle.into_iter().map(|idle| idle.connection).collect()
    }

    /// How many of the idle connections are such ones; pinned ones do not count.
    pub fn count(&self, is_such: impl Fn(&C) -> bool) -> usize {
        let inner = lock(&self.inner);
        let such = inner.idle.iter().filter(|it| is_such(&it.connection));
        such.count()
    }

    /// How many of the pinned connections are such ones.
    pub fn count_pinned(&self, is_such: impl Fn(&C) -> bool) -> usize {
        let inner = lock(&self.inner);
        inner.pinned.iter().filter(|(_, it)| is_such(it)).count()
    }
}

impl<C> Inner<C> {
    /// Whether a connection that a slot holder opens would be one too many.
    /// Every holder with a connection came here after it had its slot, so that
    /// it is counted. A later one comes to the lock after this.
    fn is_full(&self, state: &EndpointState) -> bool {
        self.idle_count() + u64::from(state.in_flight()) > limit(state)
    }

    /// Whether a slot holder may leave its connection here.
    fn may_keep(&mut self, state: &EndpointState) -> bool {
        self.surplus(state) == 0 && self.idle_count() < limit(state)
    }

    fn idle_count(&self) -> u64 {
        (self.idle.len() + self.pinned.len()) as u64
    }

    /// The number of connections that may be too many, because the limit was
    /// lowered. Until it is zero, nothing is kept.
    fn surplus(&mut self, state: &EndpointState) -> u64 {
        let limit = state.max_in_flight().unwrap_or(u32::MAX);
        if limit < self.bound {
            let open = self.idle_count() + u64::from(state.in_flight());
            if open > u64::from(limit) {
                return open - u64::from(limit);
            }
        }
        self.bound = limit;
        0
    }
}

/// Takes out the pinned connection that has been idle for longest, and tells its
/// owner.
fn displace_first<C>(mut inner: MutexGuard<'_, Inner<C>>) -> Option<C> {
    if inner.pinned.is_empty() {
        return None;
    }
    let (owner, connection) = inner.pinned.remove(0);
    drop(inner);
    owner.displace();
    Some(connection)
}

fn limit(state: &EndpointState) -> u64 {
    state.max_in_flight().map_or(u64::MAX, u64::from)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::endpoint::{EndpointId, EndpointSettings};

    const LATER: Instant = Instant::from_nanos(2_000_000_000);
    const NOW: Instant = Instant::from_nanos(1_000_000_000);

    fn endpoint(limit: u32, in_flight: u32) -> EndpointState {
        let settings = EndpointSettings {
            name: "a",
            fingerprint: 0,
            weight: 1,
            max_in_flight: Some(limit),
            tier: 0,
        };
        let state = EndpointState::new(EndpointId::new(0), &settings);
        (0..in_flight).for_each(|_| assert!(state.try_reserve_for_probe().is_some()));
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
        assert_eq!(pool.take(&state, |&it| it == 2), Checkout::Idle(2));
        assert_eq!(pool.take(&state, none), Checkout::Idle(3));
        assert_eq!(pool.take(&state, none), Checkout::Idle(1));
        assert_eq!(pool.take(&state, none), Checkout::Nothing);
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
    fn another_maximum_closes_what_was_idle_for_longest() {
        let (state, pool) = (endpoint(8, 1), SharedPool::new(3));
        for connection in [1, 2, 3] {
            assert_eq!(pool.put(connection, &state, NOW), Ok(()));
        }
        assert_eq!(pool.set_max(1), [1, 2]);
        assert_eq!(pool.put(4, &state, NOW), Err(4));
        assert_eq!(pool.set_max(2), []);
        assert_eq!(pool.put(4, &state, NOW), Ok(()));
        assert_eq!(pool.take(&state, none), Checkout::Idle(4));
    }

    #[test]
    fn room_is_made_only_where_there_is_none() {
        for (limit, in_flight, idle, closed) in [
            (1, 1, &[][..], Room::Free),
            (1, 1, &[1], Room::Idle(1)),
            (3, 1, &[1, 2], Room::Free),
            (3, 2, &[1, 2], Room::Idle(1)),
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

    /// A pool with connections that were pinned in this order, for these owners.
    fn pinned(state: &EndpointState, connections: &[u32]) -> (SharedPool<u32>, Vec<Arc<Owner>>) {
        let pool = SharedPool::new(8);
        let owners = connections.iter().map(|&connection| {
            let owner = Arc::<Owner>::default();
            assert_eq!(pool.pin(connection, &owner, state), Ok(()));
            owner
        });
        let owners = owners.collect();
        (pool, owners)
    }

    fn is_displaced(owner: &Owner) -> bool {
        let cx = Context::from_waker(Waker::noop());
        owner.poll_displaced(&cx).is_ready()
    }

    #[test]
    fn a_pinned_one_is_its_owners_alone() {
        let state = endpoint(3, 1);
        let (pool, owners) = pinned(&state, &[1, 2]);
        assert_eq!(
            pool.take(&state, |_| true),
            Checkout::Nothing,
            "there is room"
        );
        assert_eq!(pool.take_pinned(&Arc::default()), None);
        assert_eq!(pool.take_pinned(&owners[1]), Some(2));
        assert_eq!(pool.take_pinned(&owners[1]), None);
        assert_eq!((pool.count(|_| true), pool.count_pinned(|_| true)), (0, 1));
        assert!(pool.drain().is_empty() && pool.take_oldest(1, |_| true).is_empty());
    }

    #[test]
    fn the_pinned_one_that_is_idle_for_longest_gives_way_after_those_of_the_pool() {
        let state = endpoint(3, 1);
        let (pool, owners) = pinned(&state, &[1, 2]);
        assert_eq!(pool.put(3, &state, NOW), Ok(()));
        assert!(state.try_reserve_for_probe().is_some());
        assert_eq!(pool.take(&state, none), Checkout::Idle(3));
        assert_eq!(pool.put(3, &state, NOW), Ok(()));
        assert_eq!(pool.make_room(&state), Room::Idle(3));
        assert!(!owners.iter().any(|it| is_displaced(it)));
        assert_eq!(pool.take(&state, none), Checkout::Displaced(1));
        assert_eq!(
            owners.iter().map(|it| is_displaced(it)).collect::<Vec<_>>(),
            [true, false]
        );
        assert_eq!(pool.take_pinned(&owners[0]), None);
        assert_eq!(
            pool.take(&state, none),
            Checkout::Nothing,
            "there is room now"
        );
        assert!(state.try_reserve_for_probe().is_some());
        assert_eq!(pool.make_room(&state), Room::Displaced(2));
        assert_eq!(pool.make_room(&state), Room::Free, "all are the holders'");
        assert!(is_displaced(&owners[1]));
    }

    #[test]
    fn pinned_ones_count_towards_the_limit_and_not_towards_the_maximum() {
        let state = endpoint(2, 1);
        let pool = SharedPool::new(0);
        let owner = Arc::default();
        assert_eq!(pool.put(1, &state, NOW), Err(1));
        assert_eq!(pool.pin(1, &owner, &state), Ok(()));
        assert_eq!(pool.pin(2, &Arc::default(), &state), Ok(()));
        assert_eq!(pool.pin(3, &Arc::default(), &state), Err(3));
        let timeout = Duration::ZERO;
        let swept = pool.sweep(&state, LATER, timeout, |&it| it == 2);
        assert_eq!(swept, [2], "age closes none of them");
        state.set_max_in_flight(Some(1));
        assert_eq!(pool.sweep(&state, LATER, timeout, none), [1]);
        assert!(is_displaced(&owner));
    }
}
