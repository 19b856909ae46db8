//! Permits for the probes and tries that are open at once, in fair shares.
//!
//! Connects that hang hold their permits for as long as their timeout. An
//! upstream with many of them must not hold up another's.
//!
//! Invariant: while another permit is free, an upstream that holds none gets one
//! at once. It takes one while it holds fewer than are free: alone it gets half of
//! all, beside one that has its half a quarter, and so on.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use tokio::sync::Notify;

/// Permits of one kind, for all upstreams.
#[derive(Debug)]
pub(super) struct Permits {
    free: Cell<usize>,
    /// Shares that an upstream holds.
    shares: RefCell<Vec<Weak<Share>>>,
}

/// The permits of one upstream.
#[derive(Debug, Default)]
pub(super) struct Share {
    held: Cell<usize>,
    waiting: Cell<usize>,
    turn: Notify,
}

/// The right to have one thing open; given back when dropped.
#[derive(Debug)]
pub(super) struct Permit<'a> {
    permits: &'a Permits,
    share: &'a Share,
}

/// Counts a waiter, until it is dropped.
struct Waiting<'a>(&'a Cell<usize>);

impl<'a> Waiting<'a> {
    fn new(count: &'a Cell<usize>) -> Self {
        count.update(|it| it + 1);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.update(|it| it - 1);
    }
}

impl Permits {
    /// A single upstream alone gets at most `most`.
    pub fn new(most: usize) -> Self {
        Permits {
            free: Cell::new(2 * most),
            shares: RefCell::default(),
        }
    }

    /// The share of another upstream. It ends when it is dropped.
    pub fn share(&self) -> Rc<Share> {
        let share = Rc::<Share>::default();
        let mut shares = self.shares.borrow_mut();
        shares.retain(|it| it.strong_count() > 0);
        shares.push(Rc::downgrade(&share));
        share
    }

    /// Waits for a permit.
    ///
    /// # Cancellation
    /// Dropping the future gives up the turn.
    pub async fn acquire<'a>(&'a self, share: &'a Share) -> Permit<'a> {
        if share.waiting.get() > 0 || !self.may_take(share) {
            let _waiting = Waiting::new(&share.waiting);
            loop {
                share.turn.notified().await;
                if self.may_take(share) {
                    break;
                }
            }
        }
        self.free.update(|it| it - 1);
        share.held.update(|it| it + 1);
        self.wake();
        Permit {
            permits: self,
            share,
        }
    }

    fn may_take(&self, share: &Share) -> bool {
        share.held.get() < self.free.get()
    }

    fn wake(&self) {
        let may_take = |share: &Rc<Share>| share.waiting.get() > 0 && self.may_take(share);
        let shares = self.shares.borrow();
        let woken = shares.iter().filter_map(Weak::upgrade).filter(may_take);
        woken.for_each(|share| share.turn.notify_one());
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.permits.free.update(|it| it + 1);
        self.share.held.update(|it| it - 1);
        self.permits.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Takes permits of an upstream until it has to wait.
    fn take_all<'a>(permits: &'a Permits, share: &'a Share) -> Vec<Permit<'a>> {
        std::iter::from_fn(|| try_take(permits, share)).collect()
    }

    fn try_take<'a>(permits: &'a Permits, share: &'a Share) -> Option<Permit<'a>> {
        let acquiring = std::pin::pin!(permits.acquire(share));
        match acquiring.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    #[test]
    fn shares() {
        let permits = Permits::new(256);
        let shares = [(); 10].map(|()| permits.share());
        let held: Vec<_> = shares.iter().map(|it| take_all(&permits, it)).collect();
        let counts: Vec<_> = held.iter().map(Vec::len).collect();
        assert_eq!(counts, [256, 128, 64, 32, 16, 8, 4, 2, 1, 1]);
        assert_eq!(permits.free.get(), 0);
        drop(held);
        assert_eq!(permits.free.get(), 512);
    }

    #[test]
    fn who_waits_has_its_turn() {
        let permits = Permits::new(1);
        let [one, other] = [(); 2].map(|()| permits.share());
        let mut cx = Context::from_waker(Waker::noop());
        let held = take_all(&permits, &one);
        assert_eq!(held.len(), 1);
        let mut first = Box::pin(permits.acquire(&one));
        let mut second = Box::pin(permits.acquire(&one));
        assert!(first.as_mut().poll(&mut cx).is_pending());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert_eq!(take_all(&permits, &other).len(), 1, "another upstream's");
        drop(held);
        assert!(try_take(&permits, &one).is_none(), "others were first");
        let Poll::Ready(permit) = first.as_mut().poll(&mut cx) else {
            panic!("it was its turn");
        };
        assert!(second.as_mut().poll(&mut cx).is_pending());
        drop(permit);
        assert!(second.as_mut().poll(&mut cx).is_ready());
    }

    #[test]
    fn who_gives_up_its_turn_holds_nobody_up() {
        let permits = Permits::new(1);
        let one = permits.share();
        let mut cx = Context::from_waker(Waker::noop());
        let held = take_all(&permits, &one);
        let mut first = Box::pin(permits.acquire(&one));
        let mut second = Box::pin(permits.acquire(&one));
        assert!(first.as_mut().poll(&mut cx).is_pending());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        drop(held);
        drop(first);
        assert!(second.as_mut().poll(&mut cx).is_ready());
    }
}
