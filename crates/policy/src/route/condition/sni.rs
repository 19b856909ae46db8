//! A condition on the name that a client of TLS asks for.

use super::Ask;
use crate::route::{Facts, HostPattern, RoutedRequest};

/// The name of the server that the client gives (SNI) matches one of these.
#[derive(Debug, Clone)]
pub struct Sni(pub Vec<HostPattern>);

impl Ask for Sni {
    fn subject(&self) -> String {
        "sni".into()
    }

    fn wanted(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }

    fn holds<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> bool {
        let name = request.facts.sni();
        self.0.iter().any(|it| it.matches(name))
    }

    fn found<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> Vec<Vec<u8>> {
        let name = request.facts.sni();
        let name = (!name.is_empty()).then(|| name.to_vec());
        name.into_iter().collect()
    }

    #[cfg(test)]
    fn any() -> proptest::strategy::BoxedStrategy<Self> {
        use proptest::prelude::*;
        let names = ["a.test", "*.a.test"].map(|it| HostPattern::new(it).unwrap());
        prop::collection::vec(prop::sample::select(names.to_vec()), 1..2)
            .prop_map(Self)
            .boxed()
    }
}
