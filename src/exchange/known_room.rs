//! A worker's knowledge of room: the other workers, and searches in vain.

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
    /// Channels to all workers, including this one.
    pub(super) workers: Vec<Inquiry>,
    /// For each worker, the tick before which it is not asked, as its last answer was late.
    pub(super) not_before: Vec<Cell<u64>>,
    /// Needs for which nothing could be closed: when that was, and the number of idle clients
    /// then.
    pub(super) full: RefCell<HashMap<Need, (Instant, usize)>>,
}

impl Room {
    /// For the worker with this index.
    pub fn new(worker: usize, workers: Vec<Inquiry>) -> Self {
        Room {
            worker,
            not_before: workers.iter().map(|_| Cell::new(0)).collect(),
            workers,
            full: RefCell::default(),
        }
    }
}
