//! Timeouts: a coarse clock and a wheel, one per worker.
//!
//! Moving a deadline later costs one store: the wheel looks at an entry when the entry's slot
//! comes round, and puts it back if its deadline has moved on. Only a deadline before the
//! entry's slot needs a new place. A timeout may be up to two ticks late and is never early.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::tasks;

/// Length of a tick.
pub const TICK: Duration = Duration::from_millis(100);
const TICKS_PER_SECOND: u64 = 1_000 / TICK.as_millis() as u64;
/// Slots of the wheel: a turn takes 51.2 s, longer waits go round again.
const SLOTS: usize = 512;
/// Timers kept for reuse.
const SPARE_MAX: usize = 1024;
/// A deadline that never comes.
const NEVER: u64 = u64::MAX;

/// The wheel of one worker.
#[derive(Debug)]
pub struct Wheel {
    now: Cell<u64>,
    /// Whether time is up for everybody.
    is_stopped: Cell<bool>,
    slots: Box<[RefCell<Vec<Weak<TimerEntry>>>]>,
    /// Unused timers, for reuse.
    spare: RefCell<Vec<Timer>>,
}

#[derive(Debug)]
struct TimerEntry {
    /// Tick at which it fires.
    deadline: Cell<u64>,
    /// Earliest tick at which the wheel will look at it.
    place: Cell<u64>,
    waker: RefCell<Option<Waker>>,
}

/// One task's timeout; a task has one at a time. A copy is the same timeout.
#[derive(Debug, Clone)]
pub struct Timer {
    entry: Rc<TimerEntry>,
}

impl Default for Wheel {
    fn default() -> Self {
        Wheel {
            now: Cell::new(0),
            is_stopped: Cell::new(false),
            slots: (0..SLOTS).map(|_| RefCell::default()).collect(),
            spare: RefCell::default(),
        }
    }
}

impl Wheel {
    /// A timer that is not set.
    pub fn timer(&self) -> Timer {
        Timer {
            entry: Rc::new(TimerEntry {
                deadline: Cell::new(NEVER),
                place: Cell::new(NEVER),
                waker: RefCell::new(None),
            }),
        }
    }

    /// A timer that is not set, for a short task, which [keeps](Self::keep) it at its end. A
    /// timer that is dropped instead stays in the wheel until its deadline. With short tasks
    /// these would be many.
    pub fn spare_timer(&self) -> Timer {
        let spare = self.spare.borrow_mut().pop();
        spare.unwrap_or_else(|| self.timer())
    }

    /// Keeps a timer for the next [`spare_timer`](Self::spare_timer).
    pub fn keep(&self, timer: Timer) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE_MAX && Rc::strong_count(&timer.entry) == 1 {
            timer.entry.deadline.set(NEVER);
            timer.entry.waker.take();
            spare.push(timer);
        }
    }

    /// The present tick.
    pub fn now(&self) -> u64 {
        self.now.get()
    }

    /// The tick in which a wait that starts now and lasts `timeout` is over.
    pub fn deadline(&self, timeout: Duration) -> u64 {
        let whole = timeout.as_secs().saturating_mul(TICKS_PER_SECOND);
        let rest = timeout.subsec_nanos().div_ceil(TICK.subsec_nanos());
        let ticks = whole.saturating_add(u64::from(rest));
        self.now.get() + 1 + ticks.min(u64::from(u32::MAX))
    }

    /// Sets `timer` to a tick given by [`deadline`](Self::deadline).
    pub fn set(&self, timer: &Timer, deadline: u64) {
        let entry = &timer.entry;
        entry.deadline.set(deadline);
        // A deadline that has passed already fires with the next tick: a place
        // in the past would never be looked at, nor be left for a later one.
        let tick = deadline.max(self.now.get() + 1);
        if tick < entry.place.get() {
            self.put(entry, tick);
        }
    }

    fn put(&self, entry: &Rc<TimerEntry>, tick: u64) {
        entry.place.set(tick);
        self.slots[(tick % SLOTS as u64) as usize]
            .borrow_mut()
            .push(Rc::downgrade(entry));
    }

    /// Advances the time to `elapsed` since the wheel was made, and wakes the tasks whose
    /// deadline has come. Returns how late the first of the passed ticks is.
    pub fn advance(&self, elapsed: Duration) -> Duration {
        let due = Duration::from_millis((self.now.get() + 1) * TICK.as_millis() as u64);
        let target = (elapsed.as_millis() / TICK.as_millis()) as u64;
        while self.now.get() < target {
            let tick = self.now.get() + 1;
            self.now.set(tick);
            self.turn(tick);
        }
        elapsed.saturating_sub(due)
    }

    fn turn(&self, tick: u64) {
        let slot = &self.slots[(tick % SLOTS as u64) as usize];
        let due = std::mem::take(&mut *slot.borrow_mut());
        let mut stay = Vec::new();
        for weak in due {
            let Some(entry) = weak.upgrade() else {
                continue;
            };
            let place = entry.place.get();
            if place > tick && place % SLOTS as u64 == tick % SLOTS as u64 {
                // A turn of the wheel too early.
                stay.push(weak);
            } else if place == tick {
                entry.place.set(NEVER);
                let deadline = entry.deadline.get();
                if deadline > tick && deadline != NEVER {
                    self.put(&entry, deadline);
                } else if deadline <= tick {
                    entry.wake();
                }
            }
            // Otherwise it has an earlier place elsewhere.
        }
        if !stay.is_empty() {
            slot.borrow_mut().append(&mut stay);
        }
    }

    /// Wakes every task with a timer in the wheel.
    pub fn wake_all(&self) {
        for slot in &self.slots {
            for weak in slot.borrow().iter() {
                if let Some(entry) = weak.upgrade() {
                    entry.wake();
                }
            }
        }
    }

    /// Whether the deadline of `timer` has come, or time is up for everybody.
    pub fn has_fired(&self, timer: &Timer) -> bool {
        timer.entry.deadline.get() <= self.now.get() || self.is_stopped.get()
    }

    /// Waits for so long, or until time is up for everybody.
    pub async fn sleep(&self, time: Duration) {
        let timer = self.timer();
        self.set(&timer, self.deadline(time));
        poll_fn(|cx| {
            timer.register(cx);
            if self.has_fired(&timer) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    /// Fires every timer, those set later included.
    pub fn stop(&self) {
        self.is_stopped.set(true);
        self.wake_all();
    }

    /// Whether [`stop`](Self::stop) was called.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.get()
    }
}

impl TimerEntry {
    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }
}

