//! The list of metrics: the families of each kind of object, by prefix of their names. The tables
//! of `observe::figures` have the families.

use evenkeel_metrics::family::Kind::{Counter, Gauge};
use evenkeel_metrics::family::{Metric, Reading, Value, maybe, metric, whole};

use super::endpoint_labels;
use super::family::{Labels, Writer, each};
use crate::cache::CacheFigures;
use crate::cache::disk::DiskStoreFigures;
use crate::cache::shared::SharedFigures;
use crate::files::DiskFigures;
use crate::observe::discovered::SourceFigures;
use crate::observe::figures::{
    CachingFigures, CompressionFigures, EndpointFigures, ExchangeFigures, Figures, FileFigures,
    GenerationFigures, LaneFigures, LimitFigures, ListenerFigures, MirrorFigures, PhaseFigures,
    RouteFigures, UpstreamFigures,
};

/// Metrics of the process, by the names that all exporters use.
const PROCESS: &[Metric<Figures>] = &[
    metric(
        "cpu_seconds_total",
        Counter,
        "Processor time of all threads.",
        |it| Reading::One(Value::Micros(it.process.cpu_us)),
    ),
    metric("resident_memory_bytes", Gauge, "Memory in RAM.", |it| {
        maybe(it.process.resident_bytes)
    }),
    metric("virtual_memory_bytes", Gauge, "Memory mapped.", |it| {
        maybe(it.process.virtual_bytes)
    }),
    metric("open_fds", Gauge, "Open file descriptors.", |it| {
        maybe(it.process.open_fds)
    }),
    metric(
        "max_fds",
        Gauge,
        "Most file descriptors that may be open.",
        |it| maybe(it.process.max_fds),
    ),
    metric(
        "start_time_seconds",
        Gauge,
        "When the process began to serve, in seconds since 1970.",
        |it| Reading::One(Value::Millis(it.started_unix_ms)),
    ),
];

/// Writes all families.
pub(super) async fn write(figures: &Figures, out: &mut impl Writer) {
    let none = Labels::default();
    each(PROCESS, "process_", &[(&none, figures)], out).await;
    each(Figures::METRICS, "evenkeel_", &[(&none, figures)], out).await;
    let version = Labels::new(&[("version", figures.version)]);
    each(&[BUILD], "evenkeel_", &[(&version, figures)], out).await;
    let hash = Labels::new(&[("hash", figures.config.hash.as_str())]);
    each(&[CONFIG], "evenkeel_", &[(&hash, figures)], out).await;
    generations(figures, out).await;
    listeners(figures, out).await;
    routes(figures, out).await;
    disks(figures, out).await;
    caches(figures, out).await;
    upstreams(figures, out).await;
    sources(figures, out).await;
    lanes(figures, out).await;
    endpoints(figures, out).await;
}

const BUILD: Metric<Figures> = metric("build_info", Gauge, "Always 1.", |_| whole(1_u64));
const CONFIG: Metric<Figures> = metric(
    "config_info",
    Gauge,
    "Always 1; the hash is that of the effective configuration.",
    |_| whole(1_u64),
);

/// The metrics of exchanges, for listeners, routes and upstreams.
async fn exchanges<T>(
    scope: &'static str,
    objects: &[(&Labels, &T)],
    of: impl Fn(&T) -> &ExchangeFigures,
    out: &mut impl Writer,
) {
    let exchanges: Vec<_> = objects
        .iter()
        .map(|(labels, it)| (*labels, of(it)))
        .collect();
    each(ExchangeFigures::METRICS, scope, &exchanges, out).await;
    let phases: Vec<_> = exchanges.iter().map(|(it, of)| (*it, &of.phases)).collect();
    each(PhaseFigures::METRICS, scope, &phases, out).await;
}

async fn generations(figures: &Figures, out: &mut impl Writer) {
    let label = |it: &GenerationFigures| {
        Labels::new(&[
            ("generation", &*it.generation.to_string()),
            ("hash", &it.config),
        ])
    };
    let labels: Vec<_> = figures.generations.iter().map(label).collect();
    let generations: Vec<_> = labels.iter().zip(&figures.generations).collect();
    let scope = "evenkeel_generation_";
    each(GenerationFigures::METRICS, scope, &generations, out).await;
}

async fn listeners(figures: &Figures, out: &mut impl Writer) {
    let label = |it: &ListenerFigures| Labels::new(&[("listener", it.name.as_str())]);
    let labels: Vec<_> = figures.listeners.iter().map(label).collect();
    let listeners: Vec<_> = labels.iter().zip(&figures.listeners).collect();
    let scope = "evenkeel_listener_";
    each(ListenerFigures::METRICS, scope, &listeners, out).await;
    exchanges(scope, &listeners, |it| &it.exchanges, out).await;
}

