//! Looks at the figures once a second, with or without viewers. Keeps the past for the page: the
//! last minute by seconds, the last hour by minutes, and maxima.
//!
//! Read and written aside of the control thread. With 1,000 endpoints under load it keeps some 20
//! MB.

mod by_name;
mod caching;
mod handed_over;
mod history;
mod limiting;
mod look;
mod seen;

use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use tokio::sync::watch;

use crate::admin::haproxy::{is_backend_up, is_server_up};
use crate::files::DiskFigures;
use crate::lifecycle::Phase;
use crate::metrics::Detail;
use crate::metrics::histogram::Distribution;
use crate::observe::calendar::unix_time;
use crate::observe::events::{self, Event};
use crate::observe::figures::{
    CachingFigures, EndpointFigures, ExchangeFigures, Figures, LimitFigures, ListenerFigures,
    RouteFigures, Sources, UpstreamFigures,
};

use by_name::ByName;
use caching::{PastCache, PastCaching};
pub(super) use history::HistorySpan;
use history::{Counted, Counts, Plot, Series, Window};
use limiting::PastLimits;
pub(super) use look::Look;
use look::{json, start_message, state_index};
use seen::Most;
pub(super) use seen::{Seen, SeenOfAll, Traffic};

/// Time between two looks.
pub(super) const EVERY: Duration = Duration::from_secs(1);
/// Most events on the page.
const EVENTS: usize = 100;

/// The past, and the last look.
#[derive(Debug)]
pub(super) struct Monitor {
    past: Mutex<Past>,
    looks: watch::Sender<Arc<Look>>,
}

#[derive(Debug)]
struct Past {
    looked: Instant,
    number: u64,
    generation: u32,
    all: Series,
    /// Bytes in and out, over all listeners.
    bytes: (u64, u64),
    loop_lag: PastTimes,
    lines_missing: GrowthRecord,
    tokens_refused: GrowthRecord,
    listeners: ByName<PastListener>,
    routes: ByName<PastRoute>,
    disks: ByName<PastDisk>,
    caches: ByName<PastCache>,
    /// The past of routes with a cache.
    caching: ByName<PastCaching>,
    /// The past of routes with limits.
    limits: ByName<PastLimits>,
    upstreams: ByName<PastUpstream>,
    events: Arc<Vec<Event>>,
    /// The part of the page that seldom changes, as JSON.
    start: Arc<str>,
}

/// The past of a listener.
#[derive(Debug)]
struct PastListener {
    series: Series,
    bytes: (u64, u64),
    traffic: Traffic,
}

/// The past of a route.
#[derive(Debug)]
struct PastRoute {
    series: Series,
    /// Hot and cold answers.
    files: (u64, u64),
}

/// The past of an upstream.
#[derive(Debug)]
struct PastUpstream {
    series: Series,
    /// Times in the queue.
    waits: PastTimes,
    seen: Seen,
    endpoints: ByName<PastEndpoint>,
}

/// The past of an endpoint.
#[derive(Debug)]
struct PastEndpoint {
    series: Series,
    seen: Seen,
}

/// The past of a disk.
#[derive(Debug)]
struct PastDisk {
    /// Reads done and refused.
    counts: (u64, u64),
    /// Times in the queue.
    wait: PastTimes,
    /// Times at the disk.
    service: PastTimes,
}

/// A count that ideally never grows.
#[derive(Debug, Clone, Copy, Default)]
struct GrowthRecord {
    count: u64,
    /// Last growth, in milliseconds since 1970; 0 if it never grew.
    unix_ms: u64,
}

/// Times of the last minute.
#[derive(Debug)]
struct PastTimes {
    minute: Window,
    before: Distribution,
}

/// Plots of everything.
#[derive(Serialize)]
struct Plots {
    all: Plot,
    listeners: Vec<Counts>,
    routes: Vec<Counts>,
    caches: Vec<Counts>,
    upstreams: Vec<Counts>,
    /// The endpoints of one upstream after another.
    endpoints: Vec<Counts>,
}

/// One endpoint in detail.
#[derive(Serialize)]
struct EndpointDetail {
    upstream: String,
    figures: EndpointFigures,
    most: Most,
    minute: Plot,
    hour: Plot,
}

