//! `shortest-queue`: least exchanges in flight; idle endpoints in turn.
//!
//! lighttpd's SQF, without its bias towards the first endpoint of a tie.
//! Weights count as in `least-connections`, and what each is called is the
//! only difference. A sound choice where no weights are set and nothing is to
//! be learned.

use super::least::{Compared, Least, Share};
use super::{Promises, Ranking, Split, View};
use crate::endpoint::EndpointState;
use crate::members::Moved;

/// Per-worker state.
#[derive(Debug, Clone)]
pub struct ShortestQueue {
    least: Least,
}

impl ShortestQueue {
    /// Workers begin at different endpoints.
    pub fn new(seed: u64) -> Self {
        ShortestQueue {
            least: Least::new(seed),
        }
    }
}

impl Ranking for ShortestQueue {
    /// The eligible endpoint with the least load by weight.
    fn pick(&mut self, view: &View<'_>) -> Option<usize> {
        let share = |_, state: &EndpointState| Share::of_weight(state);
        self.least.pick(view, Compared::Load, share)
    }

    fn follow(&mut self, moved: &Moved) {
        self.least.follow(moved);
    }

    fn promises(&self) -> Promises {
        Promises {
            in_flight: Split::ByWeight,
            idle: Split::ByWeight,
        }
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
