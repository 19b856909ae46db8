//! What every worker knows of an endpoint: its load, limit and state.
//!
//! Shared between workers: atomics on a cache line of their own, and nothing
//! else is shared on the fast path.

use crate::sync::{AtomicU8, AtomicU16, AtomicU32, Ordering};

/// What the operator wants of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Admin {
    /// Takes part.
    #[default]
    Ready,
    /// Finishes what it has, gets nothing new.
    Drain,
    /// Out of service.
    Stop,
}

/// Why an endpoint gets nothing new, or little: bits that add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Flag {
    /// Its probes fail.
    Down = 1,
    /// The operator drains it.
    Drain = 2,
    /// The operator stopped it.
    Stop = 4,
    /// It is out for a while, for errors in a row.
    Ejected = 8,
    /// It may have one exchange to show that it is well again.
    Trial = 16,
    /// Connections to it fail.
    Unreachable = 32,
    /// The exchange of its trial is on its way.
    Tried = 64,
}

/// Flags with which an endpoint gets nothing new.
const OUT: u8 = Flag::Down as u8
    | Flag::Drain as u8
    | Flag::Stop as u8
    | Flag::Ejected as u8
    | Flag::Unreachable as u8;
/// Flags that the operator set: they do not go away by themselves.
const UNWANTED: u8 = Flag::Drain as u8 | Flag::Stop as u8;

/// An effective weight of one.
pub const WEIGHT_ONE: u32 = 256;

/// One endpoint's shared state.
#[derive(Debug)]
#[repr(align(128))]
pub struct EndpointState {
    in_flight: AtomicU32,
    /// `u32::MAX` is no limit.
    max_in_flight: AtomicU32,
    weight: AtomicU32,
    /// Phantom exchanges: they make a failing endpoint look busier.
    ghosts: AtomicU32,
    /// Of its weight, in 256ths: less than that while it starts slowly.
    ramp: AtomicU16,
    errors_in_row: AtomicU16,
    unreachable_in_row: AtomicU16,
    flags: AtomicU8,
    /// How often it was put out, by cause: see [`Outages`].
    ejections: AtomicU32,
    downs: AtomicU32,
    unreachables: AtomicU32,
}

/// How often an endpoint was put out, by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outages {
    /// For errors in a row.
    pub ejections: u32,
    /// Because its probes failed.
    pub downs: u32,
    /// Because connections to it failed.
    pub unreachables: u32,
}

impl EndpointState {
    /// An endpoint with nothing in flight, up and ready.
    pub fn new(weight: u32, max_in_flight: Option<u32>) -> Self {
        EndpointState {
            in_flight: AtomicU32::new(0),
            max_in_flight: AtomicU32::new(max_in_flight.unwrap_or(u32::MAX)),
            weight: AtomicU32::new(weight),
            ghosts: AtomicU32::new(0),
            ramp: AtomicU16::new(WEIGHT_ONE as u16),
            errors_in_row: AtomicU16::new(0),
            unreachable_in_row: AtomicU16::new(0),
            flags: AtomicU8::new(0),
            ejections: AtomicU32::new(0),
            downs: AtomicU32::new(0),
            unreachables: AtomicU32::new(0),
        }
    }

    /// How often it was put out.
    pub fn outages(&self) -> Outages {
        Outages {
            ejections: self.ejections.load(Ordering::Relaxed),
            downs: self.downs.load(Ordering::Relaxed),
            unreachables: self.unreachables.load(Ordering::Relaxed),
        }
    }

    /// Exchanges in flight over all workers.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// What balancers take for its load: exchanges in flight and phantoms.
    pub fn load(&self) -> u32 {
        self.in_flight() + self.ghosts.load(Ordering::Relaxed)
    }