impl Monitor {
    /// Starts without a past.
    pub(super) fn new(sources: &Sources) -> Self {
        let past = Past {
            looked: sources.started.instant,
            number: 0,
            generation: sources.generation,
            all: Series::new(),
            bytes: (0, 0),
            loop_lag: PastTimes::new(),
            lines_missing: GrowthRecord::default(),
            tokens_refused: GrowthRecord::default(),
            listeners: ByName::default(),
            routes: ByName::default(),
            disks: ByName::default(),
            caches: ByName::default(),
            caching: ByName::default(),
            limits: ByName::default(),
            upstreams: ByName::default(),
            events: Arc::default(),
            start: Arc::default(),
        };
        Monitor {
            looks: watch::Sender::new(Arc::default()),
            past: Mutex::new(past),
        }
    }

    /// Looks at the figures. To be called every [`EVERY`].
    pub(super) fn look(&self, sources: &Sources, phase: Phase) {
        let (figures, now) = (sources.read_with(Detail::Brief), Instant::now());
        let mut past = self.past();
        past.follow(sources, &figures, now);
        if past.number == 0
            && let Some(before) = sources.of_process_before()
        {
            past.begin(before.read_with(Detail::Brief));
        }
        let number = past.number;
        PastLimits::count_keys(past.limits.iter_mut(), number, sources);
        let look = past.note(figures, phase, now);
        drop(past);
        self.looks.send_replace(Arc::new(look));
    }

    fn past(&self) -> MutexGuard<'_, Past> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The looks, starting with the last one. Before the first, there is one with the number 0.
    pub(super) fn looks(&self) -> watch::Receiver<Arc<Look>> {
        self.looks.subscribe()
    }

    /// The findings of the looks, for these figures.
    pub(super) fn seen_of(&self, figures: &Figures, started: Instant) -> SeenOfAll {
        let past = self.past();
        let mut seen = SeenOfAll::new(figures, started);
        for (at, listener) in figures.listeners.iter().enumerate() {
            if let Some(past) = past.listeners.get_near(at, &listener.name) {
                seen.listeners[at] = past.traffic;
            }
        }
        for (at, upstream) in figures.upstreams.iter().enumerate() {
            let Some(past) = past.upstreams.get_near(at, &upstream.name) else {
                continue;
            };
            seen.upstreams[at] = past.seen;
            let endpoints = upstream.endpoints.iter().enumerate();
            for ((at, endpoint), seen) in endpoints.zip(&mut seen.endpoints[at]) {
                if let Some(past) = past.endpoints.get_near(at, &endpoint.name) {
                    *seen = past.seen;
                }
            }
        }
        seen
    }

    /// Plots of everything, as JSON.
    pub(super) fn plots(&self, span: HistorySpan) -> String {
        let past = self.past();
        let endpoints = past.upstreams.iter().flat_map(|it| it.endpoints.iter());
        json(&Plots {
            all: past.all.plot(span),
            listeners: (past.listeners.iter())
                .map(|it| it.series.counts(span))
                .collect(),
            routes: (past.routes.iter())
                .map(|it| it.series.counts(span))
                .collect(),
            caches: (past.caches.iter())
                .map(|it| it.series.counts(span))
                .collect(),
            upstreams: (past.upstreams.iter())
                .map(|it| it.series.counts(span))
                .collect(),
            endpoints: endpoints.map(|it| it.series.counts(span)).collect(),
        })
    }

    /// An endpoint in detail, as JSON. `index` counts through all upstreams. `None` if there is
    /// no such endpoint.
    pub(super) fn detail(&self, sources: &Sources, index: usize) -> Option<String> {
        let past = self.past();
        let mut first = 0;
        for (at, upstream) in past.upstreams.iter().enumerate() {
            let endpoints = &upstream.endpoints;
            if let Some(past_endpoint) = endpoints.get(index - first) {
                let (upstream, name) = (past.upstreams.name(at), endpoints.name(index - first));
                let mut upstreams = sources.config.upstreams.iter();
                let at = upstreams.position(|it| it.name == upstream)?;
                let members = sources.dispatchers[at].members();
                return Some(json(&EndpointDetail {
                    upstream: upstream.to_owned(),
                    figures: sources.endpoint(at, members.named(name)?, Detail::Full),
                    most: past_endpoint.seen.traffic.most,
                    minute: past_endpoint.series.plot(HistorySpan::Minute),
                    hour: past_endpoint.series.plot(HistorySpan::Hour),
                }));
            }
            first += endpoints.len();
        }
        None
    }
}

/// The growth of a pair of counts.
fn grown(now: (u64, u64), before: &mut (u64, u64)) -> (u64, u64) {
    let before = std::mem::replace(before, now);
    let since = |now: u64, before: u64| now.saturating_sub(before);
    (since(now.0, before.0), since(now.1, before.1))
}

