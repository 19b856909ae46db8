//! The results of an exchange so far; its log line and counts at the end.

use std::rc::Rc;
use std::time::{Duration, SystemTime};

use evenkeel_cache::report::Unanswered;
use evenkeel_policy::Instant;
use evenkeel_proto::identity::hex;
use evenkeel_proto::{FieldKind, Method};

use super::identity::{Identity, ROOM};
use super::{Client, Context, Exchange};
use crate::config;
use crate::metrics::end::{End, Failure};
use crate::metrics::histogram::{self, Histogram};
use crate::net::clock;
use crate::observe::access_log::{self, Figures, LoggedEndpoint, Open, Phase, Source, Times};
use crate::observe::counters::{ExchangeCounters, Phases, RouteCaching, status_class};
use crate::observe::failures::{self, FailedExchange};
use crate::observe::otlp::Span;
use crate::observe::sessions::Track;
use crate::upstream::Endpoint;

/// The results of an exchange in progress.
#[derive(Debug)]
pub struct Progress<'a> {
    /// Arrival of the head's first byte.
    pub started: Instant,
    /// The facts for its log line.
    pub figures: Figures,
    /// The identity of the request.
    pub identity: &'a Identity,
    /// The progress that the status page shows.
    pub track: Rc<Track>,
    /// The endpoint of the last attempt. Its id is not reused before the exchange is logged.
    pub endpoint: Option<Rc<Endpoint>>,
}

impl<'a> Progress<'a> {
    /// An exchange whose head began at `started` and was complete after
    /// `took`.
    pub fn new(
        context: &Context,
        client: &Client,
        started: Instant,
        took: Duration,
        head_len: usize,
        identity: &'a Identity,
        track: Rc<Track>,
    ) -> Self {
        Progress {
            started,
            figures: Figures {
                bytes_in: head_len as u64,
                times: Times {
                    head: took,
                    ..Times::default()
                },
                ..Figures::begun(
                    context.listener_index() as u32,
                    client.remote().port,
                    started,
                )
            },
            identity,
            track,
            endpoint: None,
        }
    }

    /// Arrival of the head's last byte.
    pub fn arrived(&self) -> Instant {
        self.started + self.figures.times.head
    }

    /// Index of the route, if one matched.
    fn route(&self) -> Option<usize> {
        self.figures.route.map(|index| index as usize)
    }

    /// The figures of the route's files, if it serves any, and its index.
    pub fn files<'c>(&self, context: &'c Context) -> Option<(usize, &'c config::Files)> {
        let route = self.route()?;
        let files = context.config().routes[route].action.files()?;
        Some((route, files))
    }

    /// Index of the upstream, if the route goes to one.
    pub fn upstream(&self) -> Option<usize> {
        self.figures.upstream.map(|index| index as usize)
    }

    /// Notes the upstream with this index.
    pub fn set_upstream(&mut self, upstream: usize) {
        self.figures.upstream = Some(upstream as u32);
        self.track.set_upstream(upstream);
    }

    /// The name of the endpoint of the last attempt.
    fn endpoint_name(&self) -> Option<String> {
        let endpoint = self.endpoint.as_ref()?;
        Some(endpoint.config().name.clone())
    }

    /// Whether the exchange failed or was refused. A client that left, asked for a missing file,
    /// or is asked for its password does not count. A configured answer never counts, whatever
    /// its status.
    fn is_failed(&self, is_error: bool) -> bool {
        match self.figures.end {
            End::Complete | End::Tunnel => is_error,
            End::Failure(Failure::ClientGone | Failure::NoFile | Failure::Unauthorized) => false,
            _ => true,
        }
    }
}

