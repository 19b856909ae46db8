//! A condition on a parameter of the query.

use super::Ask;
use super::value::{ValuePattern, split_at_equals};
use crate::route::{Facts, RoutedRequest, path::decode_pair};

/// A parameter of the query, percent-decoded and with `+` for a space.
#[derive(Debug, Clone)]
pub struct Query {
    /// Its name.
    pub name: String,
    /// The condition on its values.
    pub value: ValuePattern,
}

impl Ask for Query {
    fn subject(&self) -> String {
        format!("query {}", self.name)
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
            name: "a".into(),
            value,
        };
        super::value::tests::patterns().prop_map(named).boxed()
    }
}

impl Query {
    fn values<'a, F: Facts>(
        &'a self,
        request: &'a RoutedRequest<'_, F>,
    ) -> impl Iterator<Item = impl Iterator<Item = u8> + 'a> + 'a {
        parameters(request.facts.query(), &self.name)
    }
}

/// The decoded values of the parameter `name`.
pub fn parameters<'a>(
    query: &'a [u8],
    name: &'a str,
) -> impl Iterator<Item = impl Iterator<Item = u8> + use<'a>> + use<'a> {
    let pairs = query
        .split(|&byte| byte == b'&')
        .filter(|pair| !pair.is_empty());
    pairs.filter_map(|pair| {
        let (key, value) = split_at_equals(pair);
        Decoded { rest: key }
            .eq(name.bytes())
            .then_some(Decoded { rest: value })
    })
}

/// Bytes of a query component, decoded on the way.
struct Decoded<'a> {
    rest: &'a [u8],
}

impl Iterator for Decoded<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        let (&byte, tail) = self.rest.split_first()?;
        self.rest = tail;
        match byte {
            b'+' => Some(b' '),
            b'%' => match decode_pair(tail) {
                Some(decoded) => {
                    self.rest = &tail[2..];
                    Some(decoded)
                }
                None => Some(byte),
            },
            _ => Some(byte),
        }
    }
}
