//! Of a route, of the files that it serves, and of what its cache does for it.

use evenkeel_metrics::{CacheResult, Detail, End, Failure, Lazy, figures};

use super::Sources;
use super::exchanges::ExchangeCounters;

figures! {
    /// Figures of a route.
    figures RouteFigures;
    /// Counters of a route.
    cells RouteCounters;
    /// What is known of a route otherwise.
    given RouteGiven;

    /// Its name.
    given name: String;
    /// Name of the upstream that it goes to, if it goes to one.
    given upstream: Option<String>;
    /// Its files, if it serves any.
    given files: Option<FileFigures>;
    /// What its cache does for it, if it has one.
    given cache: Option<CachingFigures>;
    /// Its exchanges.
    nested exchanges: Lazy<ExchangeCounters>;
}

figures! {
    /// Figures of a route's files.
    figures FileFigures;
    /// Counters of a route's files.
    cells FileCounters;
    /// What is known of a route's files otherwise.
    given FileGiven;

    /// The folder.
    given root: String;
    /// Answers with files for which all that was needed was in memory.
    counter hot => "hot_total";
    /// Answers with files for which a disk was asked.
    counter cold => "cold_total";
    /// Requests for files that the queue of the disk refused.
    given refused: u64 => counter "refused_total";
}

figures! {
    /// What a route's cache does for it.
    figures CachingFigures;
    /// Counters of what a route's cache does for it.
    cells CachingCounters;
    /// What is known of a route's cache otherwise.
    given CachingGiven;

    /// The cache.
    given name: String;
    /// Requests for which there was a fresh response, or one that was being fetched.
    counter hits => "hits_total";
    /// Requests that were answered with a stale response.
    counter stale => "stale_total";
    /// Requests for which an endpoint confirmed what was stored.
    counter revalidated => "revalidated_total";
    /// Requests for which there was nothing.
    counter misses => "misses_total";
    /// Requests for which the cache was not asked.
    counter bypasses => "bypasses_total";
    /// Bytes of responses that no endpoint sent, to clients.
    counter saved_bytes => "saved_bytes_total";
}

impl CachingCounters {
    /// Counts a request, and what was sent for it.
    pub fn count(&self, result: CacheResult, bytes_out: u64) {
        let (counter, is_saved) = match result {
            CacheResult::Hit => (&self.hits, true),
            CacheResult::Stale => (&self.stale, true),
            CacheResult::Revalidated => (&self.revalidated, true),
            CacheResult::Miss => (&self.misses, false),
            CacheResult::Bypass => (&self.bypasses, false),
        };
        counter.add(1);
        if is_saved {
            self.saved_bytes.add(bytes_out);
        }
    }
}

impl Sources {
    pub(super) fn route(&self, index: usize, detail: Detail) -> RouteFigures {
        let settings = &self.config.routes[index];
        let proxying = settings.action.proxying();
        let given = RouteGiven {
            name: settings.name.clone(),
            upstream: proxying.map(|it| self.config.upstreams[it.upstream].name.clone()),
            files: None,
            cache: None,
        };
        let cells = self.counters.iter().map(|it| &*it.routes[index]);
        let mut route = given.with(cells, detail);
        if let Some(files) = settings.action.files() {
            let given = FileGiven {
                root: files.root.display().to_string(),
                refused: route.exchanges.ends.count(End::Failure(Failure::DiskBusy)),
            };
            let cells = self
                .counters
                .iter()
                .filter_map(|it| it.files[index].as_deref());
            route.files = Some(given.with(cells, detail));
        }
        if let Some(caching) = &settings.cache {
            let given = CachingGiven {
                name: self.config.caches[caching.store].name.clone(),
            };
            let cells = self.counters.iter();
            let cells = cells.filter_map(|it| it.caching[index].as_deref());
            route.cache = Some(given.with(cells, detail));
        }
        route
    }
}
