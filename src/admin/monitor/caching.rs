//! The past of caches, and of routes with a cache.

use std::collections::VecDeque;

use super::history::{Counted, POINTS, Series};
use super::look::json;
use super::{GrowthRecord, Look, rate, row};
use crate::cache::CacheFigures;
use crate::cache::disk::Phase;
use crate::metrics::histogram::Distribution;
use crate::observe::figures::{CachingFigures, Figures};

/// Counts of the last minute.
#[derive(Debug)]
pub(super) struct LastMinute<const COUNT: usize> {
    /// The counts of the last looks.
    looks: VecDeque<[u64; COUNT]>,
}

impl<const COUNT: usize> LastMinute<COUNT> {
    /// The counts of an object that counts from now on.
    pub(super) fn new() -> Self {
        LastMinute {
            looks: [[0; COUNT]].into(),
        }
    }

    /// Starts with inherited counts.
    pub(super) fn begin(&mut self, counts: [u64; COUNT]) {
        self.looks = [counts].into();
    }

    /// Takes the present counts. Returns their growth within a minute.
    pub(super) fn note(&mut self, now: [u64; COUNT]) -> [u64; COUNT] {
        if self.looks.len() > POINTS {
            self.looks.pop_front();
        }
        self.looks.push_back(now);
        let before = self.looks.front().copied().unwrap_or(now);
        std::array::from_fn(|at| now[at].saturating_sub(before[at]))
    }

    /// The time that they cover, in seconds.
    fn seconds(&self) -> f64 {
        self.looks.len().saturating_sub(1).max(1) as f64
    }
}

/// The counts of a route's cache: hits, stale answers, revalidations, misses, bypasses, saved
/// bytes, and ages in milliseconds.
type Got = [u64; 7];

fn got(figures: &CachingFigures) -> Got {
    [
        figures.hits,
        figures.stale,
        figures.revalidated,
        figures.misses,
        figures.bypasses,
        figures.saved_bytes,
        figures.age_ms,
    ]
}

/// The counts of all routes with the cache of this name.
fn got_by_all(figures: &Figures, name: &str) -> Got {
    let caching = figures.routes.iter().filter_map(|it| it.cache.as_ref());
    let mut sum = [0; 7];
    for of in caching.filter(|it| it.name == name) {
        sum.iter_mut()
            .zip(got(of))
            .for_each(|(it, more)| *it += more);
    }
    sum
}

/// The columns for the last minute: counts, then bytes a second, then the mean age in
/// milliseconds; -1 if no stored response was served.
fn got_columns(minute: &LastMinute<7>, grown: Got) -> [f64; 7] {
    let [
        hits,
        stale,
        revalidated,
        misses,
        bypasses,
        saved_bytes,
        age_ms,
    ] = grown;
    let served = hits + stale + revalidated;
    let age = age_ms.checked_div(served).map_or(-1.0, |it| it as f64);
    let counts = [hits, stale, revalidated, misses, bypasses].map(|it| it as f64);
    let [hits, stale, revalidated, misses, bypasses] = counts;
    let saved = rate(saved_bytes, minute.seconds());
    [hits, stale, revalidated, misses, bypasses, saved, age]
}

/// The past of a route with a cache.
#[derive(Debug)]
pub(super) struct PastCaching {
    got: LastMinute<7>,
}

impl PastCaching {
    pub(super) fn new() -> Self {
        PastCaching {
            got: LastMinute::new(),
        }
    }

    pub(super) fn begin(&mut self, figures: &CachingFigures) {
        self.got.begin(got(figures));
    }

    pub(super) fn note(&mut self, figures: &CachingFigures) -> String {
        let grown = self.got.note(got(figures));
        row(&[&got_columns(&self.got, grown)])
    }
}

/// The past of a cache.
#[derive(Debug)]
pub(super) struct PastCache {
    /// Requests that asked the cache; the errors are the unanswered ones.
    pub(super) series: Series,
    got: LastMinute<7>,
    /// Evicted responses; requests to the disk and to the shared server, and their hits.
    tiers: LastMinute<5>,
    damaged: GrowthRecord,
}

