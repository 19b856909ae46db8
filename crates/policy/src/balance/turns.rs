//! Smooth weighted round-robin among the endpoints that tie.
//!
//! A round adds each candidate's share to its credit. The candidate with most
//! credit wins and pays the sum of the shares. So 5:1:1 gives a a b a c a a
//! rather than a a a a a b c.
//!
//! Invariant: an endpoint that is no candidate neither gains nor loses credit,
//! so that one that comes back gets no burst. Credits stay within two turns
//! either way, whatever becomes of the weights meanwhile.

use crate::endpoint::WEIGHT_ONE;
use crate::members::Moved;

/// Per-worker state.
#[derive(Debug, Clone)]
pub(super) struct Turns {
    credits: Vec<f64>,
    /// Most credit either way.
    bound: f64,
    /// For the credits that a worker starts with, so that workers do not march
    /// in step.
    random: fastrand::Rng,
}

/// One round: who of its candidates has most credit.
#[derive(Debug)]
pub(super) struct Round<'a> {
    turns: &'a mut Turns,
    total: f64,
    most: f64,
    best: Option<usize>,
}

impl Turns {
    /// `seed` decides in which order endpoints of the same weight are taken.
    pub(super) fn new(seed: u64) -> Self {
        Turns {
            credits: Vec::new(),
            bound: f64::INFINITY,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// A round without candidates yet, of an upstream of `count` endpoints.
    #[inline(always)]
    pub(super) fn begin(&mut self, count: usize) -> Round<'_> {
        if self.credits.len() != count {
            self.start(count);
        }
        Round {
            turns: self,
            total: 0.0,
            most: f64::NEG_INFINITY,
            best: None,
        }
    }

    /// Takes over other members. The state of an endpoint moves with it.
    pub(super) fn follow(&mut self, moved: &Moved) {
        let random = &mut self.random;
        moved.carry(&mut self.credits, || first_credit(random));
    }

    #[inline(never)]
    fn start(&mut self, count: usize) {
        let credit = || first_credit(&mut self.random);
        self.credits = std::iter::repeat_with(credit).take(count).collect();
    }
}

/// Less than a weight of one: it decides ties only.
fn first_credit(random: &mut fastrand::Rng) -> f64 {
    random.f64() * f64::from(WEIGHT_ONE)
}

impl Round<'_> {
    /// Lets an endpoint take part; its share is positive.
    #[inline(always)]
    pub(super) fn offer(&mut self, index: usize, share: f64) {
        let bound = self.turns.bound;
        let credit = &mut self.turns.credits[index];
        *credit = credit.max(-bound).min(bound) + share;
        self.total += share;
        if *credit > self.most {
            self.most = *credit;
            self.best = Some(index);
        }
    }

    /// The candidate whose turn it is. `all` is the sum of the shares of all
    /// eligible endpoints, candidates or not.
    #[inline(always)]
    pub(super) fn end(self, all: f64) -> Option<usize> {
        let best = self.best?;
        self.turns.credits[best] -= self.total;
        self.turns.bound = 2.0 * all;
        Some(best)
    }

    /// The sum of the candidates' shares.
    pub(super) fn total(&self) -> f64 {
        self.total
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn round(turns: &mut Turns, shares: &[f64]) -> Option<usize> {
        let mut round = turns.begin(shares.len());
        for (index, &share) in shares.iter().enumerate() {
            if share > 0.0 {
                round.offer(index, share);
            }
        }
        let all = round.total();
        round.end(all)
    }

    fn count(turns: &mut Turns, shares: &[f64], rounds: usize) -> Vec<usize> {
        let mut counts = vec![0; shares.len()];
        for _ in 0..rounds {
            counts[round(turns, shares).expect("it has candidates")] += 1;
        }
        counts
    }

    #[test]
    fn one_that_comes_back_gets_its_share_and_no_more() {
        for seed in 0..20 {
            let mut turns = Turns::new(seed);
            count(&mut turns, &[768.0, 256.0, 256.0], 7);
            count(&mut turns, &[768.0, 0.0, 256.0], 1_000);
            let counts = count(&mut turns, &[768.0, 256.0, 256.0], 50);
            for (count, due) in counts.iter().zip([30_usize, 10, 10]) {
                assert!(count.abs_diff(due) <= 1, "{counts:?}");
            }
        }
    }

    /// Turns taken at an old weight are no debt at a new one, and turns missed
    /// are no claim.
    #[test]
    fn a_changed_weight_holds_at_once() {
        let mut turns = Turns::new(3);
        count(&mut turns, &[1e6, 1.0], 700_000);
        let counts = count(&mut turns, &[1.0, 1.0], 100);
        assert!(counts[0].abs_diff(50) <= 3, "{counts:?}");
        let mut turns = Turns::new(3);
        count(&mut turns, &[1e6, 1.0], 400_000);
        let counts = count(&mut turns, &[1.0, 1.0], 100);
        assert!(counts[0].abs_diff(50) <= 3, "{counts:?}");
    }

    #[test]
    fn there_may_be_no_candidate() {
        assert_eq!(round(&mut Turns::new(3), &[0.0, 0.0]), None);
        assert_eq!(round(&mut Turns::new(3), &[]), None);
    }
}
