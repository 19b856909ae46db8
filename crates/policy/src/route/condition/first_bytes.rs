//! A condition on what a connection begins with.

use super::Ask;
use crate::route::{Facts, RoutedRequest};

/// The client's first bytes are one of these.
#[derive(Debug, Clone)]
pub struct FirstBytes(pub Vec<Vec<u8>>);

impl Ask for FirstBytes {
    fn subject(&self) -> String {
        "first_bytes".into()
    }

    fn wanted(&self) -> Vec<String> {
        let text = |it: &Vec<u8>| it.escape_ascii().to_string();
        self.0.iter().map(text).collect()
    }

    fn holds<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> bool {
        let first = request.facts.first_bytes();
        self.0.iter().any(|it| first.starts_with(it))
    }

    fn found<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> Vec<Vec<u8>> {
        let first = request.facts.first_bytes();
        let longest = self.0.iter().map(Vec::len).max().unwrap_or_default();
        let shown = &first[..first.len().min(longest)];
        let shown = (!shown.is_empty()).then(|| shown.escape_ascii().to_string().into());
        shown.into_iter().collect()
    }

    #[cfg(test)]
    fn any() -> proptest::strategy::BoxedStrategy<Self> {
        use proptest::prelude::*;
        prop::collection::vec(prop::sample::select(vec![b"SSH-".to_vec()]), 1..2)
            .prop_map(Self)
            .boxed()
    }
}
