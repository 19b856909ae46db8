//! The clock of schedules, leases and deadlines, which tests set.

use std::pin::Pin;
use std::time::{Duration, SystemTime};

/// A clock that tells the time of day, and waits.
pub trait Clock: Send + Sync {
    /// The time of day.
    fn now(&self) -> SystemTime;

    /// Waits as long by this clock.
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// The clock of the system. It needs the time of a tokio runtime to wait.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(tokio::time::sleep(duration))
    }
}
