//! A condition on the time of day.

use super::Ask;
use crate::route::{Facts, RoutedRequest, TimeWindow};

/// The time lies in one of these windows.
#[derive(Debug, Clone)]
pub struct Time(pub Vec<TimeWindow>);

impl Ask for Time {
    fn subject(&self) -> String {
        "time".into()
    }

    fn wanted(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }

    fn holds<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> bool {
        let now = request.facts.unix_seconds();
        self.0.iter().any(|it| it.contains(now))
    }

    fn found<F: Facts>(&self, request: &RoutedRequest<'_, F>) -> Vec<Vec<u8>> {
        let now = request.facts.unix_seconds();
        let mut shown: Vec<_> = self.0.iter().map(|it| it.local(now).into_bytes()).collect();
        shown.dedup();
        shown
    }

    #[cfg(test)]
    fn any() -> proptest::strategy::BoxedStrategy<Self> {
        use proptest::prelude::*;
        let windows = [
            "22:00-06:00 UTC",
            "mon-fri 08:00-18:00 UTC",
            "00:00-24:00 UTC",
        ];
        let windows = windows.map(crate::route::time::tests::window);
        prop::collection::vec(prop::sample::select(windows.to_vec()), 1..3)
            .prop_map(Self)
            .boxed()
    }
}
