//! The facts of an exchange that a line shows.

use std::net::IpAddr;
use std::time::Duration;

use evenkeel_cache::report::Unanswered;
use evenkeel_policy::Instant;
use evenkeel_policy::endpoint::{EndpointId, EndpointState};
use evenkeel_proto::{RequestHead, Version, grpc};

use super::names::Name;
use super::texts::Extras;
use crate::metrics::CacheResult;
use crate::metrics::end::{End, Failure};

/// An exchange that has ended, as its worker knows it.
pub struct Exchange<'a> {
    /// Its figures.
    pub figures: &'a Figures,
    /// The last endpoint tried, in the upstream of the figures.
    pub endpoint: Option<LoggedEndpoint<'a>>,
    /// Address of the client.
    pub client: &'a [u8],
    /// The bytes that the head's spans are in.
    pub buf: &'a [u8],
    /// The request's head; `None` if it was refused.
    pub head: Option<&'a RequestHead>,
    /// The user, where the client is authenticated.
    pub user: Option<&'a [u8]>,
    /// Its request id, where there is one to log.
    pub request_id: Option<&'a [u8]>,
    /// Id of its trace in hexadecimal, where it is part of one.
    pub trace_id: Option<&'a [u8]>,
    /// The stream of the exchange, on a connection with several.
    pub place: StreamPlace,
    /// Counts open connections and exchanges. Called only for formats that show them.
    pub open: &'a dyn Fn() -> Open,
}

/// The connection and the stream of an exchange over HTTP/2. 0 stands for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamPlace {
    /// The number of the connection, which no other of the process has.
    pub connection: u32,
    /// The number of the stream on it.
    pub stream: u32,
}

/// The endpoint of an exchange.
#[derive(Debug, Clone, Copy)]
pub struct LoggedEndpoint<'a> {
    /// Its id within the upstream.
    pub id: EndpointId,
    /// Tells it from another that has its id later.
    pub identity: u64,
    /// All workers write to it: it is read for nothing but the name, once.
    pub state: &'a EndpointState,
}

impl<'a> Exchange<'a> {
    /// The first line of what was sent instead of a head, or a part of it.
    pub(super) fn raw_line(&self) -> &'a [u8] {
        let line = self.buf.split(|&byte| byte == b'\n').next();
        let line = line.unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        &line[..line.len().min(RAW_LINE_LEN)]
    }
}

/// Longest piece of a refused head that a line shows, in bytes.
const RAW_LINE_LEN: usize = 256;

/// The facts of an exchange except texts; filled in as the exchange proceeds.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    /// Port of the client; 0 over a Unix socket.
    pub client_port: u16,
    /// Index of the listener.
    pub listener: u32,
    /// Index of the route, if one matched.
    pub route: Option<u32>,
    /// Index of the upstream, if the route goes to one.
    pub upstream: Option<u32>,
    /// Why it went to this endpoint; `None` where it went to none.
    pub reason: Option<Reason>,
    /// Memory or disk, for answers with files.
    pub source: Option<Source>,
    /// The result of the route's cache, where it has one.
    pub cache: Option<CacheResult>,
    /// Why the cache did not answer, where it did not.
    pub unanswered: Option<Unanswered>,
    /// Age of the stored response for the client, in milliseconds.
    pub cache_age_ms: u32,
    /// The status of a gRPC call.
    pub grpc: GrpcStatus,
    /// Whether the endpoint was asked by a fetch of the cache, which has its own counts.
    pub is_fetched: bool,
    /// Status sent; 0 if none was.
    pub status: u16,
    /// Bytes of the request, head and body.
    pub bytes_in: u64,
    /// Bytes of the response, head and body.
    pub bytes_out: u64,
    /// Bytes of the response's body.
    pub body_bytes_out: u64,
    /// Attempts made.
    pub attempts: u32,
    /// Delay of the response by the route's bandwidth, in milliseconds.
    pub paced_ms: u32,
    /// Queue length when this request joined it.
    pub queued_behind: u32,
    /// The last phase that it reached.
    pub phase: Phase,
    /// Whether the client got a part of a head, after which no answer can follow.
    pub has_half_head: bool,
    /// How it ended.
    pub end: End,
    /// How long each phase took.
    pub times: Times,
    /// Arrival of the response's head.
    pub responded: Option<Instant>,
    /// When it ended.
    pub ended: Instant,
}