impl GrowthRecord {
    /// Takes the present count, and returns count and growth time as columns.
    fn note(&mut self, count: u64, unix_ms: u64) -> [f64; 2] {
        if count > self.count {
            *self = GrowthRecord { count, unix_ms };
        }
        [self.count as f64, self.unix_ms as f64]
    }
}

impl PastTimes {
    fn new() -> Self {
        PastTimes {
            minute: Window::minute(),
            before: Distribution::default(),
        }
    }

    /// Takes the times so far. Returns the 99th percentile of the last minute.
    fn note(&mut self, now: Distribution) -> f64 {
        self.minute.add(&now.since(&self.before));
        self.before = now;
        f64::from(self.minute.quantile(0.99))
    }
}

impl PastDisk {
    fn new() -> Self {
        PastDisk {
            counts: (0, 0),
            wait: PastTimes::new(),
            service: PastTimes::new(),
        }
    }

    fn note(&mut self, figures: DiskFigures, seconds: f64) -> String {
        let counts = (figures.reads, figures.refused);
        let (reads, refused) = grown(counts, &mut self.counts);
        row(&[
            &[rate(reads, seconds), rate(refused, seconds)],
            &[figures.in_flight as f64, figures.waiting as f64],
            &[self.wait.note(figures.wait_us)],
            &[self.service.note(figures.service_us)],
        ])
    }
}

impl PastListener {
    fn new() -> Self {
        PastListener {
            series: Series::new(),
            bytes: (0, 0),
            traffic: Traffic::default(),
        }
    }

    fn note(&mut self, figures: ListenerFigures, seconds: f64) -> String {
        let exchanges = figures.exchanges;
        let bytes = (exchanges.bytes_in, exchanges.bytes_out);
        let bytes = grown(bytes, &mut self.bytes);
        self.series.note(counted(exchanges));
        let most = self.traffic.note(&self.series, seconds, figures.open, 0);
        let certificates = [
            figures.certificates_expired,
            figures.certificates_ending,
            figures.certificates_unreadable,
            figures.certificates_missing,
            figures.certificates_failed,
            figures.certificate_expiry_unix_s,
        ];
        let certificates = certificates.map(|it| it.unwrap_or(0) as f64);
        row(&[
            &common(&self.series, seconds),
            &[f64::from(most.requests), figures.open as f64],
            &[limit(figures.connections_limit)],
            &[figures.connections_refused as f64],
            &[rate(bytes.0, seconds), rate(bytes.1, seconds)],
            &certificates,
        ])
    }
}

impl PastRoute {
    fn new() -> Self {
        PastRoute {
            series: Series::new(),
            files: (0, 0),
        }
    }

    fn note(&mut self, figures: RouteFigures, seconds: f64) -> String {
        self.series.note(counted(figures.exchanges));
        let now = figures.files.map_or((0, 0), |it| (it.hot, it.cold));
        let (hot, cold) = grown(now, &mut self.files);
        let files = [rate(hot, seconds), rate(cold, seconds)];
        row(&[&common(&self.series, seconds), &files])
    }
}

impl PastUpstream {
    fn new(began: Instant) -> Self {
        PastUpstream {
            series: Series::new(),
            waits: PastTimes::new(),
            seen: Seen::new(began),
            endpoints: ByName::default(),
        }
    }

    /// Notes the figures in rows of the look; `now` is its time.
    fn note(&mut self, mut figures: UpstreamFigures, seconds: f64, now: Instant, look: &mut Look) {
        let is_up = is_backend_up(&figures);
        // Requests wait for an upstream before they have an endpoint.
        let waits = std::mem::take(&mut figures.exchanges.phases.queue_us);
        let wait_p99 = self.waits.note(waits);
        self.series.note(counted(figures.exchanges));
        self.seen.uptime.note(is_up, now);
        let (in_flight, waiting) = (figures.in_flight, figures.waiting);
        let traffic = &mut self.seen.traffic;
        let most = traffic.note(&self.series, seconds, in_flight, waiting);
        look.upstreams.push(row(&[
            &common(&self.series, seconds),
            &[f64::from(most.requests)],
            &[figures.in_flight as f64, f64::from(most.in_flight)],
            &[figures.waiting as f64, f64::from(most.waiting), wait_p99],
            &[figures.eligible as f64, figures.retries as f64],
        ]));
        for (past, endpoint) in self.endpoints.iter_mut().zip(figures.endpoints) {
            look.probes.push(match &endpoint.last_probe {
                Some(it) => json(&(it.unix_ms, it.passed, it.took_us, &it.answer)),
                None => "[]".to_owned(),
            });
            look.endpoints.push(past.note(endpoint, seconds, now));
        }
    }
}

