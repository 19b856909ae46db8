//! A condition that holds for a random share of the requests.

use super::Ask;
use crate::hash::mix;
use crate::route::{Facts, RoutedRequest};

/// A random share of the requests, drawn once for each request.
#[derive(Debug, Clone)]
pub struct Share {
    /// Above 0, and up to 1.
    pub part: f64,
    /// Makes its draws differ from those of other conditions.
    pub salt: u64,
}

impl Share {
    /// A number from 0 up to 1 for the request, the same whenever it is asked for.
    fn drawn<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> f64 {
        /// As many bits as a float has.
        const BITS: u32 = 53;
        let drawn = mix(request.facts.draw() ^ mix(self.salt));
        (drawn >> (u64::BITS - BITS)) as f64 / (1_u64 << BITS) as f64
    }
}

impl Ask for Share {
    fn subject(&self) -> String {
        "share".into()
    }

    fn wanted(&self) -> Vec<String> {
        vec![format!("below {}", self.part)]
    }

    fn holds<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> bool {
        self.drawn(request) < self.part
    }

    fn found<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> Vec<Vec<u8>> {
        vec![format!("{:.3}, drawn at random", self.drawn(request)).into()]
    }

    #[cfg(test)]
    fn any() -> proptest::strategy::BoxedStrategy<Self> {
        use proptest::prelude::*;
        (prop::sample::select(vec![0.1, 0.5, 1.0]), any::<u64>())
            .prop_map(|(part, salt)| Self { part, salt })
            .boxed()
    }
}
