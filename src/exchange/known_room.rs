//! A worker's knowledge of room: whom it can ask, and what was asked in vain.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use evenkeel_policy::Instant;

use crate::observe::inquiry::Inquiry;
use crate::observe::sessions::Need;

/// A worker's knowledge of room.
#[derive(Debug)]
pub struct Room {
    /// The worker's index.
    pub(super) worker: usize,
    /// The way to each worker, this one included.
    pub(super) workers: Vec<Inquiry>,
    /// For each worker, the tick before which it is not asked: it did not answer
    /// in time.
    pub(super) not_before: Vec<Cell<u64>>,
    /// Of needs for which nothing could be closed: when that was, and how many
    /// clients were idle here.
    pub(super) full: RefCell<HashMap<Need, (Instant, usize)>>,
}

impl Room {
    /// Of one of these workers, by index.
    pub fn new(worker: usize, workers: Vec<Inquiry>) -> Self {
        Room {
            worker,
            not_before: workers.iter().map(|_| Cell::new(0)).collect(),
            workers,
            full: RefCell::default(),
        }
    }
}
