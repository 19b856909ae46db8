//! A condition on a header field.

use super::Ask;
use super::value::ValuePattern;
use crate::route::{Facts, RoutedRequest};

/// A field of this name, or of one that endpoints take for it. The lines of all of
/// them count as lines of one field.
#[derive(Debug, Clone)]
pub struct Header {
    /// Its name.
    pub name: String,
    /// The condition on its values.
    pub value: ValuePattern,
}

impl Ask for Header {
    fn subject(&self) -> String {
        format!("header {}", self.name)
    }

    fn wanted(&self) -> Vec<String> {
        vec![self.value.wanted()]
    }

    fn holds<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> bool {
        self.value.accepts(self.values(request))
    }

    fn found<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> Vec<Vec<u8>> {
        self.values(request).map(Iterator::collect).collect()
    }

    #[cfg(test)]
    fn any() -> proptest::strategy::BoxedStrategy<Self> {
        use proptest::prelude::*;
        let named = |value| Self {
            name: "x-a".into(),
            value,
        };
        super::value::tests::patterns().prop_map(named).boxed()
    }
}

impl Header {
    fn values<'a, F: Facts>(
        &'a self,
        request: &'a RoutedRequest<'_, F>,
    ) -> impl Iterator<Item = impl Iterator<Item = u8> + 'a> + 'a {
        let lines = request.facts.fields(&self.name);
        lines.map(|it| it.trim_ascii().iter().copied())
    }
}
