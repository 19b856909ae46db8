//! Paces what goes to a client, as the `bandwidth` of the route says.
//!
//! A response books a few bytes at a time, and writes them when their moment has come.
//! Between the two it waits with a timer of its own. All ways of writing to the client go
//! through here: whoever writes finds that the client takes nothing now. So a response of
//! an endpoint is taken ahead as for a slow client, and its slot is given back.
//!
//! Invariant: a wait for the bandwidth is not the client's fault. While
//! [`Throttle::is_waiting`], no timeout of the client's ends the exchange, and no least
//! rate is judged.

use std::rc::Rc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use evenkeel_policy::Instant;

use super::context::Worker;
use crate::limits::Share;
use crate::net::clock;
use crate::net::timer::{TICK, Timer};

/// How often a response that waits looks whether others before it have left.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Holds a response back where it is faster than it may be.
#[derive(Debug)]
pub(super) struct Throttle {
    worker: Rc<Worker>,
    timer: Timer,
    shares: Vec<Share>,
    /// Most bytes that are booked at once.
    quantum: usize,
    /// Bytes that were booked and not written.
    booked: usize,
    /// Since when it waits for that, if it does.
    waits_since: Option<Instant>,
    /// How long it has waited in all.
    waited: Duration,
}

impl Throttle {
    /// For a response with these shares of bandwidths, all of which hold.
    pub fn new(worker: Rc<Worker>, shares: Vec<Share>) -> Self {
        let quantum = shares.iter().map(Share::quantum).min();
        Throttle {
            timer: worker.wheel.timer(),
            worker,
            quantum: quantum.unwrap_or(usize::MAX),
            shares,
            booked: 0,
            waits_since: None,
            waited: Duration::ZERO,
        }
    }

    /// Whether it holds the response back at this moment.
    pub fn is_waiting(&self) -> bool {
        self.waits_since.is_some()
    }

    /// How long it has held the response back.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// How many of `len` bytes may be written now, at least one.
    pub fn poll_booked(&mut self, cx: &TaskContext<'_>, len: usize) -> Poll<usize> {
        if let Some(booked) = self.booked_now(len) {
            return Poll::Ready(booked);
        }
        let wait = self.ready().duration_since(clock::now()).min(LOOK_AGAIN);
        let ticks = wait.as_nanos().div_ceil(TICK.as_nanos()) as u64;
        let wheel = &self.worker.wheel;
        wheel.set(&self.timer, wheel.now() + ticks.max(1));
        self.timer.register(cx);
        Poll::Pending
    }

    /// When what was booked may be written.
    fn ready(&mut self) -> Instant {
        let ready = self.shares.iter_mut().map(Share::ready).max();
        ready.unwrap_or(Instant::from_nanos(0))
    }

    /// The same without a wait; `None` where there are none.
    ///
    /// Invariant: no more is booked than there is to write. Others of its key would wait
    /// for what is never sent.
    pub fn booked_now(&mut self, len: usize) -> Option<usize> {
        if len == 0 || (self.booked > 0 && self.waits_since.is_none()) {
            return Some(self.booked.min(len));
        }
        let now = clock::now();
        if self.booked == 0 {
            self.booked = self.quantum.min(len);
            for share in &mut self.shares {
                share.book(self.booked, now);
            }
        }
        if self.ready() > now {
            self.waits_since.get_or_insert(now);
            return None;
        }
        if let Some(since) = self.waits_since.take() {
            self.waited += now.duration_since(since);
        }
        Some(self.booked.min(len))
    }

    /// Notes that bytes were written.
    pub fn wrote(&mut self, bytes: usize) {
        self.booked = self.booked.saturating_sub(bytes);
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        let now = clock::now();
        for share in &self.shares {
            share.give_back(self.booked, now);
        }
    }
}
