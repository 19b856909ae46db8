//! `random`: a live endpoint at random, by weight.
//!
//! What lighttpd's mod_proxy_core called round-robin.

use super::View;

/// Per-worker state.
#[derive(Debug)]
pub struct Random {
    random: fastrand::Rng,
}

impl Random {
    /// A generator of its own for each worker.
    pub fn new(seed: u64) -> Self {
        Random {
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Draws among the eligible endpoints, each by its weight.
    pub fn pick(&mut self, view: &View<'_>) -> Option<usize> {
        let eligible = || (0..view.len()).filter(|&index| view.is_eligible(index));
        let total: u64 = eligible().map(|index| u64::from(view.weight(index))).sum();
        if total == 0 {
            return None;
        }
        let mut rest = self.random.u64(..total);
        for index in eligible() {
            let weight = u64::from(view.weight(index));
            if rest < weight {
                return Some(index);
            }
            rest -= weight;
        }
        // A weight fell between the two passes: any eligible one will do.
        eligible().next()
    }
}
