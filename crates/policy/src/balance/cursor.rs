//! The start of a balancer's search, so that ties go round.

use crate::members::Moved;

/// The endpoint picked last, by one worker.
#[derive(Debug, Clone)]
pub(super) struct Cursor {
    last: usize,
}

impl Cursor {
    /// Workers begin at different endpoints.
    pub(super) fn new(seed: u64) -> Self {
        Cursor {
            // Halved, so that one more is no overflow.
            last: (seed >> 1) as usize,
        }
    }

    /// The endpoint after the last one picked, of `count`.
    pub(super) fn next(&self, count: usize) -> usize {
        (self.last + 1) % count.max(1)
    }

    /// Takes over other members. The state of an endpoint moves with it.
    pub(super) fn follow(&mut self, moved: &Moved) {
        self.last = moved.position_of(self.last).unwrap_or(self.last);
    }

    /// Remembers the picked endpoint.
    pub(super) fn set(&mut self, index: usize) {
        self.last = index;
    }
}