    /// Its configured share of the traffic relative to the other endpoints.
    pub fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }

    /// The share that it has now, in 256ths: its weight, less while it starts
    /// slowly.
    pub fn effective_weight(&self) -> u32 {
        self.weight()
            .saturating_mul(u32::from(self.ramp.load(Ordering::Relaxed)))
    }

    /// Changes its configured weight.
    pub fn set_weight(&self, weight: u32) {
        self.weight.store(weight, Ordering::Relaxed);
    }

    /// Changes its limit; exchanges in flight above a lower one go on.
    pub fn set_max_in_flight(&self, max_in_flight: Option<u32>) {
        self.max_in_flight
            .store(max_in_flight.unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Most exchanges in flight; `None` is no limit.
    pub fn max_in_flight(&self) -> Option<u32> {
        let limit = self.max_in_flight.load(Ordering::Relaxed);
        (limit != u32::MAX).then_some(limit)
    }

    /// Whether it may get new exchanges at all.
    pub fn is_eligible(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & OUT == 0 && self.weight() > 0
    }

    /// Whether it is down, unreachable or ejected, whatever the operator wants.
    pub fn is_lost(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & OUT & !UNWANTED != 0
    }

    /// Whether it gets exchanges, or will by itself when it is well again.
    pub fn may_return(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & UNWANTED == 0 && self.weight() > 0
    }

    /// Whether a flag is set.
    pub fn has(&self, flag: Flag) -> bool {
        self.flags.load(Ordering::Relaxed) & flag as u8 != 0
    }

    /// Sets or clears a flag, and says whether that changed it.
    pub(crate) fn set(&self, flag: Flag, on: bool) -> bool {
        let before = match on {
            true => self.flags.fetch_or(flag as u8, Ordering::Relaxed),
            false => self.flags.fetch_and(!(flag as u8), Ordering::Relaxed),
        };
        let has_changed = (before & flag as u8 != 0) != on;
        if has_changed && on {
            self.count_outage(flag);
        }
        has_changed
    }

    fn count_outage(&self, flag: Flag) {
        let count = match flag {
            Flag::Ejected => &self.ejections,
            Flag::Down => &self.downs,
            Flag::Unreachable => &self.unreachables,
            Flag::Drain | Flag::Stop | Flag::Trial | Flag::Tried => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    fn limit(&self) -> u32 {
        self.max_in_flight.load(Ordering::Relaxed)
    }

    /// Whether it may get another exchange at this moment.
    pub fn has_room(&self) -> bool {
        // Sequentially consistent with `Dispatcher::waiting`: see there.
        self.in_flight.load(Ordering::SeqCst) < self.limit()
            && !(self.has(Flag::Trial) && self.has(Flag::Tried))
    }

    /// Takes one place below the limit, and below `cap`, unless there is none.
    /// An endpoint on trial has one, whatever is left from before.
    pub(crate) fn try_reserve(&self, cap: u32) -> bool {
        let on_trial = self.has(Flag::Trial);
        if on_trial && !self.set(Flag::Tried, true) {
            return false;
        }
        let limit = self.limit().min(cap);
        // Sequentially consistent with `Dispatcher::waiting`: see there.
        let reserved = self
            .in_flight
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| {
                (count < limit).then_some(count + 1)
            })
            .is_ok();
        if on_trial && !reserved {
            self.set(Flag::Tried, false);
        }
        reserved
    }

    /// Whether a place that is being given back may go to another exchange.
    pub(crate) fn may_hand_over(&self) -> bool {
        self.is_eligible() && !self.has(Flag::Trial) && self.in_flight() <= self.limit()
    }

    /// Gives back a place taken by [`try_reserve`](Self::try_reserve).
    pub(crate) fn release(&self) {
        // Where the trial's exchange ended without a word, another may try.
        if self.has(Flag::Trial) {
            self.set(Flag::Tried, false);
        }
        let before = self.in_flight.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "a place was given back twice");
    }

    pub(crate) fn set_ghosts(&self, count: u32) {
        self.ghosts.store(count, Ordering::Relaxed);
    }

    pub(crate) fn set_ramp(&self, ramp: u16) {
        self.ramp.store(ramp, Ordering::Relaxed);
    }

    /// Errors since the last success.
    pub fn errors_in_row(&self) -> u16 {
        self.errors_in_row.load(Ordering::Relaxed)
    }

    /// Counts an error, and gives how many there were in a row.
    pub(crate) fn count_error(&self) -> u16 {
        count_up(&self.errors_in_row)
    }

    /// Counts a connection that could not be opened.
    pub(crate) fn count_unreachable(&self) -> u16 {
        count_up(&self.unreachable_in_row)
    }

    pub(crate) fn count_success(&self) {
        // Stores only where there is something to forget.
        if self.errors_in_row() > 0 {
            self.errors_in_row.store(0, Ordering::Relaxed);
        }
        self.count_reached();
    }

    pub(crate) fn count_reached(&self) {
        if self.unreachable_in_row.load(Ordering::Relaxed) > 0 {
            self.unreachable_in_row.store(0, Ordering::Relaxed);
        }
    }
}

fn count_up(count: &AtomicU16) -> u16 {
    let next = |count: u16| Some(count.saturating_add(1));
    match count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
        Ok(before) | Err(before) => before.saturating_add(1),
    }
}
