//! `shortest-queue`: least exchanges in flight; ties by round-robin.
//!
//! lighttpd's SQF, without its bias towards the first endpoint of a tie.
//! Weights count: in flight per unit of weight is compared.

use super::View;

/// Per-worker state.
#[derive(Debug)]
pub struct ShortestQueue {
    cursor: usize,
}

impl ShortestQueue {
    /// Workers begin at different endpoints.
    pub fn new(seed: u64) -> Self {
        ShortestQueue {
            cursor: (seed % 1024) as usize,
        }
    }

    /// The eligible endpoint with the least load, searching from the one after
    /// the last picked.
    pub fn pick(&mut self, view: &View<'_>) -> Option<usize> {
        let count = view.len();
        if count == 0 {
            return None;
        }
        let start = (self.cursor + 1) % count;
        let mut best: Option<(usize, u64, u64)> = None;
        for index in (start..count).chain(0..start) {
            if !view.is_eligible(index) {
                continue;
            }
            let load = u64::from(view.load(index));
            let weight = u64::from(view.weight(index)).max(1);
            if best
                .is_none_or(|(_, best_load, best_weight)| load * best_weight < best_load * weight)
            {
                best = Some((index, load, weight));
            }
        }
        let (index, ..) = best?;
        self.cursor = index;
        Some(index)
    }
}
