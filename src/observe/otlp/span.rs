//! What a span tells of an exchange.

use std::time::Duration;

use evenkeel_proto::{FieldKind, Method, RequestHead};

use crate::observe::access_log::Record;
use crate::observe::end::End;

/// An exchange that is over, as the server that its client sees.
#[derive(Debug, Clone)]
pub struct Span {
    /// Id of the trace.
    pub trace_id: u128,
    /// Id of this span.
    pub span_id: u64,
    /// The client's span.
    pub parent_id: Option<u64>,
    /// Flags of the trace.
    pub flags: u8,
    /// When the first byte was there, in microseconds since 1970.
    pub started_unix_us: u64,
    /// How long it took.
    pub took: Duration,
    /// Method, as sent.
    pub method: String,
    /// Whether that is one that is known.
    pub is_known_method: bool,
    /// Path, as sent.
    pub path: String,
    /// Host and port, as sent.
    pub host: String,
    /// `1.0` or `1.1`.
    pub version: &'static str,
    /// Value of `User-Agent`.
    pub user_agent: Option<String>,
    /// Address of the client.
    pub client: String,
    /// Request id, where there is one.
    pub request_id: Option<String>,
    /// Name of the listener.
    pub listener: String,
    /// Name of the route.
    pub route: Option<String>,
    /// Name of the upstream.
    pub upstream: Option<String>,
    /// Name of the last endpoint tried.
    pub endpoint: Option<String>,
    /// Attempts made.
    pub attempts: u32,
    /// Status sent; 0 if none was.
    pub status: u16,
    /// How it ended.
    pub end: End,
    /// Time in the queue, where it had to wait.
    pub queue: Option<Duration>,
    /// Time to open a connection, where none was idle.
    pub connect: Option<Duration>,
    /// Time to the first byte of the response.
    pub first_byte: Option<Duration>,
}

/// Where a span is in its trace.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Id of the trace.
    pub trace_id: u128,
    /// Id of this span.
    pub span_id: u64,
    /// The client's span.
    pub parent_id: Option<u64>,
    /// Flags of the trace.
    pub flags: u8,
}

impl Span {
    /// The span of an exchange that has this line in the log.
    pub fn new(
        place: Place,
        record: &Record<'_>,
        head: &RequestHead,
        started_unix_us: u64,
    ) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Span {
            trace_id: place.trace_id,
            span_id: place.span_id,
            parent_id: place.parent_id,
            flags: place.flags,
            started_unix_us,
            took: record.times.total,
            method: text(head.method_span.of(record.buf)),
            is_known_method: head.method != Method::Other,
            path: text(head.path.of(record.buf)),
            host: text(head.host.of(record.buf)),
            version: head.version.as_str().trim_start_matches("HTTP/"),
            user_agent: head.value_of(FieldKind::UserAgent, record.buf).map(text),
            client: text(record.client),
            request_id: record.request_id.map(text),
            listener: record.listener.to_owned(),
            route: owned(record.route),
            upstream: owned(record.upstream),
            endpoint: owned(record.endpoint),
            attempts: record.attempts,
            status: record.status,
            end: record.end,
            queue: record.times.queue,
            connect: record.times.connect,
            first_byte: record.times.first_byte,
        }
    }

    /// Whether it failed by the doing of a server: ours or the endpoint's.
    pub fn is_error(&self) -> bool {
        self.status >= 500 || self.end.is_endpoint_fault()
    }
}
