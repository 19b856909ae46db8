//! A condition on the scheme of the URL.

use super::Ask;
use crate::route::{Facts, RoutedRequest};

/// The client asked by this scheme: `http` or `https`.
#[derive(Debug, Clone)]
pub struct Scheme(pub &'static str);

impl Ask for Scheme {
    fn subject(&self) -> String {
        "scheme".into()
    }

    fn wanted(&self) -> Vec<String> {
        vec![self.0.into()]
    }

    fn holds<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> bool {
        request.facts.scheme() == self.0
    }

    fn found<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> Vec<Vec<u8>> {
        vec![request.facts.scheme().into()]
    }

    #[cfg(test)]
    fn any() -> proptest::strategy::BoxedStrategy<Self> {
        use proptest::prelude::*;
        prop::sample::select(vec!["http", "https"])
            .prop_map(Self)
            .boxed()
    }
}
