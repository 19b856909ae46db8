//! What an exchange has come to so far, and its line and counts at the end.

use std::time::{Duration, Instant};

use evenkeel_proto::RequestHead;

use super::identity::{Identity, ROOM, Trace};
use super::{Client, Context};
use crate::observe::access_log::{Record, Times};
use crate::observe::counters::{Phases, status_class};
use crate::observe::end::End;
use crate::observe::histogram::{self, Histogram};
use crate::observe::otlp::{Place, Span};

/// An exchange's figures while it goes on.
#[derive(Debug)]
pub struct Progress {
    /// When the head's first byte was there.
    pub started: Instant,
    /// Index of the route, if one matched.
    pub route: Option<usize>,
    /// Index of the upstream, if the route goes to one.
    pub upstream: Option<usize>,
    /// Index of the endpoint of the last attempt.
    pub endpoint: Option<usize>,
    /// Status sent to the client; 0 if none was.
    pub status: u16,
    /// Bytes received from the client.
    pub bytes_in: u64,
    /// Bytes sent to the client.
    pub bytes_out: u64,
    /// Bytes of those that are no head.
    pub body_bytes_out: u64,
    /// Attempts made.
    pub attempts: u32,
    /// How long each phase took.
    pub times: Times,
    /// What the request is called.
    pub identity: Identity,
}

impl Progress {
    /// An exchange whose head began at `started` and was complete after
    /// `took`.
    pub fn new(started: Instant, took: Duration, head_len: usize) -> Self {
        Progress {
            started,
            route: None,
            upstream: None,
            endpoint: None,
            status: 0,
            bytes_in: head_len as u64,
            bytes_out: 0,
            body_bytes_out: 0,
            attempts: 0,
            times: Times {
                head: took,
                ..Times::default()
            },
            identity: Identity::default(),
        }
    }

    /// Counts the exchange and writes its line. `buf` holds the request's head,
    /// or what came instead of one.
    pub fn conclude(
        mut self,
        context: &Context,
        client: &Client,
        buf: &[u8],
        head: Option<&RequestHead>,
        end: End,
    ) {
        let now = Instant::now();
        self.times.total = now.duration_since(self.started);
        self.count(context, client, end);
        let span = self.identity.trace.filter(|trace| trace.is_recorded);
        let config = &context.config;
        let listener = context.listener(client);
        let log = context.log_of_listener[client.listener].zip(listener.access_log.as_ref());
        if log.is_none() && span.is_none() {
            return;
        }
        let upstream = self.upstream.map(|index| &config.upstreams[index]);
        let trace = self.identity.trace;
        let mut room = ROOM;
        let record = Record {
            client: client.address_text.as_bytes(),
            listener: &listener.name,
            route: self.route.map(|index| config.routes[index].name.as_str()),
            upstream: upstream.map(|upstream| upstream.name.as_str()),
            endpoint: upstream
                .zip(self.endpoint)
                .map(|(upstream, index)| upstream.endpoints[index].name.as_str()),
            buf,
            head,
            status: self.status,
            bytes_in: self.bytes_in,
            bytes_out: self.bytes_out,
            body_bytes_out: self.body_bytes_out,
            attempts: self.attempts,
            end,
            times: self.times,
            request_id: self.identity.request_id(buf, &mut room),
            trace_id: trace.map(|trace| trace.sent.trace_id),
        };
        if let Some((log, settings)) = log {
            let dropped = &context.counters.log_lines_dropped;
            context
                .access_log
                .write(log, settings.format, &record, now, dropped);
        }
        if let Some(trace) = span {
            record_span(context, trace, &record, self.started);
        }
    }

    fn count(&self, context: &Context, client: &Client, end: End) {
        let is_error = u64::from(self.status >= 500 || end.is_endpoint_fault());
        let (class, end) = (status_class(self.status), end.index());
        let measured = Measured::new(&self.times, self.bytes_out);
        let counters = context.listener_counters(client);
        counters.requests.add(1);
        counters.errors.add(is_error);
        counters.bytes_in.add(self.bytes_in);
        counters.bytes_out.add(self.bytes_out);
        counters.status[class].add(1);
        counters.ends[end].add(1);
        measured.record(&counters.phases);
        let Some(route) = self.route else { return };
        let counters = &context.counters.routes[route];
        counters.requests.add(1);
        counters.errors.add(is_error);
        counters.bytes_in.add(self.bytes_in);
        counters.bytes_out.add(self.bytes_out);
        counters.status[class].add(1);
        counters.ends[end].add(1);
        measured.record(&counters.phases);
        let Some(upstream) = self.upstream else {
            return;
        };
        let counters = &context.counters.upstreams[upstream];
        counters.requests.add(1);
        counters.errors.add(is_error);
        counters.bytes_in.add(self.bytes_in);
        counters.bytes_out.add(self.bytes_out);
        counters.status[class].add(1);
        counters.ends[end].add(1);
        measured.record(match self.endpoint {
            Some(endpoint) => &counters.endpoints[endpoint].phases,
            None => &counters.phases,
        });
    }
}

/// Hands the span of a sampled exchange to the exporter.
#[cold]
fn record_span(context: &Context, trace: Trace, record: &Record<'_>, started: Instant) {
    // A trace belongs to a request whose head was read.
    let (Some(spans), Some(head)) = (&context.spans, record.head) else {
        return;
    };
    let place = Place {
        trace_id: trace.sent.trace_id,
        span_id: trace.sent.parent_id,
        parent_id: trace.client_span,
        flags: trace.sent.flags,
    };
    let span = Span::new(place, record, head, context.access_log.unix_us(started));
    spans.send(span, &context.counters.spans_dropped);
}

/// What an exchange took, with the bucket of each figure looked up once for
/// all the histograms that it goes to.
struct Measured {
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

impl Measured {
    fn new(times: &Times, response_bytes: u64) -> Self {
        Measured {
            queue_us: times.queue.map(Figure::time),
            connect_us: times.connect.map(Figure::time),
            first_byte_us: times.first_byte.map(Figure::time),
            total_us: Figure::time(times.total),
            response_bytes: Figure::new(response_bytes),
        }
    }

    fn record(&self, phases: &Phases) {
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
