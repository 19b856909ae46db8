//! A condition on the listener.

use super::Ask;
use crate::route::{Facts, RoutedRequest};

/// The connection came by one of these listeners, by index.
#[derive(Debug, Clone)]
pub struct Listener(pub Vec<usize>);

impl Ask for Listener {
    fn subject(&self) -> String {
        "listener".into()
    }

    fn wanted(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }

    fn holds<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> bool {
        self.0.contains(&request.facts.listener())
    }

    fn found<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> Vec<Vec<u8>> {
        vec![request.facts.listener().to_string().into()]
    }

    #[cfg(test)]
    fn any() -> proptest::strategy::BoxedStrategy<Self> {
        use proptest::prelude::*;
        prop::collection::vec(0..3usize, 1..3)
            .prop_map(Self)
            .boxed()
    }
}
