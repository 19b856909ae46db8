//! Weighted rendezvous: which endpoint a key belongs to.
//!
//! Each endpoint draws a number u between 0 and 1 from the hash of the key and
//! of what it is known by; the least -ln(u) / weight wins. The shares are as
//! the weights, and what happens to one endpoint moves no key between the
//! others (Thaler and Ravishankar, 1998; Schindelhauer and Schomaker, 2005,
//! for the weights).
//!
//! Most endpoints are seen to lose without a logarithm, which would cost ten
//! times as much as everything else.

use crate::hash::mix;

/// 2^-53: makes a number below 1 of 53 bits.
const UNIT: f64 = 1.0 / (1_u64 << 53) as f64;

/// What an endpoint draws for a key, as 1 - u: less is better.
pub(super) fn draw(key: u64, identity: u64) -> f64 {
    // Mixed after they are joined: lighttpd only joins two hashes, and that
    // gives one of five endpoints 2.4 times its share.
    (mix(key ^ identity) >> 11) as i64 as f64 * UNIT
}

/// The endpoint that won so far.
#[derive(Debug)]
pub(super) struct Rendezvous {
    best: Option<usize>,
    /// Its -ln(u) / weight.
    least: f64,
}

impl Rendezvous {
    /// Nobody has come.
    pub(super) fn new() -> Self {
        Rendezvous {
            best: None,
            least: f64::INFINITY,
        }
    }

    /// An endpoint that drew `number` takes part, unless it is `out`.
    pub(super) fn meet(&mut self, index: usize, number: f64, weight: f64, out: bool) {
        let limit = self.least * weight;
        // -ln(1 - x) is x + x^2 / 2 + x^3 / 3 and so on. One branch: whether
        // an endpoint is out cannot be foreseen, that most lose can be.
        let at_least = number * (1.0 + number * (0.5 + number * (1.0 / 3.0)));
        if out | (at_least >= limit) {
            return;
        }
        // 1 - number is exact.
        let number = -(1.0 - number).ln();
        if number < limit {
            self.least = number / weight;
            self.best = Some(index);
        }
    }

    /// Who won.
    pub(super) fn best(&self) -> Option<usize> {
        self.best
    }
}
