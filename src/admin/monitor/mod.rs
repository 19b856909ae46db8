//! Looks at the figures once a second, whether anybody watches or not, and
//! keeps what the page shows of the past: the last minute by seconds, the last
//! hour by minutes, and the most that was seen.
//!
//! Read and written aside of the control thread. Of 1,000 endpoints under load it keeps some
//! 20 MB.

mod history;
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
    EndpointFigures, ExchangeFigures, Figures, ListenerFigures, Sources, UpstreamFigures,
};

pub(super) use history::Span;
use history::{Counted, Counts, Plot, Series, Window};
pub(super) use look::Look;
use look::{json, start_message, state_index};
use seen::Most;
pub(super) use seen::{Seen, SeenOfAll, Traffic};

/// Between two looks.
pub(super) const EVERY: Duration = Duration::from_secs(1);
/// Events that the page shows.
const EVENTS: usize = 100;

/// The past, and the last look.
#[derive(Debug)]
pub(super) struct Monitor {
    past: Mutex<Past>,
    looks: watch::Sender<Arc<Look>>,
    start: String,
}

#[derive(Debug)]
struct Past {
    looked: Instant,
    number: u64,
    all: Series,
    /// What came in and went out, of all listeners together.
    bytes: (u64, u64),
    loop_lag: PastTimes,
    lines_missing: Grown,
    tokens_refused: Grown,
    listeners: Vec<Series>,
    listener_bytes: Vec<(u64, u64)>,
    routes: Vec<Series>,
    /// Hot and cold answers of each route.
    files: Vec<(u64, u64)>,
    disks: Vec<PastDisk>,
    upstreams: Vec<Series>,
    /// Times in the queue of each upstream.
    waits: Vec<PastTimes>,
    endpoints: Vec<Vec<Series>>,
    seen: SeenOfAll,
    events: Arc<Vec<Event>>,
}

/// What was seen of a disk.
#[derive(Debug)]
struct PastDisk {
    /// Reads done and refused.
    counts: (u64, u64),
    /// Times in the queue.
    wait: PastTimes,
    /// Times at the disk.
    service: PastTimes,
}

/// A count that should not grow.
#[derive(Debug, Clone, Copy, Default)]
struct Grown {
    count: u64,
    /// When it grew last, in milliseconds since 1970; 0 where it never did.
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
    upstreams: Vec<Counts>,
    /// Of one upstream after the other.
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
    /// Without a past.
    pub(super) fn new(sources: &Sources) -> Self {
        let config = &sources.config;
        let series = |count: usize| (0..count).map(|_| Series::new()).collect::<Vec<_>>();
        let upstreams = config.upstreams.iter();
        let started = unix_time(sources.started.wall);
        Monitor {
            start: start_message(config, &sources.disks, started.as_millis() as u64),
            looks: watch::Sender::new(Arc::default()),
            past: Mutex::new(Past {
                looked: sources.started.instant,
                number: 0,
                all: Series::new(),
                bytes: (0, 0),
                loop_lag: PastTimes::new(),
                lines_missing: Grown::default(),
                tokens_refused: Grown::default(),
                listeners: series(config.listeners.len()),
                listener_bytes: vec![(0, 0); config.listeners.len()],
                routes: series(config.routes.len()),
                files: vec![(0, 0); config.routes.len()],
                disks: sources
                    .disks
                    .all()
                    .iter()
                    .map(|_| PastDisk::new())
                    .collect(),
                upstreams: series(config.upstreams.len()),
                waits: upstreams.clone().map(|_| PastTimes::new()).collect(),
                endpoints: upstreams.map(|it| series(it.endpoints.len())).collect(),
                seen: SeenOfAll::new(config, sources.started.instant),
                events: Arc::default(),
            }),
        }
    }

    /// Looks at the figures: to be called every [`EVERY`].
    pub(super) fn look(&self, sources: &Sources, phase: Phase) {
        self.note(sources.read_with(Detail::Brief), phase, Instant::now());
    }