async fn routes(figures: &Figures, out: &mut impl Writer) {
    let label = |it: &RouteFigures| Labels::new(&[("route", it.name.as_str())]);
    let labels: Vec<_> = figures.routes.iter().map(label).collect();
    let routes: Vec<_> = labels.iter().zip(&figures.routes).collect();
    each(RouteFigures::METRICS, "evenkeel_route_", &routes, out).await;
    exchanges("evenkeel_route_", &routes, |it| &it.exchanges, out).await;
    let files = routes.iter();
    let files: Vec<_> = files
        .filter_map(|(labels, route)| Some((*labels, route.files.as_ref()?)))
        .collect();
    each(FileFigures::METRICS, "evenkeel_route_files_", &files, out).await;
    let limits = routes.iter();
    let limits: Vec<_> = limits
        .filter_map(|(labels, route)| Some((*labels, route.limits.as_ref()?)))
        .collect();
    each(LimitFigures::METRICS, "evenkeel_route_limit_", &limits, out).await;
    let compression = routes.iter();
    let compression: Vec<_> = compression
        .filter_map(|(labels, route)| Some((*labels, route.compression.as_ref()?)))
        .collect();
    let scope = "evenkeel_route_compression_";
    each(CompressionFigures::METRICS, scope, &compression, out).await;
    let mirrors = routes.iter();
    let mirrors: Vec<_> = mirrors
        .filter_map(|(labels, route)| Some((*labels, route.mirror.as_ref()?)))
        .collect();
    each(
        MirrorFigures::METRICS,
        "evenkeel_route_mirror_",
        &mirrors,
        out,
    )
    .await;
    let caching = routes.iter();
    let caching: Vec<_> = caching
        .filter_map(|(labels, route)| Some((*labels, route.cache.as_ref()?)))
        .collect();
    let scope = "evenkeel_route_cache_";
    each(CachingFigures::METRICS, scope, &caching, out).await;
}

async fn caches(figures: &Figures, out: &mut impl Writer) {
    let label = |it: &CacheFigures| Labels::new(&[("cache", it.name.as_str())]);
    let labels: Vec<_> = figures.caches.iter().map(label).collect();
    let caches: Vec<_> = labels.iter().zip(&figures.caches).collect();
    each(CacheFigures::METRICS, "evenkeel_cache_", &caches, out).await;
    let disks = caches.iter();
    let disks: Vec<_> = disks
        .filter_map(|(labels, cache)| Some((*labels, cache.disk.as_ref()?)))
        .collect();
    let scope = "evenkeel_cache_disk_";
    each(DiskStoreFigures::METRICS, scope, &disks, out).await;
    let shared = caches.iter();
    let shared: Vec<_> = shared
        .filter_map(|(labels, cache)| Some((*labels, cache.shared.as_ref()?)))
        .collect();
    let scope = "evenkeel_cache_shared_";
    each(SharedFigures::METRICS, scope, &shared, out).await;
}

async fn disks(figures: &Figures, out: &mut impl Writer) {
    let label = |it: &DiskFigures| Labels::new(&[("disk", it.name.as_str())]);
    let labels: Vec<_> = figures.disks.iter().map(label).collect();
    let disks: Vec<_> = labels.iter().zip(&figures.disks).collect();
    each(DiskFigures::METRICS, "evenkeel_disk_", &disks, out).await;
}

async fn upstreams(figures: &Figures, out: &mut impl Writer) {
    let label = |it: &UpstreamFigures| Labels::new(&[("upstream", it.name.as_str())]);
    let labels: Vec<_> = figures.upstreams.iter().map(label).collect();
    let upstreams: Vec<_> = labels.iter().zip(&figures.upstreams).collect();
    let scope = "evenkeel_upstream_";
    each(UpstreamFigures::METRICS, scope, &upstreams, out).await;
    exchanges(scope, &upstreams, |it| &it.exchanges, out).await;
}

/// Metrics of a source of endpoints: a name, a service or a file.
const SOURCE: &[Metric<SourceFigures>] = &[metric(
    "age_seconds",
    Gauge,
    "Time since it was last read without a mistake; absent if it never was.",
    |it| {
        let age = it.age_ms.map(|it| Reading::One(Value::Millis(it)));
        age.unwrap_or(Reading::Absent)
    },
)];

async fn sources(figures: &Figures, out: &mut impl Writer) {
    let mut labelled = Vec::new();
    for upstream in &figures.upstreams {
        for (at, source) in upstream.sources.iter().enumerate() {
            // The same name may appear twice, for two families of addresses.
            let is_same = |it: &SourceFigures| it.source == source.source;
            if !upstream.sources[..at].iter().any(is_same) {
                let name = source.source.as_str();
                let names = [("upstream", upstream.name.as_str()), ("source", name)];
                labelled.push((Labels::new(&names), source));
            }
        }
    }
    let sources: Vec<_> = labelled.iter().map(|(labels, it)| (labels, *it)).collect();
    each(SOURCE, "evenkeel_source_", &sources, out).await;
}

async fn lanes(figures: &Figures, out: &mut impl Writer) {
    let lanes = figures.upstreams.iter().flat_map(|upstream| {
        upstream.lanes.iter().map(|lane| {
            let names = [("upstream", upstream.name.as_str()), ("lane", &lane.name)];
            (Labels::new(&names), lane)
        })
    });
    let lanes: Vec<_> = lanes.collect();
    let lanes: Vec<_> = lanes.iter().map(|(labels, lane)| (labels, *lane)).collect();
    each(LaneFigures::METRICS, "evenkeel_lane_", &lanes, out).await;
}

async fn endpoints(figures: &Figures, out: &mut impl Writer) {
    let labels = figures.upstreams.iter();
    let labels: Vec<_> = labels
        .flat_map(|it| endpoint_labels(it, "upstream", "endpoint"))
        .collect();
    let endpoints = figures.upstreams.iter().flat_map(|it| &it.endpoints);
    let endpoints: Vec<_> = labels.iter().zip(endpoints).collect();
    let scope = "evenkeel_endpoint_";
    each(EndpointFigures::METRICS, scope, &endpoints, out).await;
    let phases: Vec<_> = endpoints.iter().map(|(it, of)| (*it, &of.phases)).collect();
    each(PhaseFigures::METRICS, scope, &phases, out).await;
}
