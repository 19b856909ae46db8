//! `two-choices`: two endpoints at random, the less loaded of them.
//!
//! The power of two random choices (M. Mitzenmacher, 1996). Nearly as even as
//! least connections, at a cost that does not grow with the number of
//! endpoints. Several proxies that share the endpoints, each with knowledge of
//! its own traffic alone, do not herd. Both endpoints are drawn by weight and
//! compared by load per weight, so that shares follow the weights when nothing
//! is busy too.

use super::draw::Draw;
use super::{Promises, Ranking, Split, View};

/// Per-worker state.
#[derive(Debug, Clone)]
pub struct TwoChoices {
    draw: Draw,
}

impl TwoChoices {
    /// A generator of its own for each worker.
    pub fn new(seed: u64) -> Self {
        TwoChoices {
            draw: Draw::new(seed),
        }
    }
}

impl Ranking for TwoChoices {
    /// The less loaded of two; the first drawn of a tie.
    fn pick(&mut self, view: &View<'_>) -> Option<usize> {
        let (first, second) = self.draw.two(view)?;
        let scaled = |index, other| u64::from(view.load(index)) * u64::from(view.weight(other));
        Some(if scaled(second, first) < scaled(first, second) {
            second
        } else {
            first
        })
    }

    fn promises(&self) -> Promises {
        Promises {
            in_flight: Split::NearlyByWeight,
            idle: Split::ByWeight,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::Site;
    use super::*;

    #[test]
    fn of_two_the_less_loaded() {
        let mut site = Site::new(&[1, 3]);
        let mut balancer = TwoChoices::new(1);
        for (loads, picked) in [([1, 2], 1), ([1, 4], 0), ([0, 1], 0), ([1, 0], 1)] {
            site.load(&loads);
            for _ in 0..50 {
                assert_eq!(balancer.pick(&site.view()), Some(picked), "{loads:?}");
            }
        }
    }

    #[test]
    fn the_most_loaded_of_many_is_never_picked() {
        let mut site = Site::new(&[1; 50]);
        let mut loads = [3; 50];
        loads[20] = 9;
        site.load(&loads);
        let mut balancer = TwoChoices::new(1);
        for _ in 0..2_000 {
            assert_ne!(balancer.pick(&site.view()), Some(20));
        }
    }
}
