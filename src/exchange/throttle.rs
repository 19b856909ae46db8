//! Paces the bytes to a client, by the `bandwidth` of the route.
//!
//! A response books a few bytes at a time, and writes them at the booked time. Until then it
//! waits with its own timer. All ways of writing to the client go through here; a write then
//! finds that the client accepts nothing now. So an endpoint's response is taken ahead as for a
//! slow client, and its slot is freed.
//!
//! Invariant: a wait for the bandwidth is not the client's fault. While [`Throttle::is_waiting`],
//! no timeout of the client ends the exchange, and no least rate is judged.

use std::rc::Rc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use evenkeel_policy::Instant;

use super::context::Worker;
use crate::limits::Share;
use crate::net::clock;
use crate::net::timer::{TICK, Timer};

/// Interval at which a waiting response checks whether earlier ones have left.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Holds a response back that exceeds its rate.
#[derive(Debug)]
pub(super) struct Throttle {
    worker: Rc<Worker>,
    timer: Timer,
    shares: Vec<Share>,
    /// Most bytes to book at once.
    quantum: usize,
    /// Booked bytes that are not written.
    booked: usize,
    /// Start of the present wait, if it waits.
    waits_since: Option<Instant>,
    /// Sum of its waits.
    waited: Duration,
}

impl Throttle {
    /// For a response with these shares of bandwidths; all of them apply.
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

    /// Whether it holds the response back now.
    pub fn is_waiting(&self) -> bool {
        self.waits_since.is_some()
    }

    /// Total time for which it has held the response back.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// How many of `len` bytes may be written now; at least one.
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

    /// The time at which the booked bytes may be written.
    fn ready(&mut self) -> Instant {
        let ready = self.shares.iter_mut().map(Share::ready).max();
        ready.unwrap_or(Instant::from_nanos(0))
    }

    /// The same without waiting; `None` if there are none.
    ///
    /// Invariant: no more is booked than there is to write. Otherwise others with its key would
    /// wait for bytes that are never sent.
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