impl Exchange<'_> {
    /// Ends a response that was sent whole, counts the exchange, and writes its log line.
    pub fn conclude(mut self, end: End) {
        if end == End::Complete {
            self.side.end_response();
        }
        let paced = self.side.end_throttle();
        let now = clock::now();
        let is_head_read = self.head_read().is_some() || self.is_tcp();
        let progress = &mut self.progress;
        let figures = &mut progress.figures;
        figures.end = end;
        figures.ended = now;
        figures.paced_ms = u32::try_from(paced.as_millis()).unwrap_or(u32::MAX);
        figures.times.total = now.duration_since(progress.started);
        if !is_head_read {
            figures.phase = Phase::Head;
        }
        let total = figures.times.total;
        let is_error = figures.is_error();
        self.count(is_error);
        self.progress.track.end_exchange();
        if self.progress.identity.is_recorded() {
            self.record_span(is_error);
        }
        if self.progress.is_failed(is_error) {
            self.keep_failure();
        }
        let Exchange {
            context,
            client,
            bytes,
            progress,
            ..
        } = &self;
        let logs = &context.config().access_logs;
        let Some(index) = logs.of(context.listener_index(), progress.route()) else {
            return;
        };
        let log = &logs.logs[index];
        let generation = &context.generation().logs;
        if !generation.selects(index, &log.selection, is_error, total) {
            return;
        }
        let trace_id = progress
            .identity
            .trace
            .map(|it| hex::<32>(it.sent.trace_id));
        let mut room = ROOM;
        let line = access_log::Exchange {
            figures: &progress.figures,
            endpoint: progress.endpoint.as_ref().map(|it| LoggedEndpoint {
                id: it.id(),
                identity: it.identity(),
                state: it.state(),
            }),
            client: client.remote().text.as_bytes(),
            buf: bytes,
            head: self.head_read(),
            user: self.user().map(str::as_bytes),
            request_id: progress.identity.request_id(bytes, &mut room),
            trace_id: trace_id.as_ref().map(|it| &it[..]),
            place: self.side.place(),
            open: &|| self.open(),
        };
        let dropped = &context.counters.own.log_lines_dropped;
        let access_log = &context.access_log;
        access_log.note(generation, index, log, &line, dropped);
    }

    /// Ends a fetch, and counts it for its upstream. Its clients have their own log lines, and
    /// get the returned notes.
    pub fn conclude_fetch(mut self, end: End) -> (Figures, Option<Rc<Endpoint>>) {
        let figures = &mut self.progress.figures;
        figures.end = end;
        figures.ended = clock::now();
        figures.times.total = figures.ended.duration_since(self.progress.started);
        let tally = Tally::new(&self.progress.figures, self.progress.figures.is_error());
        self.count_for_upstream(&tally);
        (self.progress.figures, self.progress.endpoint)
    }

    /// Hands the span of a sampled exchange over to the exporter.
    #[cold]
    fn record_span(&self, is_error: bool) {
        let Exchange {
            context,
            client,
            bytes: buf,
            progress,
            ..
        } = self;
        // Only a request with a valid head has a place in a trace.
        let (Some(spans), Some(trace), Some(head)) = (
            &context.generation().spans,
            progress.identity.trace,
            self.head_read(),
        ) else {
            return;
        };
        let config = context.config();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let upstream = progress.upstream().map(|index| &config.upstreams[index]);
        let mut room = ROOM;
        let span = Span {
            place: trace.sent,
            parent_id: trace.client_span,
            started_unix_us: context.access_log.unix_us(progress.started),
            method: text(head.method_span.of(buf)),
            is_known_method: head.method != Method::Other,
            path: text(head.path(buf)),
            host: text(head.host.of(buf)),
            version: head.version,
            user_agent: head.value_of(FieldKind::UserAgent, buf).map(text),
            scheme: client.scheme(),
            client: client.remote().to_string(),
            request_id: progress.identity.request_id(buf, &mut room).map(text),
            listener: context.listener().name.clone(),
            route: progress
                .route()
                .map(|index| config.routes[index].name.clone()),
            upstream: upstream.map(|it| it.name.clone()),
            endpoint: progress.endpoint_name(),
            reason: progress.figures.reason,
            attempts: progress.figures.attempts,
            status: progress.figures.status,
            end: progress.figures.end,
            is_error,
            times: progress.figures.times,
        };
        spans.send(span, &context.counters.spans_dropped);
    }

    #[cold]
    fn keep_failure(&self) {
        let Exchange {
            context,
            client,
            bytes: buf,
            progress,
            ..
        } = self;
        let head = self.head_read();
        let is_head_refused = head.is_none();
        let config = context.config();
        let upstream = progress.upstream().map(|index| &config.upstreams[index]);
        context.failures.add(FailedExchange {
            at: SystemTime::now(),
            client: client.remote().to_string(),
            listener: context.listener().name.clone(),
            route: progress
                .route()
                .map(|index| config.routes[index].name.clone()),
            upstream: upstream.map(|it| it.name.clone()),
            endpoint: progress.endpoint_name(),
            line: head.map(|head| failures::request_line(head.line(buf))),
            end: progress.figures.end,
            status: progress.figures.status,
            attempts: progress.figures.attempts,
            times: progress.figures.times,
            evidence: if is_head_refused {
                failures::evidence(buf)
            } else {
                Vec::new()
            },
        });
    }

    fn count(&self, is_error: bool) {
        let Exchange {
            context, progress, ..
        } = self;
        let tally = Tally::new(&progress.figures, is_error);
        let listener = &context.listener_counters().exchanges;
        tally.count(listener, &listener.phases);
        let Some(route) = progress.route() else {
            return;
        };
        let all = &*context.generation().counters;
        let counters = all.routes[route].exchanges.get_or_init();
        tally.count(counters, &counters.phases);
        if let Some(status) = progress.figures.grpc.number() {
            all.routes[route].grpc.get_or_init().of(status).add(1);
        }
        if progress.figures.paced_ms > 0 {
            all.routes[route].paced.add(1);
        }
        if let Some(source) = progress.figures.source
            && let Some(files) = &all.files[route]
        {
            match source {
                Source::Hot => files.hot.add(1),
                Source::Cold => files.cold.add(1),
            }
        }
        if let Some(result) = progress.figures.cache
            && let Some(caching) = &all.caching[route]
        {
            let figures = &progress.figures;
            let counters = &caching.counters;
            counters.count(result, figures.body_bytes_out, figures.cache_age_ms);
            if let Some(reason) = figures.unanswered {
                self.note_miss(caching, reason);
            }
        }
        if !progress.figures.is_fetched {
            self.count_for_upstream(&tally);
        }
    }

    /// Notes the URL of a request that the route's cache did not answer.
    #[inline(never)]
    fn note_miss(&self, caching: &RouteCaching, reason: Unanswered) {
        let (head, buf) = (self.head, self.bytes);
        let (host, query) = (head.host.of(buf), head.query.of(buf));
        let ended = self.progress.figures.ended;
        let misses = &caching.misses;
        misses.note(ended, host, head.path(buf), query, reason);
    }

    fn count_for_upstream(&self, tally: &Tally) {
        let Exchange {
            context, progress, ..
        } = self;
        let all = &*context.generation().counters;
        let Some(upstream) = progress.upstream() else {
            return;
        };
        let exchanges = all.upstreams[upstream].exchanges.get_or_init();
        let phases = match &progress.endpoint {
            Some(endpoint) => &endpoint.counters().phases,
            None => &exchanges.phases,
        };
        tally.count(exchanges, phases);
    }

    /// Other open connections and exchanges at its listener, upstream and endpoint.
    fn open(&self) -> Open {
        let Exchange {
            context,
            client,
            progress,
            ..
        } = self;
        let upstream = progress.upstream().map(|index| context.upstream(index));
        let endpoint = progress.endpoint.as_deref();
        Open {
            connections: context.listeners.open_connections(),
            listener_connections: client.listener.open().value(),
            upstream_exchanges: upstream.map_or(0, |it| {
                (it.in_flight(context.wheel.now()) + it.waiting() as u64) as u32
            }),
            endpoint_exchanges: endpoint.map_or(0, |it| it.state().in_flight()),
        }
    }
}

