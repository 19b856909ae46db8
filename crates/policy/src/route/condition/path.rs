//! A condition on the path.

use super::Ask;
use crate::route::{Facts, PathPattern, RegexPattern, RoutedRequest};

/// The normal form of the path matches one of these.
#[derive(Debug, Clone)]
pub struct Path(pub Vec<PathPattern>);

impl Path {
    /// The regular expressions in it.
    pub(super) fn regexes(&self) -> impl Iterator<Item = &RegexPattern> {
        self.0.iter().filter_map(|it| match it {
            PathPattern::Regex(regex) => Some(&**regex),
            _ => None,
        })
    }
}

impl Ask for Path {
    fn subject(&self) -> String {
        "path".into()
    }

    fn wanted(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }

    fn holds<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> bool {
        let path = request.path();
        self.0.iter().any(|it| it.matches(path))
    }

    fn found<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> Vec<Vec<u8>> {
        vec![request.path().to_vec()]
    }

    #[cfg(test)]
    fn any() -> proptest::strategy::BoxedStrategy<Self> {
        use proptest::prelude::*;
        let paths = [
            "/", "/*", "/a", "/a/", "/a/*", "/a/b", "/a/b/*", "/b/*", "/%61/b", "/a%2Fb", "/*/b",
            "**b", "/*.b", "/a/\\*/*",
        ];
        let paths = paths.map(|it| PathPattern::new(it).unwrap());
        let regexes = ["^/a/[^/]+$", "b"].map(crate::route::tests::path_regex);
        let paths = [&paths[..], &regexes].concat();
        prop::collection::vec(prop::sample::select(paths.to_vec()), 1..4)
            .prop_map(Self)
            .boxed()
    }
}
