//! Weighted rendezvous: which endpoint a key belongs to.
//!
//! Each endpoint draws a number u between 0 and 1 from the hash of the key and
//! of its name. The least -ln(u) / weight wins. The shares follow the weights,
//! and a change of one endpoint moves no key between the others (Thaler and
//! Ravishankar, 1998; Schindelhauer and Schomaker, 2005, for the weights).
//!
//! Most endpoints are seen to lose without a logarithm, which would cost ten
//! times as much as everything else.

use crate::hash::mix;

/// 2^-53: makes a number below 1 of 53 bits.
const UNIT: f64 = 1.0 / (1_u64 << 53) as f64;

/// The draw of an endpoint for a key, as 1 - u: less is better.
pub(super) fn draw(key: u64, identity: u64) -> f64 {
    // Mixed after they are joined: lighttpd only joins two hashes, and that
    // gives one of five endpoints 2.4 times its share.
    (mix(key ^ identity) >> 11) as i64 as f64 * UNIT
}

/// The endpoint that won so far, and its draw.
#[derive(Debug)]
pub(super) struct Rendezvous {
    best: Option<usize>,
    number: f64,
    weight: f64,
    /// A little more than its -ln(u) / weight.
    limit: f64,
}

impl Rendezvous {
    /// Nobody has come.
    pub(super) fn new() -> Self {
        Rendezvous {
            best: None,
            number: 1.0,
            weight: 0.0,
            limit: f64::INFINITY,
        }
    }

    /// An endpoint that drew `number` takes part, unless it `is_out`.
    pub(super) fn meet(
        &mut self,
        index: usize,
        number: f64,
        weight: f64,
        is_out: impl FnOnce() -> bool,
    ) {
        // Most leave here, as -ln(1 - x) >= x, so that this is foreseen.
        if number >= self.limit * weight || is_out() || !self.loses_to(number, weight) {
            return;
        }
        *self = Rendezvous {
            best: Some(index),
            number,
            weight,
            limit: at_most(number) / weight,
        };
    }

    /// Whether -ln(1 - x) over the weight is less than the best one's.
    fn loses_to(&self, number: f64, weight: f64) -> bool {
        if weight == self.weight {
            return number < self.number;
        }
        if at_least(number) * self.weight >= at_most(self.number) * weight {
            return false;
        }
        if at_most(number) * self.weight < at_least(self.number) * weight {
            return true;
        }
        // 1 - x is exact.
        -(1.0 - number).ln() * self.weight < -(1.0 - self.number).ln() * weight
    }

    /// The winner.
    pub(super) fn best(&self) -> Option<usize> {
        self.best
    }
}

/// A bound of -ln(1 - x): the beginning of its series.
fn at_least(number: f64) -> f64 {
    number * (1.0 + number * (0.5 + number * (1.0 / 3.0)))
}

/// A bound of -ln(1 - x): the trapezoid over its derivative.
fn at_most(number: f64) -> f64 {
    number * (0.5 + 0.5 / (1.0 - number))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_hold() {
        for step in 1..1_000 {
            let number = f64::from(step) / 1_000.0;
            let exact = -(1.0 - number).ln();
            assert!(at_least(number) <= exact && exact <= at_most(number));
        }
    }
}
