//! The queue between the workers and a thread that writes.
//!
//! A lock and a condition are enough: buffers are large, so that a worker comes
//! here a few hundred times a second at most. Who waits is woken after the lock
//! was let go, or it would run into it on a core that both share.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::Lines;

/// Buffers that may wait before lines are dropped.
const BUFFERS_WAITING: usize = 64;
/// Empty buffers that are kept for workers.
const SPARE_BUFFERS: usize = 4;

/// Lines on their way to one destination.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Lines; `None` is to open the destination anew.
    entries: VecDeque<Option<Lines>>,
    /// Empty buffers: memory that was just used is in the processor's cache.
    spare: Vec<Vec<u8>>,
    /// Lines handed over that nobody said yet to have dealt with.
    unsettled: u64,
    is_awaited: bool,
    is_closed: bool,
}

/// What a thread is to do next.
#[derive(Debug)]
pub(super) enum Message {
    /// Write these lines; so many buffers wait behind them.
    Lines(Lines, usize),
    /// Open the destination anew.
    Reopen,
    /// Nothing came until the moment that was given.
    Quiet,
}

impl Queue {
    /// Hands lines over without waiting and gives an empty buffer back.
    ///
    /// # Errors
    /// Gives the lines back when too many wait.
    pub fn send(&self, lines: Lines) -> Result<Lines, Lines> {
        let mut state = self.lock();
        if state.entries.len() >= BUFFERS_WAITING || state.is_closed {
            return Err(lines);
        }
        state.unsettled += lines.count;
        state.entries.push_back(Some(lines));
        let bytes = state.spare.pop().unwrap_or_default();
        self.wake(state);
        Ok(Lines { bytes, count: 0 })
    }

    /// Asks for the destination to be opened anew, after the lines that wait.
    pub fn reopen(&self) {
        let mut state = self.lock();
        if !matches!(state.entries.back(), Some(None)) {
            state.entries.push_back(None);
        }
        self.wake(state);
    }

    /// Nothing will be handed over any more.
    pub fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        self.wake(state);
    }

    /// Waits for what is to be done next, until `deadline` if there is one;
    /// `None` when all is done and the queue was closed.
    pub fn next(&self, deadline: Option<Instant>) -> Option<Message> {
        let mut state = self.lock();
        loop {
            match state.entries.pop_front() {
                Some(Some(lines)) => return Some(Message::Lines(lines, state.entries.len())),
                Some(None) => return Some(Message::Reopen),
                None if state.is_closed => return None,
                None => {}
            }
            state.is_awaited = true;
            state = match deadline {
                None => self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        state.is_awaited = false;
                        return Some(Message::Quiet);
                    }
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            state.is_awaited = false;
        }
    }

    /// Takes the buffer of lines that were seen to.
    pub fn give_back(&self, mut bytes: Vec<u8>) {
        bytes.clear();
        let mut state = self.lock();
        if state.spare.len() < SPARE_BUFFERS {
            state.spare.push(bytes);
        }
    }

    /// So many lines are written, or lost and counted.
    pub fn settle(&self, lines: u64) {
        self.lock().unsettled -= lines;
    }

    /// Lines handed over that are not settled.
    pub fn unsettled(&self) -> u64 {
        self.lock().unsettled
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // What a panic left behind is as whole as before it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, state: MutexGuard<'_, State>) {
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

    fn lines(count: u64) -> Lines {
        Lines {
            bytes: b"x\n".repeat(count as usize),
            count,
        }
    }

    #[test]
    fn hands_over_in_order_and_gives_buffers_back() {
        let queue = Queue::default();
        assert!(queue.send(lines(1)).is_ok());
        queue.reopen();
        queue.reopen();
        assert!(queue.send(lines(2)).is_ok());
        assert_eq!(queue.unsettled(), 3);
        let Some(Message::Lines(first, 2)) = queue.next(None) else {
            panic!("lines, with two messages behind them");
        };
        queue.settle(first.count);
        queue.give_back(first.bytes);
        assert!(matches!(queue.next(None), Some(Message::Reopen)));
        assert!(matches!(queue.next(None), Some(Message::Lines(_, 0))));
        assert_eq!(queue.unsettled(), 2);
        let empty = queue.send(lines(1)).expect("there is room");
        assert!(empty.bytes.is_empty() && empty.bytes.capacity() >= 2);
        queue.close();
        assert!(matches!(queue.next(None), Some(Message::Lines(..))));
        assert!(queue.next(None).is_none());
        assert!(queue.send(lines(1)).is_err());
    }

    #[test]
    fn is_bounded() {
        let queue = Queue::default();
        for _ in 0..BUFFERS_WAITING {
            assert!(queue.send(lines(1)).is_ok());
        }
        let back = queue.send(lines(7)).expect_err("it is full");
        assert_eq!((back.count, back.bytes.len()), (7, 14));
        assert_eq!(queue.unsettled(), BUFFERS_WAITING as u64);
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
            sender.send(lines(1)).is_ok()
        });
        assert!(matches!(queue.next(None), Some(Message::Lines(..))));
        assert!(thread.join().expect("it sends"));
    }
}
