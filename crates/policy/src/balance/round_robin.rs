//! `round-robin`: smooth weighted round-robin, as nginx does it.
//!
//! Every pick adds each eligible endpoint's weight to its credit, takes the
//! one with most credit and takes the sum of weights off it: 5:1:1 gives
//! a a b a c a a rather than a a a a a b c.

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
        let mut best: Option<usize> = None;
        for index in 0..view.len() {
            if !view.is_eligible(index) {
                continue;
            }
            let weight = i64::from(view.weight(index));
            total += weight;
            self.credits[index] += weight;
            if best.is_none_or(|best| self.credits[index] > self.credits[best]) {
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
