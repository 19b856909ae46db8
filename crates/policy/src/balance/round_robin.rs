//! `round-robin`: smooth weighted round-robin, as nginx does it.
//!
//! Every pick adds each eligible endpoint's weight to its credit, takes the
//! one with most credit and takes the sum of weights off it: 5:1:1 gives
//! a a b a c a a rather than a a a a a b c. It knows nothing of load: for
//! endpoints that are alike, with exchanges that are alike.

use super::View;
use crate::endpoint::WEIGHT_ONE;

/// Per-worker state.
#[derive(Debug, Clone)]
pub struct RoundRobin {
    credits: Vec<i64>,
    /// For the credits that a worker starts with, so that workers do not march
    /// in step.
    random: fastrand::Rng,
}

impl RoundRobin {
    /// `seed` decides in which order endpoints of the same weight are picked.
    pub fn new(seed: u64) -> Self {
        RoundRobin {
            credits: Vec::new(),
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// The eligible endpoint with most credit.
    pub fn pick(&mut self, view: &View<'_>) -> Option<usize> {
        if self.credits.len() != view.len() {
            self.start(view);
        }
        let mut total = 0;
        let mut most = i64::MIN;
        let mut best = None;
        for (index, (state, credit)) in view.endpoints.iter().zip(&mut self.credits).enumerate() {
            if !view.admits(index, state) {
                continue;
            }
            let weight = i64::from(View::weight_of(state));
            total += weight;
            *credit += weight;
            if *credit > most {
                most = *credit;
                best = Some(index);
            }
        }
        self.credits[best?] -= total;
        best
    }

    fn start(&mut self, view: &View<'_>) {
        // Less than a weight of one: it decides ties only.
        let credit = || self.random.i64(0..i64::from(WEIGHT_ONE));
        self.credits = std::iter::repeat_with(credit).take(view.len()).collect();
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
