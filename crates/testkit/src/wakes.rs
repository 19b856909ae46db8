//! A waker that counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Wake, Waker};

/// How often a waker has been woken.
#[derive(Debug, Default)]
pub struct Wakes(AtomicU32);

impl Wakes {
    /// A new waker with its count of wakes.
    pub fn of_new_waker() -> (Arc<Self>, Waker) {
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        (wakes, waker)
    }

    /// Number of wakes so far.
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
