//! Places for futures, used again.
//!
//! An active connection needs kilobytes of state, and an idle one must not hold
//! them. Neither may cost an allocation for each request.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;

use super::Hint;

/// Places kept for reuse.
const KEPT: usize = 512;

/// Free places for one type of future; per worker.
#[derive(Debug)]
pub(super) struct FuturePool<F> {
    free: RefCell<Vec<Pin<Box<Option<F>>>>>,
}

impl<F: Future> FuturePool<F> {
    pub fn new() -> Self {
        FuturePool {
            free: RefCell::new(Vec::new()),
        }
    }

    /// Runs the future that `begin` gives in a place of the pool. A future that
    /// was passed itself would be a part of the waiting future.
    ///
    /// # Cancellation
    /// Dropping this drops the future and frees its place.
    pub fn run(&self, begin: impl FnOnce() -> F) -> impl Future<Output = F::Output> {
        let reused = self.free.borrow_mut().pop();
        let mut place = reused.unwrap_or_else(|| Box::pin(None));
        place.set(Some(begin()));
        Hint::Exchange.set(&*place);
        async move {
            let output = poll_fn(|cx| {
                let running = place.as_mut().as_pin_mut().expect("it was set just now");
                running.poll(cx)
            })
            .await;
            place.set(None);
            let mut free = self.free.borrow_mut();
            if free.len() < KEPT {
                free.push(place);
            }
            output
        }
    }
}
