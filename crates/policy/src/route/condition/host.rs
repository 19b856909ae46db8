//! A condition on the host.

use super::Ask;
use crate::route::{Facts, HostPattern, RoutedRequest};

/// The host matches one of these.
#[derive(Debug, Clone)]
pub struct Host(pub Vec<HostPattern>);

impl Ask for Host {
    fn subject(&self) -> String {
        "host".into()
    }

    fn wanted(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }

    fn holds<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> bool {
        let host = request.facts.host();
        self.0.iter().any(|it| it.matches(host))
    }

    fn found<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> Vec<Vec<u8>> {
        vec![request.facts.host().to_vec()]
    }

    #[cfg(test)]
    fn any() -> proptest::strategy::BoxedStrategy<Self> {
        use proptest::prelude::*;
        let hosts = [
            "a.test",
            "A.test",
            "*.a.test",
            "*.test",
            "*.x.a.test",
            "x.a.test",
            "b.test",
            "[::1]",
        ];
        let hosts = hosts.map(|it| HostPattern::new(it).unwrap());
        let regexes = ["^x\\.", "A"].map(crate::route::tests::host_regex);
        let hosts = [&hosts[..], &regexes].concat();
        prop::collection::vec(prop::sample::select(hosts.to_vec()), 1..4)
            .prop_map(Self)
            .boxed()
    }
}