    fn note(&self, figures: Figures, phase: Phase, now: Instant) {
        let look = self.past().note(figures, phase, now);
        self.looks.send_replace(Arc::new(look));
    }

    fn past(&self) -> MutexGuard<'_, Past> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What does not change, as JSON.
    pub(super) fn start(&self) -> &str {
        &self.start
    }

    /// The looks from the last one on.
    pub(super) fn looks(&self) -> watch::Receiver<Arc<Look>> {
        self.looks.subscribe()
    }

    /// Reads what the looks have found beside the figures.
    pub(super) fn with_seen<T>(&self, read: impl FnOnce(&SeenOfAll) -> T) -> T {
        read(&self.past().seen)
    }

    /// Plots of everything, as JSON.
    pub(super) fn plots(&self, span: Span) -> String {
        let past = self.past();
        let counts = |all: &[Series]| all.iter().map(|it| it.counts(span)).collect();
        json(&Plots {
            all: past.all.plot(span),
            listeners: counts(&past.listeners),
            routes: counts(&past.routes),
            upstreams: counts(&past.upstreams),
            endpoints: (past.endpoints.iter().flatten())
                .map(|it| it.counts(span))
                .collect(),
        })
    }

    /// An endpoint in detail, as JSON: `index` counts through all upstreams.
    /// `None` where there is no such endpoint.
    pub(super) fn detail(&self, sources: &Sources, index: usize) -> Option<String> {
        let past = self.past();
        let mut first = 0;
        for (upstream, endpoints) in past.endpoints.iter().enumerate() {
            if let Some(series) = endpoints.get(index - first) {
                let endpoint = index - first;
                let members = sources.dispatchers[upstream].members();
                let state = members.endpoints().get(endpoint)?;
                return Some(json(&EndpointDetail {
                    upstream: sources.config.upstreams[upstream].name.clone(),
                    figures: sources.endpoint(upstream, state, Detail::Full),
                    most: past.seen.endpoints[upstream][endpoint].traffic.most,
                    minute: series.plot(Span::Minute),
                    hour: series.plot(Span::Hour),
                }));
            }
            first += endpoints.len();
        }
        None
    }
}

/// By how much a pair of counts has grown.
fn grown(now: (u64, u64), before: &mut (u64, u64)) -> (u64, u64) {
    let before = std::mem::replace(before, now);
    let since = |now: u64, before: u64| now.saturating_sub(before);
    (since(now.0, before.0), since(now.1, before.1))
}

