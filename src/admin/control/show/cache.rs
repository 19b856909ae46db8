//! `show cache`: caches, and the routes that have one.

use serde::Serialize;

use super::super::answer::{Answer, Format};
use super::super::table::Table;
use super::of_limit;
use crate::cache::CacheFigures;
use crate::metrics::quantity::bytes;
use crate::observe::figures::{CachingFigures, Figures};

/// Caches, and what routes get of them.
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
    let mut caches = Table::new(&[
        "CACHE",
        ">RESPONSES",
        ">MEMORY",
        ">FETCHES",
        ">EVICTED",
        ">PURGES",
    ]);
    for it in view.caches {
        caches.row([
            it.name.clone(),
            it.responses.to_string(),
            of_limit(bytes(it.bytes as f64), Some(bytes(it.limit_bytes as f64))),
            it.fetches.to_string(),
            it.evicted.to_string(),
            it.purges.to_string(),
        ]);
    }
    let mut routes = Table::new(&[
        "ROUTE",
        "CACHE",
        ">HIT",
        ">STALE",
        ">REVALIDATED",
        ">MISS",
        ">BYPASS",
        ">SAVED",
    ]);
    for CachingOfRoute { route, cache } in &view.routes {
        routes.row([
            (*route).to_owned(),
            cache.name.clone(),
            cache.hits.to_string(),
            cache.stale.to_string(),
            cache.revalidated.to_string(),
            cache.misses.to_string(),
            cache.bypasses.to_string(),
            bytes(cache.saved_bytes as f64),
        ]);
    }
    format!("{}\n{}", caches.text(0), routes.text(0))
}