impl PastEndpoint {
    fn new(began: Instant) -> Self {
        PastEndpoint {
            series: Series::new(),
            seen: Seen::new(began),
        }
    }

    fn note(&mut self, figures: EndpointFigures, seconds: f64, now: Instant) -> String {
        self.seen.uptime.note(is_server_up(&figures), now);
        self.series.note(attempted(&figures));
        let in_flight = u64::from(figures.in_flight);
        let traffic = &mut self.seen.traffic;
        let most = traffic.note(&self.series, seconds, in_flight, 0);
        row(&[
            &common(&self.series, seconds),
            &[f64::from(most.requests), state_index(figures.state) as f64],
            &[f64::from(figures.weight), figures.effective_weight],
            &[f64::from(figures.in_flight), limit(figures.max_in_flight)],
            &[f64::from(most.in_flight)],
        ])
    }
}

impl Past {
    /// Puts all records into the order of these figures, by name.
    fn follow(&mut self, sources: &Sources, figures: &Figures, now: Instant) {
        let listeners = figures.listeners.iter().map(|it| &*it.name);
        let mut has_changed = self.listeners.follow(listeners, PastListener::new);
        let routes = figures.routes.iter().map(|it| &*it.name);
        has_changed |= self.routes.follow(routes, PastRoute::new);
        let upstreams = figures.upstreams.iter().map(|it| &*it.name);
        has_changed |= self.upstreams.follow(upstreams, || PastUpstream::new(now));
        for (past, upstream) in self.upstreams.iter_mut().zip(&figures.upstreams) {
            let endpoints = upstream.endpoints.iter().map(|it| &*it.name);
            has_changed |= past.endpoints.follow(endpoints, || PastEndpoint::new(now));
        }
        has_changed |=
            std::mem::replace(&mut self.generation, sources.generation) != sources.generation;
        let disks = figures.disks.iter().map(|it| &*it.name);
        has_changed |= self.disks.follow(disks, PastDisk::new);
        let caches = figures.caches.iter().map(|it| &*it.name);
        has_changed |= self.caches.follow(caches, PastCache::new);
        let caching = cached_routes(figures).map(|(name, _)| name);
        has_changed |= self.caching.follow(caching, PastCaching::new);
        let limited = limited_routes(figures).map(|(name, _)| name);
        has_changed |= self.limits.follow(limited, PastLimits::new);
        if has_changed {
            let started = unix_time(sources.started.wall).as_millis() as u64;
            self.start = start_message(&sources.config, &sources.disks, figures, started).into();
        }
    }

    fn note(&mut self, figures: Figures, phase: Phase, now: Instant) -> Look {
        // The interval may be very short, such as for the first look after the start.
        let seconds = now.duration_since(self.looked).as_secs_f64().max(0.5);
        self.looked = now;
        self.number += 1;
        let unix_ms = unix_time(SystemTime::now()).as_millis() as u64;
        let mut look = Look {
            number: self.number,
            unix_ms,
            all: self.all(&figures, phase, seconds, unix_ms),
            generations: json(&figures.generations),
            events: self.events(),
            start: self.start.clone(),
            ..Look::default()
        };
        for (past, cache) in self.caches.iter_mut().zip(&figures.caches) {
            past.note(&figures, cache, seconds, &mut look);
        }
        let caching = self.caching.iter_mut().zip(cached_routes(&figures));
        look.caching = caching.map(|(past, (_, it))| past.note(it)).collect();
        let limits = self.limits.iter_mut().zip(limited_routes(&figures));
        look.limits = limits.map(|(past, (_, it))| past.note(it)).collect();
        let listeners = self.listeners.iter_mut().zip(figures.listeners);
        look.listeners = listeners.map(|(past, it)| past.note(it, seconds)).collect();
        let routes = self.routes.iter_mut().zip(figures.routes);
        look.routes = routes.map(|(past, it)| past.note(it, seconds)).collect();
        let disks = self.disks.iter_mut().zip(figures.disks);
        look.disks = disks.map(|(past, it)| past.note(it, seconds)).collect();
        for (past, upstream) in self.upstreams.iter_mut().zip(figures.upstreams) {
            past.note(upstream, seconds, now, &mut look);
        }
        look
    }

    fn events(&mut self) -> Arc<Vec<Event>> {
        let known = self.events.last().map_or(0, |event| event.seq);
        let news = events::recent().since(known);
        if !news.is_empty() {
            let mut all = self.events.to_vec();
            all.extend(news);
            all.drain(..all.len().saturating_sub(EVENTS));
            self.events = all.into();
        }
        self.events.clone()
    }

