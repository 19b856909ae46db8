//! `least-connections`: least exchanges in flight by weight.
//!
//! nginx's least_conn and HAProxy's leastconn: an idle endpoint goes before
//! any that is not, whatever their weights; among the others the least
//! n / weight wins. Idle endpoints take turns by weight, as with
//! `round-robin`. For exchanges of very different length, with weights that
//! say what each endpoint can carry.

use super::least::{Compared, Least, Share};
use super::{Promises, Ranking, Split, View};
use crate::endpoint::EndpointState;
use crate::members::Moved;

/// Per-worker state.
#[derive(Debug, Clone)]
pub struct LeastConnections {
    least: Least,
}

impl LeastConnections {
    /// Workers begin at different endpoints.
    pub fn new(seed: u64) -> Self {
        LeastConnections {
            least: Least::new(seed),
        }
    }
}

impl Ranking for LeastConnections {
    /// An idle endpoint, else the one that is burdened least.
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
    fn idle_ones_first_in_turn_and_then_by_weight() {
        let mut site = Site::new(&[8, 1, 2]);
        let mut balancer = LeastConnections::new(0);
        site.load(&[1, 0, 0]);
        let mut picks: Vec<_> = (0..6).filter_map(|_| balancer.pick(&site.view())).collect();
        picks.sort_unstable();
        assert_eq!(picks, [1, 1, 2, 2, 2, 2]);
        site.load(&[6, 1, 1]);
        assert_eq!(balancer.pick(&site.view()), Some(2), "1/2 < 6/8 < 1/1");
        site.load(&[3, 1, 1]);
        assert_eq!(balancer.pick(&site.view()), Some(0), "3/8 < 1/2 < 1/1");
        // 8/8, 1/1 and 2/2: the one after the last goes first.
        site.load(&[8, 1, 2]);
        let picks: Vec<_> = (0..4).filter_map(|_| balancer.pick(&site.view())).collect();
        assert_eq!(picks, [1, 2, 0, 1]);
    }
}
