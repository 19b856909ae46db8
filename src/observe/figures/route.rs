//! Figures of a route, of its files, and of its cache, limits, compression and mirror.

use std::time::Duration;

use evenkeel_metrics::family::{Reading, Value};
use evenkeel_metrics::{CacheResult, Detail, End, Failure, Lazy, figures};

use super::super::misses::{Misses, RecentMisses};
use super::Sources;
use super::exchanges::ExchangeCounters;
use crate::limits::active_keys;
use crate::net::clock;

figures! {
    /// Figures of a route.
    figures RouteFigures;
    /// Counters of a route.
    cells RouteCounters;
    /// Further facts of a route.
    given RouteGiven;

    /// Its name.
    given name: String;
    /// Names of its upstreams, if it has any.
    given upstream: Option<String>;
    /// Whether it is under maintenance.
    given maintenance: bool => gauge "maintenance";
    /// Its files, if it serves any.
    given files: Option<FileFigures>;
    /// Its cache, if it has one.
    given cache: Option<CachingFigures>;
    /// Its limits, if it has any.
    given limits: Option<LimitFigures>;
    /// Its compression, if it may compress.
    given compression: Option<CompressionFigures>;
    /// Its mirror, if it has one.
    given mirror: Option<MirrorFigures>;
    /// Responses that its bandwidth held back.
    counter paced => "paced_total";
    /// Calls of gRPC by their status.
    grpc grpc => "grpc_responses_total";
    /// Its exchanges.
    nested exchanges: Lazy<ExchangeCounters>;
}

figures! {
    /// Figures of a route's files.
    figures FileFigures;
    /// Counters of a route's files.
    cells FileCounters;
    /// Further facts of a route's files.
    given FileGiven;

    /// The folder.
    given root: String;
    /// Answers with files that came from memory.
    counter hot => "hot_total";
    /// Answers with files that were read from a disk.
    counter cold => "cold_total";
    /// Requests for files that the queue of the disk refused.
    given refused: u64 => counter "refused_total";
}

figures! {
    /// Figures of a route's limits.
    figures LimitFigures;
    /// Counters of a route's limits.
    cells LimitCounters;
    /// Further facts of a route's limits.
    given LimitGiven;

    /// Keys that have used a part of their limit; zero in brief figures.
    given keys: u64 => gauge "keys";
    /// Requests that passed at once, or passed because of `dry_run`.
    counter allowed => "allowed_total";
    /// Requests that waited.
    counter delayed => "delayed_total";
    /// Requests that were refused.
    counter refused => "refused_total";
    /// Requests that would have been refused, or would have waited, without `dry_run`.
    counter dry_run => "dry_run_total";
}

figures! {
    /// Figures of a route's compression.
    figures CompressionFigures;
    /// Counters of a route's compression.
    cells CompressionCounters;
    /// Further facts of a route's compression.
    given CompressionGiven;

    /// Responses that were compressed with gzip.
    counter gzip => "gzip_total";
    /// Responses that were compressed with Brotli.
    counter br => "br_total";
    /// Responses that were compressed with zstd.
    counter zstd => "zstd_total";
    /// Responses sent uncompressed, because too many requests waited for the upstream.
    counter skipped => "skipped_total";
    /// Bytes given to the encoders.
    counter in_bytes => "in_bytes_total";
    /// Bytes that the encoders produced.
    counter out_bytes => "out_bytes_total";
}

figures! {
    /// Figures of the copies of a route's requests.
    figures MirrorFigures;
    /// Counters of the copies of a route's requests.
    cells MirrorCounters;
    /// Further facts of a route's mirror.
    given MirrorGiven;

    /// Name of the upstream that gets them.
    given upstream: String;
    /// Copies of requests that were made for the mirror's upstream.
    counter sent => "sent_total";
    /// Copies that got no complete response.
    counter failed => "failed_total";
    /// Requests not copied, because too many copies were in flight.
    counter busy => "busy_total";
    /// Requests not copied, because their body is longer than `max_body`.
    counter too_long => "too_long_total";
    /// Requests not copied, because no memory for buffers was left.
    counter no_memory => "no_memory_total";
    /// Requests not copied, because their body was incomplete.
    counter cut => "cut_total";
}

figures! {
    /// Figures of a route's cache.
    figures CachingFigures;
    /// Counters of a route's cache.
    cells CachingCounters;
    /// Further facts of a route's cache.
    given CachingGiven;

    /// The cache.
    given name: String;
    /// Its recent misses; empty in brief figures.
    given recent_misses: RecentMisses;
    /// Requests answered with a fresh response, or with one being fetched.
    counter hits => "hits_total";
    /// Requests that were answered with a stale response.
    counter stale => "stale_total";
    /// Requests for which an endpoint confirmed the stored response.
    counter revalidated => "revalidated_total";
    /// Requests without a stored response.
    counter misses => "misses_total";
    /// Requests that bypassed the cache.
    counter bypasses => "bypasses_total";
    /// Bytes of bodies served from the cache.
    counter saved_bytes => "saved_bytes_total";
    /// Sum of the ages of responses served from the cache.
    counter age_ms => "age_seconds_total", |it| Reading::One(Value::Millis(it.age_ms));
}