/// The counts of the tiers of a cache.
fn tiers(figures: &CacheFigures) -> [u64; 5] {
    let disk = figures.disk.as_ref();
    let (disk_hits, disk_misses) = disk.map_or((0, 0), |it| (it.hits, it.misses));
    let shared = figures.shared.as_ref();
    let shared = shared.map_or((0, 0), |it| (it.lookups.count("hit"), it.lookups.total()));
    [
        figures.evicted,
        disk_hits,
        disk_hits + disk_misses,
        shared.0,
        shared.1,
    ]
}

/// Unusable responses on the disk of a cache.
fn damaged(figures: &CacheFigures) -> u64 {
    let disk = figures.disk.as_ref();
    disk.map_or(0, |it| it.damaged + it.failed_reads)
}

impl PastCache {
    pub(super) fn new() -> Self {
        PastCache {
            series: Series::new(),
            got: LastMinute::new(),
            tiers: LastMinute::new(),
            damaged: GrowthRecord::default(),
        }
    }

    /// Starts with the counts of the process before.
    pub(super) fn begin(&mut self, all: &Figures, figures: &CacheFigures) {
        let got = got_by_all(all, &figures.name);
        self.series.begin(asked(got));
        self.got.begin(got);
        self.tiers.begin(tiers(figures));
        self.damaged.begin(damaged(figures));
    }

    /// Notes the figures of a cache, in rows of the look.
    pub(super) fn note(
        &mut self,
        all: &Figures,
        figures: &CacheFigures,
        seconds: f64,
        look: &mut Look,
    ) {
        let got = got_by_all(all, &figures.name);
        self.series.note(asked(got));
        let grown = self.got.note(got);
        let (requests, unanswered) = self.series.last_second();
        let [
            evicted,
            disk_hits,
            disk_lookups,
            shared_hits,
            shared_lookups,
        ] = self.tiers.note(tiers(figures)).map(|it| it as f64);
        let disk = figures.disk.as_ref();
        let shared = figures.shared.as_ref();
        let of_disk = disk.map_or([0; 4], |it| {
            [it.objects, it.bytes, it.capacity_bytes, it.queue]
        });
        look.caches.push(row(&[
            &[
                rate(u64::from(requests), seconds),
                rate(u64::from(unanswered), seconds),
            ],
            &got_columns(&self.got, grown),
            &[
                figures.responses as f64,
                figures.bytes as f64,
                figures.limit_bytes as f64,
                evicted,
                figures.purges as f64,
                figures.fetches as f64,
                f64::from(figures.followers),
            ],
            &of_disk.map(|it| it as f64),
            &[disk_hits, disk_lookups],
            &self.damaged.note(damaged(figures), look.unix_ms),
            &[shared_hits, shared_lookups],
        ]));
        let state = disk.map_or("", |it| match (it.phase, it.loading) {
            (Phase::Working, true) => "loading",
            (phase, _) => phase.word(),
        });
        let shared_state = shared.map_or("", |it| if it.up { "up" } else { "down" });
        let failure = shared.and_then(|it| it.failure.as_deref());
        let server = shared.map_or("", |it| &it.server);
        look.tiers.push(json(&(
            state,
            shared_state,
            server,
            failure.unwrap_or_default(),
        )));
    }
}

/// Requests that asked a cache; the errors are the unanswered ones.
fn asked([hits, stale, revalidated, misses, ..]: Got) -> Counted {
    let errors = revalidated + misses;
    Counted {
        requests: hits + stale + errors,
        errors,
        total_us: Distribution::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_of_a_minute() {
        let mut minute = LastMinute::new();
        assert_eq!(minute.note([10, 1]), [10, 1]);
        assert_eq!(minute.seconds() as u64, 1);
        for count in 1..60 {
            assert_eq!(minute.note([10 + count, 1]), [10 + count, 1]);
        }
        assert_eq!(minute.seconds() as u64, 60);
        assert_eq!(minute.note([70, 1]), [60, 0]);
        assert_eq!(minute.note([70, 1]), [59, 0]);
        minute.begin([100, 5]);
        assert_eq!(minute.note([103, 5]), [3, 0]);
    }
}
