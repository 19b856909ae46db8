//! A split of requests by weight, in which a key keeps its part.
//!
//! Each part has a score for each key, and the best one gets the key: weighted rendezvous
//! hashing (Schindelhauer and Schomaker, "Weighted Distributed Hash Tables", 2005). So a
//! change of weights moves only the keys that have to move, and every process agrees.

use crate::hash::{hash, mix};

/// A part of a split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    seed: u64,
    weight: u32,
}

impl Share {
    /// The part of this name, which gets keys in proportion to its weight.
    pub fn new(name: &str, weight: u32) -> Self {
        let seed = hash(name.as_bytes());
        Share { seed, weight }
    }

    /// Its weight.
    pub fn weight(&self) -> u32 {
        self.weight
    }

    /// Less is better. An exponential variable of rate `weight`: the probability of being the
    /// smallest is in proportion to the rate.
    fn score(&self, key: u64) -> f64 {
        /// Bits of a fraction of `f64`.
        const BITS: u32 = 52;
        let draw = mix(key ^ self.seed) >> (u64::BITS - BITS);
        let uniform = (draw as f64 + 0.5) / (1_u64 << BITS) as f64;
        -uniform.ln() / f64::from(self.weight)
    }
}

/// The index of the share that a key belongs to; `None` where none has a weight.
pub fn choose(shares: impl IntoIterator<Item = Share>, key: u64) -> Option<usize> {
    let shares = shares.into_iter().enumerate();
    let scores = shares.filter(|(_, it)| it.weight > 0);
    let scores = scores.map(|(index, it)| (index, it.score(key)));
    let best = scores.min_by(|(_, one), (_, other)| one.total_cmp(other));
    best.map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(weights: &[(&str, u32)]) -> Vec<Share> {
        let shares = weights
            .iter()
            .map(|(name, weight)| Share::new(name, *weight));
        shares.collect()
    }

    fn parts(shares: &[Share]) -> Vec<usize> {
        let keys = 0..100_000_u32;
        keys.map(|it| choose(shares.iter().copied(), hash(&it.to_le_bytes())).unwrap())
            .collect()
    }

    #[test]
    fn parts_are_as_large_as_their_weights() {
        for weights in [
            &[("a", 95), ("b", 5)][..],
            &[("a", 1), ("b", 1), ("c", 2)],
            &[("a", 1_000_000), ("b", 10_000)],
            &[("a", 0), ("b", 7)],
        ] {
            let shares = of(weights);
            let found = parts(&shares);
            let sum: u32 = weights.iter().map(|it| it.1).sum();
            for (index, (name, weight)) in weights.iter().enumerate() {
                let count = found.iter().filter(|it| **it == index).count() as f64;
                let share = f64::from(*weight) / f64::from(sum);
                // Six standard deviations.
                let slack = 6.0 * (1e5 * share * (1.0 - share)).sqrt();
                let expected = 1e5 * share;
                assert!(
                    (count - expected).abs() <= slack,
                    "{weights:?} {name} {count}"
                );
            }
        }
        assert_eq!(choose(of(&[("a", 0)]), 1), None);
        assert_eq!(choose([], 1), None);
    }

    #[test]
    fn a_change_of_weights_moves_only_what_it_must() {
        let before = parts(&of(&[("a", 95), ("b", 5)]));
        let after = parts(&of(&[("a", 90), ("b", 10)]));
        let moved: Vec<_> = (before.iter().zip(&after))
            .filter(|(a, b)| a != b)
            .collect();
        // Five in a hundred, all of them to `b`.
        assert!(moved.iter().all(|(_, to)| **to == 1));
        assert!((4_500..5_500).contains(&moved.len()), "{}", moved.len());
    }
}
