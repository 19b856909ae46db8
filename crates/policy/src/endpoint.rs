//! What every worker knows of an endpoint: its load, limit and state.
//!
//! Shared between workers: atomics on a cache line of their own, and nothing
//! else is shared on the fast path.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// What the operator wants of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admin {
    /// Takes part.
    Ready,
    /// Finishes what it has, gets nothing new.
    Drain,
    /// Out of service.
    Stop,
}

/// What was observed of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Answers.
    Up,
    /// Does not.
    Down,
}

/// Bit of `flags`: observed to be down.
const DOWN: u8 = 1;
/// Bit of `flags`: the operator drains it.
const DRAIN: u8 = 2;
/// Bit of `flags`: the operator stopped it.
const STOP: u8 = 4;

/// One endpoint's shared state.
#[derive(Debug)]
#[repr(align(128))]
pub struct EndpointState {
    in_flight: AtomicU32,
    /// `u32::MAX` is no limit.
    max_in_flight: AtomicU32,
    weight: AtomicU32,
    flags: AtomicU8,
}

impl EndpointState {
    /// An endpoint with nothing in flight, up and ready.
    pub fn new(weight: u32, max_in_flight: Option<u32>) -> Self {
        EndpointState {
            in_flight: AtomicU32::new(0),
            max_in_flight: AtomicU32::new(max_in_flight.unwrap_or(u32::MAX)),
            weight: AtomicU32::new(weight),
            flags: AtomicU8::new(0),
        }
    }

    /// Exchanges in flight over all workers.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Share of the traffic relative to the other endpoints.
    pub fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }

    /// Whether it may get new exchanges at all.
    pub fn is_eligible(&self) -> bool {
        self.flags.load(Ordering::Relaxed) == 0 && self.weight() > 0
    }

    /// Whether it is below its limit at this moment.
    pub fn has_room(&self) -> bool {
        self.in_flight() < self.max_in_flight.load(Ordering::Relaxed)
    }

    /// Takes one place below the limit, unless there is none.
    pub fn try_reserve(&self) -> bool {
        let limit = self.max_in_flight.load(Ordering::Relaxed);
        self.in_flight
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |count| {
                (count < limit).then_some(count + 1)
            })
            .is_ok()
    }

    /// Gives back a place taken by [`try_reserve`](Self::try_reserve).
    pub fn release(&self) {
        let before = self.in_flight.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "a place was given back twice");
    }

    /// Records what was observed.
    pub fn set_health(&self, health: Health) {
        self.set_flag(DOWN, health == Health::Down);
    }

    /// Records what the operator wants.
    pub fn set_admin(&self, admin: Admin) {
        self.set_flag(DRAIN, admin == Admin::Drain);
        self.set_flag(STOP, admin == Admin::Stop);
    }

    fn set_flag(&self, flag: u8, on: bool) {
        if on {
            self.flags.fetch_or(flag, Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!flag, Ordering::Relaxed);
        }
    }
}
