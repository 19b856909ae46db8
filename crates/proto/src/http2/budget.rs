//! How much work a peer may make that brings nobody anything.

/// A bucket of tokens that fills with time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    /// Tokens, in thousandths.
    left: u64,
    most: u64,
    /// Thousandths that come in a millisecond: tokens in a second.
    rate: u64,
    /// When it was filled last, in milliseconds.
    filled_ms: u64,
}

impl Budget {
    /// One of `most` tokens, with `rate` new ones in a second.
    pub fn new(most: u32, rate: u32) -> Self {
        let most = u64::from(most) * 1000;
        Budget {
            left: most,
            most,
            rate: u64::from(rate),
            filled_ms: 0,
        }
    }

    /// Takes a token; `false` where there is none.
    pub fn spend(&mut self, now_ms: u64) -> bool {
        let passed = now_ms.saturating_sub(self.filled_ms);
        self.filled_ms = now_ms;
        self.left = self.most.min(self.left + passed.saturating_mul(self.rate));
        let rest = self.left.checked_sub(1000);
        self.left = rest.unwrap_or(self.left);
        rest.is_some()
    }

    /// Gives tokens for work that was worth it.
    pub fn earn(&mut self, tokens: u32) {
        self.left = self.most.min(self.left + u64::from(tokens) * 1000);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_spent_and_fills() {
        let mut budget = Budget::new(3, 10);
        assert!((0..3).all(|_| budget.spend(1_000_000)));
        assert!(!budget.spend(1_000_000));
        assert!(!budget.spend(1_000_099));
        assert!(budget.spend(1_000_100));
        assert!(!budget.spend(1_000_100));
        budget.earn(1);
        assert!(budget.spend(1_000_100));
        // Time that runs backwards gives nothing.
        assert!(!budget.spend(0));
        assert_eq!((0..100).filter(|_| budget.spend(u64::MAX)).count(), 3);
    }
}
