//! `shortest-queue`: least exchanges in flight; ties by round-robin.
//!
//! lighttpd's SQF, without its bias towards the first endpoint of a tie.
//! Weights count: in flight per unit of weight is compared, so that idle
//! endpoints tie whatever their weights. A sound choice where no weights are
//! set and nothing is to be learned.

use super::View;
use super::cursor::Cursor;

/// Per-worker state.
#[derive(Debug, Clone)]
pub struct ShortestQueue {
    cursor: Cursor,
}

impl ShortestQueue {
    /// Workers begin at different endpoints.
    pub fn new(seed: u64) -> Self {
        ShortestQueue {
            cursor: Cursor::new(seed),
        }
    }

    /// The eligible endpoint with the least load, searching from the one after
    /// the last picked.
    pub fn pick(&mut self, view: &View<'_>) -> Option<usize> {
        let start = self.cursor.next(view.len());
        let index = view.least_from(start, |_, state| {
            f64::from(state.load()) / f64::from(View::weight_of(state))
        })?;
        self.cursor.set(index);
        Some(index)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::Site;
    use super::*;

    #[test]
    fn the_least_loaded_and_then_the_next_in_turn() {
        let mut site = Site::new(&[1, 1, 1, 1]);
        site.load(&[2, 1, 1, 3]);
        let mut balancer = ShortestQueue::new(0);
        let picks: Vec<_> = (0..4).filter_map(|_| balancer.pick(&site.view())).collect();
        assert_eq!(picks, [1, 2, 1, 2]);
    }
}
