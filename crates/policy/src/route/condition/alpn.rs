//! A condition on the protocols that a client of TLS offers.

use super::Ask;
use crate::route::{Facts, RoutedRequest};

/// The client offers one of these protocols (ALPN).
#[derive(Debug, Clone)]
pub struct Alpn(pub Vec<String>);

impl Ask for Alpn {
    fn subject(&self) -> String {
        "alpn".into()
    }

    fn wanted(&self) -> Vec<String> {
        self.0.clone()
    }

    fn holds<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> bool {
        let is_wanted = |offered: &[u8]| self.0.iter().any(|it| it.as_bytes() == offered);
        request.facts.alpn().any(is_wanted)
    }

    fn found<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> Vec<Vec<u8>> {
        request.facts.alpn().map(<[u8]>::to_vec).collect()
    }

    #[cfg(test)]
    fn any() -> proptest::strategy::BoxedStrategy<Self> {
        use proptest::prelude::*;
        prop::collection::vec(prop::sample::select(vec!["h2".to_owned()]), 1..2)
            .prop_map(Self)
            .boxed()
    }
}