/// The status of a gRPC call; none for other requests, or without a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrpcStatus(u8);

impl GrpcStatus {
    /// No status.
    pub const NONE: Self = GrpcStatus(u8::MAX);

    /// A status by its number. All unknown numbers are alike.
    pub fn of(number: u32) -> Self {
        GrpcStatus(u8::try_from(number).unwrap_or(u8::MAX - 1).min(u8::MAX - 1))
    }

    /// Its number.
    pub fn number(self) -> Option<u32> {
        (self != Self::NONE).then(|| self.0.into())
    }

    /// Whether it shows a fault of a server.
    pub fn is_fault(self) -> bool {
        self.number().is_some_and(grpc::is_server_fault)
    }
}

impl Figures {
    /// Whether it counts as an error: the client got no proper response, by no fault of its own.
    ///
    /// Invariant: an answer of the configuration is never an error, whatever its status.
    pub fn is_error(&self) -> bool {
        use Failure::{ClientGone, ClientStalled};
        let is_configured = || {
            let is_served = matches!(
                self.end,
                End::Complete | End::Failure(ClientGone | ClientStalled)
            );
            is_served && self.reason.is_none()
        };
        let is_fault = self.status >= 500 || self.end.is_server_fault() || self.grpc.is_fault();
        is_fault && !is_configured()
    }

    /// An exchange that starts now, and has no results yet.
    pub fn begun(listener: u32, client_port: u16, now: Instant) -> Self {
        Figures {
            client_port,
            listener,
            route: None,
            upstream: None,
            reason: None,
            source: None,
            cache: None,
            unanswered: None,
            cache_age_ms: 0,
            grpc: GrpcStatus::NONE,
            is_fetched: false,
            status: 0,
            bytes_in: 0,
            bytes_out: 0,
            body_bytes_out: 0,
            attempts: 0,
            paced_ms: 0,
            queued_behind: 0,
            phase: Phase::Local,
            has_half_head: false,
            end: End::Complete,
            times: Times::default(),
            responded: None,
            ended: now,
        }
    }

    /// Age of the cached response, in whole seconds.
    pub(super) fn cache_age_s(&self) -> Option<u32> {
        let result = self.cache?;
        let is_answered = !matches!(result, CacheResult::Miss | CacheResult::Bypass);
        is_answered.then_some(self.cache_age_ms / 1000)
    }

    /// Time from the response's head to the exchange's end.
    pub(super) fn transfer(&self) -> Option<Duration> {
        let responded = self.responded?;
        Some(self.ended.duration_since(responded))
    }
}

/// The facts that all formats show. `combined` shows no others.
pub(super) struct Basics<'a> {
    /// When it ended, in microseconds since 1970.
    pub unix_us: u64,
    pub client: &'a [u8],
    pub user: Option<&'a [u8]>,
    pub request: LoggedRequest<'a>,
    pub referer: Option<&'a [u8]>,
    pub user_agent: Option<&'a [u8]>,
    /// Status sent; 0 if none was.
    pub status: u16,
    pub body_bytes_out: u64,
    /// Whether all text above is printable ASCII without `"` and `\`.
    pub is_plain: bool,
}

/// All facts of an exchange, for the formats.
pub(super) struct Record<'a> {
    pub basics: Basics<'a>,
    pub figures: &'a Figures,
    pub listener: &'a Name,
    pub route: Option<&'a Name>,
    pub upstream: Option<&'a Name>,
    pub endpoint: Option<&'a Name>,
    pub host: &'a [u8],
    pub request_id: Option<&'a [u8]>,
    pub trace_id: Option<&'a [u8]>,
    /// Whether all text above is printable ASCII without `"` and `\`.
    pub is_plain: bool,
    pub extras: Extras<'a>,
    pub place: StreamPlace,
    pub open: Open,
}

/// The request of a record.
#[derive(Debug, Clone, Copy)]
pub(super) enum LoggedRequest<'a> {
    /// Its head was read.
    Read {
        method: &'a [u8],
        target: &'a [u8],
        version: Version,
    },
    /// The first line of input that is not a head.
    Refused(&'a [u8]),
}

impl LoggedRequest<'_> {
    /// Whether there was no input that could be a head.
    pub fn is_empty(&self) -> bool {
        matches!(self, LoggedRequest::Refused([]))
    }
}

