//! A condition that holds where one of several does.

use super::{AllOf, Ask};
use crate::route::{Facts, RoutedRequest};

/// One of these holds.
#[derive(Debug, Clone)]
pub struct Any(pub Vec<AllOf>);

impl Ask for Any {
    fn subject(&self) -> String {
        "any".into()
    }

    fn wanted(&self) -> Vec<String> {
        Vec::new()
    }

    fn holds<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> bool {
        self.0.iter().any(|it| it.holds(request))
    }

    fn found<F: Facts>(&self, _request: &RoutedRequest<'_, F>) -> Vec<Vec<u8>> {
        Vec::new()
    }

    #[cfg(test)]
    fn any() -> proptest::strategy::BoxedStrategy<Self> {
        use proptest::strategy::Strategy;
        super::tests::alternatives().prop_map(Self).boxed()
    }
}