/// A worker's part in the figures of a route's cache.
#[derive(Debug, Default)]
pub struct RouteCaching {
    /// Its counters.
    pub counters: CachingCounters,
    /// Its recent misses.
    pub misses: Misses,
}

impl CachingCounters {
    /// Counts a request, with the length of the body that was sent and the age of the stored
    /// response.
    pub fn count(&self, result: CacheResult, body_bytes_out: u64, age_ms: u32) {
        let (counter, is_saved) = match result {
            CacheResult::Hit => (&self.hits, true),
            CacheResult::Stale => (&self.stale, true),
            CacheResult::Revalidated => (&self.revalidated, true),
            CacheResult::Miss => (&self.misses, false),
            CacheResult::Bypass => (&self.bypasses, false),
        };
        counter.add(1);
        if is_saved {
            self.saved_bytes.add(body_bytes_out);
            self.age_ms.add(age_ms.into());
        }
    }
}

impl CachingFigures {
    /// Requests for which the cache was asked.
    pub fn asked(&self) -> u64 {
        self.answered() + self.revalidated + self.misses
    }

    /// Requests that the cache answered without an endpoint.
    pub fn answered(&self) -> u64 {
        self.hits + self.stale
    }

    /// The share of requests that asked no endpoint, among those that asked the cache; `None`
    /// without any.
    pub fn hit_ratio(&self) -> Option<f64> {
        let asked = self.asked();
        (asked > 0).then(|| self.answered() as f64 / asked as f64)
    }

    /// The mean age of stored responses that were sent to clients; `None` without any.
    pub fn mean_age(&self) -> Option<Duration> {
        let served = self.answered() + self.revalidated;
        let age_ms = self.age_ms.checked_div(served)?;
        Some(Duration::from_millis(age_ms))
    }
}

impl Sources {
    pub(super) fn route(&self, index: usize, detail: Detail) -> RouteFigures {
        let settings = &self.config.routes[index];
        let upstreams = settings.action.upstreams();
        let upstreams: Vec<_> = upstreams
            .map(|it| &*self.config.upstreams[it].name)
            .collect();
        let given = RouteGiven {
            name: settings.name.clone(),
            upstream: (!upstreams.is_empty()).then(|| upstreams.join(", ")),
            maintenance: self.maintenance.has_route(index),
            files: None,
            cache: None,
            limits: None,
            compression: None,
            mirror: None,
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
        if !settings.limits.is_empty() {
            let given = LimitGiven {
                keys: match detail {
                    Detail::Full => active_keys(&self.limits[index], clock::now()),
                    Detail::Brief => 0,
                },
            };
            let workers = self.counters.iter();
            let cells = workers.filter_map(|it| it.limits[index].as_deref());
            route.limits = Some(given.with(cells, detail));
        }
        if settings.compression.is_some() {
            let workers = self.counters.iter();
            let cells = workers.filter_map(|it| it.compression[index].as_deref());
            route.compression = Some(CompressionGiven {}.with(cells, detail));
        }
        if let Some(mirror) = &settings.mirror {
            let workers = self.counters.iter();
            let cells = workers.filter_map(|it| it.mirrors[index].as_deref());
            let upstream = self.config.upstreams[mirror.proxying.upstream].name.clone();
            route.mirror = Some(MirrorGiven { upstream }.with(cells, detail));
        }
        if let Some(caching) = &settings.cache {
            let given = CachingGiven {
                name: self.config.caches[caching.store].name.clone(),
                recent_misses: match detail {
                    Detail::Full => self.recent_misses(index),
                    Detail::Brief => RecentMisses::default(),
                },
            };
            let cells = self.caching(index).map(|it| &it.counters);
            route.cache = Some(given.with(cells, detail));
        }
        route
    }

    /// Each worker's part of the figures of a route's cache.
    fn caching(&self, route: usize) -> impl Iterator<Item = &RouteCaching> {
        let workers = self.counters.iter();
        workers.filter_map(move |it| it.caching[route].as_deref())
    }

    /// The recent misses of a route that has a cache.
    pub(crate) fn recent_misses(&self, route: usize) -> RecentMisses {
        let workers = self.caching(route).map(|it| &it.misses);
        RecentMisses::of(workers, clock::now())
    }
}