/// Open connections and exchanges at the end of an exchange, over all workers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Open {
    /// Connections of all listeners.
    pub connections: u32,
    /// Connections of the listener.
    pub listener_connections: u32,
    /// Other exchanges in flight at the upstream or in its queue; 0 without an upstream.
    pub upstream_exchanges: u32,
    /// Other exchanges in flight at the last endpoint tried; 0 without one.
    pub endpoint_exchanges: u32,
}

/// The phases of an exchange, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Phase {
    /// The request's head is read.
    Head,
    /// The head was read; no endpoint is needed, or none was asked for yet.
    #[default]
    Local,
    /// Waiting for an endpoint.
    Queue,
    /// A connection is opened.
    Connect,
    /// The request is sent and the response awaited.
    Response,
    /// The response's head was received.
    Data,
}

/// Why an exchange went to its endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The balancer's first choice had room.
    Picked,
    /// Its first choice was full, so it chose among those with room.
    Next,
    /// It waited in the queue, and this endpoint had room first.
    Queued,
    /// An attempt elsewhere had failed.
    Retry,
    /// An idle connection to this endpoint had gone stale; the attempt was
    /// repeated there on a new one.
    Kept,
    /// The endpoint was ejected: this exchange is its trial.
    Trial,
    /// A connection to it belongs to the client, which authenticated it.
    Pinned,
    /// Its client has a session there, by a cookie.
    Sticky,
}

impl Reason {
    /// The word for logs.
    pub fn word(self) -> &'static str {
        match self {
            Reason::Picked => "picked",
            Reason::Next => "next",
            Reason::Queued => "queued",
            Reason::Retry => "retry",
            Reason::Kept => "kept",
            Reason::Trial => "trial",
            Reason::Pinned => "pinned",
            Reason::Sticky => "sticky",
        }
    }
}

/// The source of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Everything needed was in memory.
    Hot,
    /// A disk had to be asked.
    Cold,
}

impl Source {
    /// The word for logs.
    pub fn word(self) -> &'static str {
        match self {
            Source::Hot => "hot",
            Source::Cold => "cold",
        }
    }
}

/// Durations of an exchange's phases; `None` for a phase that was not reached.
#[derive(Debug, Clone, Copy, Default)]
pub struct Times {
    /// From the head's first byte to its last.
    pub head: Duration,
    /// In the upstream's queue, where it had to wait.
    pub queue: Option<Duration>,
    /// Opening a connection, where none was idle.
    pub connect: Option<Duration>,
    /// From the request sent, by the last attempt, to the response's head
    /// received.
    pub first_byte: Option<Duration>,
    /// From the head's first byte to the exchange's end.
    pub total: Duration,
}

/// A client's address as text, without a pointer: made once for a connection.
#[derive(Debug, Clone, Copy)]
pub struct AddressText {
    bytes: [u8; AddressText::CAPACITY],
    len: u8,
}

impl AddressText {
    /// The longest text: `0000:0000:0000:0000:0000:0000:0000:0000`.
    const CAPACITY: usize = 39;

    /// The address; `unix` for a client on a Unix socket.
    pub fn new(client: Option<IpAddr>) -> Self {
        use std::io::Write;
        let mut bytes = [0; Self::CAPACITY];
        let mut rest = &mut bytes[..];
        let written = match client {
            Some(address) => write!(rest, "{address}"),
            None => write!(rest, "unix"),
        };
        debug_assert!(written.is_ok(), "an address fits");
        let len = (Self::CAPACITY - rest.len()) as u8;
        AddressText { bytes, len }
    }

    /// The text, which is ASCII.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_addresses() {
        for (address, text) in [
            ("0.0.0.0", "0.0.0.0"),
            ("10.200.3.45", "10.200.3.45"),
            ("255.255.255.255", "255.255.255.255"),
            ("100.10.1.101", "100.10.1.101"),
            ("::1", "::1"),
            ("2001:db8::a", "2001:db8::a"),
            (
                "2001:db81:2222:3333:4444:5555:6666:7777",
                "2001:db81:2222:3333:4444:5555:6666:7777",
            ),
        ] {
            let address: IpAddr = address.parse().expect("an address");
            assert_eq!(AddressText::new(Some(address)).as_bytes(), text.as_bytes());
        }
        assert_eq!(AddressText::new(None).as_bytes(), b"unix");
    }
}
