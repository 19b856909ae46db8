//! A condition on the method.

use super::Ask;
use crate::route::{Facts, RoutedRequest};

/// The method is one of these.
///
/// Deviation: methods have a case (RFC 9110 section 9.1), but some endpoints take
/// `delete` for `DELETE`. A rule on one is a rule on both.
#[derive(Debug, Clone)]
pub struct Method(pub Vec<String>);

impl Ask for Method {
    fn subject(&self) -> String {
        "method".into()
    }

    fn wanted(&self) -> Vec<String> {
        self.0.clone()
    }

    fn holds<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> bool {
        let is_sent = |it: &String| request.facts.method().eq_ignore_ascii_case(it.as_bytes());
        self.0.iter().any(is_sent)
    }

    fn found<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> Vec<Vec<u8>> {
        vec![request.facts.method().to_vec()]
    }

    #[cfg(test)]
    fn any() -> proptest::strategy::BoxedStrategy<Self> {
        use proptest::prelude::*;
        prop::collection::vec("GET|POST", 1..2)
            .prop_map(Self)
            .boxed()
    }
}
