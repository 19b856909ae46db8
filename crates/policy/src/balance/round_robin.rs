//! `round-robin`: smooth weighted round-robin, as nginx does it.
//!
//! Every pick adds each eligible endpoint's weight to its credit, takes the
//! one with most credit and takes the sum of weights off it: 5:1:1 gives
//! a a b a c a a rather than a a a a a b c. It knows nothing of load: for
//! endpoints that are alike, with exchanges that are alike.

use super::View;

/// Per-worker state.
#[derive(Debug)]
pub struct RoundRobin {
    credits: Vec<i64>,
    /// Where a worker starts, so that workers do not march in step.
    seed: u64,
}

impl RoundRobin {
    /// No endpoint has credit; `seed` decides which one is first.
    pub fn new(seed: u64) -> Self {
        RoundRobin {
            credits: Vec::new(),
            seed,
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
        self.credits = vec![0; view.len()];
        if !view.is_empty() {
            // Less than any weight: it decides ties of the first round only.
            let first = (self.seed % view.len() as u64) as usize;
            self.credits[first] = 1;
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
        let mut balancer = RoundRobin::new(0);
        let picks: Vec<_> = (0..14)
            .filter_map(|_| balancer.pick(&site.view()))
            .collect();
        assert_eq!(picks, [0, 0, 1, 0, 2, 0, 0, 0, 0, 1, 0, 2, 0, 0]);
    }
}