/// The counts of an exchange. The bucket of each figure is computed once for all histograms.
struct Tally {
    is_error: bool,
    bytes_in: u64,
    /// Index of its status.
    class: usize,
    /// Index of its end.
    end: usize,
    queue_us: Option<Figure>,
    connect_us: Option<Figure>,
    first_byte_us: Option<Figure>,
    total_us: Figure,
    response_bytes: Figure,
}

#[derive(Clone, Copy)]
struct Figure {
    value: u64,
    bucket: usize,
}

impl Figure {
    fn new(value: u64) -> Self {
        Figure {
            value,
            bucket: histogram::bucket(value),
        }
    }

    fn time(time: Duration) -> Self {
        Self::new(histogram::micros(time))
    }
}

impl Tally {
    fn new(figures: &Figures, is_error: bool) -> Self {
        let times = &figures.times;
        Tally {
            is_error,
            bytes_in: figures.bytes_in,
            class: status_class(figures.status),
            end: figures.end.index(),
            queue_us: times.queue.map(Figure::time),
            connect_us: times.connect.map(Figure::time),
            first_byte_us: times.first_byte.map(Figure::time),
            total_us: Figure::time(times.total),
            response_bytes: Figure::new(figures.bytes_out),
        }
    }

    /// Counts the exchange at one object.
    ///
    /// Not inlined: each copy of this code would be loaded again for each exchange, as the
    /// kernel's code displaces the nearest cache between exchanges.
    #[inline(never)]
    fn count(&self, counters: &ExchangeCounters, phases: &Phases) {
        counters.requests.add(1);
        counters.errors.add(u64::from(self.is_error));
        counters.bytes_in.add(self.bytes_in);
        counters.bytes_out.add(self.response_bytes.value);
        counters.status[self.class].add(1);
        counters.ends[self.end].add(1);
        let record = |histogram: &Histogram, figure: Option<Figure>| {
            if let Some(Figure { value, bucket }) = figure {
                histogram.record_at(bucket, value);
            }
        };
        record(&phases.queue_us, self.queue_us);
        record(&phases.connect_us, self.connect_us);
        record(&phases.first_byte_us, self.first_byte_us);
        record(&phases.total_us, Some(self.total_us));
        record(&phases.response_bytes, Some(self.response_bytes));
    }
}
