//! The queue between the workers and a writing thread.
//!
//! A lock and a condition variable are enough: buffers are large, so a worker comes here a few
//! hundred times a second at most. The thread is woken after the unlock. Otherwise it would block
//! on the lock where both share a core.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::observe::access_log::{Batch, Entries};

/// Most bytes of queued exchanges; beyond it lines are dropped.
const WAITING_SIZE: usize = 16 * 1024 * 1024;
/// Empty buffers that are kept for workers.
const SPARE_BUFFERS: usize = 4;

/// Exchanges on their way to one destination.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
    /// Whether the newest configuration no longer has the destination.
    has_left: AtomicBool,
}

#[derive(Debug, Default)]
struct QueueState {
    /// Queued exchanges; `None` is an order to reopen the destination.
    batches: VecDeque<Option<Batch>>,
    /// Total size in bytes.
    size: usize,
    /// Empty buffers. Recently used memory is still in the processor's cache.
    spare: Vec<Entries>,
    /// Lines that were handed over and are not settled.
    unsettled: u64,
    is_awaited: bool,
    is_closed: bool,
}

/// The next order for the thread.
#[derive(Debug)]
pub(super) enum Message {
    /// Write the lines of these exchanges. The number is the size of the queued exchanges after
    /// them, in bytes.
    Write(Batch, usize),
    /// Reopen the destination.
    Reopen,
    /// Nothing arrived before the deadline.
    Quiet,
}

impl Queue {
    /// Hands exchanges over without waiting, and returns an empty buffer.
    ///
    /// # Errors
    /// Returns the exchanges while the queue is full.
    pub fn send(&self, batch: Batch) -> Result<Entries, Batch> {
        let mut state = self.lock();
        let size = state.size + batch.entries.size();
        if size > WAITING_SIZE || state.is_closed {
            return Err(batch);
        }
        state.size = size;
        state.unsettled += batch.entries.len();
        state.batches.push_back(Some(batch));
        let empty = state.spare.pop().unwrap_or_default();
        self.wake(state);
        Ok(empty)
    }

    /// Orders the destination to be reopened, after the queued lines.
    pub fn reopen(&self) {
        let mut state = self.lock();
        if !matches!(state.batches.back(), Some(None)) {
            state.batches.push_back(None);
        }
        self.wake(state);
    }

    /// Sets whether the newest configuration no longer has the destination.
    pub fn set_left(&self, has_left: bool) {
        self.has_left.store(has_left, Ordering::Relaxed);
    }

    /// Whether the newest configuration no longer has the destination.
    pub fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Relaxed)
    }

    /// Closes the queue to further exchanges.
    pub fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        self.wake(state);
    }

    /// Waits for the next order, until `deadline` if there is one; `None` when the queue is
    /// closed and empty.
    pub fn next(&self, deadline: Option<Instant>) -> Option<Message> {
        let mut state = self.lock();
        loop {
            match state.batches.pop_front() {
                Some(Some(batch)) => {
                    state.size -= batch.entries.size();
                    return Some(Message::Write(batch, state.size));
                }
                Some(None) => return Some(Message::Reopen),
                None if state.is_closed => return None,
                None => {}
            }
            let left = deadline.map(|it| it.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Some(Message::Quiet);
            }
            state.is_awaited = true;
            state = match left {
                None => self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            state.is_awaited = false;
        }
    }

    /// Takes back the buffer of finished exchanges.
    pub fn give_back(&self, mut entries: Entries) {
        entries.clear();
        let mut state = self.lock();
        if state.spare.len() < SPARE_BUFFERS {
            state.spare.push(entries);
        }
    }

    /// Settles this many lines: they are written, or lost and counted.
    pub fn settle(&self, lines: u64) {
        self.lock().unsettled -= lines;
    }

    /// Number of lines that are not settled.
    pub fn unsettled(&self) -> u64 {
        self.lock().unsettled
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // No step under the lock leaves it inconsistent, so a panic does no harm.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, state: MutexGuard<'_, QueueState>) {
        let is_awaited = state.is_awaited;
        drop(state);
        if is_awaited {
            self.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn hands_over_in_order_and_gives_buffers_back() {
        let queue = Queue::default();
        assert!(queue.send(Batch::of_nothing(1)).is_ok());
        queue.reopen();
        queue.reopen();
        assert!(queue.send(Batch::of_nothing(2)).is_ok());
        assert_eq!(queue.unsettled(), 3);
        let behind = Batch::of_nothing(2).entries.size();
        let first = match queue.next(None) {
            Some(Message::Write(first, size)) if size == behind => first,
            other => panic!("exchanges, with two behind them: {other:?}"),
        };
        queue.settle(first.entries.len());
        queue.give_back(first.entries);
        assert!(matches!(queue.next(None), Some(Message::Reopen)));
        assert!(matches!(queue.next(None), Some(Message::Write(_, 0))));
        assert_eq!(queue.unsettled(), 2);
        let empty = queue.send(Batch::of_nothing(1)).expect("there is room");
        assert!(empty.is_empty());
        assert!(queue.lock().spare.is_empty());
        queue.close();
        assert!(matches!(queue.next(None), Some(Message::Write(..))));
        assert!(queue.next(None).is_none());
        assert!(queue.send(Batch::of_nothing(1)).is_err());
    }

    #[test]
    fn is_bounded() {
        let queue = Queue::default();
        let quarter = WAITING_SIZE / Batch::of_nothing(1).entries.size() / 4;
        for _ in 0..4 {
            assert!(queue.send(Batch::of_nothing(quarter)).is_ok());
        }
        let back = queue.send(Batch::of_nothing(7)).expect_err("it is full");
        assert_eq!(back.entries.len(), 7);
        assert_eq!(queue.unsettled(), 4 * quarter as u64);
        assert!(matches!(queue.next(None), Some(Message::Write(..))));
        assert!(queue.send(back).is_ok());
    }

    #[test]
    fn waits_no_longer_than_it_is_told() {
        let queue = Arc::new(Queue::default());
        let deadline = Instant::now() + Duration::from_millis(20);
        assert!(matches!(queue.next(Some(deadline)), Some(Message::Quiet)));
        assert!(Instant::now() >= deadline);
        let sender = queue.clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            sender.send(Batch::of_nothing(1)).is_ok()
        });
        assert!(matches!(queue.next(None), Some(Message::Write(..))));
        assert!(thread.join().expect("it sends"));
    }
}
