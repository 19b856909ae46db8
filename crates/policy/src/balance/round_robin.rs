//! `round-robin`: smooth weighted round-robin, as nginx does it.
//!
//! The turns are those of [`super::turns`], with every eligible endpoint as a
//! candidate. It knows nothing of load: for endpoints that are alike, with
//! exchanges that are alike.

use super::turns::Turns;
use super::{Promises, Ranking, Split, View};
use crate::members::Moved;

/// Per-worker state.
#[derive(Debug, Clone)]
pub struct RoundRobin {
    turns: Turns,
}

impl RoundRobin {
    /// `seed` decides in which order endpoints of the same weight are picked.
    pub fn new(seed: u64) -> Self {
        RoundRobin {
            turns: Turns::new(seed),
        }
    }
}

impl Ranking for RoundRobin {
    /// The eligible endpoint whose turn it is.
    fn pick(&mut self, view: &View<'_>) -> Option<usize> {
        let mut round = self.turns.begin(view.len());
        for (index, state) in view.endpoints.iter().enumerate() {
            if view.admits(state) {
                round.offer(index, f64::from(View::weight_of(state)));
            }
        }
        let all = round.total();
        round.end(all)
    }

    fn follow(&mut self, moved: &Moved) {
        self.turns.follow(moved);
    }

    fn promises(&self) -> Promises {
        Promises {
            in_flight: Split::Otherwise,
            idle: Split::ByWeight,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::Site;
    use super::*;

    #[test]
    fn turns_are_spread_and_not_in_a_row() {
        let site = Site::new(&[5, 1, 1]);
        for seed in 0..20 {
            let mut balancer = RoundRobin::new(seed);
            let mut pick = || balancer.pick(&site.view());
            let picks: Vec<_> = std::iter::from_fn(&mut pick).take(70).collect();
            for round in picks.chunks(7) {
                let of = |endpoint| round.iter().filter(|&&it| it == endpoint).count();
                assert_eq!([of(0), of(1), of(2)], [5, 1, 1], "{picks:?}");
            }
            let longest = picks.chunk_by(|a, b| a == b).map(<[_]>::len).max();
            assert!(longest <= Some(5), "{picks:?}");
        }
    }

    #[test]
    fn workers_do_not_march_in_step() {
        let site = Site::new(&[1; 100]);
        let order = |seed| {
            let mut balancer = RoundRobin::new(seed);
            let picks = std::iter::from_fn(|| balancer.pick(&site.view()));
            picks.take(100).collect::<Vec<_>>()
        };
        let (one, other) = (order(1), order(2));
        let same = one.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(same < 10, "{same} of 100");
        let next = |order: &[usize]| {
            let mut sorted = order.to_vec();
            sorted.sort_unstable();
            sorted
        };
        assert_eq!(next(&one), next(&other), "each has its turn");
    }
}
