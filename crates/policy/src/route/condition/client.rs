//! A condition on the client's address.

use super::Ask;
use crate::route::{Facts, Network, RoutedRequest};

/// The client's address lies in one of these networks.
#[derive(Debug, Clone)]
pub struct Client(pub Vec<Network>);

impl Ask for Client {
    fn subject(&self) -> String {
        "client".into()
    }

    fn wanted(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }

    fn holds<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> bool {
        let client = request.facts.client();
        self.0.iter().any(|it| it.contains(client))
    }

    fn found<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> Vec<Vec<u8>> {
        vec![request.facts.client().to_string().into()]
    }

    #[cfg(test)]
    fn any() -> proptest::strategy::BoxedStrategy<Self> {
        use proptest::prelude::*;
        let networks = ["10.0.0.0/8", "::1", "0.0.0.0/0"];
        let networks = networks.map(|it| it.parse().unwrap());
        prop::collection::vec(prop::sample::select(networks.to_vec()), 1..2)
            .prop_map(Self)
            .boxed()
    }
}
