//! A condition on a cookie.

use super::Ask;
use super::value::{ValuePattern, split_at_equals};
use crate::route::{Facts, RoutedRequest};

/// A cookie.
#[derive(Debug, Clone)]
pub struct Cookie {
    /// Its name.
    pub name: String,
    /// The condition on its values.
    pub value: ValuePattern,
}

impl Ask for Cookie {
    fn subject(&self) -> String {
        format!("cookie {}", self.name)
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

impl Cookie {
    fn values<'a, F: Facts>(
        &'a self,
        request: &'a RoutedRequest<'_, F>,
    ) -> impl Iterator<Item = impl Iterator<Item = u8> + 'a> + 'a {
        let lines = request.facts.fields("cookie");
        lines.flat_map(|line| cookies(line, &self.name))
    }
}

/// The values of the cookie `name` in one `Cookie` line (RFC 6265 section
/// 4.2.1), without the quotes that may stand around them.
pub fn cookies<'a>(
    line: &'a [u8],
    name: &'a str,
) -> impl Iterator<Item = impl Iterator<Item = u8>> {
    line.split(|&byte| byte == b';').filter_map(|pair| {
        let pair = pair.trim_ascii();
        if pair.is_empty() {
            return None;
        }
        let (key, value) = split_at_equals(pair);
        let unquoted = value
            .strip_prefix(b"\"")
            .and_then(|rest| rest.strip_suffix(b"\""));
        (key == name.as_bytes()).then(|| unquoted.unwrap_or(value).iter().copied())
    })
}
