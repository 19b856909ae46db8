//! Draws endpoints at random by weight: for `random`, and for the balancers
//! that compare a few.
//!
//! Among many endpoints a draw guesses an endpoint and keeps it with a chance
//! of its weight to the largest weight. That costs the same for any number of
//! endpoints.
//!
//! After a few guesses without success, it sums up the weights and searches the
//! sums. Guesses fail when most endpoints are down or one has nearly all the
//! weight. Among few endpoints it always sums up. Both draw with the same
//! chances.

use super::View;

/// Up to this many endpoints one pass over the weights is cheaper than
/// guesses, which the processor cannot foresee.
const FEW: usize = 32;

/// Guesses before the weights are summed up.
const GUESSES: usize = 6;

/// A worker's random generator, and its knowledge of the weights.
#[derive(Debug, Clone)]
pub(super) struct Draw {
    random: fastrand::Rng,
    /// For each endpoint the weights up to and including its own. An endpoint
    /// that is not eligible has the weight 0.
    sums: Vec<u64>,
    /// Whether `sums` belong to the present pick.
    is_summed: bool,
    /// The largest weight at the last summing: guesses are kept by it.
    most: u32,
}

impl Draw {
    /// A generator of its own for each worker.
    pub(super) fn new(seed: u64) -> Self {
        Draw {
            random: fastrand::Rng::with_seed(seed),
            sums: Vec::new(),
            is_summed: false,
            most: 0,
        }
    }

    /// One eligible endpoint.
    pub(super) fn one(&mut self, view: &View<'_>) -> Option<usize> {
        self.is_summed = false;
        self.draw(view, None)
    }

    /// Two different eligible endpoints, or the same one twice if there is no
    /// other.
    pub(super) fn two(&mut self, view: &View<'_>) -> Option<(usize, usize)> {
        let first = self.one(view)?;
        let second = self.draw(view, Some(first));
        Some((first, second.unwrap_or(first)))
    }

    /// Shows `count` eligible endpoints, some perhaps more than once.
    pub(super) fn several(
        &mut self,
        view: &View<'_>,
        count: usize,
        mut show: impl FnMut(usize),
    ) -> Option<()> {
        self.is_summed = false;
        for _ in 0..count {
            show(self.draw(view, None)?);
        }
        Some(())
    }

    /// A number from 0 up to `end`.
    pub(super) fn below(&mut self, end: f64) -> f64 {
        self.random.f64() * end
    }

    fn draw(&mut self, view: &View<'_>, except: Option<usize>) -> Option<usize> {
        if !self.is_summed {
            if view.len() > FEW
                && let Some(index) = self.guess(view, except)
            {
                return Some(index);
            }
            self.sum_up(view);
        }
        self.search(except)
    }

    fn guess(&mut self, view: &View<'_>, except: Option<usize>) -> Option<usize> {
        for _ in 0..GUESSES {
            let random = self.random.u64(..);
            let index = (((random >> 32) * view.len() as u64) >> 32) as usize;
            if Some(index) == except || !view.is_eligible(index) {
                continue;
            }
            let weight = view.weight(index);
            if weight > self.most {
                // It grew: the chances are unknown until they are summed up.
                return None;
            }
            let chance = (random & u64::from(u32::MAX)) * u64::from(self.most);
            if chance >> 32 < u64::from(weight) {
                return Some(index);
            }
        }
        None
    }

    fn sum_up(&mut self, view: &View<'_>) {
        self.sums.resize(view.len(), 0);
        let mut total = 0;
        let mut most = 0;
        for (state, sum) in view.endpoints.iter().zip(&mut self.sums) {
            let weight = if view.admits(state) {
                View::weight_of(state)
            } else {
                0
            };
            most = most.max(weight);
            total += u64::from(weight);
            *sum = total;
        }
        self.most = most;
        self.is_summed = true;
    }

    fn search(&mut self, except: Option<usize>) -> Option<usize> {
        let mut total = *self.sums.last()?;
        let mut left_out = (u64::MAX, 0);
        if let Some(except) = except {
            let before = match except {
                0 => 0,
                _ => self.sums[except - 1],
            };
            left_out = (before, self.sums[except] - before);
            total -= left_out.1;
        }
        if total == 0 {
            return None;
        }
        let mut point = self.random.u64(..total);
        if point >= left_out.0 {
            point += left_out.1;
        }
        Some(self.sums.partition_point(|&sum| sum <= point))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::Site;
    use super::*;
    use crate::endpoint::Flag;

    /// Guesses and sums must have the same chances: 40 endpoints are guessed,
    /// and one heavy one among them makes most guesses fail.
    #[test]
    fn chances_are_those_of_the_weights() {
        let mut many = vec![1; 39];
        many.push(61);
        for weights in [vec![1, 2, 5], vec![3; 40], many] {
            let site = Site::new(&weights);
            let mut draw = Draw::new(3);
            let mut counts = vec![0_u32; weights.len()];
            let draws = 200_000;
            for _ in 0..draws {
                counts[draw.one(&site.view()).expect("all are up")] += 1;
            }
            let total: u32 = weights.iter().sum();
            for (&count, &weight) in counts.iter().zip(&weights) {
                let due = f64::from(draws) * f64::from(weight) / f64::from(total);
                let error = (f64::from(count) - due).abs();
                assert!(error < 5.0 * due.sqrt() + 1.0, "{count} of {due}");
            }
        }
    }

    #[test]
    fn two_differ_and_the_second_goes_by_weight_too() {
        for count in [3, 60] {
            let mut weights = vec![1; count];
            weights[1] = 4;
            let site = Site::new(&weights);
            let mut draw = Draw::new(5);
            let mut seen = vec![0; count];
            for _ in 0..60_000 {
                let (first, second) = draw.two(&site.view()).expect("all are up");
                assert_ne!(first, second);
                if first == 0 {
                    seen[second] += 1;
                }
            }
            let ratio = f64::from(seen[1]) / f64::from(seen[2]);
            assert!((2.5..6.0).contains(&ratio), "{ratio} rather than 4");
        }
    }

    #[test]
    fn the_only_one_left_is_drawn_twice() {
        let site = Site::new(&[1; 50]);
        let mut draw = Draw::new(5);
        assert!(draw.two(&site.view()).is_some());
        for index in (0..50).filter(|&index| index != 17) {
            site.state(index).set(Flag::Down, true);
        }
        assert_eq!(draw.two(&site.view()), Some((17, 17)));
        site.state(17).set(Flag::Down, true);
        assert_eq!(draw.two(&site.view()), None);
    }
}