    fn all(&mut self, figures: &Figures, phase: Phase, seconds: f64, unix_ms: u64) -> String {
        let (now, bytes, open) = sum_of(figures);
        self.all.note(now);
        let bytes = grown(bytes, &mut self.bytes);
        let lag = &figures.loop_lag_us;
        let lag_p99 = self.loop_lag.note(lag.clone());
        let upstreams = figures.upstreams.iter();
        let (in_flight, waiting) =
            upstreams.fold((0, 0), |sum, it| (sum.0 + it.in_flight, sum.1 + it.waiting));
        let is_draining = matches!(phase, Phase::Drain { .. });
        let lines_missing = figures.log_lines_dropped + figures.log_lines_lost;
        row(&[
            &[f64::from(u8::from(is_draining)), figures.uptime_ms as f64],
            &common(&self.all, seconds),
            &self.all.last_times().map(f64::from),
            &[f64::from(self.all.most_requests()), open as f64],
            &[in_flight as f64, waiting as f64],
            &[rate(bytes.0, seconds), rate(bytes.1, seconds)],
            &[lag_p99],
            &self.lines_missing.note(lines_missing, unix_ms),
            &self
                .tokens_refused
                .note(figures.status_tokens_refused, unix_ms),
        ])
    }
}

/// Routes with a cache: their names, and their use of it.
fn cached_routes(figures: &Figures) -> impl Iterator<Item = (&str, &CachingFigures)> + Clone {
    let routes = figures.routes.iter();
    routes.filter_map(|it| Some((&*it.name, it.cache.as_ref()?)))
}

/// Routes with limits: their names, and the effects of the limits.
fn limited_routes(figures: &Figures) -> impl Iterator<Item = (&str, &LimitFigures)> + Clone {
    let routes = figures.routes.iter();
    routes.filter_map(|it| Some((&*it.name, it.limits.as_ref()?)))
}

/// Sums over all listeners: exchanges, bytes in and out, and open connections.
fn sum_of(figures: &Figures) -> (Counted, (u64, u64), u64) {
    let mut sum = Counted::default();
    let (mut bytes, mut open) = ((0, 0), 0);
    for listener in &figures.listeners {
        let exchanges = &listener.exchanges;
        sum.requests += exchanges.requests;
        sum.errors += exchanges.errors;
        sum.total_us.merge(&exchanges.phases.total_us);
        bytes.0 += exchanges.bytes_in;
        bytes.1 += exchanges.bytes_out;
        open += listener.open;
    }
    (sum, bytes, open)
}

fn attempted(figures: &EndpointFigures) -> Counted {
    Counted {
        requests: figures.attempts,
        // A 5xx response is whole, and so no failure of the attempt.
        errors: figures.failures + figures.status.0[5],
        total_us: figures.phases.total_us.clone(),
    }
}

fn counted(figures: ExchangeFigures) -> Counted {
    Counted {
        requests: figures.requests,
        errors: figures.errors,
        total_us: figures.phases.total_us,
    }
}

/// The first columns of each row of exchanges.
fn common(series: &Series, seconds: f64) -> [f64; 8] {
    let (requests, errors) = series.last_second();
    let (minute_requests, minute_errors) = series.last_minute();
    let [p50, p99, hour_p50, hour_p99] = series.times().map(f64::from);
    [
        rate(u64::from(requests), seconds),
        rate(u64::from(errors), seconds),
        minute_requests as f64,
        minute_errors as f64,
        p50,
        p99,
        hour_p50,
        hour_p99,
    ]
}

/// A count as a rate per second.
fn rate(count: u64, seconds: f64) -> f64 {
    count as f64 / seconds
}

fn limit(limit: Option<u32>) -> f64 {
    limit.map_or(-1.0, f64::from)
}

/// Numbers as a JSON array, with at most one decimal.
fn row(parts: &[&[f64]]) -> String {
    let mut text = String::with_capacity(96);
    for number in parts.iter().copied().flatten() {
        text.push(if text.is_empty() { '[' } else { ',' });
        // Writing to a string can't fail.
        let _ = write!(text, "{}", (number * 10.0).round() / 10.0);
    }
    text.push(']');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_json() {
        let text = row(&[&[1.0, 0.25], &[-1.0], &[123_456_789_012.0, 0.04]]);
        assert_eq!(text, "[1,0.3,-1,123456789012,0]");
    }
}