impl Timer {
    /// Prefetches its memory before this task is next polled (see [`tasks`]).
    pub fn hint_prefetch(&self, hint: usize) {
        tasks::hint_prefetch(hint, &*self.entry, size_of::<TimerEntry>());
    }

    /// Names the task to wake; once is enough, for a task keeps its waker.
    pub fn register(&self, cx: &Context<'_>) {
        *self.entry.waker.borrow_mut() = Some(cx.waker().clone());
    }

    /// Names the task that awaits this, which goes on at once.
    pub async fn register_task(&self) {
        poll_fn(|cx| {
            self.register(cx);
            Poll::Ready(())
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use evenkeel_testkit::Wakes;

    use super::*;

    fn registered(wheel: &Wheel) -> (Timer, Arc<Wakes>) {
        let (wakes, waker) = Wakes::of_new_waker();
        let timer = wheel.timer();
        timer.register(&Context::from_waker(&waker));
        (timer, wakes)
    }

    /// The time in ms at which a timer fires under the given moves of its
    /// deadline: (at ms, timeout in ms).
    fn fires_at(moves: &[(u64, u64)], until: u64) -> Option<u64> {
        let wheel = Wheel::default();
        let (timer, wakes) = registered(&wheel);
        for now in (0..until).step_by(50) {
            wheel.advance(Duration::from_millis(now));
            for (_, timeout) in moves.iter().filter(|(at, _)| *at == now) {
                wheel.set(&timer, wheel.deadline(Duration::from_millis(*timeout)));
            }
            if wakes.count() > 0 {
                assert!(wheel.has_fired(&timer));
                return Some(now);
            }
            assert!(!wheel.has_fired(&timer));
        }
        None
    }

    #[test]
    fn a_timer_that_is_kept_is_the_next_one() {
        let wheel = Wheel::default();
        let timer = wheel.spare_timer();
        wheel.set(&timer, 5);
        let other = timer.clone();
        wheel.keep(timer);
        // Another handle still has it.
        let next = wheel.spare_timer();
        assert!(!Rc::ptr_eq(&next.entry, &other.entry));
        wheel.keep(other);
        let again = wheel.spare_timer();
        wheel.advance(TICK * 10);
        assert!(!wheel.has_fired(&again), "it was set by somebody else");
        wheel.set(&again, 12);
        wheel.advance(TICK * 12);
        assert!(wheel.has_fired(&again));
    }

    #[test]
    fn fires_never_early_and_at_most_two_ticks_late() {
        for timeout in [1, 50, 100, 101, 250, 5_000, 51_100, 51_200, 120_000] {
            for start in [0, 50, 350] {
                let at = fires_at(&[(start, timeout)], start + timeout + 1_000).expect("fires");
                assert!(at >= start + timeout, "{timeout} at {at}");
                assert!(at <= start + timeout + 250, "{timeout} at {at}");
            }
        }
    }

    #[test]
    fn deadlines_move_later_and_earlier() {
        assert_eq!(
            fires_at(&[(0, 500), (400, 500), (800, 500)], 5_000),
            Some(1_400)
        );
        assert_eq!(fires_at(&[(0, 60_000), (100, 500)], 5_000), Some(700));
        assert_eq!(
            fires_at(
                &[(0, 500), (50, 60_000), (100, 300), (200, 90_000)],
                120_000
            ),
            Some(90_300)
        );
    }

    #[test]
    fn a_deadline_that_has_passed_spoils_no_later_one() {
        let wheel = Wheel::default();
        let (timer, wakes) = registered(&wheel);
        let early = wheel.deadline(Duration::from_millis(100));
        wheel.advance(Duration::from_secs(10));
        wheel.set(&timer, early);
        assert!(wheel.has_fired(&timer));
        wheel.set(&timer, wheel.deadline(Duration::from_millis(500)));
        assert!(!wheel.has_fired(&timer));
        wheel.advance(Duration::from_secs(100));
        assert_eq!(wakes.count(), 1);
    }

    #[test]
    fn dropped_timers_do_not_fire() {
        let wheel = Wheel::default();
        let (dropped, dropped_wakes) = registered(&wheel);
        wheel.set(&dropped, wheel.deadline(Duration::from_millis(300)));
        drop(dropped);
        wheel.advance(Duration::from_secs(100));
        assert_eq!(dropped_wakes.count(), 0);
    }
}
