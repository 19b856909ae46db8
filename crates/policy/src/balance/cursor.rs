//! Where a balancer begins its search, so that ties go round.

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

    /// Remembers what was picked.
    pub(super) fn set(&mut self, index: usize) {
        self.last = index;
    }
}
