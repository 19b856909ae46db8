//! The past of routes with limits.

use super::caching::LastMinute;
use super::row;
use crate::limits::active_keys;
use crate::net::clock;
use crate::observe::figures::{LimitFigures, Sources};

/// The past of a route with limits.
#[derive(Debug)]
pub(super) struct PastLimits {
    counts: LastMinute<4>,
    /// Keys in use at the last count.
    keys: Option<u64>,
}

/// Requests that the limits let through, delayed and refused, and those that only `dry_run` let
/// through.
fn counts(figures: &LimitFigures) -> [u64; 4] {
    [
        figures.allowed,
        figures.delayed,
        figures.refused,
        figures.dry_run,
    ]
}

impl PastLimits {
    pub(super) fn new() -> Self {
        PastLimits {
            counts: LastMinute::new(),
            keys: None,
        }
    }

    pub(super) fn begin(&mut self, figures: &LimitFigures) {
        self.counts.begin(counts(figures));
    }

    pub(super) fn note(&mut self, figures: &LimitFigures) -> String {
        let counts = self.counts.note(counts(figures)).map(|it| it as f64);
        row(&[&counts, &[self.keys.map_or(-1.0, |it| it as f64)]])
    }

    /// Counts the keys of one of these routes with each look, as counting walks a whole table.
    pub(super) fn count_keys<'a>(
        past: impl ExactSizeIterator<Item = &'a mut PastLimits>,
        number: u64,
        sources: &Sources,
    ) {
        let at = number as usize % past.len().max(1);
        let mut limited = sources.limits.iter().filter(|it| !it.is_empty());
        if let (Some(past), Some(limits)) = (past.into_iter().nth(at), limited.nth(at)) {
            past.keys = Some(active_keys(limits, clock::now()));
        }
    }
}
