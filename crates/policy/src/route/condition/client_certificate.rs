//! A condition on the certificate that a client of TLS has shown.

use super::Ask;
use super::value::ValuePattern;
use crate::route::{Facts, RoutedRequest};

/// One of the identities in the client's certificate is one of these.
#[derive(Debug, Clone)]
pub struct ClientCertificate(pub Vec<ValuePattern>);

impl Ask for ClientCertificate {
    fn subject(&self) -> String {
        "client_certificate".into()
    }

    fn wanted(&self) -> Vec<String> {
        self.0.iter().map(ValuePattern::wanted).collect()
    }

    fn holds<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> bool {
        let identities = || request.facts.client_identities();
        let mut wanted = self.0.iter();
        wanted.any(|it| it.accepts(identities().map(|it| it.iter().copied())))
    }

    fn found<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> Vec<Vec<u8>> {
        let identities = request.facts.client_identities();
        identities.map(<[u8]>::to_vec).collect()
    }

    #[cfg(test)]
    fn any() -> proptest::strategy::BoxedStrategy<Self> {
        use proptest::prelude::*;
        let one = super::value::tests::patterns();
        prop::collection::vec(one, 1..3).prop_map(Self).boxed()
    }
}