impl Grown {
    /// Takes the count as it is now, and gives both as columns.
    fn note(&mut self, count: u64, unix_ms: u64) -> [f64; 2] {
        if count > self.count {
            *self = Grown { count, unix_ms };
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

    /// Takes the times so far in, and gives the 99th percentile of the minute's.
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

impl Past {
    fn note(&mut self, figures: Figures, phase: Phase, now: Instant) -> Look {
        // However soon after the last one, such as the first after the start.
        let seconds = now.duration_since(self.looked).as_secs_f64().max(0.5);
        self.looked = now;
        self.number += 1;
        let unix_ms = unix_time(SystemTime::now()).as_millis() as u64;
        let mut look = Look {
            number: self.number,
            unix_ms,
            all: self.all(&figures, phase, seconds, unix_ms),
            events: self.events(),
            ..Look::default()
        };
        let listeners = figures.listeners.into_iter().enumerate();
        look.listeners = listeners
            .map(|(index, it)| self.listener(index, it, seconds))
            .collect();
        let pasts = self.routes.iter_mut().zip(&mut self.files);
        look.routes = pasts
            .zip(figures.routes)
            .map(|((series, files), it)| {
                series.note(counted(it.exchanges));
                let now = it.files.map_or((0, 0), |files| (files.hot, files.cold));
                let (hot, cold) = grown(now, files);
                let files = [rate(hot, seconds), rate(cold, seconds)];
                row(&[&common(series, seconds), &files])
            })
            .collect();
        let disks = self.disks.iter_mut().zip(figures.disks);
        look.disks = disks.map(|(past, it)| past.note(it, seconds)).collect();
        for (index, upstream) in figures.upstreams.into_iter().enumerate() {
            self.upstream(index, upstream, seconds, &mut look);
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
        let mut now = Counted::default();
        let (mut bytes, mut open) = ((0, 0), 0);
        for listener in &figures.listeners {
            let exchanges = &listener.exchanges;
            now.requests += exchanges.requests;
            now.errors += exchanges.errors;
            now.total_us.merge(&exchanges.phases.total_us);
            bytes.0 += exchanges.bytes_in;
            bytes.1 += exchanges.bytes_out;
            open += listener.open;
        }
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

    fn listener(&mut self, index: usize, figures: ListenerFigures, seconds: f64) -> String {
        let exchanges = figures.exchanges;
        let bytes = (exchanges.bytes_in, exchanges.bytes_out);
        let bytes = grown(bytes, &mut self.listener_bytes[index]);
        let series = &mut self.listeners[index];
        series.note(counted(exchanges));
        let seen = &mut self.seen.listeners[index];
        let most = seen.note(series, seconds, figures.open, 0);
        row(&[
            &common(series, seconds),
            &[f64::from(most.requests), figures.open as f64],
            &[limit(figures.connections_limit)],
            &[figures.connections_refused as f64],
            &[rate(bytes.0, seconds), rate(bytes.1, seconds)],
        ])
    }

    fn upstream(
        &mut self,
        index: usize,
        mut figures: UpstreamFigures,
        seconds: f64,
        look: &mut Look,
    ) {
        let now = self.looked;
        let is_up = is_backend_up(&figures);
        let series = &mut self.upstreams[index];
        // Requests wait for an upstream, before they have an endpoint.
        let waits = std::mem::take(&mut figures.exchanges.phases.queue_us);
        let wait_p99 = self.waits[index].note(waits);
        series.note(counted(figures.exchanges));
        let seen = &mut self.seen.upstreams[index];
        seen.uptime.note(is_up, now);
        let (in_flight, waiting) = (figures.in_flight, figures.waiting);
        let most = seen.traffic.note(series, seconds, in_flight, waiting);
        look.upstreams.push(row(&[
            &common(series, seconds),
            &[f64::from(most.requests)],
            &[figures.in_flight as f64, f64::from(most.in_flight)],
            &[figures.waiting as f64, f64::from(most.waiting), wait_p99],
            &[figures.eligible as f64, figures.retries as f64],
        ]));
        let pasts = self.endpoints[index].iter_mut();
        let seen = self.seen.endpoints[index].iter_mut();
        for ((series, seen), endpoint) in pasts.zip(seen).zip(figures.endpoints) {
            seen.uptime.note(is_server_up(&endpoint), now);
            look.probes.push(match &endpoint.last_probe {
                Some(it) => json(&(it.unix_ms, it.passed, it.took_us, &it.answer)),
                None => "[]".to_owned(),
            });
            look.endpoints
                .push(self::endpoint(series, &mut seen.traffic, endpoint, seconds));
        }
    }
}

fn endpoint(
    series: &mut Series,
    traffic: &mut Traffic,
    figures: EndpointFigures,
    seconds: f64,
) -> String {
    series.note(Counted {
        requests: figures.attempts,
        // An answer of 5xx is whole, and no failure of the attempt.
        errors: figures.failures + figures.status.0[5],
        total_us: figures.phases.total_us,
    });
    let most = traffic.note(series, seconds, u64::from(figures.in_flight), 0);
    row(&[
        &common(series, seconds),
        &[f64::from(most.requests), state_index(figures.state) as f64],
        &[f64::from(figures.weight), figures.effective_weight],
        &[f64::from(figures.in_flight), limit(figures.max_in_flight)],
        &[f64::from(most.in_flight)],
    ])
}

fn counted(figures: ExchangeFigures) -> Counted {
    Counted {
        requests: figures.requests,
        errors: figures.errors,
        total_us: figures.phases.total_us,
    }
}

/// What every row of exchanges begins with.
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

/// A second's part of a count.
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
        // Writing to a string does not fail.
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
