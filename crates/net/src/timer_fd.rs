//! Timers of the kernel's (timerfd_create(2)), which the event loop waits for as
//! for any socket.
//!
//! A timeout of the wait itself is set and taken back by the kernel each time,
//! and the time is asked for before and after.

use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::Timespec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::poller::{Interest, Side, Source};

/// A timer that belongs to this thread's poller.
#[derive(Debug)]
pub struct TimerFd(Source<OwnedFd>);

impl TimerFd {
    /// A timer that is not set.
    ///
    /// # Errors
    /// No descriptor is left, or no memory.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Source::new(timer, Interest::Read).map(TimerFd)
    }

    /// Sets the timer to expire after `first`, and then with every `period` unless that is
    /// zero. It replaces the setting before.
    ///
    /// # Errors
    /// `first` is longer than the kernel can count.
    pub fn set(&self, first: Duration, period: Duration) -> io::Result<()> {
        let time = |it: Duration| Timespec::try_from(it).map_err(io::Error::other);
        let setting = Itimerspec {
            it_value: time(first)?,
            it_interval: time(period)?,
        };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &setting)?;
        Ok(())
    }

    /// Waits until it has expired, once or several times.
    ///
    /// # Cancellation
    /// Nothing is lost.
    pub async fn expired(&self) {
        poll_fn(|cx| self.0.poll_ready(cx, Side::Read)).await;
        // Reading the number of expirations resets it for the next period. The read finds none
        // if the timer was set again meanwhile.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
        self.0.note_blocked(Side::Read);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::tasks::Tasks;

    #[test]
    fn expires_once_or_again_and_again() {
        let tasks = Tasks::of_this_thread().expect("a set of tasks");
        let tested = tasks.run_until(async {
            let timer = TimerFd::new().expect("a timer");
            let period = Duration::from_millis(10);
            let begun = Instant::now();
            timer.set(period, period).expect("it is set");
            for _ in 0..3 {
                timer.expired().await;
            }
            assert!(begun.elapsed() >= 3 * period);
            timer.set(period / 2, Duration::ZERO).expect("it is set");
            let begun = Instant::now();
            timer.expired().await;
            assert!(begun.elapsed() >= period / 2);
            let again = timer.expired();
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(std::pin::pin!(again).poll(&mut cx).is_pending());
        });
        tested.expect("the event loop runs");
    }
}
