//! `show cache`: caches, and the routes that have one.

use serde::Serialize;

use super::super::answer::{Answer, Format};
use super::super::table::Table;
use super::{of_limit, or_nothing};
use crate::cache::CacheFigures;
use crate::cache::shared::Outcome;
use crate::metrics::quantity::{bytes, span};
use crate::observe::figures::{CachingFigures, Figures};

/// Caches, and their use by routes.
#[derive(Debug, Serialize)]
struct CacheView<'a> {
    caches: &'a [CacheFigures],
    routes: Vec<CachingOfRoute<'a>>,
}

#[derive(Debug, Serialize)]
struct CachingOfRoute<'a> {
    route: &'a str,
    cache: &'a CachingFigures,
}

pub(in super::super) fn cache(figures: &Figures, format: Format) -> Answer {
    let routes = figures.routes.iter().filter_map(|it| {
        Some(CachingOfRoute {
            route: &it.name,
            cache: it.cache.as_ref()?,
        })
    });
    let view = CacheView {
        caches: &figures.caches,
        routes: routes.collect(),
    };
    format.show(&view, cache_text)
}

fn cache_text(view: &CacheView<'_>) -> String {
    if view.caches.is_empty() {
        return "no route has a cache\n".to_owned();
    }
    let tables = [
        Some(memory(view.caches)),
        disks(view.caches),
        shared(view.caches),
        Some(routes(&view.routes)),
        misses(&view.routes),
    ];
    let tables: Vec<_> = tables.into_iter().flatten().collect();
    tables.join("\n")
}

fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}

fn size(count: u64) -> String {
    bytes(count as f64)
}

fn memory(caches: &[CacheFigures]) -> String {
    let mut table = Table::new(&[
        "CACHE",
        ">RESPONSES",
        ">MEMORY",
        ">FETCHES",
        ">FOLLOWERS",
        ">EVICTED",
        ">PURGES",
    ]);
    for it in caches {
        table.row([
            it.name.clone(),
            it.responses.to_string(),
            of_limit(size(it.bytes), Some(size(it.limit_bytes))),
            it.fetches.to_string(),
            it.followers.to_string(),
            it.evicted.to_string(),
            it.purges.to_string(),
        ]);
    }
    table.text(0)
}

/// `None` if no route had any recently.
fn misses(routes: &[CachingOfRoute<'_>]) -> Option<String> {
    let mut table = Table::new(&["TOP MISSES OF", ">COUNT", ">PART", "REASON", "URL"]);
    let mut urls = routes.iter().flat_map(|it| {
        let misses = &it.cache.recent_misses;
        misses.urls.iter().map(|url| (it.route, misses.total, url))
    });
    let first = urls.next()?;
    for (route, total, missed) in std::iter::once(first).chain(urls) {
        table.row([
            route.to_owned(),
            missed.count.to_string(),
            percent(missed.count as f64 / total as f64),
            missed.reason.to_owned(),
            missed.url.clone(),
        ]);
    }
    Some(table.text(0))
}

/// `None` if no cache has one.
fn disks(caches: &[CacheFigures]) -> Option<String> {
    let mut table = Table::new(&[
        "DISK OF",
        "STATE",
        ">RESPONSES",
        ">SIZE",
        ">HITS",
        ">MISSES",
        ">WRITTEN",
        ">WAITING",
        ">EVICTED",
        ">NOT-WRITTEN",
        ">DAMAGED",
        ">UNREADABLE",
    ]);
    let mut disks = caches.iter().filter_map(|it| Some((it, it.disk.as_ref()?)));
    let first = disks.next()?;
    for (cache, disk) in std::iter::once(first).chain(disks) {
        let loading = if disk.loading { ", loading" } else { "" };
        table.row([
            cache.name.clone(),
            format!("{}{loading}", disk.phase.word()),
            disk.objects.to_string(),
            of_limit(size(disk.bytes), Some(size(disk.capacity_bytes))),
            disk.hits.to_string(),
            disk.misses.to_string(),
            disk.written.to_string(),
            disk.queue.to_string(),
            disk.evicted.to_string(),
            disk.not_written.total().to_string(),
            disk.damaged.to_string(),
            disk.failed_reads.to_string(),
        ]);
    }
    Some(table.text(0))
}

/// `None` if no cache has one.
fn shared(caches: &[CacheFigures]) -> Option<String> {
    let mut table = Table::new(&[
        "SHARED BY",
        "SERVER",
        ">HITS",
        ">LOOKUPS",
        ">STORED",
        ">RECEIVED",
        ">SENT",
        ">PURGES-SENT",
        ">PURGES-RECEIVED",
        "STATE",
    ]);
    let mut shared = caches
        .iter()
        .filter_map(|it| Some((it, it.shared.as_ref()?)));
    let first = shared.next()?;
    for (cache, shared) in std::iter::once(first).chain(shared) {
        let state = match (&shared.failure, shared.up) {
            (_, true) => "up".to_owned(),
            (Some(failure), false) => format!("down: {failure}"),
            (None, false) => "down".to_owned(),
        };
        table.row([
            cache.name.clone(),
            shared.server.clone(),
            shared.lookups.count(Outcome::Hit.word()).to_string(),
            shared.lookups.total().to_string(),
            shared.stores.count(Outcome::Stored.word()).to_string(),
            size(shared.received_bytes),
            size(shared.sent_bytes),
            shared.purges_sent.to_string(),
            shared.purges_received.to_string(),
            state,
        ]);
    }
    Some(table.text(0))
}

fn routes(routes: &[CachingOfRoute<'_>]) -> String {
    let mut table = Table::new(&[
        "ROUTE",
        "CACHE",
        ">RATIO",
        ">HIT",
        ">STALE",
        ">REVALIDATED",
        ">MISS",
        ">BYPASS",
        ">SAVED",
        ">AGE",
    ]);
    for CachingOfRoute { route, cache } in routes {
        let ratio = cache.hit_ratio();
        table.row([
            (*route).to_owned(),
            cache.name.clone(),
            or_nothing(ratio.map(percent)),
            cache.hits.to_string(),
            cache.stale.to_string(),
            cache.revalidated.to_string(),
            cache.misses.to_string(),
            cache.bypasses.to_string(),
            size(cache.saved_bytes),
            or_nothing(cache.mean_age().map(span)),
        ]);
    }
    table.text(0)
}
